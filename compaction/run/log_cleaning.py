"""The name of ``Log`` until all who import it are adapted."""

from compaction.run.log import Log as LogCleaning

__all__ = ["LogCleaning"]
