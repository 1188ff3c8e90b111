"""The two passes as Spark jobs, over all logs of a run at once.

Pass 1 scans slices into packed map entries; ``reduceByKey`` brings each shard of each log together, and a last partition
carries the summaries, which the first job collects. Pass 2 resolves each shard into survivor marks, brings each piece's marks
together and rewrites the pieces. No Python object stands for a record anywhere: what is shuffled are packed arrays.
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
from compaction.fs.filesystem import Files
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.logdir.throttle import UNLIMITED
from compaction.passes.build_map import SUMMARY, Key, collect_keys, scan_slices, together
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
from compaction.startup.freeze_gc import settle


@contextmanager
def job_progress(
    sc: SparkContext,
    progress: Progress | None,
    name: str,
    description: str,
    tasks: Sequence[Sequence[Slice] | Sequence[OutputPart]],
) -> Iterator[None]:
    """What runs in the block is called ``description`` in Spark's UI, and shown as the pass ``name``."""
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


#: how many full shards a task of pass 2's first half holds at once
_SHARDS_PER_TASK = 6
#: how many pieces a task of pass 2 has under way: while one waits for the disk, others are written
_PIECES_AT_ONCE = 4
#: how long attempts that lost may take to notice
_LOSERS_S = 10.0


class SparkPasses:
    """The Spark jobs of one run: see ``compaction.engine.protocol.Passes``. ``sizes`` say how much of the logs one task reads.

    ``progress`` is told the bytes that the tasks of each pass have read.
    """

    def __init__(self, sc: SparkContext, sizes: Sizes, progress: Progress | None = None) -> None:
        self._sc = sc
        self._sizes = sizes
        self._progress = progress

    def deal(self, slices: Sequence[Slice]) -> list[list[Slice]]:
        """The slices of each task of a pass over ``slices``."""
        return pack(slices, lambda part: part.size_bytes, self._sizes.scan_bytes)

    def read_transactions(self, slices: Sequence[Slice], files: Files) -> list[SliceSummary]:
        """Headers only: the transaction summary of each slice, for logs whose aborted data must be known before pass 1."""
        tasks = self.deal(slices)
        with job_progress(self._sc, self._progress, "transactions", f"read batch headers of {len(slices)} slices", tasks):
            headers = self._sc.parallelize(tasks, len(tasks))
            return headers.flatMap(lambda task: [scan_transactions(part, files) for part in task]).collect()

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Mapping[int, KeyFilter]:
        """The keys of the dirty records in ``slices``, by log."""
        share = sum(part.size_bytes for part in slices) // self._sc.defaultParallelism
        tasks = pack(slices, lambda part: part.size_bytes, max(1, share))
        shared = self._sc.broadcast((dict(logs), dict(filters)))

        # not broadcast: PySpark writes broadcasts to files, and the settings hold the run's secret
        def collect(task: list[Slice]) -> Iterator[tuple[int, KeyFilter]]:
            settle()
            known, empty = shared.value
            return collect_keys(task, known, settings, empty)

        found = dict(filters)
        with job_progress(self._sc, self._progress, "keys", f"collect the keys of {len(slices)} dirty slices", tasks):
            for log, keys in self._sc.parallelize(tasks, len(tasks)).flatMap(collect).collect():
                found[log].join(keys)
        return found

    def build_offset_map(self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings) -> MapResult:
        """Pass 1. What it found is collected; the maps stay in the shuffle for ``rewrite``."""
        tasks = self.deal(slices)
        shards = sum(log.shards for log in logs.values())
        records = max_records_by_log(slices)
        fill = {log: (work.shards, records[log]) for log, work in logs.items()}
        maps, first = assign_shards(fill, _SHARDS_PER_TASK * self._sizes.shard_entries, 2 * self._sc.defaultParallelism)
        shared = self._sc.broadcast((together(logs, tasks), first))

        # PySpark writes broadcasts, and functions larger than 1 MiB, to files. The settings, which hold the secret, are
        # part of the function, and all that grows with the logs is broadcast
        def partition(key: Key) -> int:
            log, shard = key
            return maps if shard == SUMMARY else (shared.value[1][log] + shard) % maps

        def scan_task(task: Iterable[list[Slice]]) -> Iterator[tuple[Key, list[Packed | Resolved | SliceSummary]]]:
            settle()
            known, _ = shared.value
            for part in task:
                yield from scan_slices(part, known, settings)

        entries = self._sc.parallelize(tasks, len(tasks)).mapPartitions(scan_task)
        # partitioned first, the parts are sent on as they come; else a scan would hold all of its own to reduce them beforehand
        parts = entries.partitionBy(maps + 1, partition)
        merged: RDD[tuple[Key, list[Any]]] = parts.reduceByKey(merge_lists, maps + 1, partition)
        description = f"pass 1: scan {len(slices)} slices into {shards} map shards"
        with job_progress(self._sc, self._progress, "pass 1", description, tasks):
            summaries = self._sc.runJob(merged, _summaries, [maps])
        return MapResult(tuple(summaries), merged)

    def clean_into_groups(
        self,
        scanned: MapResult,
        logs: Mapping[int, CleanContext],
        pieces: Sequence[OutputPart],
        load_factor: float,
        *,
        dry_run: bool,
    ) -> CleanedParts:
        """Pass 2 over ``pieces``, in the order of logs and offsets; all of their logs are in ``logs``."""
        # what is newest keeps most and takes longest: it goes first
        tasks = pack(pieces[::-1], lambda piece: piece.size_bytes, self._sizes.slice_bytes)
        task_of = {(piece.output.log, piece.number): t for t, task in enumerate(tasks) for piece in task}
        first_offsets = _first_offsets(pieces)
        first_dirty = {log: work.first_dirty_offset for log, work in logs.items()}
        shared = self._sc.broadcast((dict(logs), tasks))
        # a rate is for a task, as one thread keeps it
        throttled = any(work.bytes_per_second < UNLIMITED for work in logs.values())

        def resolve(items: Iterable[tuple[Key, list[Any]]]) -> Iterator[tuple[Key, list[Any]]]:
            for (log, shard), packed in items:
                if shard != SUMMARY and log in first_offsets:
                    marks, keys = resolve_shard(packed, first_dirty[log], load_factor)
                    yield (log, KEYS), [keys]
                    for piece, part in split_by_part(marks, first_offsets[log]):
                        yield (log, piece), [part]

        def rewrite_task(task: int, items: Iterable[tuple[Key, list[Any]]]) -> Iterator[PartResult | tuple[int, int]]:
            settle()
            known, work = shared.value
            marks = dict(items)
            for (log, piece), counts in marks.items():
                if piece == KEYS:
                    yield log, sum(counts)

            def rewritten(piece: OutputPart) -> PartResult:
                log = piece.output.log
                return clean_part(piece, known[log], marks.get((log, piece.number), []), dry_run=dry_run)

            threads = 1 if dry_run or throttled else _PIECES_AT_ONCE
            yield from run_concurrently([partial(rewritten, piece) for piece in work[task]], threads)

        def partition(key: Key) -> int:
            log, piece = key
            return task_of[log, max(piece, 0)]

        marks = scanned.merged.mapPartitions(resolve).reduceByKey(merge_lists, len(tasks), partition)
        description = f"pass 2: {'measure' if dry_run else 'write'} {len(pieces)} pieces"
        with job_progress(self._sc, self._progress, "pass 2", description, tasks):
            found = marks.mapPartitionsWithIndex(rewrite_task).collect()
        _await_losers(self._sc)
        keys: dict[int, int] = {}
        for item in found:
            if not isinstance(item, PartResult):
                keys[item[0]] = keys.get(item[0], 0) + item[1]
        return CleanedParts(tuple(item for item in found if isinstance(item, PartResult)), keys)

    def join_parts(self, groups: Sequence[tuple[GroupOutput, CleanContext, list[PartResult]]]) -> list[PartResult]:
        """Join the parts of groups that several tasks wrote."""
        if not groups:
            return []
        self._sc.setJobDescription(f"join the parts of {len(groups)} segments")
        joined = self._sc.parallelize(groups, len(groups)).map(lambda group: join_parts(*group)).collect()
        _await_losers(self._sc)
        return joined


def _await_losers(sc: SparkContext) -> None:
    """Wait, but not for ever, until no task runs: attempts that lost write files that the swap is going to remove.

    Only where Spark starts tasks twice; what one may still leave behind then is removed by the next run.
    """
    if sc.getConf().get("spark.speculation", "false") != "true":
        return
    tracker = sc._jsc.sc().statusTracker()
    deadline = time.monotonic() + _LOSERS_S
    while time.monotonic() < deadline and any(each.numRunningTasks() for each in tracker.getExecutorInfos()):
        time.sleep(_LOSERS_S / 100)


def _summaries(items: Iterable[tuple[Key, list[Any]]]) -> list[SliceSummary]:
    return [summary for _, found in items for summary in found]


def _first_offsets(pieces: Sequence[OutputPart]) -> dict[int, NDArray[np.int64]]:
    """int64 first offsets of each log's pieces."""
    bounds: dict[int, list[int]] = {}
    for piece in pieces:
        bounds.setdefault(piece.output.log, []).append(piece.first_offset)
    return {log: np.array(offsets, np.int64) for log, offsets in bounds.items()}
