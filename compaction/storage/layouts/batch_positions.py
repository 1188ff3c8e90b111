"""Finds positions in a stored segment by the headers of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from compaction.errors import CorruptLogError
from compaction.formats import indexes
from compaction.formats.primitives import FormatError
from compaction.kernels.reading.tables import BATCH_ROW
from compaction.storage.ranges import View
from compaction.storage.segment_file import Rows, SegmentScan

_HINT = "restore the object from another copy"


def batches_from(data: View, path: str, position: int) -> Iterator[Rows]:
    """The complete batches of a segment from a batch's position on, as tables of ``BATCH_ROW``; an incomplete one ends them.

    :raises CorruptLogError: a batch is malformed
    """
    scan = SegmentScan(data, position)
    yield from scan
    if scan.error is not None:
        raise CorruptLogError(scan.error, path=path, position=scan.position, hint=_HINT)


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
        batch = first_batch(data, "", position)
        if len(batch) and base_offset <= batch["base_offset"][0] <= batch["last_offset"][0] <= last_offset:
            return position
    return 0


def first_batch(data: View, path: str, position: int, offset: int = 0) -> Rows:
    """The first batch from ``position`` on that ends at or past ``offset``: ``BATCH_ROW``, (1,), or (0,) for none."""
    found = (rows[rows["last_offset"] >= offset][:1] for rows in batches_from(data, path, position))
    return next(filter(len, found), np.empty(0, BATCH_ROW))


def position_of(data: View, path: str, start: int, offset: int) -> int:
    """The position of the first batch whose offsets are at or past ``offset``; the end of the batches if there is none.

    :param start: the position of a batch before it
    :raises CorruptLogError: a batch has offsets on both sides
    """
    end = start
    for rows in batches_from(data, path, start):
        for batch in rows[rows["last_offset"] >= offset][:1]:
            if batch["base_offset"] < offset:
                offsets = f"{batch['base_offset']} to {batch['last_offset']}"
                message = f"offset {offset} is within the batch of offsets {offsets}"
                raise CorruptLogError(message, path=path, position=int(batch["position"]), hint=_HINT)
            return int(batch["position"])
        end = int(rows["position"][-1] + rows["size"][-1])
    return end


def end_offset_of(data: View, path: str, start: int, default: int) -> int:
    """The offset after the last complete batch; ``default`` if there is none.

    :param start: the position of a batch
    """
    return max((int(rows["last_offset"][-1]) + 1 for rows in batches_from(data, path, start)), default=default)


def has_holes(data: View, path: str, base_offset: int) -> bool:
    """Whether offsets between the batches are missing, as in a segment that was compacted."""
    offset = base_offset
    for rows in batches_from(data, path, 0):
        if (rows["base_offset"] > np.append(offset, rows["last_offset"][:-1] + 1)).any():
            return True
        offset = int(rows["last_offset"][-1]) + 1
    return False
