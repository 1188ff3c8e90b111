"""Record retention: which records and batches of the cleaned segments survive a round. This is the normative statement.

Notation:

    D, U      first dirty and first uncleanable offset of the round (``compaction.rules.log_to_clean``)
    b, r      a batch of the cleaned segments, a record of b
    M[k]      the offset map: the highest offset in [D, U) of a record with key k, not aborted and not in a control batch;
              -1 without one. Keys are compared by their 128-bit hash
    H(b)      the delete horizon of b: its base timestamp if attribute bit 6 is set (magic 2)
    now       the time of the round

Rule: r survives iff r.offset >= M[r.key]. A record below that is *superseded*.

Exceptions. For a record, the first that applies decides:

1. *Aborted.* b is data of an aborted transaction: no record of b survives.
2. *Control.* b is a control batch: its records survive, unless b is discardable and H(b) <= now: then none does.
3. *Past the map.* r.offset >= U: r survives.
4. *Invalid.* r has no key: r is dropped and counted invalid.
5. *Tombstone.* r survives by the rule but has no value: r is dropped if its retention has passed. With magic 2 that is
   H(b) <= now. With magic 0 and 1 it is segment mtime <= legacy delete horizon: the mtime of the last segment whose base is
   below D, less ``delete.retention.ms``; 0 without such a segment.

For a batch of which no record survives:

6. *Last record of an active producer.* b becomes an empty batch (header only, count 0) if its producer is active and its last
   offset is the producer's last data offset; or, if the producer has none, if b is a control batch of the producer's epoch.
7. *End of the round.* b becomes an empty batch if b.last_offset + 1 = U, and, for Kafka 4.4, U is the high watermark
   (KAFKA-20452). Before Kafka 3.9.2 it is dropped (KAFKA-17076).
8. Any other such batch is dropped. A batch of magic 0 or 1 has no empty form: Kafka fails the round if one would be needed, and
   so does this cleaner.

For a batch of which a record survives:

9. *New delete horizon.* b is written with H = now + ``delete.retention.ms`` if it has none and holds a surviving tombstone or
   is a discardable control batch. Sums of times wrap at 64 bits, as in Java: if this one is negative, b is written without H.
10. *Old format.* A batch of magic 0 or 1 is written as magic 2, and 9 applies to it.
11. Any other batch of which all records survive is copied byte for byte.

Versions (``compaction.rules.kafka_rules``): up to Kafka 3.0 batches have no delete horizon. 5 takes the segment's mtime with
every magic, 2 takes it for a discardable control batch, and 9 does not apply; a batch that has a horizon loses it when it is
rewritten. Up to Kafka 3.9, 10 does not apply: a plain message is copied, and a wrapper that loses a message, or has one of
another magic, is rewritten with its own magic (``compaction.formats.message_set``).

``compaction.rules.transactions`` decides which data is aborted and which control batches are discardable. The map pass may
take more data for aborted than there is; then M misses keys and more survives, never less.

Mirrors ``Cleaner.cleanInto``, ``Cleaner.shouldRetainRecord`` and ``MemoryRecords.filterTo``. This module decides
1, 2, 6 and 7, which need batch headers only; ``compaction.kernels.retention`` decides the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.formats.record_batch import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from compaction.kernels import tables
from compaction.rules.kafka_rules import NEWEST, RULES, KafkaRules
from compaction.rules.transactions import AbortedRanges, Bools, Int64s, Rows

_NO_PRODUCER_ID = -1


@dataclass(frozen=True, eq=False)
class ActiveProducers:
    """The last records of the active producers: arrays of shape (n,), ascending by producer id.

    ``last_data_offset`` is -1 for a producer of which only a marker remains.
    """

    producer_id: Int64s
    last_data_offset: Int64s
    producer_epoch: NDArray[np.int16]

    @classmethod
    def of(cls, entries: Sequence[ProducerEntry]) -> ActiveProducers:
        ordered = sorted(entries)
        return cls(
            np.array([entry.producer_id for entry in ordered], dtype=np.int64),
            np.array([entry.last_data_offset for entry in ordered], dtype=np.int64),
            np.array([entry.producer_epoch for entry in ordered], dtype=np.int16),
        )

    def are_last_records(self, rows: Rows) -> Bools:
        """Exception 6: which batches of a ``BATCH_ROW`` table (n,) hold the last record of an active producer, (n,) bool."""
        if not len(self.producer_id):
            return np.zeros(len(rows), dtype=np.bool_)
        index = np.minimum(np.searchsorted(self.producer_id, rows["producer_id"]), len(self.producer_id) - 1)
        active = (self.producer_id[index] == rows["producer_id"]) & (rows["producer_id"] > _NO_PRODUCER_ID)
        last_data_offset = self.last_data_offset[index]
        last_marker = _has_bit(rows, CONTROL) & (rows["producer_epoch"] == self.producer_epoch[index])
        last: Bools = active & np.where(last_data_offset >= 0, rows["last_offset"] == last_data_offset, last_marker)
        return last


@dataclass(frozen=True, eq=False)
class RoundRules:
    """The input of decisions about the batches of one round.

    ``aborted`` and ``discardable`` are those of ``TxnResolution``; ``retain_end_offset`` is that of ``LogPlan``. ``kafka``
    are the rules of the Kafka version that the log is cleaned for. ``erases`` and ``erases_values`` are those of ``Limits``
    (``compaction.kernels.retention``).
    """

    aborted: AbortedRanges
    discardable: Int64s
    producers: ActiveProducers
    retain_end_offset: int
    now_ms: int
    kafka: KafkaRules = RULES[NEWEST]
    erases: bool = False
    erases_values: bool = False

    def verdicts(self, rows: Rows, *, retain_by_mtime: bool = True) -> NDArray[np.uint8]:
        """The verdict of each batch, (n,) uint8 (``compaction.kernels.tables``): ``DISCARD`` by 1 and 2,
        ``RETAIN_EMPTY`` by 6 and 7, ``MARKER_OF_EMPTY_TXN`` for 9. Without ``DISCARD`` its records are judged one by one.

        :param rows: ``BATCH_ROW`` table (n,), any part of one cleaned segment
        :param retain_by_mtime: the segment is younger than the delete horizon by mtime
        """
        control = _has_bit(rows, CONTROL)
        data = _has_bit(rows, TRANSACTIONAL) & ~control
        discard = np.zeros(len(rows), dtype=np.bool_)
        discard[data] = self.aborted.contains(rows["producer_id"][data], rows["last_offset"][data])
        discardable = control & np.isin(rows["last_offset"], self.discardable)
        passed = _has_bit(rows, DELETE_HORIZON) & (rows["base_timestamp"] <= self.now_ms)
        discard |= discardable & (np.bool_(not retain_by_mtime) if self.kafka.mtime_only else passed)
        end_of_round = rows["last_offset"] + 1 == self.retain_end_offset
        verdicts = np.zeros(len(rows), dtype=np.uint8)
        verdicts[discard] |= tables.DISCARD
        verdicts[self.producers.are_last_records(rows) | end_of_round] |= tables.RETAIN_EMPTY
        verdicts[discardable] |= tables.MARKER_OF_EMPTY_TXN
        return verdicts


def _has_bit(rows: Rows, bit: int) -> Bools:
    """Which batches are of magic 2 and have the attribute bit, (n,) bool."""
    matches: Bools = (rows["magic"] >= 2) & ((rows["attributes"] & bit) != 0)
    return matches
