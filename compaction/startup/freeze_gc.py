"""What makes a Python worker of Spark quick: Spark has it collect garbage after every task, and what is loaded once is none."""

from __future__ import annotations

import gc


class _Worker:
    """This process, as far as it serves tasks."""

    settled = False


def freeze_gc() -> None:
    """Keep all that is loaded by now out of later collections; to be called at the start of a task. Only the first call
    counts."""
    if not _Worker.settled:
        _Worker.settled = True
        gc.freeze()
