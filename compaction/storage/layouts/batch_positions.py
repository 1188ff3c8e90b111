"""Reads the files of a stored segment, and finds positions in it by the headers of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import numpy as np

from compaction.errors import CorruptLogError
from compaction.formats import indexes
from compaction.formats.primitives import FormatError
from compaction.kernels.tables import BATCH_ROW
from compaction.names import INDEX, LOG
from compaction.storage.contents import View
from compaction.storage.filesystem import FileRange, ReadableFileSystem
from compaction.storage.segment_file import Rows, SegmentScan
from compaction.storage.stored_log import LogFile, StoredSegment

_HINT = "restore the object from another copy"


def batches_from(data: View, path: str, position: int) -> Iterator[Rows]:
    """The complete batches of a segment from a batch's position on, as tables of ``BATCH_ROW``; an incomplete one ends them.

    :raises CorruptLogError: a batch is malformed
    """
    yield from _checked(SegmentScan(data, position), path)


def _checked(scan: SegmentScan, path: str) -> Iterator[Rows]:
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


def end_of_complete(data: View, path: str, start: int, default: int) -> int:
    """The offset after the last batch of an inactive segment; ``default`` if there is none.

    :param start: the position of a batch
    :raises CorruptLogError: a batch from ``start`` on is malformed, or the last one is incomplete
    """
    scan = SegmentScan(data, start)
    for _ in _checked(scan, path):
        pass
    if scan.position < len(data):
        message = f"its complete batches end at byte {scan.position}, the segment has {len(data)} bytes"
        raise CorruptLogError(message, path=path, position=scan.position, hint=_HINT)
    return default if scan.next_offset is None else scan.next_offset


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


def view_before(files: ReadableFileSystem, segment: StoredSegment, offset: int) -> tuple[View, int]:
    """The batches of a segment, and the position of one before an offset."""
    index = segment.files.get(INDEX)
    data = view_of(files, segment.path, segment.files[LOG])
    return data, indexed_position(b"" if index is None else read_file(files, index), segment.start_offset, offset, data)


def read_file(files: ReadableFileSystem, file: LogFile, start: int = 0, length: int | None = None) -> bytes:
    """Up to ``length`` bytes of a file of a log from ``start``."""
    end = file.size if length is None else min(file.size, start + length)
    if not isinstance(file.content, FileRange):
        return (file.load() or b"")[start:end]
    return files.read_bytes(file.content.path, file.content.start + start, end - start) if end > start else b""


def view_of(files: ReadableFileSystem, path: str, file: LogFile) -> View:
    """A view of a file of a log; ``path`` is for errors."""
    return View(path, partial(read_file, files, file), file.size)
