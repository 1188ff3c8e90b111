"""The producer state of a partition after its batches have been replayed.

Mirrors ``ProducerStateManager``, ``ProducerAppendInfo`` and ``ProducerStateEntry`` as
``UnifiedLog.rebuildProducerState`` uses them, with append origin *replication*, which validates nothing:

1. A data batch sets its producer's epoch, last offset, sequence and timestamp. A new epoch forgets the older batches.
2. A transactional data batch opens a transaction at its base offset unless one is open.
3. A commit or abort marker closes it, and sets epoch, coordinator epoch and timestamp. A bumped epoch forgets the batches, so
   ``last_data_offset`` becomes -1.
4. A control batch without records, or of another type, changes nothing.
5. A producer is expired if it has no open transaction and now - last timestamp ≥ ``producer.id.expiration.ms``.

Updates of one segment are collected and merged at its end (:meth:`ProducerStates.flush`). Differences: of the five batches that
Kafka remembers only the last is kept, because the others only detect duplicates of new batches; and where Kafka refuses to load
a log (data without a transaction inside one), the replay continues with the transaction open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.config.entries import to_long
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.formats.record_batch import (
    ABORT,
    COMMIT,
    CONTROL,
    TRANSACTIONAL,
    EndTxnMarker,
    increment_sequence,
)
from compaction.rules.log_view import AbortedTxn

Rows = NDArray[np.void]

NONE = -1
#: up to this many batches a plain loop is faster than array operations
_SHORT_RUN = 48


@dataclass
class _State:
    """One producer's state, or its update by one segment, whose ``batch`` is ``None`` until the segment has one."""

    epoch: int = NONE
    coordinator_epoch: int = NONE
    last_timestamp_ms: int = NONE
    txn_first_offset: int = NONE
    batch: _Batch | None = None

    def take_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batch = None
            self.epoch = epoch


class _Batch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int


class ProducerStates:
    """The producers of one partition: load snapshot entries, then append batches in log order, segment by segment."""

    def __init__(self) -> None:
        self._producers: dict[int, _State] = {}
        self._pending: dict[int, _State] = {}
        #: open transactions: first offset -> producer id
        self._open: dict[int, int] = {}
        #: closed transactions: first offset -> offset of the marker
        self._closed: dict[int, int] = {}
        self._started: list[tuple[int, int]] = []
        self._completed: list[tuple[int, int, int, bool]] = []

    def load(self, entries: Iterable[ProducerEntry], now_ms: int, expiration_ms: int) -> None:
        """Load the entries of a snapshot that are not expired at ``now_ms``."""
        for entry in entries:
            state = _State(entry.producer_epoch, entry.coordinator_epoch, entry.last_timestamp_ms)
            state.txn_first_offset = entry.current_txn_first_offset
            if entry.last_data_offset >= 0:
                state.batch = _Batch(entry.last_sequence, entry.last_data_offset, entry.offset_delta)
            if _is_expired(state, now_ms, expiration_ms):
                continue
            self._producers[entry.producer_id] = state
            if state.txn_first_offset >= 0:
                self._open[state.txn_first_offset] = entry.producer_id

    def append(self, rows: Rows, marker_at: Callable[[int], EndTxnMarker]) -> None:
        """Replay batches of one segment.

        :param rows: ``BATCH_ROW``, (n,), in log order
        :param marker_at: the marker in the control batch at a byte position of the segment
        """
        batches = rows[(rows["producer_id"] >= 0) & (rows["magic"] >= 2)]
        if not len(batches):
            return
        control = (batches["attributes"] & CONTROL) != 0
        start = 0
        for end in [*np.flatnonzero(control).tolist(), len(batches)]:
            run = batches[start:end]
            for row in run[_first_and_last(run)] if len(run) > _SHORT_RUN else run:
                self._append_batch(row)
            if end < len(batches):
                self._append_control(batches[end], marker_at)
            start = end + 1

    def flush(self) -> list[AbortedTxn]:
        """Merge the updates of a segment, after its last batch; the transactions that were aborted in it, in log order."""
        for producer_id, update in self._pending.items():
            state = self._producers.setdefault(producer_id, _State(epoch=update.epoch))
            state.take_epoch(update.epoch)
            state.batch = update.batch or state.batch
            state.coordinator_epoch = update.coordinator_epoch
            state.txn_first_offset = update.txn_first_offset
            state.last_timestamp_ms = update.last_timestamp_ms
        self._open.update(self._started)
        aborted = []
        for producer_id, first, last, is_aborted in self._completed:
            if is_aborted:
                # Kafka: ``ProducerStateManager.lastStableOffset(CompletedTxn)``
                others = (begin for begin, owner in self._open.items() if owner != producer_id)
                aborted.append(AbortedTxn(producer_id, first, last, min(others, default=last + 1)))
            self._open.pop(first, None)
            self._closed[first] = last
        self._pending, self._started, self._completed = {}, [], []
        return aborted

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove the producers that are expired at ``now_ms``."""
        self._producers = {
            producer_id: state
            for producer_id, state in self._producers.items()
            if not _is_expired(state, now_ms, expiration_ms)
        }

    def entries(self) -> tuple[ProducerEntry, ...]:
        """The producers, ascending by id."""
        return tuple(_entry(producer_id, state) for producer_id, state in sorted(self._producers.items()))

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """First offset of the oldest transaction that is open or whose marker is at or past the high watermark."""
        unstable = [*self._open, *(first for first, last in self._closed.items() if last >= high_watermark)]
        return min(unstable, default=None)

    def _update(self, producer_id: int) -> _State:
        update = self._pending.get(producer_id)
        if update is None:
            state = self._producers.get(producer_id)
            update = _State() if state is None else replace(state, batch=None)
            self._pending[producer_id] = update
        return update

    def _append_batch(self, row: np.void) -> None:
        producer_id, first, last = int(row["producer_id"]), int(row["base_offset"]), int(row["last_offset"])
        update = self._update(producer_id)
        update.take_epoch(int(row["producer_epoch"]))
        base = int(row["base_sequence"])
        sequence = NONE if base == NONE else increment_sequence(base, last - first)
        update.batch = _Batch(sequence, last, last - first)
        update.last_timestamp_ms = int(row["max_timestamp"])
        if row["attributes"] & TRANSACTIONAL and update.txn_first_offset < 0:
            update.txn_first_offset = first
            self._started.append((first, producer_id))

    def _append_control(self, row: np.void, marker_at: Callable[[int], EndTxnMarker]) -> None:
        if row["control_type"] not in (ABORT, COMMIT):
            return
        marker = marker_at(int(row["position"]))
        producer_id, offset = int(row["producer_id"]), int(row["base_offset"])
        update = self._update(producer_id)
        if update.txn_first_offset >= 0:
            self._completed.append((producer_id, update.txn_first_offset, offset, bool(row["control_type"] == ABORT)))
        update.take_epoch(int(row["producer_epoch"]))
        update.coordinator_epoch = marker.coordinator_epoch
        update.txn_first_offset = NONE
        update.last_timestamp_ms = marker.timestamp_ms


def _entry(producer_id: int, state: _State) -> ProducerEntry:
    batch = state.batch or _Batch(NONE, NONE, 0)
    return ProducerEntry(
        producer_id, state.epoch, *batch, state.last_timestamp_ms, state.coordinator_epoch, state.txn_first_offset
    )


def _is_expired(state: _State, now_ms: int, expiration_ms: int) -> bool:
    return state.txn_first_offset < 0 and to_long(now_ms - state.last_timestamp_ms) >= expiration_ms


def _first_and_last(rows: Rows) -> NDArray[np.int64]:
    """The rows that determine the state, of a run without control batches: each producer's last and first transactional one."""
    ids = rows["producer_id"]
    _, from_end = np.unique(ids[::-1], return_index=True)
    transactional = np.flatnonzero(rows["attributes"] & TRANSACTIONAL)
    _, first = np.unique(ids[transactional], return_index=True)
    selected: NDArray[np.int64] = np.union1d(len(rows) - 1 - from_end, transactional[first])
    return selected
