"""Scans the batch headers of a log's segments once, for all that recovery concludes from them.

Of every segment: its transactions. Of a segment that a broker recovers (it was not flushed when the broker was killed), as
``LogSegment.recover`` (Kafka 4.4.0) does: its offset and time index, and the leader epochs of its batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compaction.cleaning.log_view import Segment
from compaction.cleaning.txn_tables import TXN_ROW, Rows, summarise
from compaction.formats.assigned_epochs import EpochRange
from compaction.formats.record_batch.batch_header import MAGIC
from compaction.logdir.batch_scan import SegmentScan
from compaction.logdir.segments import LONG_MAX
from compaction.names import LOG, segment_file
from compaction.recovery.rebuild import INDEX_INTERVAL_BYTES, IndexBuilder
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.ranges import view

#: the kernel that scans headers releases the GIL
_SCAN_THREADS = 4
_PARALLEL_SCAN_BYTES = 256 * 1024 * 1024


class Recovered(NamedTuple):
    """What a broker writes when it recovers a segment: the bytes of its indexes, and its batches' leader epochs."""

    offset_index: bytes
    time_index: bytes
    epochs: Sequence[EpochRange]


class HeaderScan(NamedTuple):
    """What the batch headers of a segment say: its ``TXN_ROW`` summary, whether a batch has a producer id, and, if a broker
    recovers the segment, what it writes."""

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
    fs: FileSystem, log_path: str, segments: Sequence[Segment], wanted: Sequence[int], limits: ScanRange
) -> dict[int, HeaderScan]:
    """Reads the batch headers of some segments.

    :param wanted: indexes of these in ``segments``
    """

    def scan(index: int) -> HeaderScan:
        segment, producers = segments[index], False
        found = [np.empty(0, TXN_ROW)]
        recovering = _Recovering(segment.base_offset, limits)
        for rows in SegmentScan(view(fs, join(log_path, segment_file(segment.base_offset, LOG)))[: segment.size_bytes]):
            producers = producers or bool((rows["producer_id"] >= 0).any())
            found.append(summarise(rows[rows["last_offset"] >= limits.log_start_offset], index))
            recovering.add(rows)
        return HeaderScan(np.concatenate(found), producers, recovering.finish())

    if sum(segments[index].size_bytes for index in wanted) < _PARALLEL_SCAN_BYTES:
        return {index: scan(index) for index in wanted}
    with ThreadPoolExecutor(_SCAN_THREADS) as pool:
        return dict(zip(wanted, pool.map(scan, wanted), strict=True))


def joined_rows(scans: Iterable[HeaderScan]) -> Rows:
    """The ``TXN_ROW`` summaries of several segments."""
    return np.concatenate([np.empty(0, TXN_ROW), *(scan.rows for scan in scans)])


class _Recovering:
    """Collects what recovery writes of one segment; of a flushed one, nothing."""

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


def epoch_ranges(rows: Rows) -> list[EpochRange]:
    """The leader epochs of adjacent batches, ``BATCH_ROW``; those of v0/v1 have none."""
    rows = rows[(rows["magic"] == MAGIC) & (rows["leader_epoch"] >= 0)]
    if not len(rows):
        return []
    starts = np.flatnonzero(np.diff(rows["leader_epoch"], prepend=-1))
    ends = np.append(starts[1:], len(rows)) - 1
    columns = rows["leader_epoch"][starts], rows["base_offset"][starts], rows["last_offset"][ends]
    return [EpochRange(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]
