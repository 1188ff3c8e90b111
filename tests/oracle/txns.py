"""Transactions, batch by batch, in one pass (Kafka 4.4.0: ``CleanedTransactionMetadata``), with its index look-ups, and in a
partition, with its producers (``ProducerStateManager``)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.rules.log_view import AbortedTxn
from tests.kafka.encode import ABORT, COMMIT
from tests.oracle.records import KafkaRefuses, NaiveBatch


class CleanedTransactions:
    """``cleaned_index`` collects the retained entries; None in the pass that builds the offset map."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        self.aborted: dict[int, tuple[AbortedTxn, list[int]]] = {}
        self.heap: list[tuple[int, int, AbortedTxn]] = []
        self.arrivals = 0
        self.cleaned_index: list[AbortedTxn] | None = None

    def add(self, txns: Sequence[AbortedTxn]) -> None:
        for txn in txns:
            heapq.heappush(self.heap, (txn.first_offset, self.arrivals, txn))
            self.arrivals += 1

    def on_batch(self, batch: NaiveBatch) -> bool:
        """Whether the batch may be discarded."""
        self._consume_up_to(batch.last_offset)
        return self._on_control_batch(batch) if batch.control else self._on_data_batch(batch)

    def _consume_up_to(self, offset: int) -> None:
        while self.heap and self.heap[0][0] <= offset:
            txn = heapq.heappop(self.heap)[2]
            self.aborted.setdefault(txn.producer_id, (txn, []))

    def _on_control_batch(self, batch: NaiveBatch) -> bool:
        kind = batch.control_type()
        if kind is None:
            return True
        if kind == ABORT:
            txn, observed = self.aborted.pop(batch.producer_id, (None, []))
            if txn is not None and observed:
                self._append(txn)
                return False
            return True
        if kind == COMMIT:
            if batch.producer_id in self.committed:
                self.committed.remove(batch.producer_id)
                return False
            return True
        return False

    def _on_data_batch(self, batch: NaiveBatch) -> bool:
        if not batch.transactional:
            return False
        if batch.producer_id in self.aborted:
            self.aborted[batch.producer_id][1].append(batch.last_offset)
            return True
        self.committed.add(batch.producer_id)
        return False

    def _append(self, txn: AbortedTxn) -> None:
        if self.cleaned_index is None:
            return
        if self.cleaned_index and self.cleaned_index[-1].last_offset >= txn.last_offset:
            raise KafkaRefuses("transaction index does not ascend")
        self.cleaned_index.append(txn)


def collect_aborted(
    txn_indexes: Sequence[tuple[int, Sequence[AbortedTxn]]], log_start: int, base_offset: int, upper_bound: int
) -> list[AbortedTxn]:
    """``LocalLog.collectAbortedTransactions``; the indexes are (segment base, entries), ascending. Kafka's search ends with the
    first entry whose last stable offset is at or past the bound: of a broker's entries it loses none."""
    floors = [at for at, (segment_base, _) in enumerate(txn_indexes) if segment_base <= base_offset]
    later = [txn for _, entries in txn_indexes[floors[-1] :] for txn in entries] if floors else []
    return [txn for txn in later if txn.last_offset >= log_start and txn.first_offset < upper_bound]


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
