"""Has the kernels of a run compiled before they are needed: while logs are looked at and Spark starts, processes of their own
compile what no earlier run has left."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from pathlib import Path

from compaction.passes import ahead

#: what the tasks of a compaction call, longest to compile first
PASSES = ("second_pass", "first_pass", "scan")
_ROOT = Path(__file__).resolve().parents[2]


def compile_ahead(*groups: str) -> None:
    """Start compiling those of some groups of kernels that are missing; they end with this process."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    for group in ahead.missing(*groups):
        compiler = subprocess.Popen(  # noqa: S603 - this interpreter, this package
            [sys.executable, "-m", ahead.__name__, group],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        atexit.register(_end, compiler)


def _end(compiler: subprocess.Popen[bytes]) -> None:
    compiler.terminate()
    compiler.wait()
