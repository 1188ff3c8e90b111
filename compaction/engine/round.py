"""One round of cleaning over many logs: slices and pieces, both passes, what became of each log. Nothing is swapped here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from compaction.cleaning.log_view import LogView, Segment
from compaction.cleaning.plan import LogPlan
from compaction.cleaning.record_retention import ActiveProducers, RoundRules
from compaction.cleaning.transactions import Verdicts, aborted_for_map, resolve_cleaning
from compaction.cleaning.txn_tables import KEYLESS_ROW, TXN_ROW, AbortedRanges
from compaction.config import BrokerConfig
from compaction.engine.admission import logs_without_space
from compaction.engine.free_space import SpaceBudget
from compaction.engine.protocol import Passes, Scanned
from compaction.engine.sizing import Sizes, pack, record_bound, shards, sizes
from compaction.errors import StorageError, of_log
from compaction.formats.indexes import read_offset_index
from compaction.fs.filesystem import DiskFileSystem, FileSystem, join, real_file
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.kernels.reading.siphash import HashSecret
from compaction.logdir.slices import cut_segment
from compaction.names import INDEX, LOG, segment_file
from compaction.output.swap import SwapGroup
from compaction.passes.build_map import dirty_records
from compaction.passes.tasks import (
    CleanContext,
    CleanStats,
    GroupOutput,
    MapContext,
    MapSettings,
    OutputPart,
    PartResult,
    Slice,
    SliceSummary,
)
from compaction.stores.mixed import MixedFileSystem

T = TypeVar("T")

#: a task's map is handed on when it has this size, so that a worker's memory stays small
_TASK_MAP_BYTES = 128 << 20

#: a log is mostly clean when its clean section has so many times the bytes of its dirty one
_MOSTLY_CLEAN = 4
#: all filters of a run: each worker has them
_FILTER_BYTES = 64 << 20


@dataclass(frozen=True)
class CleanResult:
    """What a round made of one log. ``invalid`` counts the records that went for want of a key, ``groups`` are the outputs to
    be swapped in (named in a dry run too, without files).

    ``error`` is one line when the log could not be cleaned; it is then as it was.
    """

    plan: LogPlan
    stats: CleanStats = CleanStats()
    keys: int = 0
    messages: int = 0
    invalid: int = 0
    groups: tuple[SwapGroup, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class RoundOptions:
    """``directory_of`` says where a log's output goes; ``refuse`` looks at what pass 1 found and may refuse a log, with a
    reason.

    ``sizes`` are those of the work, chosen by the amount of data where not given; they change no result. ``room`` gives out the
    space for outputs; without it they are written unasked. ``files`` is how tasks reach sources and outputs.
    """

    now_ms: int
    dry_run: bool
    broker: BrokerConfig
    directory_of: Callable[[LogPlan], str]
    refuse: Callable[[LogPlan, int, int], str | None]
    sizes: Sizes | None = None
    room: SpaceBudget | None = None
    files: DiskFileSystem = field(default_factory=MixedFileSystem)


def map_settings(broker: BrokerConfig, bytes_per_second: float) -> MapSettings:
    """What bounds a task of pass 1 that may read so many bytes a second. Each call draws a new hash secret."""
    map_bytes = min(_TASK_MAP_BYTES, broker.dedupe_buffer_bytes)
    return MapSettings(map_bytes, broker.load_factor, HashSecret.random(), bytes_per_second)


def slices_of(fs: FileSystem, log: int, view: LogView, segments: Sequence[Segment], slice_bytes: int) -> list[Slice]:
    """The slices of some of a log's segments, in the order of offsets, for the run's log number ``log``."""
    path, made = view.path, []
    index_of = {segment.base_offset: number for number, segment in enumerate(view.segments)}
    for segment in segments:
        base = segment.base_offset
        extent = real_file(fs, join(path, segment_file(base, LOG)))
        for cut in cut_segment(fs, path, segment, slice_bytes):
            offsets, stretch = cut[2:], (extent.start + cut.start, extent.start + cut.end)
            made.append(Slice(log, index_of[base], extent.path, *offsets, *stretch, segment.mtime_ms))
    return made


class Round:
    """Cleans ``plans``: one pass of each kind over all of them.

    :param passes: makes the passes for work of these sizes
    :param cores: how many tasks run at once
    """

    def __init__(
        self,
        passes: Callable[[Sizes], Passes],
        cores: int,
        fs: FileSystem,
        plans: Sequence[LogPlan],
        options: RoundOptions,
    ) -> None:
        self._fs, self._options = fs, options
        self._plans = dict(enumerate(plans))
        group_bytes = [group.size_bytes for plan in plans for group in plan.groups]
        broker = options.broker
        self._sizes = options.sizes or sizes(group_bytes, cores, broker.dedupe_buffer_bytes, broker.load_factor)
        self._passes = passes(self._sizes)
        self._task_rate = broker.io_max_bytes_per_second / cores
        self._failed: dict[int, str] = {}
        self._aborted_keyless: dict[int, int] = {}

    def run(self) -> list[CleanResult]:
        """What became of each log, in the order of the plans."""
        slices = self._of_each(self._slices)
        early = self._early_transactions(slices)
        scan_logs = self._of_each(lambda log, plan: self._scan_log(log, plan, early))
        if not scan_logs:
            return [CleanResult(plan, error=self._failed[log]) for log, plan in self._plans.items()]
        broker = self._options.broker
        settings = replace(map_settings(broker, self._task_rate), files=self._options.files)
        scan_logs = self._with_dirty_keys(slices, scan_logs, settings)
        scanned = self._passes.scan([part for log in scan_logs for part in slices[log]], scan_logs, settings)
        found = self._found(scanned.summaries)
        slices = _as_seen(slices, scanned.summaries)
        works = self._of_each(lambda log, plan: self._work(log, plan, found[log]))
        pieces = [piece for log, (_, verdicts) in works.items() for piece in self._pieces(log, slices[log], verdicts)]
        rewrites = {log: work for log, (work, _) in works.items()}
        self._refuse_without_room(scanned, rewrites, pieces)
        rewrites = {log: work for log, work in rewrites.items() if log not in self._failed}
        pieces = [piece for piece in pieces if piece.output.log in rewrites]
        if not pieces:
            return [self._outcome(log, found[log], {}, CleanStats(), 0) for log in self._plans]
        rewritten = self._passes.rewrite(scanned, rewrites, pieces, broker.load_factor, dry_run=self._options.dry_run)
        outputs = self._whole_segments(rewritten.results, pieces, rewrites)
        stats = dict.fromkeys(self._plans, CleanStats())
        for result in rewritten.results:
            stats[result.log] += result.stats
        return [self._outcome(log, found[log], outputs, stats[log], rewritten.keys.get(log, 0)) for log in self._plans]

    def _refuse_without_room(self, scanned: Scanned, logs: Mapping[int, CleanContext], pieces: Sequence[OutputPart]) -> None:
        if self._options.room is None or not pieces:
            return

        def measure() -> Sequence[PartResult]:
            load_factor = self._options.broker.load_factor
            return self._passes.rewrite(scanned, logs, pieces, load_factor, dry_run=True).results

        try:
            refused = logs_without_space(self._options.room, logs, pieces, measure)
        except StorageError:
            # a file system that does not tell its free space says so by itself when there is none
            return
        for log, (needed, free) in refused.items():
            what = f"its cleaned segments take {needed} bytes, {free} bytes are free"
            hint = "free some space and run again, or use --output-dir; nothing was written"
            self._failed[log] = str(StorageError(what, path=logs[log].directory, hint=hint))

    def _of_each(self, work: Callable[[int, LogPlan], T]) -> dict[int, T]:
        """What ``work`` gives for each log that has not failed; a log for which it raises has failed."""
        done: dict[int, T] = {}
        for log, plan in self._plans.items():
            if log not in self._failed:
                try:
                    done[log] = work(log, plan)
                except Exception as error:
                    self._failed[log] = str(of_log(error, plan.view.path))
        return done

    def _slices(self, log: int, plan: LogPlan) -> list[Slice]:
        return slices_of(self._fs, log, plan.view, plan.segments, self._sizes.slice_bytes)

    def _early_transactions(self, slices: Mapping[int, Sequence[Slice]]) -> dict[int, AbortedRanges]:
        """The aborted data that stays out of the map, of logs whose transaction indexes name any."""
        logs = [log for log in slices if any(s.aborted_txns for s in self._plans[log].view.segments)]
        if not logs:
            return {}
        found = self._found(self._passes.transactions([part for log in logs for part in slices[log]], self._options.files))
        spans = self._of_each(lambda log, plan: self._aborted(plan, found[log]) if log in logs else None)
        return {log: span for log, span in spans.items() if span is not None}

    def _aborted(self, plan: LogPlan, found: SliceSummary) -> AbortedRanges:
        view, start = plan.view, plan.first_dirty_offset
        first = max((s for s in view.segments if s.base_offset <= start), key=lambda s: s.base_offset, default=view.segments[0])
        data = self._fs.read_bytes(join(view.path, segment_file(first.base_offset, INDEX)))
        entries = read_offset_index(data, first.base_offset)
        at = int(np.searchsorted(entries["offset"], start, side="right")) - 1
        position = int(entries["position"][at]) if at >= 0 else 0
        return aborted_for_map(view.segments, view.log_start_offset, start, plan.end_offset, position, found.txn_rows)

    def _scan_log(self, log: int, plan: LogPlan, early: Mapping[int, AbortedRanges]) -> MapContext:
        return MapContext(plan.first_dirty_offset, shards(plan, self._sizes.shard_entries), early.get(log))

    def _with_dirty_keys(
        self, slices: Mapping[int, Sequence[Slice]], logs: Mapping[int, MapContext], settings: MapSettings
    ) -> dict[int, MapContext]:
        """The logs, those that are mostly clean with the keys of their dirty section: most of their records then need not ask
        whether they are beaten."""
        dirty: list[Slice] = []
        filters: dict[int, KeyFilter] = {}
        left = _FILTER_BYTES
        for log, work in logs.items():
            parts = [part for part in slices[log] if part.end_offset > work.first_dirty_offset]
            dirty_bytes = sum(part.size_bytes for part in parts)
            clean_bytes = sum(part.size_bytes for part in slices[log]) - dirty_bytes
            if left > 0 and clean_bytes >= max(self._sizes.asked_bytes, _MOSTLY_CLEAN * dirty_bytes):
                filters[log] = KeyFilter.sized(dirty_records(parts, work.first_dirty_offset), left)
                left -= filters[log].words.nbytes
                dirty += parts
        if not dirty:
            return dict(logs)
        found = self._passes.dirty_keys(dirty, {log: logs[log] for log in filters}, settings, filters)
        return {log: replace(work, dirty_keys=found.get(log)) for log, work in logs.items()}

    def _found(self, summaries: Sequence[SliceSummary]) -> dict[int, SliceSummary]:
        """The summaries of each log added up; the first error of a log marks it as failed."""
        rows: dict[int, list[np.ndarray]] = {log: [np.empty(0, TXN_ROW)] for log in self._plans}
        keyless: dict[int, list[np.ndarray]] = {log: [np.empty(0, KEYLESS_ROW)] for log in self._plans}
        totals = {log: SliceSummary(log, 0, 0, 0, rows[log][0]) for log in self._plans}
        for part in summaries:
            if part.error is not None:
                self._failed.setdefault(part.log, part.error)
            total = totals[part.log]
            totals[part.log] = replace(
                total,
                messages=total.messages + part.messages,
                keyless=total.keyless + part.keyless,
                tombstones=total.tombstones + part.tombstones,
            )
            rows[part.log].append(part.txn_rows)
            keyless[part.log].append(part.keyless_rows)
        for log, total in totals.items():
            refusal = self._options.refuse(self._plans[log], total.messages, total.keyless)
            if refusal is not None:
                self._failed.setdefault(log, refusal)
        return {
            log: replace(total, txn_rows=np.concatenate(rows[log]), keyless_rows=np.concatenate(keyless[log]))
            for log, total in totals.items()
        }

    def _work(self, log: int, plan: LogPlan, found: SliceSummary) -> tuple[CleanContext, Verdicts]:
        view, now_ms = plan.view, self._options.now_ms
        groups = [group.segments for group in plan.groups]
        verdicts = resolve_cleaning(view.segments, groups, view.log_start_offset, found.txn_rows)
        aborted = verdicts.spans.contains(found.keyless_rows["producer_id"], found.keyless_rows["last_offset"])
        self._aborted_keyless[log] = int(found.keyless_rows["keyless"][aborted].sum())
        producers = ActiveProducers.of(view.producers)
        rules = RoundRules(verdicts.spans, verdicts.discardable, producers, plan.end_offset, now_ms)
        work = CleanContext(
            plan.first_dirty_offset,
            plan.end_offset - 1,
            plan.config.delete_retention_ms,
            plan.legacy_delete_horizon_ms,
            plan.config.index_interval_bytes,
            rules,
            self._options.directory_of(plan),
            self._task_rate,
            self._options.files,
        )
        return work, verdicts

    def _pieces(self, log: int, slices: Sequence[Slice], verdicts: Verdicts) -> list[OutputPart]:
        """The pieces of one log; a group without a byte is one empty piece."""
        plan = self._plans[log]
        pieces: list[OutputPart] = []
        segment_of = [segment.base_offset for segment in plan.view.segments]
        by_base: dict[int, list[Slice]] = {}
        for part in slices:
            by_base.setdefault(segment_of[part.segment_index], []).append(part)
        for number, group in enumerate(plan.groups):
            parts = [part for segment in group.segments for part in by_base[segment.base_offset]]
            output = GroupOutput(
                log, number, group.base_offset, group.mtime_ns // 1_000_000, verdicts.txn_index[number], parts[0].path
            )
            whole = record_bound(group.segments) <= self._sizes.whole_records
            packs = [parts] if whole else pack(parts, lambda part: part.size_bytes, self._sizes.slice_bytes)
            for each in packs:
                first = each[0].first_offset
                pieces.append(OutputPart(output, len(pieces), tuple(each), first, len(packs) == 1))
        return pieces

    def _whole_segments(
        self, results: Sequence[PartResult], pieces: Sequence[OutputPart], logs: Mapping[int, CleanContext]
    ) -> dict[tuple[int, int], PartResult]:
        """What was written of each output segment, parts joined; failures are noted."""
        result_of: dict[tuple[int, int], PartResult] = {}
        for result in results:
            if result.error is not None:
                self._failed.setdefault(result.log, result.error)
            result_of[result.log, result.number] = result
        whole: dict[tuple[int, int], PartResult] = {}
        parts: dict[tuple[int, int], tuple[GroupOutput, CleanContext, list[PartResult]]] = {}
        for piece in pieces:
            output, result = piece.output, result_of[piece.output.log, piece.number]
            if output.log in self._failed:
                continue
            if piece.whole or self._options.dry_run:
                whole[output.log, output.group] = result
            else:
                parts.setdefault((output.log, output.group), (output, logs[output.log], []))[2].append(result)
        for result in self._passes.join(list(parts.values())):
            if result.error is not None:
                self._failed.setdefault(result.log, result.error)
            whole[result.log, result.group] = result
        return whole

    def _outcome(
        self, log: int, found: SliceSummary, outputs: Mapping[tuple[int, int], PartResult], stats: CleanStats, keys: int
    ) -> CleanResult:
        plan = self._plans[log]
        if log in self._failed:
            return CleanResult(plan, messages=found.messages, error=self._failed[log])
        groups = tuple(
            SwapGroup(
                group.base_offset,
                tuple(s.base_offset for s in group.segments),
                outputs[log, number].suffix or "",
                group.mtime_ns // 1_000_000,
                outputs[log, number].written,
            )
            for number, group in enumerate(plan.groups)
        )
        invalid = found.keyless - self._aborted_keyless.get(log, 0)
        return CleanResult(plan, stats, keys, found.messages, invalid, groups)


def _as_seen(slices: Mapping[int, Sequence[Slice]], summaries: Sequence[SliceSummary]) -> dict[int, list[Slice]]:
    """The slices of each log, with what pass 1 saw of their batches."""
    seen = {summary.slice_id: summary.fingerprint for summary in summaries}
    return {log: [replace(part, fingerprint=seen.get(part.id)) for part in parts] for log, parts in slices.items()}
