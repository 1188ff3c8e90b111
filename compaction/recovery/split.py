"""Splits a segment whose offsets do not fit its indexes (last offset - base > 2^31 - 1).

Mirrors ``LocalLog.splitOverflowedSegment`` (Kafka 4.3.0): a new segment begins at the first batch whose last offset is out of
range. The pieces are written as ``.cleaned``, which a broker knows: as long as one is left, it removes the ``.swap`` files
at or above it and keeps the source. They become ``.swap`` in descending order, then the source ``.deleted``, then
``.swap`` is stripped, ascending.

Difference: the first piece keeps the source's base offset (and is empty where the first batch is out of its range). Kafka names
it by its first batch, so that a broker that stops before the source is ``.deleted`` finds both the source and the pieces.
Transaction index entries go to the piece that holds the marker; Kafka drops them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compaction.cleaning.log_view import AbortedTxn, Segment
from compaction.formats import indexes
from compaction.fs.durable import write_verified
from compaction.fs.filesystem import FileRange, FileSystem, join
from compaction.fs.ranges import view
from compaction.logdir.batch_scan import Rows, SegmentScan
from compaction.logdir.segments import MAX_RELATIVE_OFFSET
from compaction.names import CLEANED, DELETED, INDEX, LOG, SEGMENT_KINDS, SWAP, TIMEINDEX, TXNINDEX, segment_file
from compaction.output.verification import copy_verified
from compaction.recovery.rebuild import IndexBuilder


@dataclass
class _Piece:
    """A stretch of the source that becomes a segment."""

    base_offset: int
    start: int
    end: int
    builder: IndexBuilder
    last_offset: int = -1


def split_segment(fs: FileSystem, log_path: str, segment: Segment, interval_bytes: int) -> tuple[int, ...]:
    """Replace an overflowing segment by pieces that do not overflow: their base offsets.

    :raises StorageError: the file system refused; the source is still there, whole
    """
    pieces = _pieces(fs, log_path, segment, interval_bytes)
    for piece in pieces:
        _write_piece(fs, log_path, piece, segment)
    fs.fsync_dir(log_path)
    for piece in reversed(pieces):
        _rename_all(fs, log_path, piece.base_offset, CLEANED, SWAP)
        fs.fsync_dir(log_path)
    _rename_all(fs, log_path, segment.base_offset, "", DELETED)
    fs.fsync_dir(log_path)
    for piece in pieces:
        _rename_all(fs, log_path, piece.base_offset, SWAP, "")
        fs.fsync_dir(log_path)
    return tuple(piece.base_offset for piece in pieces)


def _pieces(fs: FileSystem, log_path: str, segment: Segment, interval_bytes: int) -> list[_Piece]:
    data = view(fs, join(log_path, segment_file(segment.base_offset, LOG)))[: segment.size_bytes]
    pieces = [_Piece(segment.base_offset, 0, 0, IndexBuilder(segment.base_offset, interval_bytes))]
    for rows in SegmentScan(data):
        left = rows
        while len(left):
            fits = left["last_offset"] - pieces[-1].base_offset <= MAX_RELATIVE_OFFSET
            count = len(left) if fits.all() else int(np.argmin(fits))
            _extend(pieces[-1], left[:count])
            left = left[count:]
            if len(left):
                base, start = int(left["base_offset"][0]), int(left["position"][0])
                pieces.append(_Piece(base, start, start, IndexBuilder(base, interval_bytes)))
    return pieces


def _extend(piece: _Piece, rows: Rows) -> None:
    if not len(rows):
        return
    moved = rows.copy()
    moved["position"] -= piece.start
    piece.builder.add(moved)
    piece.end = int(rows["position"][-1] + rows["size"][-1])
    piece.last_offset = int(rows["last_offset"][-1])


def _write_piece(fs: FileSystem, log_path: str, piece: _Piece, source: Segment) -> None:
    log = join(log_path, segment_file(source.base_offset, LOG))
    found = fs.stat(log)
    mtime_ns = None if found is None else found.mtime_ns
    target = join(log_path, segment_file(piece.base_offset, LOG, CLEANED))
    copy_verified(fs, fs, FileRange(log, piece.start, piece.end - piece.start), target)
    offsets, times = piece.builder.finish()
    files = [(INDEX, offsets), (TIMEINDEX, times)]
    txns = [txn for txn in source.aborted_txns if piece.base_offset <= txn.last_offset <= piece.last_offset]
    if txns:
        files.append((TXNINDEX, _txn_index(txns)))
    for kind, data in files:
        path = join(log_path, segment_file(piece.base_offset, kind, CLEANED))
        write_verified(fs, path, data, like=log, mtime_ns=mtime_ns)


def _txn_index(txns: Sequence[AbortedTxn]) -> bytes:
    return indexes.write_txn_index(np.array(list(txns), indexes.TXN_ROW))


def _rename_all(fs: FileSystem, log_path: str, base_offset: int, old: str, new: str) -> None:
    for kind in SEGMENT_KINDS:
        source = join(log_path, segment_file(base_offset, kind, old))
        if fs.stat(source) is not None:
            fs.rename(source, join(log_path, segment_file(base_offset, kind, new)))
