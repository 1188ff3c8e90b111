"""The values that reading a log gives and planning takes: segments, transactions, producers and the log as a whole.

All are frozen; offsets named ``*_offset`` are inclusive unless they are called ``end_offset`` or ``next_offset``; times are
milliseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from compaction.names import TopicPartition


class AbortedTxn(NamedTuple):
    """One ``.txnindex`` entry: an aborted transaction whose marker lies in that segment (Kafka: ``AbortedTxn``)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerEntry(NamedTuple):
    """The state of one producer at the log's end (Kafka: ``ProducerStateEntry``). -1 stands for *none*.

    ``last_data_offset`` is the last offset of its last data batch still remembered, ``current_txn_first_offset`` the first
    offset of its open transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_data_offset: int
    offset_delta: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_first_offset: int


@dataclass(frozen=True)
class Segment:
    """One segment at rest.

    ``index_bytes`` and ``time_index_bytes`` count valid entries only (a preallocated tail does not count), as Kafka's
    ``AbstractIndex.sizeInBytes`` does. ``largest_timestamp_ms`` follows ``LogSegment.largestTimestamp``: the last time index
    entry's timestamp when ≥ 0, else the mtime. ``first_batch_timestamp_ms`` is the max timestamp of the first batch, as
    ``LogSegment.getFirstBatchTimestamp`` has it (``LONG_MAX`` for an empty segment). ``next_offset`` is the offset after its
    last batch (its base offset when empty). ``aborted_txns`` are its ``.txnindex`` entries in file order. ``identity`` tells
    another file, or a changed one, from the one that was looked at: device, inode and ctime in ns.
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

    @property
    def mtime_ms(self) -> int:
        """Last modification, milliseconds, truncated as Java's ``File.lastModified`` does."""
        return self.mtime_ns // 1_000_000


@dataclass(frozen=True)
class LogView:
    """One log at rest, as far as planning needs it (Kafka: ``UnifiedLog`` after loading).

    ``path`` is the partition directory, ``log_dir`` its parent. ``segments`` are ascending. ``cleaner_checkpoint`` is the entry
    of ``cleaner-offset-checkpoint`` or ``None``. ``producers`` holds the active (unexpired) producers at ``now_ms``.
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
        """Bytes of all ``.log`` files together."""
        return sum(segment.size_bytes for segment in self.segments)
