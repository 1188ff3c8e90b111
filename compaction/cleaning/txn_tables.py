"""The tables of transaction resolution: ``TXN_ROW`` summarizes a slice, ``AbortedRanges`` is the result.

A summary has two data batches per *run*: the batches of one producer between two of its control batches in one slice, which is
part of one segment. Two are enough. Index entries become pending only at segment starts, and only an ABORT marker closes an
aborted transaction, so a transaction that opens within a run remains open until its end. A run is therefore a sequence of
batches that are not aborted followed by a sequence of aborted ones, either possibly empty; it changes at the first batch whose
last offset is ≥ the entry's first offset. The first batch of the run says whether any is not aborted, the last whether any is
aborted; resolution needs no more. An entry that ``computeIfAbsent`` ignores does not change this.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.log_view import LogView
from compaction.formats.record_batch import ABORT, COMMIT, CONTROL, TRANSACTIONAL

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.void]

#: One row per control batch, and per first and last transactional data batch of each run.
#:
#: ``segment_index`` index of the segment in the log's list of segments
#: ``position``      byte position of the batch in its segment
#: ``first_offset``  the batch's base offset
#: ``last_offset``   the batch's last offset (inclusive)
#: ``producer_id``   as stored
#: ``kind``          a :class:`TxnKind`
TXN_ROW = np.dtype(
    [
        ("segment_index", np.int32),
        ("position", np.int64),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("producer_id", np.int64),
        ("kind", np.int8),
    ]
)

#: One row per transactional data batch with records without a key, which are invalid only if the batch is not aborted.
KEYLESS_ROW = np.dtype([("producer_id", np.int64), ("last_offset", np.int64), ("keyless", np.int64)])


class TxnKind(IntEnum):
    """The kind of a ``TXN_ROW``."""

    DATA = 0
    ABORT = 1
    COMMIT = 2
    #: a control batch of another type, e.g. a leader change
    OTHER_CONTROL = 3
    #: a control batch whose record was dropped in an earlier round
    EMPTY_CONTROL = 4


@dataclass(frozen=True, eq=False)
class AbortedRanges:
    """Ranges of aborted data: three int64 arrays (n,), ascending by producer id, then offset; ranges do not overlap.

    A transactional data batch is aborted iff a range of its producer has ``first_offset`` ≤ its last offset ≤ ``last_offset``.
    ``last_offset`` is that of the ABORT marker, or 2⁶³−1 if none was read.
    """

    producer_id: Int64s
    first_offset: Int64s
    last_offset: Int64s

    def __len__(self) -> int:
        return len(self.producer_id)

    def contains(self, producer_id: Int64s, last_offset: Int64s) -> Bools:
        """Which of the transactional data batches, given by producer id and last offset (n,), are aborted: (n,) bool."""
        if not len(self):
            return np.zeros(len(producer_id), dtype=np.bool_)
        index = rank(self.producer_id, self.first_offset, producer_id, last_offset, inclusive=True) - 1
        nearest = np.maximum(index, 0)
        inside: Bools = (index >= 0) & (self.producer_id[nearest] == producer_id) & (last_offset <= self.last_offset[nearest])
        return inside


def aborted_of(view: LogView) -> AbortedRanges:
    """The aborted data of a log, by the entries of its transaction indexes; overlapping entries are joined."""
    ranges: list[list[int]] = []
    for producer, first, last, _ in sorted(txn for segment in view.segments for txn in segment.aborted_txns):
        if ranges and ranges[-1][0] == producer and first <= ranges[-1][2]:
            ranges[-1][2] = max(ranges[-1][2], last)
        else:
            ranges.append([producer, first, last])
    columns = np.array(ranges, np.int64).reshape(-1, 3).T
    return AbortedRanges(columns[0], columns[1], columns[2])


def summarise(rows: Rows, segment_index: int) -> Rows:
    """The ``TXN_ROW`` summary of one slice, (m,), in log order.

    :param rows: the ``BATCH_ROW`` table of the slice, (n,), in log order; a slice lies within one segment
    :param segment_index: index of that segment in the log's list of segments
    """
    v2 = rows["magic"] >= 2
    control = v2 & ((rows["attributes"] & CONTROL) != 0)
    data = v2 & ~control & ((rows["attributes"] & TRANSACTIONAL) != 0)
    if not control.any() and not data.any():
        return np.empty(0, dtype=TXN_ROW)
    selected = control.copy()
    selected[_ends_of_runs(rows["producer_id"], control, data)] = True
    batches = rows[selected]
    summary = np.empty(len(batches), dtype=TXN_ROW)
    summary["segment_index"] = segment_index
    summary["position"] = batches["position"]
    summary["first_offset"] = batches["base_offset"]
    summary["last_offset"] = batches["last_offset"]
    summary["producer_id"] = batches["producer_id"]
    summary["kind"] = _kinds(batches, control[selected])
    return summary


def keyless_rows(rows: Rows, keyless: NDArray[np.int32]) -> Rows:
    """The ``KEYLESS_ROW`` table of a ``BATCH_ROW`` table (n,).

    :param keyless: records without a key in each batch, (n,) int32
    """
    data = (rows["magic"] >= 2) & ((rows["attributes"] & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL)
    selected = data & (keyless > 0)
    table = np.empty(np.count_nonzero(selected), KEYLESS_ROW)
    table["producer_id"], table["last_offset"] = rows["producer_id"][selected], rows["last_offset"][selected]
    table["keyless"] = keyless[selected]
    return table


def rank(
    producers: Int64s, offsets: Int64s, query_producers: Int64s, query_offsets: Int64s, *, inclusive: bool = False
) -> Int64s:
    """The number of ascending pairs (producer, offset) below each query pair, or up to it if ``inclusive``."""
    low = np.zeros(len(query_producers), dtype=np.int64)
    high = np.full(len(query_producers), len(producers), dtype=np.int64)
    while (open_ := low < high).any():
        middle = np.minimum((low + high) // 2, len(producers) - 1)
        producer, offset = producers[middle], offsets[middle]
        reached = offset <= query_offsets if inclusive else offset < query_offsets
        below = (producer < query_producers) | ((producer == query_producers) & reached)
        low = np.where(open_ & below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low


def _ends_of_runs(producer_id: Int64s, control: Bools, data: Bools) -> Int64s:
    """Indexes of the first and last data batch of every run."""
    order = np.argsort(producer_id, kind="stable")
    run = np.cumsum(control[order])
    kept = data[order]
    order, run = order[kept], run[kept]
    producer = producer_id[order]
    changes = (producer[1:] != producer[:-1]) | (run[1:] != run[:-1])
    first = np.concatenate(([True], changes))[: len(order)]
    last = np.concatenate((changes, [True]))[: len(order)]
    ends: Int64s = order[first | last]
    return ends


def _kinds(batches: Rows, control: Bools) -> NDArray[np.int8]:
    types = batches["control_type"]
    kinds = np.full(len(batches), TxnKind.DATA, dtype=np.int8)
    kinds[control] = TxnKind.OTHER_CONTROL
    kinds[control & (types == ABORT)] = TxnKind.ABORT
    kinds[control & (types == COMMIT)] = TxnKind.COMMIT
    kinds[control & (batches["count"] == 0)] = TxnKind.EMPTY_CONTROL
    return kinds
