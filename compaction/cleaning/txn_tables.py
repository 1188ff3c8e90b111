"""The compact forms of transaction resolution: what a slice hands in (``TXN_ROW``) and what it gets back (``AbortedRanges``).

Why two data batches for each producer and gap are enough. Let a gap be the batches of one producer between two of its
control batches, inside one slice, so inside one segment. Index entries become known at segment starts only, hence none within
a gap, and only an ABORT marker closes an aborted transaction: within a gap an open one stays open. So the gap is a run of
batches that are not aborted and then a run of aborted ones, either possibly empty; the change comes at the first batch with
last offset ≥ the entry's first offset. The first batch tells whether any batch is not aborted, the last whether any is aborted,
and no other question is asked of data. An entry refused by ``computeIfAbsent`` changes nothing within the gap either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from compaction.formats.record_batch.batch_header import ABORT, COMMIT, CONTROL, TRANSACTIONAL

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.void]

#: One row per control batch, and per first and last transactional data batch of each producer between its control batches.
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

#: One row per transactional data batch that holds records without a key: they are invalid only if the batch is not aborted.
KEYLESS_ROW = np.dtype([("producer_id", np.int64), ("last_offset", np.int64), ("keyless", np.int64)])


class TxnKind(IntEnum):
    """What a ``TXN_ROW`` stands for."""

    DATA = 0
    ABORT = 1
    COMMIT = 2
    #: a control batch of another type (leader change, …)
    OTHER_CONTROL = 3
    #: a control batch whose record an earlier round removed
    EMPTY_CONTROL = 4


@dataclass(frozen=True, eq=False)
class AbortedRanges:
    """Spans of aborted data: three int64 arrays of one length, ascending by producer id, then offset; spans do not overlap.

    A transactional data batch is aborted iff a span of its producer has ``first_offset`` ≤ its last offset ≤ ``last_offset``.
    ``first_offset`` is inclusive; ``last_offset`` is inclusive too: the closing ABORT marker's, or 2⁶³−1 where none was read.
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
        span = rank(self.producer_id, self.first_offset, producer_id, last_offset, inclusive=True) - 1
        found = np.maximum(span, 0)
        inside: Bools = (span >= 0) & (self.producer_id[found] == producer_id) & (last_offset <= self.last_offset[found])
        return inside


def summarise(rows: Rows, segment_index: int) -> Rows:
    """The ``TXN_ROW`` summary of one slice, (m,), in log order.

    :param rows: the ``BATCH_ROW`` table of the slice, (n,), in log order; a slice lies within one segment
    :param segment_index: index of that segment in the log's list of segments
    """
    modern = rows["magic"] >= 2
    control = modern & ((rows["attributes"] & CONTROL) != 0)
    data = modern & ~control & ((rows["attributes"] & TRANSACTIONAL) != 0)
    if not control.any() and not data.any():
        return np.empty(0, dtype=TXN_ROW)
    chosen = control.copy()
    chosen[_ends_of_gaps(rows["producer_id"], control, data)] = True
    picked = rows[chosen]
    summary = np.empty(len(picked), dtype=TXN_ROW)
    summary["segment_index"] = segment_index
    summary["position"] = picked["position"]
    summary["first_offset"] = picked["base_offset"]
    summary["last_offset"] = picked["last_offset"]
    summary["producer_id"] = picked["producer_id"]
    summary["kind"] = _kinds(picked, control[chosen])
    return summary


def keyless_rows(rows: Rows, keyless: NDArray[np.int32]) -> Rows:
    """The ``KEYLESS_ROW`` table of a ``BATCH_ROW`` table whose batches hold so many records without a key, (n,) int32."""
    data = (rows["magic"] >= 2) & ((rows["attributes"] & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL)
    chosen = data & (keyless > 0)
    found = np.empty(np.count_nonzero(chosen), KEYLESS_ROW)
    found["producer_id"], found["last_offset"] = rows["producer_id"][chosen], rows["last_offset"][chosen]
    found["keyless"] = keyless[chosen]
    return found


def rank(
    producers: Int64s, offsets: Int64s, wanted_producers: Int64s, wanted_offsets: Int64s, *, inclusive: bool = False
) -> Int64s:
    """How many of the pairs (producer, offset), ascending, lie below each wanted pair, or at it where ``inclusive``."""
    low = np.zeros(len(wanted_producers), dtype=np.int64)
    high = np.full(len(wanted_producers), len(producers), dtype=np.int64)
    while (open_ := low < high).any():
        middle = np.minimum((low + high) // 2, len(producers) - 1)
        producer, offset = producers[middle], offsets[middle]
        reached = offset <= wanted_offsets if inclusive else offset < wanted_offsets
        below = (producer < wanted_producers) | ((producer == wanted_producers) & reached)
        low = np.where(open_ & below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low


def _ends_of_gaps(producer_id: Int64s, control: Bools, data: Bools) -> Int64s:
    """Indexes of the first and last data batch of every gap; a gap lies between two control batches of one producer."""
    order = np.argsort(producer_id, kind="stable")
    gap = np.cumsum(control[order])
    kept = data[order]
    order, gap = order[kept], gap[kept]
    producer = producer_id[order]
    changes = (producer[1:] != producer[:-1]) | (gap[1:] != gap[:-1])
    first = np.concatenate(([True], changes))[: len(order)]
    last = np.concatenate((changes, [True]))[: len(order)]
    ends: Int64s = order[first | last]
    return ends


def _kinds(picked: Rows, control: Bools) -> NDArray[np.int8]:
    types = picked["control_type"]
    kinds = np.full(len(picked), TxnKind.DATA, dtype=np.int8)
    kinds[control] = TxnKind.OTHER_CONTROL
    kinds[control & (types == ABORT)] = TxnKind.ABORT
    kinds[control & (types == COMMIT)] = TxnKind.COMMIT
    kinds[control & (picked["count"] == 0)] = TxnKind.EMPTY_CONTROL
    return kinds
