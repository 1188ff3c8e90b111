"""The passes of ``engine.protocol`` as Spark jobs over all logs of a run.

Pass 1 (**build the offset map**) scans slices into packed map entries and lookups. They are shuffled by the shard of their
log's map; one more partition receives the summaries, which the job collects. Pass 2 (**clean into groups**) resolves each shard
into survivor entries, shuffles these by output part, and writes the parts. Only packed arrays are shuffled: there is no Python
object per record.

Tested by ``tests/crash/test_retries.py``, ``tests/spark/test_secret.py`` and ``tests/conformance/test_scenarios.py``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark import RDD, SparkContext

from compaction.engine.concurrency import run_concurrently
from compaction.engine.protocol import KEYS, CleanedParts, MapResult
from compaction.engine.sizing import Sizes, assign_shards, max_records_by_log, pack
from compaction.fs.filesystem import ReadableFileSystem
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.logdir.throttle import UNLIMITED
from compaction.passes.build_map import SUMMARY, Key, collect_keys, flag_single_task_logs, scan_slices
from compaction.passes.clean_into import clean_part, join_parts
from compaction.passes.merge import merge_lists, resolve_shard, split_by_part
from compaction.passes.tasks import (
    CleanContext,
    GroupOutput,
    MapContext,
    MapSettings,
    OutputPart,
    Packed,
    PartResult,
    Resolved,
    Slice,
    SliceSummary,
)
from compaction.passes.txn_headers import scan_transactions
from compaction.spark.progress import Progress
from compaction.startup.freeze_gc import freeze_gc


@contextmanager
def job_progress(
    sc: SparkContext,
    progress: Progress | None,
    name: str,
    description: str,
    tasks: Sequence[Sequence[Slice] | Sequence[OutputPart]],
) -> Iterator[None]:
    """Jobs of the block have ``description`` in Spark's UI; progress shows them as the pass ``name``."""
    if progress is None:
        sc.setJobDescription(description)
        yield
        return
    task_bytes = [sum(each.size_bytes for each in task) for task in tasks]
    progress.start(name, sum(task_bytes))
    with progress.watch_job(sc, name, task_bytes):
        sc.setJobDescription(description)
        yield
    progress.done(name)


#: full shards per reduce task of pass 1
_SHARDS_PER_TASK = 6
#: output parts that a task of pass 2 writes concurrently: while one waits for the disk, others proceed
_PART_CONCURRENCY = 4
#: how long to wait for speculative attempts that Spark has killed
_KILLED_ATTEMPTS_S = 10.0


class SparkPasses:
    """Implements ``compaction.engine.protocol.Passes`` for one run.

    :param sizes: how much one task reads
    :param progress: shows the bytes that the tasks of each pass have read
    """

    def __init__(self, sc: SparkContext, sizes: Sizes, progress: Progress | None = None) -> None:
        self._sc = sc
        self._sizes = sizes
        self._progress = progress

    def _tasks(self, slices: Sequence[Slice]) -> list[list[Slice]]:
        """The slices of each task of a pass over ``slices``."""
        return pack(slices, lambda part: part.size_bytes, self._sizes.scan_bytes)

    def read_transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """Reads batch headers: the transaction summary of each slice."""
        tasks = self._tasks(slices)
        with job_progress(self._sc, self._progress, "transactions", f"read batch headers of {len(slices)} slices", tasks):
            headers = self._sc.parallelize(tasks, len(tasks))
            return headers.flatMap(lambda task: [scan_transactions(part, files) for part in task]).collect()

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Mapping[int, KeyFilter]:
        """The keys of the dirty records in ``slices``, by log."""
        task_bytes = sum(part.size_bytes for part in slices) // self._sc.defaultParallelism
        tasks = pack(slices, lambda part: part.size_bytes, max(1, task_bytes))
        shared = self._sc.broadcast((dict(logs), dict(filters)))

        # the settings contain the run's secret and are not broadcast: PySpark writes broadcasts to files
        def collect(task: list[Slice]) -> Iterator[tuple[int, KeyFilter]]:
            freeze_gc()
            known, empty = shared.value
            return collect_keys(task, known, settings, empty)

        found = dict(filters)
        with job_progress(self._sc, self._progress, "keys", f"collect the keys of {len(slices)} dirty slices", tasks):
            for log, keys in self._sc.parallelize(tasks, len(tasks)).flatMap(collect).collect():
                found[log].join(keys)
        return found

    def build_offset_map(self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings) -> MapResult:
        """Pass 1. The summaries are collected; the map shards stay in shuffle files for ``clean_into_groups``."""
        tasks = self._tasks(slices)
        shards = sum(log.shards for log in logs.values())
        records = max_records_by_log(slices)
        fill = {log: (work.shards, records[log]) for log, work in logs.items()}
        reducers, first = assign_shards(fill, _SHARDS_PER_TASK * self._sizes.shard_entries, 2 * self._sc.defaultParallelism)
        shared = self._sc.broadcast((flag_single_task_logs(logs, tasks), first))

        # PySpark writes broadcasts, and functions larger than 1 MiB, to files. So the settings, which contain the secret, are
        # part of the function, and everything that grows with the logs is broadcast
        def partition(key: Key) -> int:
            log, shard = key
            return reducers if shard == SUMMARY else (shared.value[1][log] + shard) % reducers

        def scan_task(task: Iterable[list[Slice]]) -> Iterator[tuple[Key, list[Packed | Resolved | SliceSummary]]]:
            freeze_gc()
            known, _ = shared.value
            for part in task:
                yield from scan_slices(part, known, settings)

        entries = self._sc.parallelize(tasks, len(tasks)).mapPartitions(scan_task)
        # without partitionBy, reduceByKey would combine on the map side, and a scan task would hold all of its output in memory
        shuffled = entries.partitionBy(reducers + 1, partition)
        merged: RDD[tuple[Key, list[Any]]] = shuffled.reduceByKey(merge_lists, reducers + 1, partition)
        description = f"pass 1: scan {len(slices)} slices into {shards} map shards"
        with job_progress(self._sc, self._progress, "pass 1", description, tasks):
            summaries = self._sc.runJob(merged, _summaries, [reducers])
        return MapResult(tuple(summaries), merged)

    def clean_into_groups(
        self,
        mapped: MapResult,
        logs: Mapping[int, CleanContext],
        parts: Sequence[OutputPart],
        load_factor: float,
        *,
        dry_run: bool,
    ) -> CleanedParts:
        """Pass 2 over ``parts``, which are in the order of logs and offsets; all of their logs are in ``logs``."""
        # the newest segments retain most records and take longest: they are scheduled first
        tasks = pack(parts[::-1], lambda part: part.size_bytes, self._sizes.slice_bytes)
        task_of = {(part.output.log, part.number): t for t, task in enumerate(tasks) for part in task}
        first_offsets = _first_offsets(parts)
        first_dirty = {log: work.first_dirty_offset for log, work in logs.items()}
        shared = self._sc.broadcast((dict(logs), tasks))
        # the rate limits a task, which therefore has one thread
        throttled = any(work.bytes_per_second < UNLIMITED for work in logs.values())

        def resolve(items: Iterable[tuple[Key, list[Any]]]) -> Iterator[tuple[Key, list[Any]]]:
            for (log, shard), packed in items:
                if shard != SUMMARY and log in first_offsets:
                    survivors, keys = resolve_shard(packed, first_dirty[log], load_factor)
                    yield (log, KEYS), [keys]
                    for part, entries in split_by_part(survivors, first_offsets[log]):
                        yield (log, part), [entries]

        def clean_task(task: int, items: Iterable[tuple[Key, list[Any]]]) -> Iterator[PartResult | tuple[int, int]]:
            freeze_gc()
            known, work = shared.value
            survivors = dict(items)
            for (log, part), counts in survivors.items():
                if part == KEYS:
                    yield log, sum(counts)

            def cleaned(part: OutputPart) -> PartResult:
                log = part.output.log
                return clean_part(part, known[log], survivors.get((log, part.number), []), dry_run=dry_run)

            threads = 1 if dry_run or throttled else _PART_CONCURRENCY
            yield from run_concurrently([partial(cleaned, part) for part in work[task]], threads)

        def partition(key: Key) -> int:
            log, part = key
            # the count of keys goes to the task of the log's first part
            return task_of[log, max(part, 0)]

        survivors = mapped.merged.mapPartitions(resolve).reduceByKey(merge_lists, len(tasks), partition)
        description = f"pass 2: {'measure' if dry_run else 'write'} {len(parts)} output parts"
        with job_progress(self._sc, self._progress, "pass 2", description, tasks):
            found = survivors.mapPartitionsWithIndex(clean_task).collect()
        _await_killed_attempts(self._sc)
        keys: dict[int, int] = {}
        for item in found:
            if not isinstance(item, PartResult):
                keys[item[0]] = keys.get(item[0], 0) + item[1]
        return CleanedParts(tuple(item for item in found if isinstance(item, PartResult)), keys)

    def join_parts(self, groups: Sequence[tuple[GroupOutput, CleanContext, list[PartResult]]]) -> list[PartResult]:
        """Joins the parts of groups with several parts."""
        if not groups:
            return []
        self._sc.setJobDescription(f"join the parts of {len(groups)} segments")
        joined = self._sc.parallelize(groups, len(groups)).map(lambda group: join_parts(*group)).collect()
        _await_killed_attempts(self._sc)
        return joined


def _await_killed_attempts(sc: SparkContext) -> None:
    """Waits, with a timeout, until no task runs: killed attempts may still write files, which the swap removes.

    Only under speculative execution. The next run removes files that are written later.
    """
    if sc.getConf().get("spark.speculation", "false") != "true":
        return
    tracker = sc._jsc.sc().statusTracker()
    deadline = time.monotonic() + _KILLED_ATTEMPTS_S
    while time.monotonic() < deadline and any(each.numRunningTasks() for each in tracker.getExecutorInfos()):
        time.sleep(_KILLED_ATTEMPTS_S / 100)


def _summaries(items: Iterable[tuple[Key, list[Any]]]) -> list[SliceSummary]:
    return [summary for _, found in items for summary in found]


def _first_offsets(parts: Sequence[OutputPart]) -> dict[int, NDArray[np.int64]]:
    """int64[n] first offsets of the output parts of each log."""
    bounds: dict[int, list[int]] = {}
    for part in parts:
        bounds.setdefault(part.output.log, []).append(part.first_offset)
    return {log: np.array(offsets, np.int64) for log, offsets in bounds.items()}
