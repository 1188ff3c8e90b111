"""Pass 1 for several policies at once: every slice is read once, whoever wants it, and its log is described along the way.

A *source* is a log as it lies there. A *variant* is one way to build the map of a log: its first dirty offset, its slices, what
counts as aborted in it; policies that agree in these share the variant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.txn_tables import KEYLESS_ROW, TXN_ROW, keyless_rows, summarise
from compaction.errors import CorruptLogError, of_log
from compaction.kernels.keys.key_counts import KeyCounts
from compaction.kernels.keys.offset_map import Arena
from compaction.kernels.reading.records import KEYLESS, MESSAGES, RECORD_ERRORS, TOMBSTONES
from compaction.kernels.reading.tables import DROP
from compaction.kernels.rewriting.tally import COLUMNS, tally
from compaction.logdir.blocks import Block, SegmentReader
from compaction.logdir.throttle import Throttle
from compaction.passes.build_map import SUMMARY, Key, LogScan, check_offsets, dirty_records
from compaction.passes.decoder import Decoded, Decoder
from compaction.passes.tasks import MapContext, MapSettings, Packed, Slice, SliceSummary

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
#: the ages that records are counted by begin here, ms
AGE_BOUNDS_MS = (0, _HOUR_MS, _DAY_MS, 7 * _DAY_MS, 30 * _DAY_MS, 90 * _DAY_MS, 365 * _DAY_MS)
#: into so many equal parts a log's offsets are divided
POSITIONS = 50


@dataclass(frozen=True)
class Tally:
    """Counts of records: ``positions`` int64[50, 4] by part of the log, ``ages`` int64[9, 4] by ``age_bucket``; columns as in
    ``compaction.kernels.rewriting.tally``."""

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


@dataclass(frozen=True)
class Source:
    """A log to be described: the offsets ``[first_offset, end_offset)`` it has, and into how many shards its keys go."""

    first_offset: int
    end_offset: int
    shards: int
    now_ms: int

    @property
    def frame(self) -> NDArray[np.int64]:
        """The ``frame`` of ``tally``."""
        return np.array([self.first_offset, max(self.end_offset, self.first_offset + 1), self.now_ms], np.int64)


@dataclass(frozen=True)
class SharedSlice:
    """A slice that is read once; ``slice.log`` is its source, ``variants`` are those that it belongs to."""

    number: int
    slice: Slice
    variants: tuple[int, ...]


@dataclass(frozen=True)
class SharedSummary:
    """What pass 1 found in a slice besides map entries; ``tally`` counts all of its records."""

    number: int
    summary: SliceSummary
    tally: Tally


def counts_of(source: int) -> int:
    """The first part of the ``Key`` under which a source's counted keys go, apart from those of variants."""
    return -1 - source


def scan_shared(
    slices: Iterable[SharedSlice], variants: Mapping[int, MapContext], sources: Mapping[int, Source], settings: MapSettings
) -> Iterator[tuple[Key, list[Packed | SharedSummary]]]:
    """Packed map entries by variant and shard, packed key counts by source and shard, and one summary a slice.

    A slice that cannot be read gives a summary with an error.
    """
    for source, neighbours in groupby(slices, key=lambda each: each.slice.log):
        scan = _SourceScan(list(neighbours), variants, sources[source], settings)
        for each in scan.slices:
            yield (source, SUMMARY), [scan.read(each)]
            yield from scan.packed(source, rest=False)
        yield from scan.packed(source, rest=True)


class KeyScan(LogScan):
    """Counts keys where ``LogScan`` maps them; what it hands on are hashes and counts."""

    def __init__(self, shards: int, settings: MapSettings, most_records: int) -> None:
        super().__init__(MapContext(0, shards), settings, 0, Arena())
        self._counts = KeyCounts(settings.map_bytes, most_records)

    def _take(self, n: int, m: int) -> None:
        done = 0
        while done < n:
            room = self._counts.remaining()
            if not room:
                self._hand_on(self._counts.slots)
                self._counts.clear()
                continue
            self._counts.add(self._entries[done : min(n, done + room)], once=True)
            done += min(room, n - done)

    def rest(self) -> Iterator[tuple[int, Packed]]:
        """All that is left, by shard."""
        self._hand_on(self._counts.slots)
        yield from self.overflow()


class _SourceScan:
    """Neighbouring slices of one source."""

    def __init__(
        self, slices: list[SharedSlice], variants: Mapping[int, MapContext], source: Source, settings: MapSettings
    ) -> None:
        self.slices, self._files = slices, settings.files
        wanted = sorted({variant for each in slices for variant in each.variants})
        share = replace(settings, map_bytes=settings.map_bytes // (len(wanted) + 1))
        self._frame, self._bounds = source.frame, np.array(AGE_BOUNDS_MS, np.int64)
        self._keys = KeyScan(source.shards, share, dirty_records((each.slice for each in slices), 0))
        self._scans: dict[int, LogScan] = {}
        for variant in wanted:
            log = variants[variant]
            parts = [each.slice for each in slices if variant in each.variants]
            self._scans[variant] = LogScan(log, share, dirty_records(parts, log.first_dirty_offset), Arena())
        self._throttle = Throttle(settings.bytes_per_second)

    def packed(self, source: int, *, rest: bool) -> Iterator[tuple[Key, list[Packed | SharedSummary]]]:
        """What did not fit any more, or all that is left."""
        for number, scan in [(counts_of(source), self._keys), *self._scans.items()]:
            for shard, data in scan.rest() if rest else scan.overflow():
                yield (number, shard), [data]

    def read(self, each: SharedSlice) -> SharedSummary:
        """Read one slice, for all of its variants."""
        part, found = each.slice, _Found()
        position, next_offset = part.start, part.first_offset
        try:
            with SegmentReader(self._files, part.path, part.start, part.end) as reader:
                decoder = Decoder(part.path)
                for block in reader.blocks(check_crc=True):
                    position = block.position
                    self._throttle.count(len(block.raw))
                    for rows in decoder.as_v2(block):
                        next_offset = check_offsets(rows, next_offset, part.path)
                        found.txn_rows.append(summarise(rows.rows, part.segment_index))
                        self._block(rows, decoder, each, found)
        except Exception as error:
            failure = SliceSummary(part.log, 0, 0, 0, found.txn_rows[0], error=str(of_log(error, part.path, position)))
            return SharedSummary(each.number, failure, Tally.empty())
        return SharedSummary(each.number, found.summary(part.log), found.tally)

    def _block(self, block: Block, decoder: Decoder, each: SharedSlice, found: _Found) -> None:
        """One run of batches, decoded once; markers too, whose age and place count."""
        keyless, before = np.zeros(len(block.rows), np.int32), found.counters[KEYLESS]
        scans = [self._scans[variant] for variant in each.variants]
        actions = [scan.actions(block.rows) for scan in scans]
        all_actions, path = self._keys.actions(block.rows), each.slice.path
        for decoded in decoder.decode(block):
            self._keys.records(block, decoded, all_actions, (keyless, found.counters), path)
            for scan, wanted in zip(scans, actions, strict=True):
                scan.records(block, decoded, wanted, (np.zeros_like(keyless), np.zeros_like(found.counters)), path)
            self._tally(block, decoded, found.tally, path)
        if found.counters[KEYLESS] > before:
            found.keyless_rows.append(keyless_rows(block.rows, keyless))

    def _tally(self, block: Block, decoded: Decoded, into: Tally, path: str) -> None:
        rows = decoded.rows
        every = np.full(len(rows), DROP, np.uint8)
        none, limits = np.empty(0, np.uint64), np.zeros(4, np.int64)
        at, error = tally(
            block.raw, decoded.scratch, rows, decoded.spans, every, every, none, limits, self._frame, self._bounds,
            into.positions, into.ages,
        )  # fmt: skip
        if error:
            position = int(rows[at]["position"])
            raise CorruptLogError(RECORD_ERRORS[error], path=path, position=position, hint="restore this segment")


class _Found:
    """What a slice is found to hold."""

    def __init__(self) -> None:
        self.txn_rows = [np.empty(0, TXN_ROW)]
        self.keyless_rows = [np.empty(0, KEYLESS_ROW)]
        self.counters = np.zeros(3, np.int64)
        self.tally = Tally.empty()

    def summary(self, log: int) -> SliceSummary:
        messages, keyless, tombstones = self.counters[[MESSAGES, KEYLESS, TOMBSTONES]].tolist()
        return SliceSummary(
            log, messages, keyless, tombstones, np.concatenate(self.txn_rows), np.concatenate(self.keyless_rows)
        )
