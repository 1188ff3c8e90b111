"""Rebuilds the offset and time index of a segment from its batches.

Mirrors ``LogSegment.recover``: an offset index entry (last offset, position) for a batch that starts more than
``index.interval.bytes`` after the last entry's batch; with it a time index entry if the largest timestamp has grown; one more
time index entry at the end.

Difference: a batch that fails its CRC in an inactive segment is an error; Kafka truncates the log there.
"""

from __future__ import annotations

import numpy as np

from compaction.errors import CorruptLogError
from compaction.formats import indexes
from compaction.logdir.segments import NO_TIMESTAMP
from compaction.names import INDEX, LOG, TIMEINDEX, segment_file
from compaction.storage.durable import replace_file
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.segment_file import Rows, SegmentFile

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
        row = int(np.searchsorted(positions, self._last_entry + self._interval_bytes, side="right"))
        while row < len(rows):
            self._last_entry = int(positions[row])
            self._offsets.append((int(lasts[row]), self._last_entry))
            self._add_time(int(largest[row + 1]), int(holder[row + 1]))
            row = int(np.searchsorted(positions, self._last_entry + self._interval_bytes, side="right"))
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
    fs: FileSystem,
    log_path: str,
    base_offset: int,
    *,
    active: bool,
    unclean: bool = False,
    interval_bytes: int = INDEX_INTERVAL_BYTES,
) -> None:
    """Rebuild a segment's offset and time index; each file is replaced atomically, with the log's mode, owner and mtime.

    :raises CorruptLogError: a batch is damaged, or an inactive segment ends within one
    """
    path = join(log_path, segment_file(base_offset, LOG))
    scan = SegmentFile(fs, path).scan(check_crc=True)
    builder = IndexBuilder(base_offset, interval_bytes)
    for rows in scan:
        builder.add(rows)
    damage = scan.damage(unclean=active and unclean)
    if damage is None and not active and not scan.complete:
        damage = "inactive segment ends within a batch"
    if damage is not None:
        raise CorruptLogError(damage, path=path, position=scan.position, hint=_HINT)
    for kind, data in zip((INDEX, TIMEINDEX), builder.finish(), strict=True):
        write_like_log(fs, log_path, base_offset, kind, data)


def write_like_log(fs: FileSystem, log_path: str, base_offset: int, kind: str, data: bytes) -> None:
    """Replace one of a segment's files, with the log's mode, owner and mtime."""
    path = join(log_path, segment_file(base_offset, LOG))
    log = fs.stat(path)
    mtime_ns = None if log is None else log.mtime_ns
    replace_file(fs, join(log_path, segment_file(base_offset, kind)), data, like=path, mtime_ns=mtime_ns)
