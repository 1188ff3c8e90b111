"""Retention: which batches and records of a cleaned segment stay.

Notation: ``b`` a batch, ``r`` a record of it, ``map[k]`` the highest offset mapped for key ``k`` (-1 where there is none),
``end`` the offset after the last one of the map, ``now`` the time of the round, ``upper`` its first uncleanable offset.

Records. ``r`` is kept iff

1. ``b`` is not discarded (below); and
2. ``b`` is a control batch, or
3. ``r.offset`` ≥ ``end``, or
4. ``r`` has a key, ``r.offset`` ≥ ``map[r.key]``, and ``r`` has a value or is a tombstone that may not go yet.

A record without a key below ``end`` is dropped and counted invalid. A tombstone may go iff ``b`` has magic 2, a delete horizon
is set and ``now`` ≥ that horizon; or ``b`` is older than magic 2 and its segment's mtime ≤ the legacy delete horizon (the mtime
of the last segment that begins below the first dirty offset, less ``delete.retention.ms``; 0 where there is no such segment).

Batches. ``b`` is *discardable* iff it is aborted data, or a control batch that transaction resolution lets go. It is
*discarded* iff it is discardable and, being a control batch, has a delete horizon ≤ ``now``. Where no record of ``b`` is kept,

1. an empty batch (header only) stays iff ``b`` is the last record of an active producer: its last offset is that producer's
   last data offset or, where the producer has none, ``b`` is a control batch of the producer's epoch; or iff
2. the offset after ``b`` is ``upper``: the end of the round keeps its offset;
3. otherwise ``b`` goes.

A batch that keeps records is rewritten with the horizon ``now`` + ``delete.retention.ms`` iff it has none yet and holds a kept
tombstone or is a discardable control batch (``MARKER_OF_EMPTY_TXN``). A batch below magic 2 that keeps records becomes magic 2
in any case. One that keeps none and would have to stay cannot be written: Kafka fails the round, so does a caller.

Mirrors ``Cleaner.cleanInto``, ``Cleaner.shouldRetainRecord`` and ``MemoryRecords.filterTo`` (Kafka 4.3.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.log_view import ProducerEntry, Segment
from compaction.cleaning.txn_tables import AbortedRanges, Bools, Int64s, Rows

_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40
_NO_PRODUCER_ID = -1


class BatchVerdict(IntFlag):
    """Bits of a batch's verdict; none set means: judge its records, and drop the batch if none is kept."""

    #: no record is kept
    DISCARD_RECORDS = 1
    #: where no record is kept, an empty batch stays
    RETAIN_EMPTY = 2
    #: the batch goes unseen, its records are not counted as read (``DISCARD_RECORDS`` without ``RETAIN_EMPTY``)
    DELETE = 4
    #: a control batch: unless discarded, all of its records are kept without asking the map
    CONTROL = 8
    #: a control batch that is discardable: where it is kept, it gets a delete horizon if it has none
    MARKER_OF_EMPTY_TXN = 16
    #: aborted data
    ABORTED = 32
    #: the delete horizon is set and has passed: tombstones go
    HORIZON_PASSED = 64


@dataclass(frozen=True, eq=False)
class ActiveProducers:
    """The last records of the active producers: arrays of one length, ascending by producer id.

    ``last_data_offset`` is -1 where only a marker of the producer is left.
    """

    producer_id: Int64s
    last_data_offset: Int64s
    producer_epoch: NDArray[np.int16]

    @classmethod
    def of(cls, entries: Sequence[ProducerEntry]) -> ActiveProducers:
        """From producer state entries, in any order."""
        ordered = sorted(entries)
        return cls(
            np.array([entry.producer_id for entry in ordered], dtype=np.int64),
            np.array([entry.last_data_offset for entry in ordered], dtype=np.int64),
            np.array([entry.producer_epoch for entry in ordered], dtype=np.int16),
        )

    def are_last_records(self, rows: Rows) -> Bools:
        """Which batches of a ``BATCH_ROW`` table are the last record of an active producer, (n,) bool."""
        if not len(self.producer_id):
            return np.zeros(len(rows), dtype=np.bool_)
        place = np.minimum(np.searchsorted(self.producer_id, rows["producer_id"]), len(self.producer_id) - 1)
        active = (self.producer_id[place] == rows["producer_id"]) & (rows["producer_id"] > _NO_PRODUCER_ID)
        last_data_offset = self.last_data_offset[place]
        last_marker = _control(rows) & (rows["producer_epoch"] == self.producer_epoch[place])
        last: Bools = active & np.where(last_data_offset >= 0, rows["last_offset"] == last_data_offset, last_marker)
        return last


@dataclass(frozen=True, eq=False)
class RoundRules:
    """What one cleaning round knows about its batches.

    ``discardable`` and ``aborted`` come from transaction resolution; ``first_uncleanable_offset``
    is exclusive.
    """

    aborted: AbortedRanges
    discardable: Int64s
    producers: ActiveProducers
    first_uncleanable_offset: int
    now_ms: int

    def verdicts(self, rows: Rows) -> NDArray[np.uint8]:
        """``batch_verdicts`` under these rules."""
        return batch_verdicts(
            rows,
            discardable=self.discardable,
            aborted=self.aborted,
            producers=self.producers,
            first_uncleanable_offset=self.first_uncleanable_offset,
            now_ms=self.now_ms,
        )


def batch_verdicts(
    rows: Rows,
    *,
    discardable: Int64s,
    aborted: AbortedRanges,
    producers: ActiveProducers,
    first_uncleanable_offset: int,
    now_ms: int,
) -> NDArray[np.uint8]:
    """The ``BatchVerdict`` bits of each batch, (n,) uint8.

    :param rows: ``BATCH_ROW`` table (n,), any part of the round's segments
    :param discardable: last offsets of the control batches that may be discarded, ascending
    :param aborted: the aborted data of the cleaning pass
    :param upper_bound_offset: first uncleanable offset of the round (exclusive)
    """
    control = _control(rows)
    transactional = ((rows["attributes"] & _TRANSACTIONAL) != 0) & (rows["magic"] >= 2) & ~control
    is_aborted = np.zeros(len(rows), dtype=np.bool_)
    is_aborted[transactional] = aborted.contains(rows["producer_id"][transactional], rows["last_offset"][transactional])
    marker_may_go = control & np.isin(rows["last_offset"], discardable)
    passed = horizon_passed(rows, now_ms)
    discard = is_aborted | (marker_may_go & passed)
    retain_empty = producers.are_last_records(rows) | (rows["last_offset"] + 1 == first_uncleanable_offset)
    bits = (
        (discard, BatchVerdict.DISCARD_RECORDS),
        (retain_empty, BatchVerdict.RETAIN_EMPTY),
        (discard & ~retain_empty, BatchVerdict.DELETE),
        (control, BatchVerdict.CONTROL),
        (marker_may_go, BatchVerdict.MARKER_OF_EMPTY_TXN),
        (is_aborted, BatchVerdict.ABORTED),
        (passed, BatchVerdict.HORIZON_PASSED),
    )
    verdicts = np.zeros(len(rows), dtype=np.uint8)
    for which, bit in bits:
        verdicts[which] |= int(bit)
    return verdicts


def has_horizon(rows: Rows) -> Bools:
    """Which batches carry a delete horizon (then their base timestamp is it), (n,) bool."""
    flagged: Bools = (rows["magic"] >= 2) & ((rows["attributes"] & _DELETE_HORIZON) != 0)
    return flagged


def horizon_passed(rows: Rows, now_ms: int) -> Bools:
    """Which batches carry a delete horizon that has come: ``now_ms`` at the horizon counts as passed, (n,) bool."""
    passed: Bools = has_horizon(rows) & (rows["base_timestamp"] <= now_ms)
    return passed


def tombstones_may_go(rows: Rows, now_ms: int, *, legacy_may_go: bool) -> Bools:
    """In which batches a tombstone is dropped although it is the last of its key, (n,) bool.

    :param legacy_may_go: the answer for magic 0 and 1, see :func:`legacy_tombstones_may_go`
    """
    may_go: Bools = np.where(rows["magic"] < 2, legacy_may_go, horizon_passed(rows, now_ms))
    return may_go


def legacy_delete_horizon_ms(segments: Sequence[Segment], first_dirty_offset: int, delete_retention_ms: int) -> int:
    """The legacy delete horizon, milliseconds.

    The mtime of the last segment that begins below the first dirty offset less ``delete.retention.ms``, 0 without one.
    """
    clean = [segment.mtime_ms for segment in segments if segment.base_offset < first_dirty_offset]
    return clean[-1] - delete_retention_ms if clean else 0


def legacy_tombstones_may_go(segment_mtime_ms: int, horizon_ms: int) -> bool:
    """Whether tombstones of magic 0 and 1 in a segment of this mtime are dropped: a segment at the horizon drops them."""
    return segment_mtime_ms <= horizon_ms


def _control(rows: Rows) -> Bools:
    control: Bools = (rows["magic"] >= 2) & ((rows["attributes"] & _CONTROL) != 0)
    return control
