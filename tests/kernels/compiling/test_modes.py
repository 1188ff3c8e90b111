"""The tests of the kernels once more, as plain Python and with bounds checks, to find what the compiler could hide."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.damage.fuzz import BOUNDS_CHECKED
from tests.side_by_side import started

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
#: about the compiler itself, which these modes change or do without
COMPILER = ("test_cache.py", "test_compiler.py")
KERNELS = (*(f"--ignore={Path(__file__).with_name(name)}" for name in (*COMPILER, Path(__file__).name)), "tests/kernels")
#: by the variable that sets the mode; without the compiler, what would take minutes is left out
RUNS = {
    "the kernels, NUMBA_DISABLE_JIT": (*KERNELS, "-k", "not [4096- and not (ends_anywhere and not [0])"),
    "the kernels, NUMBA_BOUNDSCHECK": KERNELS,
    "rounds over logs, NUMBA_DISABLE_JIT": ("tests/passes/test_rounds.py", "-k", "sizes1 or None or mostly_clean"),
}
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Done]]]:
    """All runs, side by side: each is one busy process."""
    place = tmp_path_factory.mktemp("modes")

    def run(name: str) -> Done:
        mode = name.rpartition(" ")[2]
        cache = BOUNDS_CHECKED if mode == "NUMBA_BOUNDSCHECK" else place
        environment = {**os.environ, mode: "1", "NUMBA_CACHE_DIR": str(cache)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *RUNS[name]]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    with started(run, RUNS) as found:
        yield found


@pytest.mark.parametrize("name", RUNS)
def test_tests_pass_in_every_mode(runs: dict[str, Future[Done]], name: str) -> None:
    done = runs[name].result()
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
