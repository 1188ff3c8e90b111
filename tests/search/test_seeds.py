"""Tests that decide whether a change is merged give the same verdict on the same commit: they draw no seeds.

``make search`` does; what it finds becomes a case.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).resolve().parents[1]
#: the search itself
ALLOWED = {"tests/search/__main__.py"}
#: functions that draw from the system; those that need an argument to be repeatable
DRAWS = {f"os.{name}" for name in ("urandom", "getrandom")}
SEEDED = {"random.Random", "np.random.default_rng", "numpy.random.default_rng", "default_rng"}


def called(tree: ast.AST) -> Iterator[tuple[str, int, ast.Call]]:
    """The calls by their dotted names, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno, node


def draws(source: str) -> list[int]:
    """The lines that draw a number which another run would not draw."""
    found = []
    for name, line, call in called(ast.parse(source)):
        module = name.rpartition(".")[0]
        seeded = name in SEEDED
        if name in DRAWS or module in ("secrets", "np.random", "random") and not seeded or seeded and not call.args:
            found.append(line)
    return found


@pytest.mark.parametrize("function", sorted(DRAWS | SEEDED | {"secrets.randbelow", "random.random", "np.random.randint"}))
def test_a_drawn_number_is_found(function: str) -> None:
    assert draws(f"x = {function}()") == [1]
    assert draws(f"x = {function}(1)") == ([] if function in SEEDED else [1])


def test_no_test_draws_a_seed() -> None:
    files = {path.relative_to(TESTS.parent).as_posix(): path for path in TESTS.rglob("*.py")}
    found = {name: lines for name, path in files.items() if name not in ALLOWED and (lines := draws(path.read_text()))}
    assert found == {}


def test_hypothesis_draws_the_same_examples_in_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_example_is_too_slow() -> None:
    assert settings.default is not None
    assert (settings.default.deadline, settings.default.derandomize, settings.default.print_blob) == (None, True, True)


