"""Rebuilds the indexes of a segment from its batches, and those that were not flushed when a broker was killed.

Mirrors ``LogSegment.recover``: an offset index entry (last offset, position) for a batch that starts more than
``index.interval.bytes`` after the last entry's batch; with it a time index entry if the largest timestamp has grown; one more
time index entry at the end.

Difference: a batch that fails its CRC in an inactive segment is an error; Kafka truncates the log there.

If a broker was killed, it recovers the segments from the one that contains the recovery point on (``LogLoader.recoverLog``,
``LeaderEpochFileCache.assign``):

1. offset and time indexes become those of the batches;
2. the leader epochs of the batches are assigned (``formats.checkpoints``).

Files with the bytes that recovery writes, and then zeros only, are not written. Checksums are verified by the passes.

The batch headers of a log's segments are scanned once (``scan_headers``), for this and for their transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compaction.cleaning.log_view import Segment
from compaction.cleaning.transactions import TXN_ROW, Rows, summarise
from compaction.errors import CorruptLogError
from compaction.formats import indexes
from compaction.formats.checkpoints import EpochRange, assign_epochs, format_leader_epochs, parse_leader_epochs
from compaction.logdir.segments import LONG_MAX, NO_TIMESTAMP, RESTORE_SEGMENT
from compaction.names import INDEX, LEADER_EPOCHS, LOG, TIMEINDEX, segment_file
from compaction.storage.durable import replace_file
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.ranges import view
from compaction.storage.segment_file import SegmentFile, epoch_ranges
from compaction.storage.text_files import read_small_text

#: Kafka's default of ``index.interval.bytes``
INDEX_INTERVAL_BYTES = 4096
#: the kernel that scans headers releases the GIL
_SCAN_THREADS = 4
_PARALLEL_SCAN_BYTES = 256 * 1024 * 1024


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
        raise CorruptLogError(damage, path=path, position=scan.position, hint=RESTORE_SEGMENT)
    for kind, data in zip((INDEX, TIMEINDEX), builder.finish(), strict=True):
        write_like_log(fs, log_path, base_offset, kind, data)


def write_like_log(fs: FileSystem, log_path: str, base_offset: int, kind: str, data: bytes) -> None:
    """Replace one of a segment's files, with the log's mode, owner and mtime."""
    path = join(log_path, segment_file(base_offset, LOG))
    log = fs.stat(path)
    mtime_ns = None if log is None else log.mtime_ns
    replace_file(fs, join(log_path, segment_file(base_offset, kind)), data, like=path, mtime_ns=mtime_ns)


def repair_indexes(
    fs: FileSystem, log_path: str, base_offset: int, recovered: Recovered, rescan: Callable[[], Recovered | None]
) -> bool:
    """Writes the indexes of a segment if they are not those of its batches; whether any was written.

    :param rescan: scans the segment once more: the scan of headers verifies no checksum
    :raises CorruptLogError: both scans differ
    """
    data = {INDEX: recovered.offset_index, TIMEINDEX: recovered.time_index}
    wrong = [kind for kind in data if not _holds(fs, join(log_path, segment_file(base_offset, kind)), data[kind])]
    if wrong and rescan() != recovered:
        message = "two reads of its batch headers differ"
        path = join(log_path, segment_file(base_offset, LOG))
        raise CorruptLogError(message, path=path, hint="check the disk, and run again")
    for kind in wrong:
        write_like_log(fs, log_path, base_offset, kind, data[kind])
    return bool(wrong)


def _holds(fs: FileSystem, path: str, data: bytes) -> bool:
    """Whether a file has these bytes, and then zeros only."""
    if fs.stat(path) is None:
        return False
    content = view(fs, path)
    return content[: len(data)].tobytes() == data and not content[len(data) :].any()


def repair_epochs(fs: FileSystem, log_path: str, bases: Sequence[int], scans: Mapping[int, HeaderScan]) -> bool:
    """Writes the leader epochs of a log if its batches contradict them; whether it did. A malformed file is not touched: a
    broker does not start with it.

    :param bases: base offsets of the segments, ascending
    :param scans: of the unflushed segments, by their indexes in ``bases``; others are ignored
    """
    recovered = [scans[index].recovered for index in sorted(scans)]
    ranges = [batches for files in recovered if files is not None for batches in files.epochs]
    path = join(log_path, LEADER_EPOCHS)
    try:
        text = "" if fs.stat(path) is None else read_small_text(fs, path, "")
        entries = parse_leader_epochs(text, path) if text else []
    except CorruptLogError:
        return False
    assigned = assign_epochs(entries, ranges)
    if assigned == entries:
        return False
    replace_file(fs, path, format_leader_epochs(assigned).encode(), like=join(log_path, segment_file(bases[-1], LOG)))
    return True


class Recovered(NamedTuple):
    """The results of a broker's recovery of a segment: the bytes of its indexes, and the leader epochs of its batches."""

    offset_index: bytes
    time_index: bytes
    epochs: Sequence[EpochRange]


class HeaderScan(NamedTuple):
    """The contents of a segment by its batch headers: its ``TXN_ROW`` summary, whether a batch has a producer id, and, if a
    broker recovers the segment, the results."""

    rows: Rows
    producers: bool
    recovered: Recovered | None = None


@dataclass(frozen=True)
class ScanRange:
    """Batches that end before ``log_start_offset`` are not summarised. A broker recovers the segments from the one with base
    offset ``first_unflushed`` on, with ``index.interval.bytes`` of ``interval_bytes``."""

    log_start_offset: int
    first_unflushed: int = LONG_MAX
    interval_bytes: int = INDEX_INTERVAL_BYTES


def scan_headers(
    fs: FileSystem, log_path: str, segments: Sequence[Segment], selected: Sequence[int], limits: ScanRange
) -> dict[int, HeaderScan]:
    """Reads the batch headers of some segments.

    :param selected: indexes of these in ``segments``
    """

    def scan(index: int) -> HeaderScan:
        segment, producers = segments[index], False
        summaries = [np.empty(0, TXN_ROW)]
        builder = IndexBuilder(segment.base_offset, limits.interval_bytes)
        epochs: list[EpochRange] = []
        unflushed = segment.base_offset >= limits.first_unflushed
        for rows in SegmentFile.of(fs, log_path, segment).scan():
            producers = producers or bool((rows["producer_id"] >= 0).any())
            summaries.append(summarise(rows[rows["last_offset"] >= limits.log_start_offset], index))
            if unflushed:
                builder.add(rows)
                epochs += epoch_ranges(rows)
        recovered = Recovered(*builder.finish(), epochs) if unflushed else None
        return HeaderScan(np.concatenate(summaries), producers, recovered)

    if sum(segments[index].size_bytes for index in selected) < _PARALLEL_SCAN_BYTES:
        return {index: scan(index) for index in selected}
    with ThreadPoolExecutor(_SCAN_THREADS) as pool:
        return dict(zip(selected, pool.map(scan, selected), strict=True))
