"""The passes of a run whose "logs" are several policies' plans for the same logs. Each slice is read once for all of them.

``Cleaner`` numbers its plans and runs passes over their slices. Here slices of the same bytes are merged, plans that build the
same map share a variant, and results are returned under each plan's number. Nothing is written: both kinds of pass 2 measure.

A *source* is a log as it is on disk; pass 1 describes it while it is read. A *variant* is one way to build the map of a log,
determined by its first dirty offset, its slices and its aborted data; policies that agree in these share a variant. A *case* is
one way to clean a log with the map of a variant; pass 2 counts its output without writing it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.engine import Emission, Engine, Job, Reading, pack, size_of
from compaction.errors import LogError, as_log_error
from compaction.files.filesystem import ReadableFileSystem
from compaction.files.segment_file import Block
from compaction.kernels.retention import COLUMNS, Limits, LogRange, tally
from compaction.kernels.slot_table import COUNTS, Arena, SlotTable
from compaction.kernels.tables import COPY, DROP
from compaction.passes.build_map import OffsetMapSink, dirty_records, spilled
from compaction.passes.clean_into import Decided, Rewriter
from compaction.passes.decoder import Decoded, corrupt_record
from compaction.passes.merge import CleanedParts, MapParts, PartsToClean, accepted_entries, accepted_survivors
from compaction.passes.scan import Emitted, Emitting, Entries, ShardReadings, finish, scan, scan_records_of
from compaction.passes.tasks import (
    CleanContext,
    CleanStats,
    Key,
    MapContext,
    MapSettings,
    OutputPart,
    PartResult,
    Slice,
    SliceId,
    SliceSummary,
)
from compaction.passes.throttle import Throttle
from compaction.run.offset_maps import OffsetMaps
from compaction.run.sizing import Sizes

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
#: lower bounds of the age buckets, ms
AGE_BOUNDS_MS = (0, _HOUR_MS, _DAY_MS, 7 * _DAY_MS, 30 * _DAY_MS, 90 * _DAY_MS, 365 * _DAY_MS)
#: load of a table of key counts
COUNT_LOAD = 0.7
#: number of equal parts of a log's offset range
POSITIONS = 50
#: keys that occur more than 2^(i-1) and at most 2^i times are counted under i
REPETITIONS = 64


@dataclass(frozen=True)
class Tally:
    """Counts of records: ``positions`` int64[50, 4] by part of the log, ``ages`` int64[9, 4] by ``age_bucket``; columns as in
    ``compaction.kernels.retention``."""

    positions: NDArray[np.int64]
    ages: NDArray[np.int64]

    @classmethod
    def empty(cls) -> Tally:
        """All zero."""
        ages = np.zeros((len(AGE_BOUNDS_MS) + 2, COLUMNS), np.int64)
        return cls(np.zeros((POSITIONS, COLUMNS), np.int64), ages)

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.positions + other.positions, self.ages + other.ages)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.positions - other.positions, self.ages - other.ages)

    def add(self, decoded: Decoded, decided: Decided, survivors: NDArray[np.uint64], frame: LogRange) -> None:
        """Count the dropped records of decoded batches.

        :param decided: of all batches of the block
        :param survivors: survivor entries from the first of these batches on
        :param frame: see ``Source``
        :raises CorruptLogError: a record is not well-formed
        """
        rows, first = decoded.rows, decoded.first_row
        actions, verdicts = (column[first : first + len(rows)] for column in decided[:2])
        row, error = tally(
            decoded.block.raw, decoded.scratch, rows, decoded.spans, actions, verdicts, survivors, decided.limits, frame,
            np.array(AGE_BOUNDS_MS, np.int64), self.positions, self.ages,
        )  # fmt: skip
        if error:
            raise corrupt_record(error, rows[row], decoded.block.path)


class Source(NamedTuple):
    """A log to be described, with all of its slices in the order of offsets; ``shards``: number of shards of its key counts."""

    frame: LogRange
    shards: int
    slices: Sequence[Slice]


@dataclass(frozen=True, kw_only=True)
class SharedSummary(SliceSummary):
    """Pass 1's summary of a slice; ``tally`` counts all of its records."""

    tally: Tally


def counts_of(source: int) -> int:
    """The number of the map that holds the key counts of a source; negative, unlike the numbers of variants."""
    return -1 - source


def scan_shared(
    slices: Iterable[Slice], known: tuple[Mapping[int, MapContext], Mapping[int, LogRange]], settings: MapSettings
) -> Iterator[Emission]:
    """Packed map entries by variant and shard, packed key counts by source and shard, each shard with the ``Reading`` of this
    task, and for the driver one ``SharedSummary`` per slice.

    The summary of an unreadable slice has an error.

    :param slices: ``maps`` are the key counts of the source, and the variants
    :param known: the contexts of all maps, and the frames of the sources
    """
    contexts, frames = known
    for source, group in groupby(slices, key=lambda slice_: slice_.log):
        of_source = list(group)
        numbers = sorted({number for slice_ in of_source for number in slice_.maps})
        shared = replace(settings, map_bytes=settings.map_bytes // len(numbers))
        sinks: dict[int, OffsetMapSink | _KeyCountSink] = {}
        for number in numbers:
            slices_of_map = [slice_ for slice_ in of_source if number in slice_.maps]
            records = dirty_records(slices_of_map, contexts[number].first_dirty_offset)
            sink_of = _KeyCountSink if number < 0 else OffsetMapSink
            sinks[number] = sink_of(number, contexts[number], shared, records, Arena())
        throttle = Throttle(settings.bytes_per_second)
        sent, summaries = ShardReadings({number: contexts[number].shards for number in numbers}), []
        for slice_ in of_source:
            tallies = _TallySink(frames[source])
            scanning = scan_records_of(slice_, [sinks[number] for number in slice_.maps], [tallies], settings, throttle)
            summary = yield from sent.counted(scanning)
            summaries.append(summary)
            yield None, SharedSummary(**vars(summary), tally=tallies.tally if summary.error is None else Tally.empty())
        for sink in sinks.values():
            yield from sent.counted(sink.result())
        yield from sent.result(of_source, summaries)


class _KeyCountSink:
    """Counts keys; it spills slots of hashes and counts."""

    def __init__(self, number: int, log: MapContext, settings: MapSettings, max_records: int, arena: Arena) -> None:
        self.number, self._shards, self._source = number, log.shards, Entries(log, settings.secret)
        self.begin, self.counts = self._source.begin, self._source.counts
        self._table = SlotTable(COUNTS, settings.map_bytes, COUNT_LOAD, max_records, arena)

    def take(self, decoded: Decoded) -> Iterator[Emitted]:
        for entries, _ in self._source.of(decoded):
            position = self._table.put(entries)
            while position < len(entries):
                yield from spilled(self.number, self._table.slots, self._shards)
                self._table.clear()
                position = self._table.put(entries, position)

    def result(self) -> Emitting[None]:
        """All remaining counts, by shard."""
        yield from spilled(self.number, self._table.slots, self._shards)


class _TallySink:
    """Counts all records, including markers, by age and position."""

    def __init__(self, frame: LogRange) -> None:
        self._frame, self.tally = frame, Tally.empty()

    def begin(self, block: Block) -> NDArray[np.bool_]:
        return np.ones(len(block.rows), np.bool_)

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        rows = len(decoded.block.rows)
        all_dropped = Decided(np.full(rows, DROP, np.uint8), np.zeros(rows, np.uint8), Limits(0, 0, 0, False))
        self.tally.add(decoded, all_dropped, np.empty(0, np.uint64), self._frame)
        return ()


@dataclass(frozen=True)
class Measured:
    """The result of cleaning one slice in one case; ``dropped`` counts the records that are not in the output."""

    case: int
    slice_id: SliceId
    stats: CleanStats
    dropped: Tally
    error: str | None = None


class _CaseSink:
    """Cleans the batches of a slice for one case, and counts the records that it drops. An error of a record fails this case
    only."""

    def __init__(self, number: int, rewriter: Rewriter, slice_: Slice, frame: LogRange, error: LogError | None) -> None:
        self.number, self._rewriter, self._frame = number, rewriter, frame
        rewriter.start(slice_)
        self.dropped = Tally.empty()
        self.error = error

    def begin(self, block: Block) -> NDArray[np.bool_]:
        selected = self._rewriter.decide(block)
        batches: NDArray[np.bool_] = selected | (self._rewriter.decided.actions != COPY)
        return batches

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        if self.error is None:
            try:
                self._rewriter.check_sizes(decoded)
                for _ in self._rewriter.rewrite(decoded):
                    pass
                survivors = self._rewriter.survivors_from(int(decoded.rows["base_offset"][0]))
                self.dropped.add(decoded, self._rewriter.decided, survivors, self._frame)
            except Exception as error:
                self.error = as_log_error(error, decoded.block.path, decoded.block.position)
        return ()

    def result(self, slice_id: SliceId) -> Measured:
        error = None if self.error is None else str(self.error)
        return Measured(self.number, slice_id, self._rewriter.stats(), self.dropped, error)


def measure_shared(
    slices: PartsToClean, known: tuple[Mapping[int, Sequence[tuple[int, CleanContext]]], Mapping[int, LogRange]]
) -> list[Measured]:
    """Measure slices in each case, given by variant the survivor entries from any number of shards, uint64[n] in no order.

    :param known: the numbered cases by variant, and the frames of the sources
    """
    (cases_of, frames), measured = known, list[Measured]()
    for slice_, survivors in slices:
        logs = [(variant, number, log) for variant in slice_.maps for number, log in cases_of.get(variant, ())]
        cases = []
        for variant, number, log in logs:
            packed = accepted_survivors(survivors.get(variant, ()))
            refused, packed = (packed, []) if isinstance(packed, LogError) else (None, packed)
            cases.append(_CaseSink(number, Rewriter(log, packed), slice_, frames[slice_.log], refused))
        throttle = Throttle(min(log.bytes_per_second for _, _, log in logs))
        try:
            finish(scan(slice_, cases, logs[0][2].files, throttle, check_crc=False))
        except LogError as error:
            for case in cases:
                case.error = case.error or error
        measured += [case.result(slice_.id) for case in cases]
    return measured


@dataclass(frozen=True)
class Repetition:
    """Numbers of keys and of their records, int64[64] each, by records per key in powers of two (see ``REPETITIONS``)."""

    keys: NDArray[np.int64]
    records: NDArray[np.int64]
    most: int

    def __add__(self, other: Repetition) -> Repetition:
        return Repetition(self.keys + other.keys, self.records + other.records, max(self.most, other.most))


def resolve_counts(key: Key, values: Iterable[Any], accepted: Mapping[int, Reading]) -> list[tuple[int, Repetition | LogError]]:
    """Merge one shard's key counts, or why it was refused; nothing for shards of other maps.

    :param accepted: what was read for each map
    """
    number, _ = key
    if number >= 0:
        return []
    try:
        packed = accepted_entries(values, accepted[number])
    except LogError as error:
        return [(number, error)]
    total = SlotTable.of_keys(COUNTS, sum(map(len, packed)))
    for packed_counts in packed:
        total.put(packed_counts, of_records=False)
    counts = total.slots[:, 2]
    counts = counts[counts != 0].astype(np.int64)
    powers = np.ceil(np.log2(counts)).astype(np.int64)
    keys, records = (np.bincount(powers, each, REPETITIONS).astype(np.int64) for each in (np.ones(len(powers)), counts))
    return [(number, Repetition(keys, records, int(counts.max(initial=0))))]


class _RoundSink:
    """Counts the rounds that a map of ``most_keys`` keys takes."""

    def __init__(self, log: MapContext, settings: MapSettings, most_keys: int) -> None:
        self._source = Entries(log, settings.secret)
        self.begin = self._source.begin
        self._table = SlotTable.of_keys(COUNTS, most_keys)
        self.rounds = 1

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        for entries, _ in self._source.of(decoded):
            position = self._table.put(entries)
            while position < len(entries):
                self._table.clear()
                self.rounds += 1
                position = self._table.put(entries, position)
        return ()


def count_rounds(work: tuple[Sequence[Slice], MapContext], settings: MapSettings, most_keys: int) -> int:
    """The number of rounds that Kafka's cleaner needs for a log if its map holds ``most_keys``.

    :param work: all slices of a variant, in the order of offsets
    :raises LogError: a slice cannot be read
    """
    slices, log = work
    sink, throttle = _RoundSink(log, settings, most_keys), Throttle(settings.bytes_per_second)
    for slice_ in slices:
        finish(scan(slice_, [sink], settings.files, throttle))
    return sink.rounds


class Variant(NamedTuple):
    """One way to build a log's map: its slices, and the numbers of the plans that share it."""

    context: MapContext
    slices: tuple[Slice, ...]
    logs: tuple[int, ...]


@dataclass(frozen=True)
class LogCounts:
    """A source's description from pass 1; ``by_segment``: record counts by index of the segment in the source's view."""

    by_segment: Mapping[int, Tally]
    repetition: Repetition | None
    error: str | None


class SharedMaps(OffsetMaps):
    """The passes of comparisons.

    :param sources: by number, the logs to describe
    """

    #: of pass 1
    _settings: MapSettings

    def __init__(self, engine: Engine, sizes: Sizes, now_ms: int, sources: Mapping[int, Source]) -> None:
        # a refused log has figures, too
        super().__init__(engine, sizes, now_ms, lambda plan, messages, keyless: None)
        self._frames = {number: source.frame for number, source in sources.items()}
        self._counts = {counts_of(number): MapContext(0, source.shards) for number, source in sources.items()}
        self._slices = {_byte_range(part): part for source in sources.values() for part in source.slices}
        self._variants: dict[int, Variant] = {}
        #: by source, once ``build_offset_map`` has run
        self.described: dict[int, LogCounts] = {}
        #: by plan, once pass 2 has run: counts of the dropped records
        self.dropped: dict[int, Tally] = defaultdict(Tally.empty)

    def read_transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """The transaction summary of each slice; equal byte ranges are read once."""
        ranges = list(dict.fromkeys(_byte_range(slice_) for slice_ in slices))
        summaries = super().read_transactions([self._slices[byte_range] for byte_range in ranges], files)
        by_range = dict(zip(ranges, summaries, strict=True))
        return [_for_plan(part, self._shared(part), by_range[_byte_range(part)]) for part in slices]

    def build_offset_map(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings
    ) -> Sequence[SliceSummary]:
        """Pass 1 over all sources; the result has the summaries of ``slices``."""
        self._settings = settings
        self._variants = self._group(slices, logs)
        members: dict[SliceId, list[int]] = {part.id: [counts_of(part.log)] for part in self._slices.values()}
        for number, variant in self._variants.items():
            for slice_ in variant.slices:
                members[slice_.id].append(number)
        self._slices = {key: replace(slice_, maps=tuple(members[slice_.id])) for key, slice_ in self._slices.items()}
        contexts = {number: variant.context for number, variant in self._variants.items()} | self._counts
        bounds = {number: (log.shards, log.shards * self._sizes.shard_entries) for number, log in contexts.items()}
        tasks = pack(list(self._slices.values()), size_of, self._sizes.scan_bytes)
        description = f"pass 1: scan {len(self._slices)} slices for {len(self._variants)} maps"
        summaries = self.scan_into_maps(description, tasks, scan_shared, (contexts, self._frames), settings, bounds)
        by_id = {summary.slice_id: summary for summary in summaries}
        self._slices = {key: replace(part, fingerprint=by_id[part.id].fingerprint) for key, part in self._slices.items()}
        self.described = self._describe(by_id)
        return [_for_plan(slice_, self._shared(slice_), by_id[self._shared(slice_).id]) for slice_ in slices]

    def clean(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart], *, writes: bool) -> CleanedParts[PartResult]:
        """Pass 2 over the slices of ``parts``; nothing is written in any case."""
        cases = {
            number: contexts
            for number, variant in self._variants.items()
            if (contexts := [(log, logs[log]) for log in variant.logs if log in logs])
        }
        slices = [part for part in self._slices.values() if any(number in cases for number in part.maps)]
        maps = {
            number: MapParts.of(self._variants[number].context.first_dirty_offset, self._variants[number].slices)
            for number in cases
        }
        tasks = pack(slices, size_of, self._sizes.slice_bytes)
        job = Job.reading("pass 2", f"pass 2: measure {len(slices)} slices", tasks)
        cleaned = self.resolve_into(job, tasks, maps, measure_shared, (cases, self._frames))
        keys = {log: cleaned.keys.get(number, 0) for number, variant in self._variants.items() for log in variant.logs}
        return CleanedParts(list(self._results(cleaned.results, parts)), keys)

    def broker_rounds(
        self, plans_with_map_size: Iterable[tuple[int, int]], keys: Mapping[int, int]
    ) -> dict[tuple[int, int], int]:
        """The number of rounds that a broker's cleaner needs for a plan's log. Logs whose keys may not fit the broker's map are
        read again, once per map size.

        :param plans_with_map_size: pairs of a plan and the number of keys that its broker's map holds
        :param keys: the number of keys in each plan's map
        """
        rounds = dict.fromkeys(plans_with_map_size, 1)
        for most_keys in sorted({most_keys for log, most_keys in rounds if keys.get(log, 0) >= most_keys}):
            variants = [
                variant
                for variant in self._variants.values()
                if any((log, most_keys) in rounds and keys.get(log, 0) >= most_keys for log in variant.logs)
            ]
            works = [(variant.slices, variant.context) for variant in variants]
            job = Job.reading("rounds", f"count a broker's rounds over {len(works)} logs", [slices for slices, _ in works])
            count = partial(count_rounds, settings=self._settings, most_keys=most_keys)
            for variant, round_count in zip(variants, self._engine.run(job, works, count), strict=True):
                rounds.update({(log, most_keys): round_count for log in variant.logs if (log, most_keys) in rounds})
        return rounds

    def _group(self, slices: Sequence[Slice], logs: Mapping[int, MapContext]) -> dict[int, Variant]:
        read: dict[int, list[Slice]] = {log: [] for log in logs}
        for part in slices:
            read[part.log].append(self._shared(part))
        plans_by_map: dict[object, list[int]] = {}
        for log, context in logs.items():
            ranges = b"" if context.aborted is None else b"".join(map(bytes, vars(context.aborted).values()))
            ids = tuple(slice_.id for slice_ in read[log])
            plans_by_map.setdefault((ids, context.first_dirty_offset, context.shards, ranges), []).append(log)
        return {
            number: Variant(logs[plans[0]], tuple(read[plans[0]]), tuple(plans))
            for number, plans in enumerate(plans_by_map.values())
        }

    def _shared(self, slice_: Slice) -> Slice:
        return self._slices[_byte_range(slice_)]

    def _describe(self, summaries: Mapping[SliceId | None, SharedSummary]) -> dict[int, LogCounts]:
        repetitions: dict[int, Repetition] = {}
        by_segment: dict[int, dict[int, Tally]] = {source: defaultdict(Tally.empty) for source in self._frames}
        errors: dict[int, str] = {}
        for number, repetition in self.collect_shards("count how often keys occur", resolve_counts):
            if isinstance(repetition, LogError):
                errors.setdefault(counts_of(number), str(repetition))
            else:
                repetitions[number] = repetitions[number] + repetition if number in repetitions else repetition
        for part in self._slices.values():
            summary = summaries[part.id]
            by_segment[part.log][part.segment_index] += summary.tally
            if summary.error is not None:
                errors.setdefault(part.log, summary.error)
        return {
            source: LogCounts(tallies, repetitions.get(counts_of(source)), errors.get(source))
            for source, tallies in by_segment.items()
        }

    def _results(self, measured: Iterable[Measured], parts: Sequence[OutputPart]) -> Iterable[PartResult]:
        """One result per output part; adds the dropped records of its slices to ``dropped``."""
        by_slice = {(result.case, result.slice_id): result for result in measured}
        for part in parts:
            output, stats, error = part.output, CleanStats(), None
            for slice_ in part.slices:
                result = by_slice[output.log, self._shared(slice_).id]
                stats += result.stats
                error = error or result.error
                self.dropped[output.log] += result.dropped
            yield PartResult(output.log, output.group, part.number, stats, None, error)


def _byte_range(slice_: Slice) -> tuple[str, int, int]:
    return slice_.path, slice_.start, slice_.end


def _for_plan(slice_: Slice, shared: Slice, summary: SliceSummary) -> SliceSummary:
    rows = summary.txn_rows.copy()
    rows["segment_index"] += slice_.segment_index - shared.segment_index
    return replace(summary, log=slice_.log, slice_id=slice_.id, txn_rows=rows)
