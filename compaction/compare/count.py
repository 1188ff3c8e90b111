"""Pass 1 for several policies at once: reads every slice once for all of them, and describes its log at the same time.

A *source* is a log as it is on disk. A *variant* is one way to build the map of a log, determined by its first dirty offset,
its slices and its aborted data; policies that agree in these share a variant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.retention import COLUMNS, Limits, LogRange, tally
from compaction.kernels.slot_table import COUNTS, Arena, SlotTable
from compaction.kernels.tables import DROP
from compaction.logdir.throttle import Throttle
from compaction.passes.build_map import OffsetMapSink, dirty_records, spilled
from compaction.passes.clean_into import Decided
from compaction.passes.decoder import Decoded, corrupt_record
from compaction.passes.scan import Emitted, Emitting, Entries, ShardReadings, scan_records_of
from compaction.passes.tasks import MapContext, MapSettings, Slice, SliceSummary
from compaction.storage.segment_file import Block
from compaction.task_runner import Emission

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
#: lower bounds of the age buckets, ms
AGE_BOUNDS_MS = (0, _HOUR_MS, _DAY_MS, 7 * _DAY_MS, 30 * _DAY_MS, 90 * _DAY_MS, 365 * _DAY_MS)
#: load of a table of key counts
COUNT_LOAD = 0.7
#: number of equal parts of a log's offset range
POSITIONS = 50


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

    @property
    def totals(self) -> NDArray[np.int64]:
        """int64[4]: the sums."""
        total: NDArray[np.int64] = self.ages.sum(axis=0)
        return total

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


@dataclass(frozen=True)
class Source:
    """A log to be described, with the offsets ``[first_offset, end_offset)``; ``shards``: number of shards of its key
    counts."""

    first_offset: int
    end_offset: int
    shards: int
    now_ms: int

    @property
    def frame(self) -> LogRange:
        """The ``frame`` of ``tally``."""
        return LogRange(self.first_offset, max(self.end_offset, self.first_offset + 1), self.now_ms)


@dataclass(frozen=True)
class SharedSummary:
    """Pass 1's summary of a slice; ``tally`` counts all of its records."""

    summary: SliceSummary
    tally: Tally


def counts_of(source: int) -> int:
    """The number of the map that holds the key counts of a source; negative, unlike the numbers of variants."""
    return -1 - source


def scan_shared(
    slices: Iterable[Slice], contexts: tuple[Mapping[int, MapContext], Mapping[int, Source]], settings: MapSettings
) -> Iterator[Emission]:
    """Packed map entries by variant and shard, packed key counts by source and shard, each shard with the ``Reading`` of this
    task, and for the driver one ``SharedSummary`` per slice.

    The summary of an unreadable slice has an error.

    :param slices: ``maps`` are the key counts of the source, and the variants
    :param contexts: the variants, and the sources
    """
    variants, sources = contexts
    for source, group in groupby(slices, key=lambda slice_: slice_.log):
        of_source = list(group)
        numbers = sorted({number for slice_ in of_source for number in slice_.maps})
        shared = replace(settings, map_bytes=settings.map_bytes // len(numbers))
        sinks: dict[int, OffsetMapSink | _KeyCountSink] = {}
        for number in numbers:
            slices_of_map = [slice_ for slice_ in of_source if number in slice_.maps]
            if number < 0:
                sinks[number] = _KeyCountSink(number, sources[source].shards, shared, dirty_records(slices_of_map, 0))
            else:
                records = dirty_records(slices_of_map, variants[number].first_dirty_offset)
                sinks[number] = OffsetMapSink(number, variants[number], shared, records, Arena())
        throttle = Throttle(settings.bytes_per_second)
        shards = {number: sources[source].shards if number < 0 else variants[number].shards for number in numbers}
        sent, summaries = ShardReadings(shards), []
        for slice_ in of_source:
            tallies = _TallySink(sources[source].frame)
            scanning = scan_records_of(slice_, [sinks[number] for number in slice_.maps], [tallies], settings, throttle)
            summary = yield from sent.counted(scanning)
            summaries.append(summary)
            tally_of_slice = tallies.tally if summary.error is None else Tally.empty()
            yield None, SharedSummary(summary, tally_of_slice)
        for sink in sinks.values():
            yield from sent.counted(sink.result())
        yield from sent.result(of_source, summaries)


class _KeyCountSink:
    """Counts keys; it spills slots of hashes and counts."""

    def __init__(self, number: int, shards: int, settings: MapSettings, max_records: int) -> None:
        self.number, self._shards, self._source = number, shards, Entries(MapContext(0, shards), settings.secret)
        self.begin, self.counts = self._source.begin, self._source.counts
        self._table = SlotTable(COUNTS, settings.map_bytes, COUNT_LOAD, max_records, Arena())

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
