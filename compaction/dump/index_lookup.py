"""Finds offsets and timestamps in a segment by binary search in its indexes, as a broker does.

Mirrors ``LogSegment.translateOffset``, ``LogSegment.findOffsetByTimestamp`` and ``FileRecords.searchForTimestamp`` (Kafka
4.3.0). The offset index gives a batch at or before the offset, the time index an offset at or before the timestamp; the log is
scanned from there. If an index is missing or does not point at a matching batch, the log is scanned from its start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.dump.batch_reader import MAX_PLAIN_BYTES, BatchReader, check_size
from compaction.dump.targets import Target
from compaction.errors import CorruptLogError
from compaction.formats.indexes import read_offset_index, read_time_index
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.batch import RecordBatch, parse_batch
from compaction.formats.record_batch.message_set import MessageEntry, parse_message_entry
from compaction.fs.filesystem import FileSystem
from compaction.fs.text_files import MAX_INDEX_BYTES, read_small
from compaction.kernels.reading.batches import scan_batches
from compaction.names import INDEX, TIMEINDEX

_V2 = 2
BLOCK_BYTES = 4 << 20


class Found(NamedTuple):
    """The first record at or after a timestamp: start position of the scan, position of its batch, its offset and timestamp."""

    start: int
    position: int
    offset: int
    timestamp: int


def start_position(fs: FileSystem, target: Target, offset: int) -> int:
    """The position from which to scan the log for ``offset``: that of the last index entry at or below it, else 0."""
    base = target.base_offset or 0
    rows = _index(fs, target, INDEX, base)
    slot = int(np.searchsorted(rows["offset"], offset, "right")) - 1 if len(rows) else -1
    if slot < 0:
        return 0
    entry_offset, position = int(rows["offset"][slot]), int(rows["position"][slot])
    reader = BatchReader(fs, target.path)
    try:
        batch = reader.batch_at(position, reader.size)
    except CorruptLogError:
        return 0
    return position if batch is not None and batch.last_offset == entry_offset else 0


def find_timestamp(fs: FileSystem, target: Target, timestamp: int) -> Found | None:
    """The first record at or after ``timestamp``; ``None`` if all are earlier.

    :raises CorruptLogError: a scanned batch cannot be read
    """
    rows = _index(fs, target, TIMEINDEX, target.base_offset or 0)
    slot = int(np.searchsorted(rows["timestamp"], timestamp, "right")) - 1 if len(rows) else -1
    start = start_position(fs, target, int(rows["offset"][slot])) if slot >= 0 else 0
    for raw, position in _batches_from(fs, target.path, start, timestamp):
        found = _first_record(target, raw, position, timestamp)
        if found is not None:
            return Found(start, position, *found)
    return None


def _batches_from(fs: FileSystem, path: str, position: int, timestamp: int) -> Iterator[tuple[bytes, int]]:
    """Bytes and positions of the batches from ``position`` on with a maximum timestamp of at least ``timestamp``."""
    found, need = fs.stat(path), 0
    size = 0 if found is None else found.size
    while position < size:
        # a writable array, like those of the kernel's other callers: no second compilation
        data = bytearray(fs.read_bytes(path, position, max(BLOCK_BYTES, need)))
        scan = scan_batches(np.frombuffer(data, np.uint8), position, check_crc=False)
        for row in scan.rows[scan.rows["max_timestamp"] >= timestamp]:
            start = int(row["position"]) - position
            yield bytes(data[start : start + int(row["size"])]), int(row["position"])
        if scan.error is not None:
            raise CorruptLogError(scan.error, path=path, position=scan.error_position, hint="restore this segment")
        if not scan.consumed and (scan.need == 0 or position + scan.need > size):
            return
        position, need = position + scan.consumed, scan.need
        if position + need > size:
            return
        check_size(need, path, position)


def may_hold(fs: FileSystem, target: Target, timestamp: int) -> bool:
    """Whether an inactive segment may have a record at or after ``timestamp``, by the last entry of its time index."""
    rows = _index(fs, target, TIMEINDEX, target.base_offset or 0)
    return not len(rows) or int(rows["timestamp"][-1]) >= timestamp


def segments_with(logs: Sequence[Target], first_offset: int, last_offset: int | None) -> list[Target]:
    """The segments that may have offsets from ``first_offset`` to ``last_offset`` (inclusive, ``None`` for no end).

    :param logs: segments of one log in ascending order
    """
    bases = np.array([log.base_offset or 0 for log in logs], np.int64)
    first = max(int(np.searchsorted(bases, first_offset, "right")) - 1, 0)
    end = len(logs) if last_offset is None else int(np.searchsorted(bases, last_offset, "right"))
    return list(logs[first : max(end, first)])


def _first_record(target: Target, raw: bytes, position: int, timestamp: int) -> tuple[int, int] | None:
    """Offset and timestamp of the first record of a batch at or after ``timestamp``."""
    try:
        batch: RecordBatch | MessageEntry = parse_batch(raw) if raw[16] == _V2 else parse_message_entry(raw)
        for record in batch.records(MAX_PLAIN_BYTES):
            if record.timestamp >= timestamp:
                return record.offset, record.timestamp
    except FormatError as error:
        raise CorruptLogError(error.what, path=target.path, position=position, hint="restore this segment") from None
    return None


def _index(fs: FileSystem, target: Target, kind: str, base: int) -> NDArray[np.void]:
    """The valid entries of an index; empty if it is missing or too large."""
    path = target.sibling(kind)
    try:
        data = b"" if fs.stat(path) is None else read_small(fs, path, "remove it", MAX_INDEX_BYTES)
    except CorruptLogError:
        data = b""
    return read_offset_index(data, base) if kind == INDEX else read_time_index(data, base)
