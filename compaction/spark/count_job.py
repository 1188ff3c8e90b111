"""Counting on Spark: tasks read byte ranges, a shuffle brings the tables of keys together by topic and hash of the key.

Tested by ``tests/commands/test_count_keys.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyspark import SparkContext

from compaction.source.count_logs import CountTask, Emitted, KeysOf, TaskCounts, count_tasks, join_keys
from compaction.source.key_totals import Largest
from compaction.spark.progress import Progress
from compaction.startup.freeze_gc import freeze_gc

#: where counts of records are collected
_COUNTS = (-1, 0)


class SparkCountRunner:
    """Implements ``compaction.source.count_logs.CountRunner`` with one Spark job, which ``progress`` shows."""

    def __init__(self, sc: SparkContext, progress: Progress) -> None:
        self._sc, self._progress = sc, progress

    def count(self, packs: Sequence[Sequence[CountTask]], largest: Largest) -> list[TaskCounts | KeysOf]:
        keys = {(task.topic, part) for tasks in packs for task in tasks for part in range(task.partitions)}
        reducers = max(1, self._sc.defaultParallelism, len(keys))

        def read(packs: Iterable[Sequence[CountTask]]) -> Iterator[tuple[tuple[int, int], Emitted]]:
            freeze_gc()
            for tasks in packs:
                for emitted in count_tasks(tasks):
                    yield _COUNTS if isinstance(emitted, TaskCounts) else emitted[0], emitted

        def join(items: Iterable[tuple[tuple[int, int], Emitted]]) -> Iterator[TaskCounts | KeysOf]:
            freeze_gc()
            return join_keys((emitted for _, emitted in items), largest)

        emitted = self._sc.parallelize(packs, max(1, len(packs))).mapPartitions(read)
        # consecutive partitions of a large topic are joined by different reducers
        joined = emitted.partitionBy(reducers, lambda key: (key[0] * 31 + key[1] + 31) % reducers).mapPartitions(join)
        with self._progress.watched(self._sc, "count", [sum(task.read.size_bytes for task in tasks) for tasks in packs]):
            self._sc.setJobDescription(f"count: read {sum(map(len, packs))} byte ranges")
            return joined.collect()
