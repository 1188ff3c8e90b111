"""Pass 1 for several policies at once: reads every slice once for all of them, and describes its log at the same time.

A *source* is a log as it is on disk. A *variant* is one way to build the map of a log, determined by its first dirty offset,
its slices and its aborted data; policies that agree in these share a variant.

Tested by ``tests/compare/test_compare_policies.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.keys.key_counts import KeyCounts
from compaction.kernels.keys.offset_map import Arena
from compaction.kernels.reading.tables import DROP
from compaction.kernels.rewriting.batch_retention import Limits
from compaction.kernels.rewriting.tally import COLUMNS, Frame, tally
from compaction.logdir.blocks import Block
from compaction.logdir.throttle import Throttle
from compaction.passes.build_map import SUMMARY, Findings, Key, LogScan, dirty_records, scan_slice
from compaction.passes.clean_into import Decided
from compaction.passes.decoder import Decoded, Decoder, corrupt_record
from compaction.passes.tasks import MapContext, MapSettings, Packed, Slice, SliceSummary

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
class SharedSlice:
    """A slice that is read once for all of its ``variants``; ``slice.log`` is its source."""

    number: int
    slice: Slice
    variants: tuple[int, ...]


@dataclass(frozen=True)
class SharedSummary:
    """What pass 1 found in a slice, besides map entries; ``tally`` counts all of its records."""

    number: int
    summary: SliceSummary
    tally: Tally


def counts_of(source: int) -> int:
    """Identifies the key counts of a source in a ``Key``; negative, unlike the numbers of variants."""
    return -1 - source


def scan_shared(
    slices: Iterable[SharedSlice], variants: Mapping[int, MapContext], sources: Mapping[int, Source], settings: MapSettings
) -> Iterator[tuple[Key, list[Packed | SharedSummary]]]:
    """Packed map entries by variant and shard, packed key counts by source and shard, and one summary per slice.

    The summary of an unreadable slice has an error.
    """
    for source, group in groupby(slices, key=lambda each: each.slice.log):
        scan = _SourceScan(list(group), variants, sources[source], settings)
        for each in scan.slices:
            yield (source, SUMMARY), [scan.scan(each)]
            yield from scan.packed(source, final=False)
        yield from scan.packed(source, final=True)


class KeyScan(LogScan):
    """Counts keys instead of mapping them; it spills hashes and counts."""

    def __init__(self, shards: int, settings: MapSettings, max_records: int) -> None:
        super().__init__(MapContext(0, shards), settings, 0, Arena())
        self._counts = KeyCounts(settings.map_bytes, max_records)

    def _take(self, n: int, m: int) -> None:
        done = 0
        while done < n:
            chunk = min(self._counts.remaining(), n - done)
            if not chunk:
                self._spill(self._counts.slots)
                self._counts.clear()
                continue
            self._counts.add(self._entries[done : done + chunk], once=True)
            done += chunk

    def drain(self) -> Iterator[tuple[int, Packed]]:
        """All remaining counts, by shard."""
        self._spill(self._counts.slots)
        yield from self.spilled()


class _SourceScan:
    """Scans consecutive slices of one source for all of their variants."""

    def __init__(
        self, slices: list[SharedSlice], variants: Mapping[int, MapContext], source: Source, settings: MapSettings
    ) -> None:
        self.slices, self._files = slices, settings.files
        wanted = sorted({variant for each in slices for variant in each.variants})
        shared = replace(settings, map_bytes=settings.map_bytes // (len(wanted) + 1))
        self._frame = source.frame
        self._keys = KeyScan(source.shards, shared, dirty_records((each.slice for each in slices), 0))
        self._scans: dict[int, LogScan] = {}
        for variant in wanted:
            log = variants[variant]
            of_variant = [each.slice for each in slices if variant in each.variants]
            self._scans[variant] = LogScan(log, shared, dirty_records(of_variant, log.first_dirty_offset), Arena())
        self._throttle = Throttle(settings.bytes_per_second)

    def packed(self, source: int, *, final: bool) -> Iterator[tuple[Key, list[Packed | SharedSummary]]]:
        """What the scans have spilled; all that remains if ``final``."""
        for number, scan in [(counts_of(source), self._keys), *self._scans.items()]:
            for shard, data in scan.drain() if final else scan.spilled():
                yield (number, shard), [data]

    def scan(self, each: SharedSlice) -> SharedSummary:
        """Scan one slice."""
        found = Tally.empty()
        summary = scan_slice(each.slice, self._files, self._throttle, partial(self._batches, each.variants, found))
        return SharedSummary(each.number, summary, found if summary.error is None else Tally.empty())

    def _batches(self, variants: Iterable[int], found: Tally, block: Block, decoder: Decoder, findings: Findings) -> None:
        """Decode batches once for all variants, including markers, which are tallied."""
        rows, path = block.rows, decoder.path
        scans = [(scan, scan.actions(rows)) for scan in map(self._scans.__getitem__, variants)]
        key_actions, keyless = self._keys.actions(rows), np.zeros(len(rows), np.int32)
        all_dropped = Decided(np.full(len(rows), DROP, np.uint8), np.zeros(len(rows), np.uint8), Limits(0, 0, 0, False))
        for decoded in decoder.decode(block):
            self._keys.records(block, decoded, key_actions, (keyless, findings.counters), path)
            for scan, actions in scans:
                scan.records(block, decoded, actions, (np.zeros_like(keyless), np.zeros_like(findings.counters)), path)
            found.add(block, decoded, all_dropped, np.empty(0, np.uint64), self._frame, path)
        findings.add_keyless(rows, keyless)
