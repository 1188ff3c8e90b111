"""Has the kernels of a run compiled before they are needed: while logs are looked at and Spark starts, a process of its own
compiles what no earlier run has left."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from pathlib import Path

from compaction.startup import warm_up

#: what the tasks of a compaction call, in the order in which they do; planning has compiled ``scan`` by then
PASSES = ("first_pass", "second_pass", "scan")
#: what few logs need: compiled when they do
RARE = ("large_logs", "markers", "legacy")
_ROOT = Path(__file__).resolve().parents[2]


def compile_kernels(*groups: str) -> None:
    """Start compiling those of some groups of kernels that are missing, in this order. The compiler ends with this process.

    It is one process for all groups: what they share is compiled once, and the other cores are busy with Spark's start.
    """
    missing = warm_up.missing(*groups)
    if not missing:
        return
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    compiler = subprocess.Popen(  # noqa: S603 - this interpreter, this package
        [sys.executable, "-m", warm_up.__name__, *missing],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(_end, compiler)


def _end(compiler: subprocess.Popen[bytes]) -> None:
    compiler.terminate()
    compiler.wait()
