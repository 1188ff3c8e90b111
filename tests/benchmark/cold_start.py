"""``python -m tests.benchmark.cold_start``: the cost of the first run on the sample logs, when no kernel is compiled.

Complete processes of ``jobs/compact.py``, alternating between an empty kernel cache (cold) and the one that this run filled
(warm); the medians of wall time and of the CPU time of all processes of a run, in seconds. The figures are meaningful only on
an idle machine.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.golden import unpack_sample

_ROOT = Path(__file__).resolve().parents[2]
_AS_OF_MS = 1_798_761_600_000
_PR_SET_CHILD_SUBREAPER = 36


def _adopt() -> None:
    """Become the parent (on Linux) of orphaned processes of a run, such as Spark's JVM, so that their CPU time is counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _cpu_s() -> float:
    """CPU seconds of all ended child processes."""
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(kernels: Path, work: Path) -> tuple[float, float]:
    """Wall and CPU seconds of one run on a new copy of the sample."""
    log_dir = unpack_sample(Path(tempfile.mkdtemp(dir=work)))
    command = [sys.executable, "jobs/compact.py", "--log-dir", str(log_dir), "--as-of-ms", str(_AS_OF_MS), "--include-active"]
    before, begun = _cpu_s(), time.perf_counter()
    subprocess.run(command, cwd=_ROOT, env={**os.environ, "NUMBA_CACHE_DIR": str(kernels)}, capture_output=True, check=True)
    wall_s = time.perf_counter() - begun
    return wall_s, _cpu_s() - before


def main() -> None:
    """Print the medians and their difference."""
    parser = argparse.ArgumentParser(description="Time the first run against a later one.")
    parser.add_argument("--runs", type=int, default=5, help="of each kind (default: 5)")
    options = parser.parse_args()
    _adopt()
    seconds: dict[str, list[tuple[float, float]]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as work:
        kernels = Path(work) / "kernels"
        for _ in range(options.runs):
            for kind, found in seconds.items():
                found.append(run(kernels, Path(work)))
                print(f"{kind}: {found[-1][0]:.2f} s, CPU {found[-1][1]:.2f} s", file=sys.stderr, flush=True)
            shutil.rmtree(kernels)
    medians = {kind: [statistics.median(values) for values in zip(*found, strict=True)] for kind, found in seconds.items()}
    medians["difference"] = [cold - warm for cold, warm in zip(medians["cold"], medians["warm"], strict=True)]
    for kind, (wall_s, cpu_s) in medians.items():
        print(f"{kind:<10} {wall_s:6.2f} s, CPU {cpu_s:6.2f} s")
    print(f"on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
