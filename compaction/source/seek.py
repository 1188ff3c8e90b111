"""Narrows the read of a segment by its indexes: the byte range of given offsets, and the first offset since a timestamp.

Mirrors ``LogSegment.translateOffset`` and ``TimeIndex.lookup`` (Kafka 4.4.0). An entry of the offset index counts only if it
points to its batch. Without a usable entry the whole segment is read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.log_view import Segment
from compaction.errors import StorageError
from compaction.formats.indexes import read_offset_index, read_time_index
from compaction.logdir.batch_scan import first_batch
from compaction.names import INDEX, LOG, TIMEINDEX, segment_file
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.ranges import view


def first_offset_since(fs: FileSystem, log_path: str, segment: Segment, timestamp_ms: int) -> int:
    """An offset below which all records of the segment are older than ``timestamp_ms``."""
    try:
        data = fs.read_bytes(join(log_path, segment_file(segment.base_offset, TIMEINDEX)))
        entries = read_time_index(data, segment.base_offset)
    except (StorageError, ValueError):
        return segment.base_offset
    older = int(np.searchsorted(entries["timestamp"], timestamp_ms))
    return segment.base_offset if older == 0 else int(entries["offset"][older - 1]) + 1


def positions_of(fs: FileSystem, log_path: str, segment: Segment, first_offset: int, last_offset: int) -> tuple[int, int]:
    """Bytes ``[start, end)`` of the segment that contain all records with offsets in ``[first_offset, last_offset]``."""
    whole = 0, segment.size_bytes
    if first_offset <= segment.base_offset and last_offset >= segment.next_offset - 1:
        return whole
    try:
        data = fs.read_bytes(join(log_path, segment_file(segment.base_offset, INDEX)))
        entries = read_offset_index(data, segment.base_offset)
    except (StorageError, ValueError):
        return whole
    # an entry has its batch's last offset: start at the last entry below the range, end at the second entry past it
    before = int(np.searchsorted(entries["offset"], first_offset, side="right")) - 1
    after = int(np.searchsorted(entries["offset"], last_offset, side="left")) + 1
    start = _batch_at(fs, log_path, segment, entries, before) if before >= 0 else 0
    end = _batch_at(fs, log_path, segment, entries, after) if after < len(entries) else segment.size_bytes
    if start is None or end is None:
        return whole
    return start, end


def _batch_at(fs: FileSystem, log_path: str, segment: Segment, entries: NDArray[np.void], at: int) -> int | None:
    """The position of an index entry, ``None`` if it does not point to a batch with its last offset."""
    position = int(entries["position"][at])
    data = view(fs, join(log_path, segment_file(segment.base_offset, LOG)))[position : segment.size_bytes]
    row = first_batch(data, position)
    return position if len(row) and int(row["last_offset"][0]) == int(entries["offset"][at]) else None
