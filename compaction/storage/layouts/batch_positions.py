"""Finds positions in a stored segment by the headers of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from compaction.errors import CorruptLogError
from compaction.formats import indexes
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import HEADER, LOG_OVERHEAD_BYTES, MAGIC
from compaction.storage.ranges import View

_HINT = "restore the object from another copy"
_MAGIC_AT = HEADER.offset("magic")
#: of a v2 batch
_LEAST_LENGTH = HEADER.size - LOG_OVERHEAD_BYTES


class BatchPlace(NamedTuple):
    """A batch: its offsets (the last inclusive), its bytes ``[start, end)`` in the file, and its leader epoch, -1 for none."""

    base_offset: int
    last_offset: int
    start: int
    end: int
    leader_epoch: int = -1


def batches_from(data: View, path: str, position: int) -> Iterator[BatchPlace]:
    """The complete batches of a segment from a batch's position on; an incomplete one ends them.

    :raises CorruptLogError: a header is malformed
    """
    size = len(data)
    while position + _MAGIC_AT < size:
        # a message of v0 or v1 may be shorter than a header of v2
        head = data[position : position + HEADER.size].tobytes().ljust(HEADER.size, b"\0")
        length, magic = HEADER.get(head, "length"), HEADER.get(head, "magic")
        base, end = HEADER.get(head, "base_offset"), position + LOG_OVERHEAD_BYTES + length
        if length < (_LEAST_LENGTH if magic == MAGIC else _MAGIC_AT) or not 0 <= magic <= MAGIC:
            raise CorruptLogError(f"not a batch (length {length}, magic {magic})", path=path, position=position, hint=_HINT)
        if end > size:
            return
        last = base + HEADER.get(head, "last_offset_delta") if magic == MAGIC else base
        yield BatchPlace(base, last, position, end, HEADER.get(head, "leader_epoch") if magic == MAGIC else -1)
        position = end


def indexed_position(index: bytes, base_offset: int, offset: int, data: View) -> int:
    """The position of a batch before ``offset``, by the offset index of its segment; 0 without an entry, or if the batch there
    is a later one than the entry says. It may be an earlier one: older brokers wrote one entry for several batches.
    """
    try:
        rows = indexes.read_offset_index(index, base_offset)
    except FormatError:
        return 0
    before = rows[(rows["offset"] < offset) & (rows["position"] < len(data))]
    if not len(before):
        return 0
    last_offset, position = int(before["offset"][-1]), int(before["position"][-1])
    with suppress(CorruptLogError):
        batch = next(batches_from(data, "", position), None)
        if batch is not None and base_offset <= batch.base_offset <= batch.last_offset <= last_offset:
            return position
    return 0


def batch_at(data: View, path: str, start: int, offset: int) -> BatchPlace | None:
    """The batch that has ``offset``, or the first one after it.

    :param start: the position of a batch before it
    """
    return next((batch for batch in batches_from(data, path, start) if batch.last_offset >= offset), None)


def position_of(data: View, path: str, start: int, offset: int) -> int:
    """The position of the first batch whose offsets are at or past ``offset``; the end of the batches if there is none.

    :param start: the position of a batch before it
    :raises CorruptLogError: a batch has offsets on both sides
    """
    end = start
    for batch in batches_from(data, path, start):
        if batch.base_offset >= offset:
            return batch.start
        if batch.last_offset >= offset:
            message = f"offset {offset} is within the batch of offsets {batch.base_offset} to {batch.last_offset}"
            raise CorruptLogError(message, path=path, position=batch.start, hint=_HINT)
        end = batch.end
    return end


def end_offset_of(data: View, path: str, start: int, default: int) -> int:
    """The offset after the last complete batch; ``default`` if there is none.

    :param start: the position of a batch
    """
    return max((batch.last_offset + 1 for batch in batches_from(data, path, start)), default=default)


def has_holes(data: View, path: str, base_offset: int) -> bool:
    """Whether offsets between the batches are missing, as in a segment that was compacted."""
    offset = base_offset
    for batch in batches_from(data, path, 0):
        if batch.base_offset > offset:
            return True
        offset = batch.last_offset + 1
    return False
