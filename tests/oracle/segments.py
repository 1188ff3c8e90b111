"""Segments: the oracle's input, and its writer (Kafka 4.4.0: ``LogSegment``, ``OffsetIndex``, ``TimeIndex``)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from compaction.rules.log_view import AbortedTxn
from tests.oracle.records import KafkaRefuses, NaiveBatch, decode

_INT_MAX = 2**31 - 1


class SegmentOverflows(Exception):
    """An offset does not fit the segment: Kafka splits it and starts the round again."""


@dataclass(frozen=True)
class NaiveSegment:
    """One segment's files, without their unused parts, and its mtime in milliseconds."""

    base_offset: int
    log: bytes = field(repr=False)
    index: bytes = field(repr=False, default=b"")
    time_index: bytes = field(repr=False, default=b"")
    txn_index: bytes = field(repr=False, default=b"")
    mtime_ms: int = 0

    @cached_property
    def batches(self) -> tuple[NaiveBatch, ...]:
        return tuple(decode(self.log))

    @property
    def next_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.base_offset

    @property
    def aborted_txns(self) -> tuple[AbortedTxn, ...]:
        entries = struct.iter_unpack(">hqqqq", self.txn_index[: len(self.txn_index) // 34 * 34])
        return tuple(AbortedTxn(*entry[1:]) for entry in entries)

    def position_of(self, offset: int) -> int:
        """Position of the last index entry at or below ``offset``, else 0."""
        position = 0
        for relative, at in struct.iter_unpack(">ii", self.index):
            if self.base_offset + relative <= offset:
                position = at
        return position


class SegmentWriter:
    """Appends batches and maintains both indexes."""

    def __init__(self, base_offset: int, index_interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.interval = index_interval_bytes
        self.log = bytearray()
        self.index: list[tuple[int, int]] = []
        self.time_index: list[tuple[int, int]] = []
        self.since_last_entry = 0
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset

    def append(self, batch: bytes, largest_offset: int) -> None:
        """One batch; ``largest_offset`` is the one that Kafka checks the range with."""
        if not 0 <= largest_offset - self.base_offset <= _INT_MAX:
            raise SegmentOverflows(f"{largest_offset} above {self.base_offset}")
        (written,) = decode(batch)
        if written.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = written.max_timestamp, written.last_offset
        if self.since_last_entry > self.interval:
            if self.index and written.last_offset - self.base_offset <= self.index[-1][0]:
                raise KafkaRefuses("offset index does not ascend")
            self.index.append((self._relative(written.last_offset), len(self.log)))
            self._maybe_append_time()
            self.since_last_entry = 0
        self.log += batch
        self.since_last_entry += len(batch)

    def close(self, mtime_ms: int, aborted: Sequence[AbortedTxn] = ()) -> NaiveSegment:
        """``onBecomeInactiveSegment``."""
        self._maybe_append_time()
        index = b"".join(struct.pack(">ii", *entry) for entry in self.index)
        time_index = b"".join(struct.pack(">qi", *entry) for entry in self.time_index)
        return NaiveSegment(self.base_offset, bytes(self.log), index, time_index, txn_index_bytes(aborted), mtime_ms)

    def _maybe_append_time(self) -> None:
        if self.max_timestamp > (self.time_index[-1][0] if self.time_index else -1):
            self.time_index.append((self.max_timestamp, self._relative(self.offset_of_max_timestamp)))

    def _relative(self, offset: int) -> int:
        relative = offset - self.base_offset
        if not 0 <= relative <= _INT_MAX:
            raise KafkaRefuses(f"offset {offset} does not fit the index of segment {self.base_offset}")
        return relative


def txn_index_bytes(entries: Iterable[AbortedTxn]) -> bytes:
    """A ``.txnindex``; there is no file if it is empty."""
    return b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries)


def write_segment(
    base_offset: int, batches: Iterable[bytes], index_interval_bytes: int, mtime_ms: int, aborted: Sequence[AbortedTxn] = ()
) -> NaiveSegment:
    """An inactive segment of these batches, appended one by one."""
    writer = SegmentWriter(base_offset, index_interval_bytes)
    for batch in batches:
        (decoded,) = decode(batch)
        writer.append(batch, decoded.last_offset)
    return writer.close(mtime_ms, aborted)
