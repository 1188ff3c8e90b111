"""The transaction state of one pass, batch by batch (Kafka 4.4.0: ``CleanedTransactionMetadata``), and its index look-ups."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from compaction.rules.log_view import AbortedTxn
from tests.oracle.records import KafkaRefuses, NaiveBatch

_ABORT, _COMMIT = 0, 1


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
        if kind == _ABORT:
            txn, observed = self.aborted.pop(batch.producer_id, (None, []))
            if txn is not None and observed:
                self._append(txn)
                return False
            return True
        if kind == _COMMIT:
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
