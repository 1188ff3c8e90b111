"""Repairs the indexes and leader epochs of segments that were not flushed when a broker was killed.

Mirrors ``LogLoader.recoverLog``, ``LogSegment.recover`` and ``LeaderEpochFileCache.assign``, of the segments from
the one that contains the recovery point on:

1. offset and time indexes become those of the batches;
2. the leader epochs of the batches are assigned (``formats.checkpoints``).

Files with the bytes that recovery writes, and then zeros only, are not written. Checksums are verified by the passes.

The batch headers of a log's segments are scanned once (``scan_headers``), for this and for their transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compaction.cleaning.log_view import Segment
from compaction.cleaning.txn_tables import TXN_ROW, Rows, summarise
from compaction.errors import CorruptLogError
from compaction.formats.checkpoints import EpochRange, assign_epochs, format_leader_epochs, parse_leader_epochs
from compaction.logdir.segments import LONG_MAX
from compaction.names import INDEX, LEADER_EPOCHS, LOG, TIMEINDEX, segment_file
from compaction.recovery.rebuild import INDEX_INTERVAL_BYTES, IndexBuilder, write_like_log
from compaction.storage.contents import view
from compaction.storage.durable import replace_file
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.segment_file import SegmentFile, epoch_ranges
from compaction.storage.text_files import read_small_text

#: the kernel that scans headers releases the GIL
_SCAN_THREADS = 4
_PARALLEL_SCAN_BYTES = 256 * 1024 * 1024


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
        recovering = _Recovering(segment.base_offset, limits)
        for rows in SegmentFile.of(fs, log_path, segment).scan():
            producers = producers or bool((rows["producer_id"] >= 0).any())
            summaries.append(summarise(rows[rows["last_offset"] >= limits.log_start_offset], index))
            recovering.add(rows)
        return HeaderScan(np.concatenate(summaries), producers, recovering.finish())

    if sum(segments[index].size_bytes for index in selected) < _PARALLEL_SCAN_BYTES:
        return {index: scan(index) for index in selected}
    with ThreadPoolExecutor(_SCAN_THREADS) as pool:
        return dict(zip(selected, pool.map(scan, selected), strict=True))


def joined_rows(scans: Iterable[HeaderScan]) -> Rows:
    """The ``TXN_ROW`` summaries of several segments."""
    return np.concatenate([np.empty(0, TXN_ROW), *(scan.rows for scan in scans)])


class _Recovering:
    """Collects the results of recovery for one segment; none for a flushed one."""

    def __init__(self, base_offset: int, limits: ScanRange) -> None:
        unflushed = base_offset >= limits.first_unflushed
        self._builder = IndexBuilder(base_offset, limits.interval_bytes) if unflushed else None
        self._epochs: list[EpochRange] = []

    def add(self, rows: Rows) -> None:
        if self._builder is not None:
            self._builder.add(rows)
            self._epochs += epoch_ranges(rows)

    def finish(self) -> Recovered | None:
        return None if self._builder is None else Recovered(*self._builder.finish(), self._epochs)
