"""A log at rest as immutable values: segments, aborted transactions and producers. Planning needs nothing else of a log.

Offsets are inclusive, except ``log_end_offset`` and ``next_offset``. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.names import TopicPartition


class AbortedTxn(NamedTuple):
    """One ``.txnindex`` entry: an aborted transaction whose marker is in that segment (Kafka: ``AbortedTxn``)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment at rest.

    ``index_bytes`` and ``time_index_bytes`` count valid entries, without a preallocated tail (``AbstractIndex.sizeInBytes``).
    ``largest_timestamp_ms`` is the last time index entry's timestamp if ≥ 0, else the mtime
    (``LogSegment.largestTimestamp``). ``first_batch_timestamp_ms`` is the max timestamp of the first batch, ``LONG_MAX`` for
    an empty segment (``LogSegment.getFirstBatchTimestamp``). ``next_offset`` is the offset after the last batch, the base
    offset if empty. ``aborted_txns`` are the ``.txnindex`` entries in file order. ``identity`` (device, inode, ctime in ns)
    detects a replaced or changed file, ``index_digest`` (of the valid entries) other entries of the offset and time index.
    """

    base_offset: int
    size_bytes: int
    mtime_ns: int
    index_bytes: int
    time_index_bytes: int
    largest_timestamp_ms: int
    first_batch_timestamp_ms: int
    next_offset: int
    aborted_txns: tuple[AbortedTxn, ...] = ()
    identity: tuple[int, int, int] | None = field(default=None, compare=False, repr=False)
    index_digest: int = field(default=0, compare=False, repr=False)

    @property
    def files_bytes(self) -> int:
        """The bytes of its ``.log`` file and of the valid entries of its indexes."""
        return self.size_bytes + self.index_bytes + self.time_index_bytes

    @property
    def mtime_ms(self) -> int:
        """Modification time in ms, truncated as Java's ``File.lastModified`` does."""
        return self.mtime_ns // 1_000_000


@dataclass(frozen=True, slots=True)
class LogView:
    """One log at rest, as planning needs it (Kafka: ``UnifiedLog`` after loading).

    ``path`` is the partition directory, ``log_dir`` its parent. ``segments`` are ascending. ``cleaner_checkpoint`` is the log's
    entry in ``cleaner-offset-checkpoint``, if any. ``producers`` are those not expired when the log was read.
    """

    topic_partition: TopicPartition
    log_dir: str
    path: str
    segments: tuple[Segment, ...]
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    cleaner_checkpoint: int | None
    producers: tuple[ProducerEntry, ...] = field(default=())

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)
