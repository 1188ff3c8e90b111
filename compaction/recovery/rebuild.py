"""Rebuilds the indexes of a segment from its batches.

Mirrors ``LogSegment.recover`` (Kafka 4.4.0): an offset index entry (last offset, position) for a batch that starts more than
``index.interval.bytes`` after the last entry's batch; with it a time index entry if the largest timestamp has grown; one more
time index entry at the end. A transaction index entry for every abort marker that ends an open transaction.

Difference: a batch that fails its CRC in an inactive segment is an error; Kafka truncates the log there.
"""

from __future__ import annotations

import numpy as np

from compaction.cleaning.log_view import AbortedTxn, Segment
from compaction.cleaning.producer_state import CompletedTxn
from compaction.errors import CorruptLogError
from compaction.formats import indexes
from compaction.formats.record_batch.batch_header import CONTROL, TRANSACTIONAL
from compaction.fs.durable import replace_file
from compaction.fs.filesystem import FileSystem, join
from compaction.fs.ranges import view
from compaction.kernels.reading.tables import ABORT
from compaction.logdir.batch_scan import Rows, SegmentScan
from compaction.logdir.read_log import MarkerReader, ReadOptions, replay_producers
from compaction.logdir.segments import LONG_MAX, NO_TIMESTAMP
from compaction.names import INDEX, LOG, TIMEINDEX, TXNINDEX, segment_file

#: Kafka's default of ``index.interval.bytes``
INDEX_INTERVAL_BYTES = 4096
_HINT = "restore this segment from a replica or a backup"


class IndexBuilder:
    """Collects the offset and time index entries of one segment; positions are those of the rows."""

    def __init__(self, base_offset: int, interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._offsets: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._last_entry = 0
        self._largest = (NO_TIMESTAMP, base_offset)

    def add(self, rows: Rows) -> None:
        """Add the next batches, ``BATCH_ROW``, (n,)."""
        positions, lasts = rows["position"], rows["last_offset"]
        stamps = np.concatenate(([self._largest[0]], rows["max_timestamp"]))
        owners = np.concatenate(([self._largest[1]], lasts))
        largest = np.maximum.accumulate(stamps)
        grew = np.concatenate(([True], largest[1:] > largest[:-1]))
        holder = owners[np.maximum.accumulate(np.where(grew, np.arange(len(stamps)), 0))]
        at = int(np.searchsorted(positions, self._last_entry + self._interval_bytes, side="right"))
        while at < len(rows):
            self._last_entry = int(positions[at])
            self._offsets.append((int(lasts[at]), self._last_entry))
            self._add_time(int(largest[at + 1]), int(holder[at + 1]))
            at = int(np.searchsorted(positions, self._last_entry + self._interval_bytes, side="right"))
        self._largest = (int(largest[-1]), int(holder[-1]))

    def finish(self) -> tuple[bytes, bytes]:
        """Returns the bytes of the offset index and of the time index."""
        self._add_time(*self._largest)
        offsets = np.array(self._offsets, indexes.OFFSET_ROW)
        times = np.array(self._times, indexes.TIME_ROW)
        return (
            indexes.write_offset_index(offsets, self._base_offset),
            indexes.write_time_index(times, self._base_offset),
        )

    def _add_time(self, timestamp: int, offset: int) -> None:
        if timestamp > (self._times[-1][0] if self._times else NO_TIMESTAMP):
            self._times.append((timestamp, offset))


def rebuild_indexes(
    fs: FileSystem, log_path: str, base_offset: int, *, active: bool, interval_bytes: int = INDEX_INTERVAL_BYTES
) -> None:
    """Rebuild a segment's offset and time index; each file is replaced atomically, with the log's mode, owner and mtime.

    :raises CorruptLogError: a batch is damaged, or an inactive segment ends within one
    """
    path = join(log_path, segment_file(base_offset, LOG))
    scan = SegmentScan(view(fs, path), check_crc=True)
    builder = IndexBuilder(base_offset, interval_bytes)
    for rows in scan:
        builder.add(rows)
    damage = scan.damage() or (None if active or scan.complete else "inactive segment ends within a batch")
    if damage is not None:
        raise CorruptLogError(damage, path=path, position=scan.position, hint=_HINT)
    for kind, data in zip((INDEX, TIMEINDEX), builder.finish(), strict=True):
        write_like_log(fs, log_path, base_offset, kind, data)


def rebuild_txn_index(
    fs: FileSystem,
    log_path: str,
    segments: tuple[Segment, ...],
    base_offset: int,
    *,
    log_start_offset: int = 0,
    missing: bool = False,
) -> tuple[AbortedTxn, ...]:
    """Rebuild a segment's transaction index from the newest snapshot before it and the batches since; returns its entries.

    Transactions that ended before the log start are dropped, as cleaning drops them. Without aborted transactions there is no
    file, as in Kafka.

    :param missing: the index may be missing because cleaning has removed all data of its transactions: these are dropped
    :raises CorruptLogError: a control batch cannot be read
    """
    earlier = tuple(segment for segment in segments if segment.base_offset < base_offset)
    options = ReadOptions(now_ms=0, producer_id_expiration_ms=LONG_MAX)
    states = replay_producers(fs, log_path, earlier, (-1, base_offset), options)
    path = join(log_path, segment_file(base_offset, LOG))
    data = view(fs, path)
    marker_at = MarkerReader(data, path).at
    done: list[CompletedTxn] = []
    for rows in SegmentScan(data):
        control = np.flatnonzero((rows["attributes"] & CONTROL) != 0)
        for part in np.split(rows, control + 1):
            states.append(part, marker_at)
            done.extend(states.flush())
    entries = tuple(txn.index_entry() for txn in done if txn.aborted)
    entries = tuple(entry for entry in entries if entry.last_offset >= log_start_offset)
    if missing and entries:
        entries = _with_data(fs, log_path, segments, entries, log_start_offset)
    _write_txn_index(fs, log_path, base_offset, entries)
    return entries


def _with_data(
    fs: FileSystem, log_path: str, segments: tuple[Segment, ...], entries: tuple[AbortedTxn, ...], log_start_offset: int
) -> tuple[AbortedTxn, ...]:
    """The transactions of which the log still holds a readable batch.

    Below the log start, cleaning keeps data of transactions but not their markers: this data must not be taken for that of a
    later transaction.
    """
    found: set[AbortedTxn] = set()
    first, last = min(entry.first_offset for entry in entries), max(entry.last_offset for entry in entries)
    for segment in segments:
        if segment.next_offset <= first or segment.base_offset > last:
            continue
        for rows in SegmentScan(view(fs, join(log_path, segment_file(segment.base_offset, LOG)))):
            data = rows[(rows["attributes"] & (CONTROL | TRANSACTIONAL)) == TRANSACTIONAL]
            data = data[data["last_offset"] >= log_start_offset]
            for entry in entries:
                within = (data["base_offset"] >= entry.first_offset) & (data["last_offset"] <= entry.last_offset)
                if (within & (data["producer_id"] == entry.producer_id)).any():
                    found.add(entry)
    return tuple(entry for entry in entries if entry in found)


def look_for_producers(fs: FileSystem, log_path: str, base_offset: int) -> tuple[bool, bool]:
    """Whether a segment holds batches with a producer id, and whether it holds abort markers; reads headers only."""
    producers = aborts = False
    for rows in SegmentScan(view(fs, join(log_path, segment_file(base_offset, LOG)))):
        producers = producers or bool((rows["producer_id"] >= 0).any())
        aborts = aborts or bool((rows["control_type"] == ABORT).any())
    return producers, aborts


def write_like_log(fs: FileSystem, log_path: str, base_offset: int, kind: str, data: bytes) -> None:
    """Replace one of a segment's files, with the log's mode, owner and mtime."""
    path = join(log_path, segment_file(base_offset, LOG))
    log = fs.stat(path)
    mtime_ns = None if log is None else log.mtime_ns
    replace_file(fs, join(log_path, segment_file(base_offset, kind)), data, like=path, mtime_ns=mtime_ns)


def _write_txn_index(fs: FileSystem, log_path: str, base_offset: int, entries: tuple[AbortedTxn, ...]) -> None:
    if entries:
        data = indexes.write_txn_index(np.array(list(entries), indexes.TXN_ROW))
        write_like_log(fs, log_path, base_offset, TXNINDEX, data)
    else:
        fs.unlink(join(log_path, segment_file(base_offset, TXNINDEX)))
        fs.fsync_dir(log_path)
