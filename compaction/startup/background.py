"""Compiles kernels that are not cached in a background process, while the driver plans the run and Spark starts.

Tested by ``tests/spark/test_cold_start.py`` and ``tests/kernels/compiling/test_cache.py``.
"""

from __future__ import annotations

import atexit
import subprocess
from collections.abc import Sequence

from compaction.names import LogLocation
from compaction.startup.import_path import module_command

#: groups of kernels that the tasks of a compaction call, in that order; planning has compiled most of ``scan`` by then
PASSES = ("first_pass", "second_pass", "scan")
#: the same for an erasure
ERASURE = ("matches", "second_pass", "scan")
#: groups that few logs need, compiled on their first call
RARE = ("large_logs", "markers", "v0_v1")
#: a string: importing this module defines all kernels, which takes a tenth of a second
_COMPILER = "compaction.startup.kernel_groups"


def compile_kernels(logs: Sequence[LogLocation], *groups: str) -> None:
    """Start to compile the groups of kernels that are not cached, in this order, by a process that ends with this one. Without
    logs, none are needed, nor numba.

    One process compiles all groups: kernels that they share are compiled once, and Spark's start occupies the other cores.
    """
    if not logs:
        return
    from compaction.kernels.compiling.cache import is_compiled

    missing = [group for group in groups if not is_compiled(group)]
    if not missing:
        return
    compiler = subprocess.Popen(  # noqa: S603 - this interpreter, this package
        module_command(_COMPILER, *missing),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # an interrupt at the terminal is for this process, which then ends it
        start_new_session=True,
    )
    atexit.register(_end, compiler)


def _end(compiler: subprocess.Popen[bytes]) -> None:
    compiler.terminate()
    compiler.wait()
