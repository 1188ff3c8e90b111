"""A sample of the fuzzer's inputs, with bounds checking on; ``tests.damage.fuzz`` does more of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INPUTS = 600


def test_damaged_bytes_are_read_or_raise_the_packages_errors() -> None:
    """No reader, kernel or pass leaves its arrays, raises an unexpected error, or changes a log that it cannot read."""
    command = [sys.executable, "-m", "tests.damage.fuzz", "--inputs", str(INPUTS), "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith(f"{INPUTS} damaged inputs, nothing found\n"), done.stdout


@pytest.mark.slow
def test_a_thousand_damaged_inputs() -> None:
    command = [sys.executable, "-m", "tests.damage.fuzz", "--inputs", "1000", "--seed", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
