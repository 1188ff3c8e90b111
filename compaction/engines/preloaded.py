"""Imported by the process that worker processes are forked from: what their first task would load, they inherit.

It reads no file of a log and maps no buffer: a worker that inherited a buffer of direct I/O would write into that of others.
"""

from __future__ import annotations

from compaction.kernels.compiling import cache
from compaction.run import passes
from compaction.task_runner import freeze_gc

#: the modules of tasks, and numba
__all__ = ["cache", "passes"]

freeze_gc()
