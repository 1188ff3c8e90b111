"""The tests of the kernels once more with bounds checks, to find reads and writes outside of an array."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.damage.fuzz import BOUNDS_CHECKED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DRAWN = (
    f"tests/scenarios/test_drawn.py::test_{name}"
    for name in (
        "random_logs_are_left_as_by_the_plain_cleaner",
        "logs_cleaned_from_anywhere_are_left_as_by_the_plain_cleaner",
        "buffers_of_any_size_give_the_same",
    )
)
#: about the compiler itself, which the mode changes
COMPILER = ("test_cache.py", Path(__file__).name)
IGNORED = (f"--ignore={Path(__file__).with_name(name)}" for name in COMPILER)


def test_kernels_stay_within_their_arrays() -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(BOUNDS_CHECKED)}
    tests = (*IGNORED, "tests/kernels", *DRAWN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
