"""Cuts segments into byte ranges at batch boundaries of the offset index, each verified in the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from compaction.cleaning.log_view import Segment
from compaction.errors import StorageError
from compaction.formats.indexes import read_offset_index
from compaction.kernels.reading.batches import HEADER_SIZE, scan_batches
from compaction.names import INDEX, LOG, segment_file
from compaction.storage.filesystem import FileSystem

#: a boundary batch is read to verify it; larger ones are not used as boundaries
_MAX_BOUNDARY_BATCH = 16 << 20


class ByteRange(NamedTuple):
    """Bytes ``[start, end)`` of a segment's log file; its batches have offsets in ``[first_offset, end_offset)``."""

    start: int
    end: int
    first_offset: int
    end_offset: int


def cut_segment(
    fs: FileSystem, log_path: str, segment: Segment, target_bytes: int
) -> tuple[ByteRange, ...]:
    """The byte ranges of one segment, of about ``target_bytes`` each, in order; a single one if the index has no boundary.

    An index entry has a batch's last offset and position. It is used only if a batch with that last offset and a valid checksum
    is there, so that a stale or damaged index reduces parallelism but never loses a record.
    """
    base_offset, size_bytes = segment.base_offset, segment.size_bytes
    cuts = [(0, base_offset)]
    if size_bytes > target_bytes + target_bytes // 2:
        cuts += _boundaries(fs, log_path, base_offset, size_bytes, target_bytes)
    cuts.append((size_bytes, segment.next_offset))
    return tuple(ByteRange(start, end, first, last) for (start, first), (end, last) in pairwise(cuts))


def _boundaries(
    fs: FileSystem, log_path: str, base_offset: int, size_bytes: int, target_bytes: int
) -> Iterator[tuple[int, int]]:
    log = f"{log_path}/{segment_file(base_offset, LOG)}"
    try:
        entries = read_offset_index(fs.read_bytes(f"{log_path}/{segment_file(base_offset, INDEX)}"), base_offset)
    except (StorageError, ValueError):
        return
    ranges = max(1, round(size_bytes / target_bytes))
    last = 0
    for k in range(1, ranges):
        at = int(np.searchsorted(entries["position"], k * size_bytes // ranges))
        if at >= len(entries) or entries["position"][at] <= last:
            continue
        position = int(entries["position"][at])
        first = _verified(fs, log, position, int(entries["offset"][at]), size_bytes)
        if first is not None and first > base_offset:
            last = position
            yield position, first


def _verified(fs: FileSystem, log: str, position: int, last_offset: int, size_bytes: int) -> int | None:
    """The base offset of the batch at ``position``, if it is valid and ends with ``last_offset``."""
    if position + HEADER_SIZE > size_bytes:
        return None
    size = int.from_bytes(fs.read_bytes(log, position + 8, 4), "big", signed=True) + 12
    if not HEADER_SIZE <= size <= min(_MAX_BOUNDARY_BATCH, size_bytes - position):
        return None
    data = np.frombuffer(fs.read_bytes(log, position, size), np.uint8)
    rows = scan_batches(data, position, check_crc=True).rows
    if len(rows) != 1 or rows["magic"][0] != 2 or rows["last_offset"][0] != last_offset:
        return None
    return int(rows["base_offset"][0])
