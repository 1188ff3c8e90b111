"""A sample of the fuzzer's inputs, with bounds checking on; ``tests.damage.fuzz`` does more of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(("inputs", "seed"), [(600, 7), pytest.param(1000, 2, marks=pytest.mark.slow)])
def test_damaged_bytes_are_read_or_raise_the_packages_errors(inputs: int, seed: int) -> None:
    """No reader, kernel or pass leaves its arrays, raises an unexpected error, or changes a log that it cannot read."""
    command = [sys.executable, "-m", "tests.damage.fuzz", "--inputs", str(inputs), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith(f"{inputs} damaged inputs, nothing found\n"), done.stdout
