"""A partition's producers and their transactions, batch by batch (Kafka 4.4.0: ``ProducerStateManager``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.rules.log_view import AbortedTxn
from tests.kafka.encode import ABORT, COMMIT
from tests.oracle.records import NaiveBatch


@dataclass
class NaiveProducers:
    """``open_txns`` are the first offsets of open transactions by producer; ``ended`` has the first and the last offset of each
    transaction that ended."""

    entries: dict[int, ProducerEntry] = field(default_factory=dict)
    open_txns: dict[int, int] = field(default_factory=dict)
    ended: list[tuple[int, int]] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)

    def append(self, batch: NaiveBatch) -> None:
        """The next batch of the log."""
        producer = batch.producer_id
        if producer < 0:
            return
        if batch.control:
            if batch.control_type() in (ABORT, COMMIT):
                self._end(batch)
            return
        if batch.transactional:
            self.open_txns.setdefault(producer, batch.base_offset)
        delta, first = batch.last_offset - batch.base_offset, self.open_txns.get(producer, -1)
        before, last_sequence = self.entries.get(producer), batch.base_sequence + delta
        coordinator = before.coordinator_epoch if before else -1
        self.entries[producer] = ProducerEntry(
            producer, batch.producer_epoch, last_sequence, batch.last_offset, delta, batch.max_timestamp, coordinator, first
        )

    def _end(self, batch: NaiveBatch) -> None:
        producer, first = batch.producer_id, self.open_txns.pop(batch.producer_id, None)
        if first is not None:
            self.ended.append((first, batch.last_offset))
            if batch.control_type() == ABORT:
                last_stable = min(self.open_txns.values(), default=batch.next_offset)
                self.aborted.append(AbortedTxn(producer, first, batch.last_offset, last_stable))
        before = self.entries.get(producer)
        if before is None or before.producer_epoch != batch.producer_epoch:
            before = ProducerEntry(producer, batch.producer_epoch, -1, -1, 0, -1, 0, -1)
        time_ms = batch.records()[0].timestamp
        self.entries[producer] = before._replace(coordinator_epoch=0, last_timestamp_ms=time_ms, current_txn_first_offset=-1)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """That of the first transaction that is open, or whose marker is not below the high watermark."""
        return min([*self.open_txns.values(), *(first for first, last in self.ended if last >= high_watermark)], default=None)
