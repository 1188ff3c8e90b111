"""Imported by the process that worker processes are forked from: what their first task would load, they inherit.

It reads no file of a log and maps no buffer: a worker that inherited a buffer of direct I/O would write into that of others.

Tested by ``tests/engines/test_processes.py``.
"""

from __future__ import annotations

from compaction.engine import protocol
from compaction.startup import background, kernel_groups
from compaction.startup.freeze_gc import freeze_gc

__all__ = ["protocol"]

_groups = {*background.PASSES, *background.ERASURE, *background.RARE}
# the others are compiled by the first worker that calls them
kernel_groups.load(*_groups.difference(kernel_groups.missing(*_groups)))
freeze_gc()
