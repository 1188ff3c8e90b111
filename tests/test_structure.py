"""Rules of the tree that neither ruff nor import-linter checks."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent


def test_each_generator_of_numbers_has_a_seed() -> None:
    """Ruff forbids functions without one."""
    without = []
    for module in (ROOT / "tests").rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call) and not node.args]
        made = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
        without += [str(module)] if made & {"Random", "default_rng"} else []
    assert without == []


def test_hypothesis_tries_the_same_examples_in_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after other tests, which have imported other modules: their constants would be among the examples."""
    drawn: list[tuple[int, bytes]] = []

    @given(st.integers(), st.binary())
    @settings(max_examples=300)
    def collect(number: int, data: bytes) -> None:
        drawn.append((number, data))

    collect()
    first = [*drawn]
    drawn.clear()
    other = ModuleType("other_module")
    other.__file__ = str(tmp_path / "other_module.py")
    (tmp_path / "other_module.py").write_text(f"NUMBERS = {[10**9 + number for number in range(1000)]}")
    monkeypatch.setitem(sys.modules, "other_module", other)
    collect()
    assert drawn == first
    assert len(set(first)) > 100
    assert settings.default is not None
    # none is too slow on a busy machine
    assert (settings.default.deadline, settings.default.derandomize, settings.default.print_blob) == (None, True, True)
