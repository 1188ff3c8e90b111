"""Former names."""

from __future__ import annotations

from compaction.passes.merge import CleanedParts
from compaction.run.offset_maps import pass_2
from compaction.task_runner import Engine as Passes

__all__ = ["CleanedParts", "Passes", "pass_2"]
