"""Pass 1 for several policies at once: reads every slice once for all of them, and describes its log at the same time.

A *source* is a log as it is on disk. A *variant* is one way to build the map of a log, determined by its first dirty offset,
its slices and its aborted data; policies that agree in these share a variant.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.keys.key_counts import KeyCounts
from compaction.kernels.keys.offset_map import Arena
from compaction.kernels.reading.tables import DROP
from compaction.kernels.rewriting.batch_retention import Limits
from compaction.kernels.rewriting.tally import COLUMNS, Frame, tally
from compaction.logdir.blocks import Block
from compaction.passes.build_map import SliceScan, dirty_records
from compaction.passes.clean_into import Decided
from compaction.passes.decoder import Decoded, corrupt_record
from compaction.passes.log_scan import Emitted, LogScan, log_scan
from compaction.passes.tasks import Key, MapContext, MapSettings, Packed, Slice, SliceSummary

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000
#: lower bounds of the age buckets, ms
AGE_BOUNDS_MS = (0, _HOUR_MS, _DAY_MS, 7 * _DAY_MS, 30 * _DAY_MS, 90 * _DAY_MS, 365 * _DAY_MS)
#: number of equal parts of a log's offset range
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

    def add(
        self,
        block: Block,
        decoded: Decoded,
        decided: Decided,
        survivors: NDArray[np.uint64],
        frame: Frame,
        path: str,
    ) -> None:
        """Count the dropped records of decoded batches.

        :param decided: of all batches of ``block``
        :param survivors: survivor entries from the first of these batches on
        :param frame: see ``Source``
        :raises CorruptLogError: a record is not well-formed
        """
        rows, first = decoded.rows, decoded.first_row
        actions, verdicts = (each[first : first + len(rows)] for each in decided[:2])
        at, error = tally(
            block.raw, decoded.scratch, rows, decoded.spans, actions, verdicts, survivors, decided.limits, frame,
            np.array(AGE_BOUNDS_MS, np.int64), self.positions, self.ages,
        )  # fmt: skip
        if error:
            raise corrupt_record(error, rows[at], path)


@dataclass(frozen=True)
class Source:
    """A log to be described, with the offsets ``[first_offset, end_offset)``; ``shards``: number of shards of its key
    counts."""

    first_offset: int
    end_offset: int
    shards: int
    now_ms: int

    @property
    def frame(self) -> Frame:
        """The ``frame`` of ``tally``."""
        return Frame(self.first_offset, max(self.end_offset, self.first_offset + 1), self.now_ms)


@dataclass(frozen=True)
class SharedSummary:
    """What pass 1 found in a slice, besides map entries; ``tally`` counts all of its records."""

    summary: SliceSummary
    tally: Tally


def counts_of(source: int) -> int:
    """The number of the map that holds the key counts of a source; negative, unlike the numbers of variants."""
    return -1 - source


def scan_shared(
    slices: Iterable[Slice], known: tuple[Mapping[int, MapContext], Mapping[int, Source]], settings: MapSettings
) -> Iterator[tuple[Key, list[Packed | SharedSummary]]]:
    """Packed map entries by variant and shard, packed key counts by source and shard, and one summary per slice.

    The summary of an unreadable slice has an error.

    :param slices: ``maps`` are the key counts of the source, and the variants
    :param known: the variants, and the sources
    """
    variants, sources = known
    for source, group in groupby(slices, key=lambda each: each.log):
        of_source = list(group)
        wanted = sorted({number for each in of_source for number in each.maps})
        shared = replace(settings, map_bytes=settings.map_bytes // len(wanted))
        scans: dict[int, LogScan] = {}
        for number in wanted:
            of_map = [each for each in of_source if number in each.maps]
            if number < 0:
                scans[number] = KeyScan(sources[source].shards, shared, dirty_records(of_map, 0))
            else:
                log = variants[number]
                scans[number] = log_scan(log, shared, dirty_records(of_map, log.first_dirty_offset), own_memory=True)
        yield from _TallyScan(scans, settings, sources[source].frame).run(of_source)


class KeyScan(LogScan):
    """Counts keys instead of mapping them; it spills hashes and counts."""

    def __init__(self, shards: int, settings: MapSettings, max_records: int) -> None:
        super().__init__(MapContext(0, shards), settings, 0, Arena())
        self._counts = KeyCounts(settings.map_bytes, max_records)

    def _take(self, n: int, m: int) -> Iterator[Emitted]:
        done = 0
        while done < n:
            chunk = min(self._counts.remaining(), n - done)
            if not chunk:
                yield from self._by_shard(self._counts.slots)
                self._counts.clear()
                continue
            self._counts.add(self._entries[done : done + chunk], once=True)
            done += chunk

    def drain(self) -> Iterator[Emitted]:
        """All remaining counts, by shard."""
        yield from self._by_shard(self._counts.slots)


class _TallyScan(SliceScan):
    """Counts all records, including markers, by age and position."""

    def __init__(self, scans: Mapping[int, LogScan], settings: MapSettings, frame: Frame) -> None:
        super().__init__(scans, settings)
        self._frame, self._tally = frame, Tally.empty()

    def emit(self, slice_: Slice) -> Generator[tuple[Key, list[Any]], None, SharedSummary]:
        """Scan one slice."""
        self._tally = Tally.empty()
        summary = yield from super().emit(slice_)
        return SharedSummary(summary, self._tally if summary.error is None else Tally.empty())

    def _wanted(self, actions: NDArray[np.uint8]) -> None:
        """All batches."""

    def _decoded(self, block: Block, decoded: Decoded, path: str) -> None:
        rows = len(block.rows)
        all_dropped = Decided(np.full(rows, DROP, np.uint8), np.zeros(rows, np.uint8), Limits(0, 0, 0, False))
        self._tally.add(block, decoded, all_dropped, np.empty(0, np.uint64), self._frame, path)
