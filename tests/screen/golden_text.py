"""Compares what a command prints with a golden file; ``pytest --rewrite-golden`` writes the files anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

_DIRECTORY = Path(__file__).with_name("golden")


def check_golden(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """``text`` is that of ``golden/<name>.txt``."""
    file = _DIRECTORY / f"{name}.txt"
    if request.config.getoption("--rewrite-golden"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def widest(text: str) -> int:
    """The cells of the widest line."""
    return max(map(cell_len, text.splitlines()))
