"""The method of the log cleaner: **build the offset map**, **resolve transactions**, retain the latest record of each key.

Mirrors ``Cleaner.buildOffsetMap``, ``CleanedTransactionMetadata`` and ``Cleaner.cleanSegments`` of Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from compaction.cleaning.plan import LogPlan
from compaction.cleaning.record_retention import ActiveProducers, RoundRules
from compaction.cleaning.transactions import aborted_for_map, resolve_cleaning
from compaction.formats.indexes import read_offset_index
from compaction.kernels.keys import KeyFilter
from compaction.names import INDEX, segment_file
from compaction.passes.build_map import dirty_records
from compaction.passes.tasks import CleanContext, MapContext, MapSettings, OutputPart, PartResult, Slice, SliceSummary
from compaction.recovery.txn_indexes import repaired_after_scan
from compaction.run.cleaner import Cleaner
from compaction.run.log_cleaning import LogCleaning
from compaction.run.passes import CleanedParts
from compaction.run.sizing import shards
from compaction.storage.filesystem import ReadableFileSystem, join

#: least ratio of clean to dirty bytes for a key filter
_KEY_FILTER_CLEAN_RATIO = 4
#: total size of the key filters of a run, which every worker holds
_KEY_FILTER_BYTES = 64 << 20


class MapPasses(Protocol):
    """The passes of this method. The maps of pass 1 remain where its tasks left them, for pass 2."""

    def read_transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """Reads batch headers: the transaction summary of each slice."""

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Sequence[SliceSummary]:
        """Adds the keys of the dirty records in ``slices`` to ``filters``, by log. Returns the summaries of the slices; none if
        the filters are not to be used."""

    def build_offset_map(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings
    ) -> Sequence[SliceSummary]:
        """Pass 1 over ``slices``, which are in the order of logs and offsets: a summary of each."""

    def measure(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart]) -> CleanedParts[PartResult]:
        """Pass 2 without writing."""

    def clean(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart]) -> CleanedParts[PartResult]:
        """Pass 2."""


@dataclass(frozen=True)
class OffsetMaps:
    """See the module.

    :ivar refuse: returns why a log must not be cleaned, from its counts of records and of records without a key
    """

    passes: MapPasses
    now_ms: int
    refuse: Callable[[LogPlan, int, int], str | None]

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
        cleaner.add_up(logs, self.passes.read_transactions(slices, cleaner.limits.files))
        cleaner.each(lambda log: _find_aborted(cleaner, log), [log for log in logs if log.error is None])

    def _fill_maps(self, cleaner: Cleaner) -> None:
        contexts = {log.number: _map_context(cleaner, log) for log in cleaner.unfailed}
        if not contexts:
            return
        settings = cleaner.map_settings
        contexts = self._with_dirty_keys(cleaner, contexts, settings)
        if not contexts:
            return
        slices = [part for log in cleaner.unfailed for part in log.slices]
        cleaner.add_up(cleaner.unfailed, self.passes.build_offset_map(slices, contexts, settings))
        for log in cleaner.unfailed:
            log.error = self.refuse(log.compaction, log.totals.messages, log.totals.keyless)

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
        summaries = self.passes.collect_dirty_keys(dirty, {number: contexts[number] for number in filters}, settings, filters)
        cleaner.note_reads(cleaner.unfailed, summaries)
        collected = {summary.log for summary in summaries}
        return {
            log.number: replace(contexts[log.number], dirty_keys=filters[log.number] if log.number in collected else None)
            for log in cleaner.unfailed
        }

    def resolve(self, cleaner: Cleaner, log: LogCleaning) -> None:
        """Determines aborted data, discardable markers and the transaction indexes of the outputs."""
        plan, view, totals = log.compaction, log.compaction.view, log.totals
        groups = [group.segments for group in plan.groups]
        outcomes = resolve_cleaning(view.segments, groups, view.log_start_offset, totals.txn_rows)
        aborted = outcomes.aborted.contains(totals.keyless_rows["producer_id"], totals.keyless_rows["last_offset"])
        log.txn_index = outcomes.txn_index
        log.invalid = totals.keyless - int(totals.keyless_rows["keyless"][aborted].sum())
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
                self.now_ms,
                plan.rules,
            ),
            directory=log.directory,
            bytes_per_second=cleaner.task_rate,
            files=cleaner.limits.files,
            max_record_bytes=plan.max_record_bytes,
        )

    def measure(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart]) -> CleanedParts[PartResult]:
        """Pass 2 without writing."""
        return self.passes.measure(logs, parts)

    def clean(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart]) -> CleanedParts[PartResult]:
        """Pass 2: writes the retained records of each group into one segment, and verifies it."""
        return self.passes.clean(logs, parts)


def _check_txn_indexes(cleaner: Cleaner, log: LogCleaning) -> None:
    """Rebuilds transaction indexes that contradict the markers that pass 1 has read.

    Recovery does not look for transactions below a snapshot without any, but a snapshot lacks expired producers, too.
    """
    plan = log.compaction
    view = repaired_after_scan(cleaner.fs, plan.view, log.totals.txn_rows, plan.first_uncleanable_offset)
    if view is not plan.view:
        log.plan = replace(log.plan, compaction=replace(plan, view=view))
        _find_aborted(cleaner, log)


def _find_aborted(cleaner: Cleaner, log: LogCleaning) -> None:
    plan, view, start = log.compaction, log.compaction.view, log.compaction.first_dirty_offset
    first = max((s for s in view.segments if s.base_offset <= start), key=lambda s: s.base_offset, default=view.segments[0])
    data = cleaner.fs.read_bytes(join(view.path, segment_file(first.base_offset, INDEX)))
    entries = read_offset_index(data, first.base_offset)
    row = int(np.searchsorted(entries["offset"], start, side="right")) - 1
    position = int(entries["position"][row]) if row >= 0 else 0
    rows, end_offset = log.totals.txn_rows, plan.first_uncleanable_offset
    log.aborted = aborted_for_map(view.segments, view.log_start_offset, start, end_offset, position, rows)


def _map_context(cleaner: Cleaner, log: LogCleaning) -> MapContext:
    plan = log.compaction
    count = shards(plan, cleaner.sizes.shard_entries)
    return MapContext(plan.first_dirty_offset, count, log.aborted)
