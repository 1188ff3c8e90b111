"""Reduces garbage collection in Spark's Python workers, which collect after every task: loaded modules are no garbage."""

from __future__ import annotations

import gc


class _Worker:
    """State of this worker process."""

    frozen = False


def freeze_gc() -> None:
    """Exclude all objects that exist now from later collections; to be called at the start of a task. Only the first call has
    an effect."""
    if not _Worker.frozen:
        _Worker.frozen = True
        gc.freeze()
