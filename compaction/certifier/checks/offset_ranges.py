"""Cuts a log into ranges of offsets that tasks compare independently, and finds the bytes of each range on both sides."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from compaction.certifier.checks.log_pair import LONG_MAX, CleaningRules, LogPair, SegmentFiles, legacy_delete_horizon_ms
from compaction.certifier.checks.segment_walk import SegmentWalk
from compaction.certifier.checks.txn_checks import AbortedRanges

#: ``before`` has about this many bytes in each range
RANGE_BYTES = 64 << 20
#: bytes of a log whose keys are joined by one task
PARTITION_BYTES = 96 << 20
_MOST_PARTITIONS = 4096


@dataclass(frozen=True)
class ByteRange:
    """Complete batches in bytes ``[start, end)`` of a segment; ``mtime_ms`` is the segment's."""

    path: str
    start: int
    end: int
    mtime_ms: int


@dataclass(frozen=True, eq=False)
class RangeTask:
    """The batches of one log with last offsets in ``[first_offset, end_offset)``, on both sides.

    ``cleaned_to``: no record at or past it may be missing. ``legacy_delete_horizon_ms``: segments modified up to this time may
    lose their v0 and v1 tombstones. Keys are hashed with ``seed`` into ``partitions``.
    """

    log: int
    first_offset: int
    end_offset: int
    before: tuple[ByteRange, ...]
    after: tuple[ByteRange, ...]
    aborted: AbortedRanges
    rules: CleaningRules
    before_start: int
    after_start: int
    cleaned_to: int
    legacy_delete_horizon_ms: int
    partitions: int = 1
    seed: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes to read on both sides."""
        return sum(byte_range.end - byte_range.start for byte_range in (*self.before, *self.after))


def cut_into_ranges(
    log: int, pair: LogPair, walks: tuple[list[SegmentWalk], list[SegmentWalk]], aborted: AbortedRanges, range_bytes: int
) -> Iterator[RangeTask]:
    """The tasks of a log, of about ``range_bytes`` each; together their ranges hold every offset.

    :param walks: those of ``before`` and of ``after``
    """
    before, after = walks
    packs = _packed([cut for walk in before for cut in _cut(walk)], range_bytes)
    starts = [0, *(pack[0][0] for pack in packs[1:]), LONG_MAX]
    size = sum(walk.size_bytes for walk in before)
    horizon_ms, seed = legacy_delete_horizon_ms(pair), secrets.randbits(32)
    for pack, first, end in zip(packs, starts, starts[1:], strict=False):
        yield RangeTask(
            log=log,
            first_offset=first,
            end_offset=end,
            before=tuple(byte_range for _, byte_range in pack),
            after=tuple(_within(after, first, end)),
            aborted=aborted.within(first, end),
            rules=pair.rules,
            before_start=pair.before.log_start_offset,
            after_start=pair.after.log_start_offset,
            cleaned_to=pair.changed_to,
            legacy_delete_horizon_ms=horizon_ms,
            partitions=max(1, min(_MOST_PARTITIONS, size // PARTITION_BYTES)),
            seed=seed,
        )


def _packed(cuts: list[tuple[int, ByteRange]], range_bytes: int) -> list[list[tuple[int, ByteRange]]]:
    """The byte ranges in packs of at least ``range_bytes``, except for the last; one empty pack if there are none."""
    packs: list[list[tuple[int, ByteRange]]] = [[]]
    filled = 0
    for offset, byte_range in cuts:
        if filled >= range_bytes:
            packs.append([])
            filled = 0
        packs[-1].append((offset, byte_range))
        filled += byte_range.end - byte_range.start
    return packs


def _cut(walk: SegmentWalk) -> Iterator[tuple[int, ByteRange]]:
    """The byte ranges between a segment's cuts, each with its first offset."""
    ends = [position for position, _ in walk.cuts[1:]] + [walk.size_bytes]
    for (position, offset), end in zip(walk.cuts, ends, strict=False):
        yield offset, _byte_range(walk.task.files, position, end)


def _within(walks: list[SegmentWalk], first_offset: int, end_offset: int) -> Iterator[ByteRange]:
    """The byte ranges that may hold batches with last offsets in ``[first_offset, end_offset)``."""
    for walk in walks:
        if walk.next_offset <= first_offset or walk.task.files.base_offset >= end_offset or not walk.cuts:
            continue
        start = max(position for position, offset in walk.cuts if offset <= first_offset or position == walk.cuts[0][0])
        end = min((position for position, offset in walk.cuts if offset >= end_offset), default=walk.size_bytes)
        if start < end:
            yield _byte_range(walk.task.files, start, end)


def _byte_range(files: SegmentFiles, start: int, end: int) -> ByteRange:
    return ByteRange(files.path(), start, end, files.mtime_ms)
