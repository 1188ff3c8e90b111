"""Finds offsets and timestamps in a segment by binary search in its indexes, as a broker does.

Mirrors ``LogSegment.translateOffset``, ``LogSegment.findOffsetByTimestamp`` and ``FileRecords.searchForTimestamp`` (Kafka
4.3.1). The offset index gives a batch at or before the offset, the time index an offset at or before the timestamp; the log is
scanned from there. If an index is missing or does not point at a matching batch, the log is scanned from its start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.dumping.batch_reader import BatchReader, LocatedBatch
from compaction.dumping.targets import Target
from compaction.errors import CorruptLogError
from compaction.formats.indexes import read_offset_index, read_time_index
from compaction.formats.message_set import MessageEntry, parse_message_entry
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import MAGIC, MAX_PLAIN_BYTES, RecordBatch, parse_batch
from compaction.names import INDEX, TIMEINDEX
from compaction.storage.filesystem import FileSystem
from compaction.storage.text_files import MAX_INDEX_BYTES, read_small


class TimestampMatch(NamedTuple):
    """The first record at or after a timestamp: start position of the scan, position of its batch, its offset and timestamp."""

    start: int
    position: int
    offset: int
    timestamp: int


def start_position(fs: FileSystem, target: Target, offset: int) -> int:
    """The position at which a scan for ``offset`` starts: that of the last index entry at or below it, else 0."""
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


def find_timestamp(fs: FileSystem, target: Target, timestamp: int) -> TimestampMatch | None:
    """The first record at or after ``timestamp``; ``None`` if all are earlier.

    :raises CorruptLogError: a scanned batch cannot be read
    """
    rows = _index(fs, target, TIMEINDEX, target.base_offset or 0)
    slot = int(np.searchsorted(rows["timestamp"], timestamp, "right")) - 1 if len(rows) else -1
    start = start_position(fs, target, int(rows["offset"][slot])) if slot >= 0 else 0
    reader = BatchReader(fs, target.path)
    for batch in reader.batches(start, reader.size):
        if not 0 <= batch.magic <= MAGIC:
            raise reader.error("batch has an unknown magic", batch.position)
        if batch.header.max_timestamp >= timestamp:
            record = _first_record(reader, batch, timestamp)
            if record is not None:
                return TimestampMatch(start, batch.position, *record)
    return None


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


def _first_record(reader: BatchReader, batch: LocatedBatch, timestamp: int) -> tuple[int, int] | None:
    data = reader.data(batch)
    try:
        parsed: RecordBatch | MessageEntry = parse_batch(data) if batch.magic == MAGIC else parse_message_entry(data)
        for record in parsed.records(MAX_PLAIN_BYTES):
            if record.timestamp >= timestamp:
                return record.offset, record.timestamp
    except FormatError as error:
        raise reader.error(error.message, batch.position) from None
    return None


def _index(fs: FileSystem, target: Target, kind: str, base: int) -> NDArray[np.void]:
    """The valid entries of an index; empty if it is missing or too large."""
    path = target.sibling(kind)
    try:
        data = b"" if fs.stat(path) is None else read_small(fs, path, "remove it", MAX_INDEX_BYTES)
    except CorruptLogError:
        data = b""
    return read_offset_index(data, base) if kind == INDEX else read_time_index(data, base)
