"""The cleaner's three steps over many logs: **build the offset map**, **resolve transactions**, **clean into groups**.

Mirrors ``Cleaner.buildOffsetMap``, ``CleanedTransactionMetadata`` and ``Cleaner.cleanSegments`` of Kafka 4.4.0. Each step
processes all logs that have not failed in one pass; ``compaction.engine.protocol`` has the passes. Tasks write and
**verify** the outputs; nothing is swapped in here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from compaction.cleaning.log_view import LogView, Segment
from compaction.cleaning.plan import LogPlan
from compaction.cleaning.record_retention import ActiveProducers, RoundRules
from compaction.cleaning.transactions import aborted_for_map, resolve_cleaning
from compaction.config import BrokerConfig, TopicConfig
from compaction.engine.admission import SpaceBudget, logs_without_space
from compaction.engine.log_cleaning import LogCleaning, ScanTotals
from compaction.engine.output_parts import output_parts, output_segments, swap_groups, unchanged
from compaction.engine.protocol import PlainPasses
from compaction.engine.sizing import Sizes, shards, sizes
from compaction.errors import StorageError, of_log
from compaction.formats.indexes import read_offset_index
from compaction.fs.filesystem import DiskFileSystem, FileSystem, join, real_file
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.kernels.reading.ranks import Ranking
from compaction.kernels.reading.siphash import HashSecret
from compaction.logdir.slices import cut_segment
from compaction.names import INDEX, LOG, segment_file
from compaction.passes.build_map import dirty_records
from compaction.passes.tasks import CleanContext, MapContext, MapSettings, PartResult, Slice, SliceSummary
from compaction.recovery.txn_indexes import repaired_after_scan
from compaction.stores.mixed import MixedFileSystem

#: a task's map spills at this size, which bounds the memory of a worker
_TASK_MAP_BYTES = 128 << 20
#: least ratio of clean to dirty bytes for a key filter
_KEY_FILTER_CLEAN_RATIO = 4
#: total size of the key filters of a run, which every worker holds
_KEY_FILTER_BYTES = 64 << 20


@dataclass(frozen=True)
class CleanerOptions:
    """Options of a run.

    :ivar refuse: returns why a log must not be cleaned, from its counts of records and of records without a key
    :ivar sizes: sizes of the work, by default derived from the amount of data; they do not change the result
    :ivar space: the free space that outputs may use, by default unlimited
    :ivar files: how tasks access sources and outputs
    """

    now_ms: int
    dry_run: bool
    broker: BrokerConfig
    refuse: Callable[[LogPlan, int, int], str | None]
    sizes: Sizes | None = None
    space: SpaceBudget | None = None
    files: DiskFileSystem = field(default_factory=MixedFileSystem)


def map_settings(broker: BrokerConfig, bytes_per_second: float) -> MapSettings:
    """The limits of a task of pass 1. Each call draws a new hash secret."""
    map_bytes = min(_TASK_MAP_BYTES, broker.dedupe_buffer_bytes)
    return MapSettings(map_bytes, broker.load_factor, HashSecret.random(), bytes_per_second)


def slices_of(fs: FileSystem, log: int, view: LogView, segments: Sequence[Segment], slice_bytes: int) -> list[Slice]:
    """The slices of some segments of log number ``log``, in the order of offsets."""
    path, made = view.path, []
    index_of = {segment.base_offset: number for number, segment in enumerate(view.segments)}
    for segment in segments:
        base = segment.base_offset
        file = real_file(fs, join(path, segment_file(base, LOG)))
        for cut in cut_segment(fs, path, segment, slice_bytes):
            offsets, positions = cut[2:], (file.start + cut.start, file.start + cut.end)
            made.append(Slice(log, index_of[base], file.path, *offsets, *positions, segment.mtime_ms))
    return made


class Cleaner:
    """Cleans ``logs``; call the three steps in order.

    :param make_passes: creates the passes for given sizes of work
    :param cores: number of tasks that run concurrently
    :param fs: how the driver reads the logs
    """

    def __init__(
        self,
        logs: Sequence[LogCleaning],
        fs: FileSystem,
        make_passes: Callable[[Sizes], PlainPasses],
        cores: int,
        options: CleanerOptions,
    ) -> None:
        self._fs, self._options = fs, options
        self._logs = list(logs)
        for number, log in enumerate(self._logs):
            log.number = number
        group_bytes = [group.size_bytes for log in self._logs for group in log.compaction.groups]
        broker = options.broker
        self._sizes = options.sizes or sizes(group_bytes, cores, broker.dedupe_buffer_bytes, broker.load_factor)
        self._passes = make_passes(self._sizes)
        self._task_rate = broker.io_max_bytes_per_second / cores

    def build_offset_map(self) -> None:
        """Pass 1: maps the hash of every key of each dirty section to its highest offset, and counts records."""
        self._each(self._slice, self._logs)
        self._read_transactions()
        self._fill_maps()
        before = [log.plan for log in self._logs]
        self._each(self._check_txn_indexes, self._unfailed())
        if any(log.plan is not plan for log, plan in zip(self._logs, before, strict=True)):
            # keys of aborted data are in the maps
            self._fill_maps()

    def _fill_maps(self) -> None:
        contexts = {log.number: self._map_context(log) for log in self._unfailed()}
        if not contexts:
            return
        settings = replace(map_settings(self._options.broker, self._task_rate), files=self._options.files)
        contexts = self._with_dirty_keys(contexts, settings)
        slices = [part for log in self._unfailed() for part in log.slices]
        self._take(self._unfailed(), self._passes.build_offset_map(slices, contexts, settings))
        for log in self._unfailed():
            log.error = self._options.refuse(log.compaction, log.totals.messages, log.totals.keyless)

    def resolve_transactions(self) -> None:
        """Determines aborted data, discardable markers and the transaction indexes of the outputs of each log."""
        self._each(self._resolve, self._unfailed())

    def clean_into_groups(self) -> None:
        """Pass 2: writes the retained records of each group into one segment, and verifies it."""
        self._each(lambda log: output_parts(log, self._sizes), self._unfailed())
        self._refuse_without_space()
        logs = self._unfailed()
        parts = [part for log in logs for part in log.parts]
        if not parts:
            return
        contexts, dry_run = _contexts(logs), self._options.dry_run
        cleaned = self._passes.clean_into_groups(contexts, parts, dry_run=dry_run)
        for result in cleaned.results:
            self._logs[result.log].stats += result.stats
            self._logs[result.log].seconds += result.seconds
        for log in logs:
            log.keys = cleaned.keys.get(log.number, 0)
        outputs = output_segments(logs, contexts, cleaned.results, self._passes.join_parts, dry_run=dry_run)
        for log in self._unfailed():
            log.groups, log.unchanged = swap_groups(log, outputs), unchanged(log, outputs)

    def _unfailed(self) -> list[LogCleaning]:
        return [log for log in self._logs if log.error is None]

    @staticmethod
    def _each(step: Callable[[LogCleaning], object], logs: Sequence[LogCleaning]) -> None:
        """Takes a step for each log; a log fails if it raises."""
        for log in logs:
            try:
                step(log)
            except Exception as error:
                log.error = str(of_log(error, log.compaction.view.path))

    def _slice(self, log: LogCleaning) -> None:
        plan = log.compaction
        log.slices = slices_of(self._fs, log.number, plan.view, plan.segments, self._sizes.slice_bytes)

    def _read_transactions(self) -> None:
        """Reads the batch headers of logs with aborted transactions first: aborted data must not enter the map."""
        logs = [log for log in self._unfailed() if any(s.aborted_txns for s in log.compaction.view.segments)]
        if not logs:
            return
        slices = [part for log in logs for part in log.slices]
        self._take(logs, self._passes.read_transactions(slices, self._options.files))
        self._each(self._find_aborted, [log for log in logs if log.error is None])

    @staticmethod
    def _take(logs: Sequence[LogCleaning], summaries: Sequence[SliceSummary]) -> None:
        """Adds up the summaries of each log and sets the fingerprints of its slices; its first error fails the log."""
        by_log: dict[int, list[SliceSummary]] = {log.number: [] for log in logs}
        for summary in summaries:
            by_log[summary.log].append(summary)
        for log in logs:
            found = by_log[log.number]
            log.totals = ScanTotals.of(found)
            log.seconds += sum(each.seconds for each in found)
            log.error = next((each.error for each in found if each.error is not None), None)
            seen = {each.slice_id: each.fingerprint for each in found}
            log.slices = [replace(part, fingerprint=seen.get(part.id)) for part in log.slices]

    def _check_txn_indexes(self, log: LogCleaning) -> None:
        """Rebuilds transaction indexes that contradict the markers that pass 1 has read.

        Recovery does not look for transactions below a snapshot without any, but a snapshot lacks expired producers, too.
        """
        plan = log.compaction
        view = repaired_after_scan(self._fs, plan.view, log.totals.txn_rows, plan.first_uncleanable_offset)
        if view is not plan.view:
            log.plan = replace(log.plan, compaction=replace(plan, view=view))
            self._find_aborted(log)

    def _find_aborted(self, log: LogCleaning) -> None:
        plan, view, start = log.compaction, log.compaction.view, log.compaction.map_start_offset
        first = max((s for s in view.segments if s.base_offset <= start), key=lambda s: s.base_offset, default=view.segments[0])
        data = self._fs.read_bytes(join(view.path, segment_file(first.base_offset, INDEX)))
        entries = read_offset_index(data, first.base_offset)
        at = int(np.searchsorted(entries["offset"], start, side="right")) - 1
        position = int(entries["position"][at]) if at >= 0 else 0
        rows, end_offset = log.totals.txn_rows, plan.first_uncleanable_offset
        log.aborted = aborted_for_map(view.segments, view.log_start_offset, start, end_offset, position, rows)

    def _map_context(self, log: LogCleaning) -> MapContext:
        plan = log.compaction
        count = shards(plan, self._sizes.shard_entries)
        ranking, last_offset = _ranking(plan.config), plan.view.log_end_offset - 1
        return MapContext(plan.map_start_offset, count, log.aborted, ranking=ranking, last_offset=last_offset)

    def _with_dirty_keys(self, contexts: dict[int, MapContext], settings: MapSettings) -> dict[int, MapContext]:
        """Collects the dirty keys of logs with large clean sections: most clean records need no lookup then."""
        dirty: list[Slice] = []
        filters: dict[int, KeyFilter] = {}
        left = _KEY_FILTER_BYTES
        for log in self._unfailed():
            first_dirty_offset = log.compaction.map_start_offset
            parts = [part for part in log.slices if part.end_offset > first_dirty_offset]
            dirty_bytes = sum(part.size_bytes for part in parts)
            clean_bytes = sum(part.size_bytes for part in log.slices) - dirty_bytes
            if left > 0 and clean_bytes >= max(self._sizes.key_filter_min_clean_bytes, _KEY_FILTER_CLEAN_RATIO * dirty_bytes):
                filters[log.number] = KeyFilter.sized(dirty_records(parts, first_dirty_offset), left)
                left -= filters[log.number].words.nbytes
                dirty += parts
        if not dirty:
            return contexts
        found = self._passes.collect_dirty_keys(dirty, {number: contexts[number] for number in filters}, settings, filters)
        return {number: replace(context, dirty_keys=found.get(number)) for number, context in contexts.items()}

    def _resolve(self, log: LogCleaning) -> None:
        plan, view, totals = log.compaction, log.compaction.view, log.totals
        groups = [group.segments for group in plan.groups]
        outcomes = resolve_cleaning(view.segments, groups, view.log_start_offset, totals.txn_rows)
        aborted = outcomes.aborted.contains(totals.keyless_rows["producer_id"], totals.keyless_rows["last_offset"])
        log.txn_index = outcomes.txn_index
        log.invalid = totals.keyless - int(totals.keyless_rows["keyless"][aborted].sum())
        log.context = CleanContext(
            first_dirty_offset=plan.map_start_offset,
            latest_offset=plan.map_last_offset,
            delete_retention_ms=plan.config.delete_retention_ms,
            legacy_delete_horizon_ms=plan.legacy_delete_horizon_ms,
            index_interval_bytes=plan.config.index_interval_bytes,
            rules=RoundRules(
                outcomes.aborted,
                outcomes.discardable,
                ActiveProducers.of(view.producers),
                plan.retain_end_offset,
                self._options.now_ms,
                plan.rules,
            ),
            directory=log.directory,
            bytes_per_second=self._task_rate,
            files=self._options.files,
            max_record_bytes=plan.max_record_bytes,
        )

    def _refuse_without_space(self) -> None:
        """Fails the logs whose outputs exceed the free space, before anything is written."""
        logs, space = self._unfailed(), self._options.space
        parts = [part for log in logs for part in log.parts]
        if space is None or not parts:
            return

        def measure() -> Sequence[PartResult]:
            return self._passes.clean_into_groups(_contexts(logs), parts, dry_run=True).results

        try:
            refused = logs_without_space(space, _contexts(logs), parts, measure)
        except StorageError:
            # if the free space is unknown, the write fails when it is exhausted
            return
        for log in logs:
            if log.number in refused:
                needed, free = refused[log.number]
                what = f"its cleaned segments take {needed} bytes, {free} bytes are free {space.besides()}"
                hint = "free some space and run again, or use --output-dir; nothing was written"
                log.error = str(StorageError(what, path=log.directory, hint=hint))


def _ranking(config: TopicConfig) -> Ranking | None:
    if config.by_offset:
        return None
    return Ranking(config.compaction_strategy_header.encode() or None)


def _contexts(logs: Sequence[LogCleaning]) -> dict[int, CleanContext]:
    return {log.number: log.context for log in logs if log.context is not None}
