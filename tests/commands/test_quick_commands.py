"""Commands without work do not import what takes long to import: large libraries and the engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compaction.cli.console import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
LARGE = ("numba", "llvmlite", "pyarrow", "pyspark", "cryptography", "compaction.run")
#: runs a command and prints its exit code, and which of ``LARGE`` it has imported
SCRIPT = f"""
import sys
from compaction.cli.console import main
code = main(sys.argv[1:])
print(code, *sorted(sys.modules.keys() & {set(LARGE)!r}))
"""


def imported(*arguments: str | Path) -> str:
    """The last line that a process prints: the exit code of a command, and which of ``LARGE`` it has imported."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("command", ["compact", "expire"])
def test_on_an_empty_directory(tmp_log_dir: Path, tmp_path: Path, command: str) -> None:
    assert imported(command, "--log-dir", tmp_log_dir, "--allow-empty") == "0"
    copied = imported(command, "--log-dir", tmp_log_dir, "--allow-empty", "--output-dir", tmp_path / "out")
    assert copied == "0 compaction.run"


@pytest.mark.parametrize("command", ["compact", "expire"])
def test_where_no_log_could_be_changed_in_place(tmp_log_dir: Path, command: str) -> None:
    assert imported(command, "--log-dir", f"local-tiered+file://{tmp_log_dir}", "--allow-empty") == "2 compaction.run"


@pytest.mark.parametrize("command", [name for name, _, _ in COMMANDS])
def test_for_help(command: str) -> None:
    assert imported(command, "--help") == "0"


@pytest.mark.parametrize("command", ["compact", "expire", "dry-run"])
def test_for_a_usage_error(tmp_path: Path, command: str) -> None:
    assert imported(command, "--log-dir", tmp_path / "missing") == "2"
