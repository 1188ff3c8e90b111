"""Compiles kernels that are not cached in a background process, while the driver plans the run and Spark starts.

Tested by ``tests/spark/test_cold_start.py`` and ``tests/kernels/compiling/test_cache.py``.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from pathlib import Path

from compaction.startup import kernel_groups

#: groups of kernels that the tasks of a compaction call, in that order; planning has compiled most of ``scan`` by then
PASSES = ("first_pass", "second_pass", "scan")
#: groups that few logs need, compiled on their first call
RARE = ("large_logs", "markers", "legacy")
_ROOT = Path(__file__).resolve().parents[2]


def compile_kernels(*groups: str) -> None:
    """Start to compile the groups of kernels that are not cached, in this order, by a process that ends with this one.

    One process compiles all groups: kernels that they share are compiled once, and Spark's start occupies the other cores.
    """
    missing = kernel_groups.missing(*groups)
    if not missing:
        return
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    compiler = subprocess.Popen(  # noqa: S603 - this interpreter, this package
        [sys.executable, "-m", kernel_groups.__name__, *missing],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(_end, compiler)


def _end(compiler: subprocess.Popen[bytes]) -> None:
    compiler.terminate()
    compiler.wait()
