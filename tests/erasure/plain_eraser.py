"""What an erasure leaves of a log, written plainly: batches and records as Python objects, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from compaction.formats.producer_snapshot import ProducerEntry
from tests.oracle.records import NaiveBatch, NaiveRecord, encode, encode_empty
from tests.oracle.segments import NaiveSegment, write_segment

Meant = Callable[[bytes], bool]


@dataclass(frozen=True)
class PlainEraser:
    """Erases keys that are ``meant`` from the first ``segments`` of a log; ``producers`` are its active ones."""

    meant: Meant
    producers: Sequence[ProducerEntry]
    segments: int
    index_interval_bytes: int
    tombstones: bool = False

    def erase(self, log: Sequence[NaiveSegment]) -> list[NaiveSegment]:
        """The segments of the log afterwards."""
        end_offset = max((segment.next_offset for segment in log[: self.segments] if segment.log), default=-1)
        return [self._segment(each, end_offset) if at < self.segments else each for at, each in enumerate(log)]

    def matches(self, record: NaiveRecord) -> bool:
        """Whether the record is erased."""
        left = record.value is not None or record.headers or not self.tombstones
        return record.key is not None and self.meant(record.key) and bool(left)

    def _segment(self, segment: NaiveSegment, end_offset: int) -> NaiveSegment:
        raw = [made for batch in segment.batches for made in self._batch(batch, end_offset)]
        if raw == [batch.raw for batch in segment.batches]:
            return segment
        return write_segment(segment.base_offset, raw, self.index_interval_bytes, segment.mtime_ms, segment.aborted_txns)

    def _batch(self, batch: NaiveBatch, end_offset: int) -> Iterator[bytes]:
        records = batch.records()
        if batch.control or not any(map(self.matches, records)):
            yield batch.raw
            return
        # the last offset of a wrapper of magic 0 or 1 stands for all of it
        source = batch if batch.magic == 2 else replace(batch, base_offset=records[0].offset)
        horizon_ms = -1 if batch.delete_horizon_ms is None else batch.delete_horizon_ms
        if self.tombstones:
            left = [replace(each, value=None, headers=()) if self.matches(each) else each for each in records]
        else:
            left = [each for each in records if not self.matches(each)]
        if left:
            last_offset = batch.last_offset if batch.next_offset == end_offset else None
            yield encode(source, left, horizon_ms, names_as_text=False, last_offset=last_offset)
        elif batch.next_offset == end_offset or self._is_needed(batch):
            yield encode_empty(source)

    def _is_needed(self, batch: NaiveBatch) -> bool:
        """Whether the batch is the last of a producer, or the first of an open transaction."""
        return any(
            batch.producer_id == each.producer_id
            and batch.last_offset == each.last_data_offset
            or batch.magic == 2
            and batch.base_offset == each.current_txn_first_offset
            for each in self.producers
        )
