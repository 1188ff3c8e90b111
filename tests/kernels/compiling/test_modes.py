"""The tests of the kernels once more, as plain Python and with bounds checks, to find what the compiler could hide."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
#: about the compiler itself, which these modes change or do without
CACHE = "tests/kernels/compiling/test_cache.py"


@pytest.mark.parametrize("mode", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_the_kernels_pass_their_tests_in_every_mode(mode: str, tmp_path: Path) -> None:
    environment = {**os.environ, mode: "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    left_out = ("--ignore", __file__, "--ignore", CACHE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, "tests/kernels"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]


def test_rounds_give_the_same_output_without_a_compiler(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/passes/test_rounds.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
