"""Cuts a log into ranges of offsets, with the bytes that hold them on both sides."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from compaction.certifier.checks.log_pair import MAX_OFFSET, AbortedRanges, ByteRange, LogPair, RangeTask, SegmentFiles
from compaction.certifier.checks.segment_walk import SegmentWalk

#: both sides of a range of offsets have about so many bytes
RANGE_BYTES = 64 << 20
#: keys of so many bytes of a log are joined by one task
PARTITION_BYTES = 96 << 20


def slices(
    log: int,
    pair: LogPair,
    before: list[SegmentWalk],
    after: list[SegmentWalk],
    aborted: AbortedRanges,
    parts: int,
    range_bytes: int,
) -> Iterator[RangeTask]:
    """The ranges of a log: together they hold every offset."""
    stretches = [piece for walk in before for piece in _cut(walk)]
    packs: list[list[tuple[int, ByteRange]]] = []
    filled = range_bytes
    for offset, stretch in stretches:
        if filled >= range_bytes:
            packs.append([])
            filled = 0
        packs[-1].append((offset, stretch))
        filled += stretch.end - stretch.start
    packs = packs or [[]]
    starts = [0, *(pack[0][0] for pack in packs[1:]), MAX_OFFSET]
    size = sum(walk.size_bytes for walk in before)
    cleaned_to = pair.after.log_start_offset if pair.after.cleaned_to is None else pair.after.cleaned_to
    horizon_ms, seed = _legacy_horizon_ms(pair), secrets.randbits(32)
    for pack, first, end in zip(packs, starts, starts[1:], strict=False):
        yield RangeTask(
            log=log,
            first_offset=first,
            end_offset=end,
            before=tuple(stretch for _, stretch in pack),
            after=tuple(_within(after, first, end)),
            aborted=aborted.within(first, end),
            rules=pair.rules,
            before_start=pair.before.log_start_offset,
            after_start=pair.after.log_start_offset,
            cleaned_to=cleaned_to,
            legacy_horizon_ms=horizon_ms,
            parts=max(1, min(parts, size // PARTITION_BYTES)),
            seed=seed,
        )


def _cut(walk: SegmentWalk) -> Iterator[tuple[int, ByteRange]]:
    """The pieces of a segment, each with the offset that it begins at."""
    ends = [position for position, _ in walk.cuts[1:]] + [walk.size_bytes]
    for (position, offset), end in zip(walk.cuts, ends, strict=False):
        yield offset, _stretch(walk.task.files, position, end)


def _within(walks: list[SegmentWalk], first_offset: int, end_offset: int) -> Iterator[ByteRange]:
    """The pieces that may hold batches with last offsets in a range."""
    for walk in walks:
        if walk.next_offset <= first_offset or walk.task.files.base_offset >= end_offset or not walk.cuts:
            continue
        start = max(position for position, offset in walk.cuts if offset <= first_offset or position == walk.cuts[0][0])
        end = min((position for position, offset in walk.cuts if offset >= end_offset), default=walk.size_bytes)
        if start < end:
            yield _stretch(walk.task.files, start, end)


def _stretch(files: SegmentFiles, start: int, end: int) -> ByteRange:
    return ByteRange(files.path(), start, end, files.mtime_ms)


def _legacy_horizon_ms(pair: LogPair) -> int:
    """The time of modification up to which segments lose their tombstones of magic 0 and 1: that of the last clean segment less
    ``delete.retention.ms``. Where the first dirty offset is not known, all below the checkpoint counts as clean."""
    known = pair.before.cleaned_to is not None and not pair.rules.several_rounds
    first_dirty = pair.before.cleaned_to if known else pair.after.cleaned_to
    start = pair.before.log_start_offset
    first_dirty = start if first_dirty is None or first_dirty < start else first_dirty
    clean = [each.mtime_ms for each in pair.before.segments if each.base_offset < first_dirty]
    return clean[-1] - pair.rules.delete_retention_ms if clean else 0
