"""Splits a segment whose offsets do not fit its indexes (last offset - base offset > 2^31 - 1).

Mirrors ``LocalLog.splitOverflowedSegment``: a new segment begins at the first batch whose last offset does not
fit. The new segments are written as ``.cleaned``, a suffix that a broker knows: while one of these exists, it removes the
``.swap`` files at or above it and keeps the source. They are renamed to ``.swap`` in descending order, then the source to
``.deleted``, then ``.swap`` is removed in ascending order.

Differences: the first new segment keeps the source's base offset, and is empty if the first batch does not fit. Kafka names it
after its first batch, so that a broker that stops before the source is ``.deleted`` finds both the source and the new segments.
Transaction index entries move to the segment that holds their marker; Kafka drops them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from compaction.cleaning.log_view import Segment
from compaction.errors import CorruptLogError
from compaction.formats import indexes
from compaction.formats.indexes import MAX_RELATIVE_OFFSET
from compaction.names import CLEANED, DELETED, INDEX, LOG, SWAP, TIMEINDEX, TXNINDEX, segment_file
from compaction.output.segment_files import change_suffixes
from compaction.output.verification import copy_verified
from compaction.recovery.rebuild import IndexBuilder
from compaction.storage.durable import write_verified
from compaction.storage.filesystem import FileRange, FileSystem, join
from compaction.storage.segment_file import Rows, SegmentFile


@dataclass
class _NewSegment:
    """The byte range ``[start, end)`` of the source that becomes a segment, and its indexes."""

    base_offset: int
    start: int
    end: int
    builder: IndexBuilder = field(compare=False)
    last_offset: int = -1


def split_segment(fs: FileSystem, log_path: str, segment: Segment, interval_bytes: int) -> tuple[int, ...]:
    """Replace an overflowing segment by segments that do not overflow; returns their base offsets.

    :raises CorruptLogError: a batch is damaged, or is read differently each time; the source is unchanged
    :raises StorageError: the file system refused; the source is unchanged
    """
    new_segments = _split_points(fs, log_path, segment, interval_bytes)
    # no checksum covers the offsets of batches: one wrong read would lose records
    if _split_points(fs, log_path, segment, interval_bytes) != new_segments:
        path = join(log_path, segment_file(segment.base_offset, LOG))
        raise CorruptLogError("returns other bytes each time it is read", path=path, hint="check the disk")
    for new in new_segments:
        _write(fs, log_path, new, segment)
    fs.fsync_dir(log_path)
    for new in reversed(new_segments):
        change_suffixes(fs, log_path, new.base_offset, CLEANED, SWAP)
        fs.fsync_dir(log_path)
    change_suffixes(fs, log_path, segment.base_offset, "", DELETED)
    fs.fsync_dir(log_path)
    for new in new_segments:
        change_suffixes(fs, log_path, new.base_offset, SWAP, "")
        fs.fsync_dir(log_path)
    return tuple(new.base_offset for new in new_segments)


def _split_points(fs: FileSystem, log_path: str, segment: Segment, interval_bytes: int) -> list[_NewSegment]:
    file = SegmentFile.of(fs, log_path, segment)
    scan = file.scan(check_crc=True)
    parts = [_NewSegment(segment.base_offset, 0, 0, IndexBuilder(segment.base_offset, interval_bytes))]
    for rows in scan:
        remaining = rows
        while len(remaining):
            fits = remaining["last_offset"] - parts[-1].base_offset <= MAX_RELATIVE_OFFSET
            count = len(remaining) if fits.all() else int(np.argmin(fits))
            _extend(parts[-1], remaining[:count])
            remaining = remaining[count:]
            if len(remaining):
                base, start = int(remaining["base_offset"][0]), int(remaining["position"][0])
                parts.append(_NewSegment(base, start, start, IndexBuilder(base, interval_bytes)))
    if not scan.complete:
        raise CorruptLogError(scan.damage() or "segment ends within a batch", path=file.path, position=scan.position)
    return parts


def _extend(new: _NewSegment, rows: Rows) -> None:
    if not len(rows):
        return
    moved = rows.copy()
    moved["position"] -= new.start
    new.builder.add(moved)
    new.end = int(rows["position"][-1] + rows["size"][-1])
    new.last_offset = int(rows["last_offset"][-1])


def _write(fs: FileSystem, log_path: str, new: _NewSegment, source: Segment) -> None:
    log = join(log_path, segment_file(source.base_offset, LOG))
    status = fs.stat(log)
    mtime_ns = None if status is None else status.mtime_ns
    target = join(log_path, segment_file(new.base_offset, LOG, CLEANED))
    copy_verified(fs, fs, FileRange(log, new.start, new.end - new.start), target)
    files = list(zip((INDEX, TIMEINDEX), new.builder.finish(), strict=True))
    txns = [txn for txn in source.aborted_txns if new.base_offset <= txn.last_offset <= new.last_offset]
    if txns:
        files.append((TXNINDEX, indexes.write_txn_index(np.array(txns, indexes.TXN_ROW))))
    for kind, data in files:
        path = join(log_path, segment_file(new.base_offset, kind, CLEANED))
        write_verified(fs, path, data, like=log, mtime_ns=mtime_ns)
