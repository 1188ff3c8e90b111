"""Selects the stored segments that form a log, each offset once.

A record is identified by its leader epoch and its offset. Of a stored segment, the offsets of an epoch are valid as far as that
epoch extends in the log's *lineage*, the leader epochs of its newest leader: what another leader has truncated is not part of
the log. Mirrors ``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs`` and ``RemoteLogLeaderEpochState`` (Kafka 4.3.0);
difference: of a segment that is only partly valid, that part is used, as a broker does when it fetches by epoch and offset.

1. The lineage is that of the local tail, which must have the highest leader epoch, or of the segment that has it; of several,
   of the one that ends last.
2. From the lowest valid offset on, the next piece is the segment whose valid range continues the log and extends farthest; of
   equal ones, one that need not be cut, then the one stored last.
3. If no segment continues the log, it has a gap: an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from compaction.errors import CorruptLogError
from compaction.exports import StoredSegment
from compaction.formats.checkpoints import EpochEntry

_OFFSET_MAX = 2**63 - 1
_GAP = "restore the missing objects; with a local tail (--tail DIR), give the log directory that continues the export"


class Piece(NamedTuple):
    """The offsets ``[start_offset, end_offset)`` of a stored segment, which are part of the log."""

    segment: StoredSegment
    start_offset: int
    end_offset: int

    @property
    def is_complete(self) -> bool:
        return (self.start_offset, self.end_offset) == (self.segment.start_offset, self.segment.end_offset)


def newest_lineage(segments: Sequence[StoredSegment]) -> Sequence[EpochEntry]:
    """The leader epochs of the newest leader; empty if no segment has any."""
    known = [segment for segment in segments if segment.epochs and segment.lineage is not None]
    if not known:
        return ()
    newest = max(known, key=lambda each: (each.epochs[-1].epoch, each.end_offset, each.written_ms))
    return () if newest.lineage is None else newest.lineage()


def select(path: str, segments: Sequence[StoredSegment], lineage: Sequence[EpochEntry]) -> list[Piece]:
    """The pieces of the log, ascending.

    :param path: of the log, for errors
    :param lineage: if empty, all segments are valid
    :raises CorruptLogError: offsets are missing
    """
    valid = [piece for segment in segments for piece in valid_pieces(segment, lineage)]
    chosen: list[Piece] = []
    offset = min((piece.start_offset for piece in valid), default=0)
    end = max((piece.end_offset for piece in valid), default=0)
    while offset < end:
        candidates = [piece for piece in valid if piece.start_offset <= offset < piece.end_offset]
        if not candidates:
            raise gap(path, offset, min(piece.start_offset for piece in valid if piece.start_offset > offset))
        best = max(candidates, key=lambda piece: (piece.end_offset, piece.start_offset == offset, piece.segment.written_ms))
        chosen.append(best._replace(start_offset=offset))
        offset = best.end_offset
    return chosen


def gap(path: str, start_offset: int, end_offset: int) -> CorruptLogError:
    """No segment has the offsets ``[start_offset, end_offset)``."""
    return CorruptLogError(f"offsets {start_offset} to {end_offset - 1} are not stored", path=path, hint=_GAP)


def valid_pieces(segment: StoredSegment, lineage: Sequence[EpochEntry]) -> list[Piece]:
    """The ranges of a segment that are part of the log, ascending; adjacent ones are joined."""
    if not segment.epochs or not lineage:
        return [Piece(segment, segment.start_offset, segment.end_offset)]
    bounds, pieces = _bounds(lineage, _OFFSET_MAX), list[Piece]()
    for epoch, (start, end) in _bounds(segment.epochs, segment.end_offset).items():
        first, last = bounds.get(epoch, (0, 0))
        low, high = max(start, first, segment.start_offset), min(end, last)
        if low < high and pieces and pieces[-1].end_offset == low:
            pieces[-1] = pieces[-1]._replace(end_offset=high)
        elif low < high:
            pieces.append(Piece(segment, low, high))
    return pieces


def within(lineage: Sequence[EpochEntry], start_offset: int, end_offset: int) -> tuple[EpochEntry, ...]:
    """The epochs of the offsets ``[start_offset, end_offset)``; the first starts there."""
    bounds = _bounds(lineage, _OFFSET_MAX)
    inside = ((epoch, max(first, start_offset), min(last, end_offset)) for epoch, (first, last) in bounds.items())
    return tuple(EpochEntry(epoch, first) for epoch, first, last in inside if first < last)


def _bounds(epochs: Sequence[EpochEntry], end_offset: int) -> dict[int, tuple[int, int]]:
    """Per epoch, its first offset and the next epoch's."""
    ends = [*(entry.start_offset for entry in epochs[1:]), end_offset][: len(epochs)]
    return {entry.epoch: (entry.start_offset, end) for entry, end in zip(epochs, ends, strict=True)}
