"""The interface of an engine for both passes (``Passes``), and the passes of a plain run (``PlainPasses``).

The functions that tasks call are sent to other processes. They must be small: Spark writes large ones to files, and those of
pass 1 come with the run's secret. Everything that grows with the number of logs is passed as ``known`` or as part of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from compaction.kernels.keys import KeyFilter
from compaction.logdir.throttle import UNLIMITED
from compaction.passes.build_map import collect_keys, flag_single_task_logs, scan_slices
from compaction.passes.clean_into import clean_parts
from compaction.passes.merge import KEYS, MapParts, Survivors
from compaction.passes.scan import readings, scan_transactions
from compaction.passes.tasks import (
    CleanContext,
    Key,
    MapContext,
    MapSettings,
    OutputPart,
    PartResult,
    Slice,
    SliceSummary,
)
from compaction.run.sizing import Sizes, max_records_by_log
from compaction.storage.filesystem import ReadableFileSystem
from compaction.task_runner import Job, Reading, TaskRunner, pack, size_of

R = TypeVar("R")

#: output parts that a task of pass 2 writes concurrently: while one waits for the disk, others proceed
_PART_CONCURRENCY = 4
#: parts of together this size are cleaned in step: the disk is waited for once for all of them
_IN_STEP_BYTES = 8 << 20
#: a part counts as at least this size, which bounds the number of buffers
_LEAST_PART_BYTES = 64 << 10


@dataclass(frozen=True)
class MapInputs:
    """Input of pass 1.

    :ivar tasks: the slices of each task
    :ivar scan: called with a task, ``known`` and ``settings``; emits packed entries by map and shard, to each shard of its maps
        also the ``Reading`` of this attempt, and summaries under the shard ``SUMMARY``
    :ivar settings: contain the run's secret
    :ivar shards: of each map the number of shards, and an upper bound of the entries in all of them
    """

    tasks: Sequence[Sequence[Any]]
    scan: Callable[[Any, Any, MapSettings], Iterator[tuple[Key, list[Any]]]]
    known: Any
    settings: MapSettings
    shards: Mapping[int, tuple[int, int]]


class MapResult(NamedTuple):
    """The result of pass 1: the summaries, and the merged map shards, in a form that only ``Passes`` know."""

    summaries: Sequence[Any]
    merged: Any


#: some parts, each with the survivor entries of each map for it
PartsToClean = Sequence[tuple[Any, Mapping[int, Sequence[Survivors]]]]


@dataclass(frozen=True)
class CleanInputs(Generic[R]):
    """Input of pass 2 besides the maps.

    :ivar tasks: the parts of each task
    :ivar maps: of each map, the parts that its survivor entries belong to
    :ivar clean: called with some parts, each with the survivor entries of each map for it, and ``known``
    :ivar threads: number of such calls that a task makes concurrently
    """

    tasks: Sequence[Sequence[Any]]
    maps: Mapping[int, MapParts]
    clean: Callable[[PartsToClean, Any], list[R]]
    known: Any
    load_factor: float
    threads: int = 1


@dataclass(frozen=True)
class CleanedParts(Generic[R]):
    """The result of pass 2: the results of all parts, and the number of distinct keys in each map."""

    results: Sequence[R]
    keys: Mapping[int, int]

    @classmethod
    def of(cls, tasks: Iterable[CleanedParts[R]]) -> CleanedParts[R]:
        """The results of all tasks; the keys of a map are counted by one task."""
        done = list(tasks)
        keys = {number: count for task in done for number, count in task.keys.items()}
        return cls([result for task in done for result in task.results], keys)


class Passes(TaskRunner, Protocol):
    """Runs tasks, and the passes of a run, whose maps stay where they are between them."""

    def build_offset_map(self, job: Job, inputs: MapInputs, task_entries: int) -> MapResult:
        """Pass 1: scans slices, and brings the entries of each shard together; a task merges about ``task_entries``."""

    def collect_shards(self, job: Job, merged: Any, work: Callable[[Key, list[Any]], Iterable[R]]) -> list[R]:
        """The results of ``work`` for each merged shard, in no order."""

    def clean_into_groups(self, job: Job, merged: Any, inputs: CleanInputs[R]) -> CleanedParts[R]:
        """Pass 2: resolves each shard into survivor entries, and cleans the parts that these belong to."""


def clean_task(
    clean: Callable[[PartsToClean, Any], list[R]],
    known: Any,
    parts: Sequence[Any],
    items: Iterable[tuple[tuple[int, Hashable], list[Any]]],
    threads: int,
) -> CleanedParts[R]:
    """One task of pass 2: cleans ``parts``, and adds up the numbers of keys of shards.

    :param clean: see ``CleanInputs``
    :param items: from ``resolve_into_parts``, in any order
    """
    survivors: dict[Hashable, dict[int, list[Survivors]]] = {}
    keys: dict[int, int] = {}
    for (number, part), values in items:
        if part == KEYS:
            keys[number] = keys.get(number, 0) + sum(values)
        else:
            survivors.setdefault(part, {}).setdefault(number, []).extend(values)
    works = [(part, survivors.get(part.id, {})) for part in parts]
    in_step = pack(works, lambda work: max(_LEAST_PART_BYTES, work[0].size_bytes), _IN_STEP_BYTES)
    results = run_concurrently([partial(clean, group, known) for group in in_step], threads)
    return CleanedParts([result for group in results for result in group], keys)


def run_concurrently(calls: Sequence[Callable[[], R]], threads: int) -> list[R]:
    """Runs the calls on up to ``threads`` threads, inline if one suffices; returns their results in order.

    If a call raises or the caller is interrupted, running calls complete and the others do not start.
    """
    threads = min(threads, len(calls))
    if threads <= 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(call) for call in calls]
        try:
            return [future.result() for future in running]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class PlainPasses:
    """The passes over all logs of a run (``run.offset_maps.MapPasses``).

    :param passes: runs the tasks
    :param sizes: how much one task reads
    :param dry_run: pass 2 only measures
    """

    def __init__(self, passes: Passes, sizes: Sizes, *, dry_run: bool = False) -> None:
        self._passes, self._sizes, self._dry_run = passes, sizes, dry_run
        self._merged: Any = None
        #: what the tasks of pass 1 have read for each map
        self._readings: dict[int, Reading] = {}
        self._load_factor = 1.0

    def read_transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """Reads batch headers: the transaction summary of each slice."""
        tasks = pack(slices, size_of, self._sizes.scan_bytes)
        job = Job.reading("transactions", f"read batch headers of {len(slices)} slices", tasks)
        results = self._passes.run(job, tasks, partial(_scan_transactions, files=files))
        return [summary for summaries in results for summary in summaries]

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Sequence[SliceSummary]:
        tasks = pack(slices, size_of, max(1, sum(map(size_of, slices)) // self._passes.cores))
        job = Job.reading("keys", f"collect the keys of {len(slices)} dirty slices", tasks)
        words = {log: len(keys.words) for log, keys in filters.items()}
        works = [(task, {part.log: (logs[part.log], words[part.log]) for part in task}) for task in tasks]
        summaries: list[SliceSummary] = []
        for collected in self._passes.run(job, works, partial(collect_keys, settings=settings)):
            for log, keys, of_slices in collected:
                filters[log].join(keys)
                summaries += of_slices
        return summaries

    def build_offset_map(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings
    ) -> Sequence[SliceSummary]:
        """Pass 1 over ``slices``, which are in the order of logs and offsets: a summary of each."""
        tasks = pack(slices, size_of, self._sizes.scan_bytes)
        records = max_records_by_log(slices)
        shards = {log: (work.shards, records[log]) for log, work in logs.items()}
        description = f"pass 1: scan {len(slices)} slices into {sum(count for count, _ in shards.values())} map shards"
        return self.scan(description, MapInputs(tasks, scan_slices, flag_single_task_logs(logs, tasks), settings, shards))

    def scan(
        self, description: str, inputs: MapInputs, summary_of: Callable[[Any], SliceSummary] = lambda summary: summary
    ) -> Sequence[Any]:
        """Pass 1; keeps its maps for pass 2.

        :param summary_of: of the summaries that the tasks return, those of slices
        """
        self._load_factor = inputs.settings.load_factor
        job = Job.reading("pass 1", description, inputs.tasks)
        summaries, self._merged = self._passes.build_offset_map(job, inputs, self._sizes.reducer_entries)
        accepted = {summary.slice_id: summary for summary in map(summary_of, summaries)}
        self._readings = {}
        for task in inputs.tasks:
            for number, reading in readings(task, [accepted[part.id] for part in task]).items():
                self._readings[number] = self._readings.get(number, Reading()) + reading
        return summaries

    def collect_shards(
        self, description: str, work: Callable[[Key, list[Any], Mapping[int, Reading]], Iterable[R]]
    ) -> list[R]:
        """The results of ``work`` for each shard of pass 1, given what was read for each map."""
        return self._passes.collect_shards(Job(description), self._merged, partial(_work_on, work, self._readings))

    def resolve_into(
        self,
        job: Job,
        tasks: Sequence[Sequence[Any]],
        maps: Mapping[int, MapParts],
        clean: Callable[[PartsToClean, Any], list[R]],
        known: Any,
        threads: int = 1,
    ) -> CleanedParts[R]:
        """Pass 2 with the maps of pass 1; see ``CleanInputs``."""
        maps = {number: replace(parts, reading=self._readings[number]) for number, parts in maps.items()}
        inputs = CleanInputs(tasks, maps, clean, known, self._load_factor, threads)
        return self._passes.clean_into_groups(job, self._merged, inputs)

    def measure(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart]) -> CleanedParts[PartResult]:
        """Pass 2 without writing."""
        return self._clean(logs, parts, writes=False)

    def clean(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart]) -> CleanedParts[PartResult]:
        """Pass 2."""
        return self._clean(logs, parts, writes=not self._dry_run)

    def _clean(
        self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart], *, writes: bool
    ) -> CleanedParts[PartResult]:
        # the newest segments retain most records and take longest: they are scheduled first
        tasks = pack(parts[::-1], size_of, self._sizes.slice_bytes)
        maps = {
            log: MapParts.of(logs[log].first_dirty_offset, list(own))
            for log, own in groupby(parts, key=lambda part: part.output.log)
        }
        # the rate limits a task, which therefore has one thread
        throttled = any(log.bytes_per_second < UNLIMITED for log in logs.values())
        threads = _PART_CONCURRENCY if writes and not throttled else 1
        job = pass_2(parts, tasks, writes=writes)
        return self.resolve_into(job, tasks, maps, partial(_clean, dry_run=not writes), dict(logs), threads)


def _work_on(
    work: Callable[[Key, list[Any], Mapping[int, Reading]], Iterable[R]],
    accepted: Mapping[int, Reading],
    key: Key,
    values: list[Any],
) -> Iterable[R]:
    return work(key, values, accepted)


def pass_2(parts: Sequence[OutputPart], tasks: Iterable[Iterable[OutputPart]], *, writes: bool) -> Job:
    return Job.reading("pass 2", f"pass 2: {'write' if writes else 'measure'} {len(parts)} output parts", tasks, writes=writes)


def _scan_transactions(slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
    return [scan_transactions(part, files) for part in slices]


def _clean(parts: PartsToClean, logs: Mapping[int, CleanContext], *, dry_run: bool) -> list[PartResult]:
    return clean_parts([(part, survivors.get(part.output.log, ())) for part, survivors in parts], logs, dry_run=dry_run)
