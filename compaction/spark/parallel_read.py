"""Reads very many logs at once, as a Spark job: indexes, first and last batches, producers. Nothing is written by the tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compaction.cleaning.log_view import LogView
from compaction.engine.prepare import LogReadTask, ParallelRead, look
from compaction.errors import CompactionError
from compaction.spark.session import Session
from compaction.stores.mixed import file_system

_TASKS_PER_CORE = 4


def spark_parallel_read(session_factory: Callable[[], Session]) -> ParallelRead:
    """A ``ParallelRead`` that starts the session when it is called."""

    def parallel_read(tasks: Sequence[LogReadTask]) -> list[LogView | CompactionError | None]:
        sc = session_factory().sparkContext
        sc.setJobDescription(f"read {len(tasks)} logs")
        parts = min(len(tasks), _TASKS_PER_CORE * sc.defaultParallelism)
        return sc.parallelize(tasks, parts).map(lambda task: look(file_system([task.location.path]), task)).collect()

    return parallel_read
