"""Imported by the process that workers are forked from: they inherit the modules that their first task needs.

It reads no file of a log and maps no buffer: workers that inherited a buffer of direct I/O would share it.
"""

from __future__ import annotations

from compaction.kernels.compiling import cache
from compaction.run import passes
from compaction.task_runner import freeze_gc

#: the modules of tasks, and numba
__all__ = ["cache", "passes"]

freeze_gc()
