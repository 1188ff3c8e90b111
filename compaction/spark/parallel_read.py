"""Reads many logs as one Spark job: indexes, first and last batches, producers. The tasks write nothing.

Tested by ``tests/engine/test_delete.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from compaction.cleaning.log_view import LogView
from compaction.engine.prepare import LogReadTask, ParallelRead, read_without_recovery
from compaction.errors import CompactionError
from compaction.stores.mixed import file_system

if TYPE_CHECKING:
    from compaction.spark.session import Session

_TASKS_PER_CORE = 4


def spark_parallel_read(session_factory: Callable[[], Session]) -> ParallelRead:
    """A ``ParallelRead`` by Spark tasks; the session is started when it is first used."""

    def parallel_read(tasks: Sequence[LogReadTask]) -> list[LogView | CompactionError | None]:
        sc = session_factory().sparkContext
        sc.setJobDescription(f"read {len(tasks)} logs")
        partitions = min(len(tasks), _TASKS_PER_CORE * sc.defaultParallelism)

        def read(task: LogReadTask) -> LogView | CompactionError | None:
            return read_without_recovery(file_system([task.location.path]), task)

        return sc.parallelize(tasks, partitions).map(read).collect()

    return parallel_read
