"""The method of the log cleaner: **build the offset map**, **resolve transactions**, retain the latest record of each key.

Mirrors ``Cleaner.buildOffsetMap``, ``CleanedTransactionMetadata`` and ``Cleaner.cleanSegments`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from compaction.engine import Emission, Engine, Items, Job, Reading, Shuffle, Source, pack, size_of
from compaction.files.filesystem import ReadableFileSystem, join
from compaction.formats.indexes import OFFSET_INDEX
from compaction.kernels.keys import KeyFilter
from compaction.names import INDEX, segment_file
from compaction.passes.build_map import collect_keys, dirty_records, flag_single_task_logs, scan_slices
from compaction.passes.clean_into import clean_parts
from compaction.passes.merge import CleanedParts, MapParts, PartPlaces, PartsToClean, clean_task, resolve_into_parts
from compaction.passes.scan import readings, scan_transactions
from compaction.passes.tasks import CleanContext, Key, MapContext, MapSettings, OutputPart, PartResult, Slice, SliceSummary
from compaction.passes.throttle import UNLIMITED
from compaction.recovery.indexes import repaired_after_scan
from compaction.rules.plan import LogPlan
from compaction.rules.record_retention import ActiveProducers, RoundRules
from compaction.rules.transactions import aborted_for_map, resolve_cleaning
from compaction.run.cleaner import Cleaner
from compaction.run.log import Log
from compaction.run.sizing import ShardPlaces, Sizes, max_records_by_log, shards

R = TypeVar("R")

#: least ratio of clean to dirty bytes for a key filter
_KEY_FILTER_CLEAN_RATIO = 4
#: total size of the key filters of a run, which every worker holds
_KEY_FILTER_BYTES = 64 << 20
#: output parts that a task of pass 2 writes concurrently: while one waits for the disk, others proceed
_PART_CONCURRENCY = 4


class OffsetMaps:
    """See the module. The maps of pass 1 remain where its tasks left them, for pass 2.

    :param engine: runs the tasks
    :param sizes: how much one task reads
    :param refuse: returns why a log must not be cleaned, from its counts of records and of records without a key
    """

    def __init__(self, engine: Engine, sizes: Sizes, now_ms: int, refuse: Callable[[LogPlan, int, int], str | None]) -> None:
        self._engine, self._sizes, self._now_ms, self._refuse = engine, sizes, now_ms, refuse
        self._maps: Shuffle | None = None
        #: what the tasks of pass 1 have read for each map
        self._readings: dict[int, Reading] = {}
        self._load_factor = 1.0

    def scan(self, cleaner: Cleaner) -> None:
        """Pass 1: maps the hash of every key of each dirty section to its highest offset, and counts records."""
        self._read_transactions(cleaner)
        self._fill_maps(cleaner)
        before = [log.plan for log in cleaner.logs]
        cleaner.each(lambda log: _check_txn_indexes(cleaner, log))
        if any(log.plan is not plan for log, plan in zip(cleaner.logs, before, strict=True)):
            # keys of aborted data are in the maps
            self._fill_maps(cleaner)

    def _read_transactions(self, cleaner: Cleaner) -> None:
        """Reads the batch headers of logs with aborted transactions first: aborted data must not enter the map."""
        logs = [log for log in cleaner.unfailed if any(segment.aborted_txns for segment in log.compaction.view.segments)]
        if not logs:
            return
        slices = [part for log in logs for part in log.slices]
        cleaner.add_up(logs, self.read_transactions(slices, cleaner.limits.files))
        cleaner.each(lambda log: _find_aborted(cleaner, log), [log for log in logs if log.error is None])

    def _fill_maps(self, cleaner: Cleaner) -> None:
        contexts = {
            log.number: MapContext(
                log.compaction.first_dirty_offset, shards(log.compaction, cleaner.sizes.shard_entries), log.aborted
            )
            for log in cleaner.unfailed
        }
        if not contexts:
            return
        settings = cleaner.limits.map_settings(cleaner.runner.cores)
        contexts = self._with_dirty_keys(cleaner, contexts, settings)
        if not contexts:
            return
        slices = [part for log in cleaner.unfailed for part in log.slices]
        cleaner.add_up(cleaner.unfailed, self.build_offset_map(slices, contexts, settings))
        for log in cleaner.unfailed:
            log.error = self._refuse(log.compaction, log.messages, log.keyless)

    def _with_dirty_keys(
        self, cleaner: Cleaner, contexts: dict[int, MapContext], settings: MapSettings
    ) -> dict[int, MapContext]:
        """Collects the dirty keys of logs with large clean sections: most clean records need no lookup then."""
        dirty: list[Slice] = []
        filters: dict[int, KeyFilter] = {}
        free_bytes, least_bytes = _KEY_FILTER_BYTES, cleaner.sizes.key_filter_min_clean_bytes
        for log in cleaner.unfailed:
            first_dirty_offset = log.compaction.first_dirty_offset
            parts = [part for part in log.slices if part.end_offset > first_dirty_offset]
            dirty_bytes = sum(part.size_bytes for part in parts)
            clean_bytes = sum(part.size_bytes for part in log.slices) - dirty_bytes
            if free_bytes > 0 and clean_bytes >= max(least_bytes, _KEY_FILTER_CLEAN_RATIO * dirty_bytes):
                filters[log.number] = KeyFilter.sized(dirty_records(parts, first_dirty_offset), free_bytes)
                free_bytes -= filters[log.number].words.nbytes
                dirty += parts
        if not dirty:
            return contexts
        summaries = self.collect_dirty_keys(dirty, {number: contexts[number] for number in filters}, settings, filters)
        cleaner.note_reads(cleaner.unfailed, summaries)
        collected = {summary.log for summary in summaries}
        return {
            log.number: replace(contexts[log.number], dirty_keys=filters[log.number] if log.number in collected else None)
            for log in cleaner.unfailed
        }

    def resolve(self, cleaner: Cleaner, log: Log) -> None:
        """Determines aborted data, discardable markers and the transaction indexes of the outputs."""
        plan, view, keyless = log.compaction, log.compaction.view, log.keyless_rows
        groups = [group.segments for group in plan.groups]
        outcomes = resolve_cleaning(view.segments, groups, view.log_start_offset, log.txn_rows)
        aborted = outcomes.aborted.contains(keyless["producer_id"], keyless["last_offset"])
        log.txn_index = outcomes.txn_index
        log.invalid = log.keyless - int(keyless["keyless"][aborted].sum())
        log.context = CleanContext(
            first_dirty_offset=plan.first_dirty_offset,
            latest_offset=plan.first_uncleanable_offset - 1,
            delete_retention_ms=plan.config.delete_retention_ms,
            legacy_delete_horizon_ms=plan.legacy_delete_horizon_ms,
            index_interval_bytes=plan.config.index_interval_bytes,
            rules=RoundRules(
                outcomes.aborted,
                outcomes.discardable,
                ActiveProducers.of(view.producers),
                plan.retain_end_offset,
                self._now_ms,
                plan.rules,
            ),
            directory=log.directory,
            bytes_per_second=cleaner.task_rate,
            files=cleaner.limits.files,
            max_record_bytes=plan.max_record_bytes,
        )

    def read_transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """Reads batch headers: the transaction summary of each slice."""
        tasks = pack(slices, size_of, self._sizes.scan_bytes)
        job = Job.reading("transactions", f"read batch headers of {len(slices)} slices", tasks)
        results = self._engine.run(job, tasks, partial(scan_transactions, files=files))
        return [summary for summaries in results for summary in summaries]

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Sequence[SliceSummary]:
        """Adds the keys of the dirty records in ``slices`` to ``filters``, by log. Returns the summaries of the slices; none if
        the filters are not to be used."""
        tasks = pack(slices, size_of, max(1, sum(map(size_of, slices)) // self._engine.cores))
        job = Job.reading("keys", f"collect the keys of {len(slices)} dirty slices", tasks)
        words = {log: len(keys.words) for log, keys in filters.items()}
        works = [(task, {part.log: (logs[part.log], words[part.log]) for part in task}) for task in tasks]
        summaries: list[SliceSummary] = []
        for collected in self._engine.run(job, works, partial(collect_keys, settings=settings)):
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
        return self.scan_into_maps(description, tasks, scan_slices, flag_single_task_logs(logs, tasks), settings, shards)

    def scan_into_maps(
        self,
        description: str,
        tasks: Sequence[Sequence[Slice]],
        scan: Callable[..., Iterable[Emission]],
        known: Any,
        settings: MapSettings,
        shards: Mapping[int, tuple[int, int]],
    ) -> list[Any]:
        """Pass 1; keeps its maps for pass 2. Returns what its tasks have emitted for the driver.

        :param scan: called with a task, ``known`` and ``settings``; emits packed entries by map and shard, to each shard of its
            maps also the ``Reading`` of this attempt, and summaries to the driver
        :param settings: contain the run's secret
        :param shards: of each map the number of shards, and an upper bound of the entries in all of them
        """
        if self._maps is not None:
            # those of an earlier pass 1
            self._maps.close()
        self._load_factor = settings.load_factor
        places = ShardPlaces.of(shards, self._sizes.reducer_entries, 2 * self._engine.cores)
        job, emit = Job.reading("pass 1", description, tasks), partial(scan, settings=settings)
        self._maps = self._engine.shuffle(job, Source(tasks, known=known), emit, places, merges=True)
        summaries = self._maps.results
        accepted = {summary.slice_id: summary for summary in summaries}
        self._readings = {}
        for task in tasks:
            for number, reading in readings(task, [accepted[part.id] for part in task]).items():
                self._readings[number] = self._readings.get(number, Reading()) + reading
        return summaries

    def collect_shards(
        self, description: str, work: Callable[[Key, Iterable[Any], Mapping[int, Reading]], Iterable[R]]
    ) -> list[R]:
        """The results of ``work`` for each shard of pass 1, given what was read for each map."""
        source = Source(items=self._maps)
        results = self._engine.run(Job(description), source, partial(_work_on, work=work, accepted=self._readings))
        return [result for of_task in results for result in of_task]

    def resolve_into(
        self,
        job: Job,
        tasks: Sequence[Sequence[Any]],
        maps: Mapping[int, MapParts],
        clean: Callable[[PartsToClean, Any], list[R]],
        known: Any,
        threads: int = 1,
    ) -> CleanedParts[R]:
        """Pass 2 with the maps of pass 1; see ``clean_task``.

        :param maps: of each map, the parts that its survivor entries belong to
        """
        maps = {number: replace(parts, reading=self._readings[number]) for number, parts in maps.items()}
        task_of = {part.id: number for number, task in enumerate(tasks) for part in task}
        places = PartPlaces(len(tasks), task_of)
        resolve = partial(resolve_into_parts, maps=maps, load_factor=self._load_factor)
        survivors = self._engine.shuffle(Job("resolve the map shards"), Source(items=self._maps), resolve, places)
        work = partial(clean_task, clean=clean, threads=threads)
        return CleanedParts.of(self._engine.run(job, Source(tasks, survivors, known), work))

    def clean(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart], *, writes: bool) -> CleanedParts[PartResult]:
        """Pass 2."""
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
    items: Items,
    work: Callable[[Key, Iterable[Any], Mapping[int, Reading]], Iterable[R]],
    accepted: Mapping[int, Reading],
) -> list[R]:
    return [result for key, values in items for result in work(key, values, accepted)]


def pass_2(parts: Sequence[OutputPart], tasks: Iterable[Iterable[OutputPart]], *, writes: bool) -> Job:
    return Job.reading("pass 2", f"pass 2: {'write' if writes else 'measure'} {len(parts)} output parts", tasks, writes=writes)


def _clean(parts: PartsToClean, logs: Mapping[int, CleanContext], *, dry_run: bool) -> list[PartResult]:
    return clean_parts([(part, survivors.get(part.output.log, ())) for part, survivors in parts], logs, dry_run=dry_run)


def _check_txn_indexes(cleaner: Cleaner, log: Log) -> None:
    """Rebuilds transaction indexes that contradict the markers that pass 1 has read.

    Recovery does not look for transactions below a snapshot without any, but a snapshot lacks expired producers, too.
    """
    plan = log.compaction
    view = repaired_after_scan(cleaner.fs, plan.view, log.txn_rows, plan.first_uncleanable_offset)
    if view is not plan.view:
        log.planned = replace(log.plan, compaction=replace(plan, view=view))
        _find_aborted(cleaner, log)


def _find_aborted(cleaner: Cleaner, log: Log) -> None:
    plan, view, start = log.compaction, log.compaction.view, log.compaction.first_dirty_offset
    first = max((s for s in view.segments if s.base_offset <= start), key=lambda s: s.base_offset, default=view.segments[0])
    data = cleaner.fs.read_bytes(join(view.path, segment_file(first.base_offset, INDEX)))
    entries = OFFSET_INDEX.read(data, first.base_offset)
    row = int(np.searchsorted(entries["offset"], start, side="right")) - 1
    position = int(entries["position"][row]) if row >= 0 else 0
    end_offset = plan.first_uncleanable_offset
    log.aborted = aborted_for_map(view.segments, view.log_start_offset, start, end_offset, position, log.txn_rows)
