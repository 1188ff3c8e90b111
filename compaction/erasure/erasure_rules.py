"""The rules by which records and batches survive an erasure. This is the normative statement.

Rule: a record is erased iff its key is selected (``compaction.formats.key_criteria``), anywhere in the erased segments:
clean or dirty, committed, aborted or of an open transaction, below the log start or at the log end. No other rule of record
retention applies: superseded records, tombstones, aborted data, markers and records without a key are retained, and no batch
gets or loses a delete horizon.

1. *Untouched segments.* A segment without such a record is not written.
2. *Untouched batches.* A batch without such a record is copied byte for byte, also one of magic 0 or 1, or without records.
3. *Other batches.* A batch that loses some records is written as Kafka's cleaner writes it: offsets, producer, sequence, codec
   and timestamps are retained. One of magic 0 or 1 becomes v2, or keeps its magic up to Kafka 3.9. Header names that are not
   UTF-8 are retained, too; Kafka's cleaner replaces them.
4. *Emptied batches.* A batch that loses all records becomes an empty batch (header only, count 0) if it is the last one of an
   active producer, the first one of an open transaction, or if the erased segments end with it; otherwise it is dropped. So the
   producers' sequences, the last stable offset and the log end remain. One of magic 0 or 1 becomes a v2 batch then.
5. *Transaction indexes* keep their entries, as the markers remain.
6. With ``tombstones`` no record is dropped: each loses its value and its headers, which may hold parts of the value. It keeps
   key, offset and timestamp. Batches of magic 0 and 1 become v2. A record without value and headers is unchanged.
7. The *cleaner checkpoint* is not moved: dirty records stay dirty, and later rounds clean them.

Rule 4 is that of ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``, except for open transactions, which Kafka's cleaner does
not reach, and for the end of the segments, which it retains since 3.9.2 (KAFKA-17076).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.grouping import Group
from compaction.cleaning.kafka_rules import KafkaRules, OldFormat, Retention
from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import LogPlan
from compaction.cleaning.record_retention import ActiveProducers, RoundRules
from compaction.cleaning.skip_reasons import Verdict
from compaction.cleaning.txn_tables import AbortedRanges, Int64s, Rows
from compaction.config import TopicConfig
from compaction.kernels import tables

#: no batch gets a delete horizon
_NO_TIME_MS = -1


@dataclass(frozen=True, eq=False)
class ErasureRules(RoundRules):
    """The rules of one log; ``open_txns`` are the first offsets of its open transactions."""

    open_txns: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(cls, plan: LogPlan, *, tombstones: bool) -> ErasureRules:
        no_offsets, producers = np.empty(0, np.int64), plan.view.producers
        kafka = replace(plan.rules, tombstone_retention=Retention.DELETE_HORIZON)
        first_offsets = [producer.current_txn_first_offset for producer in producers if producer.current_txn_first_offset >= 0]
        return cls(
            AbortedRanges(no_offsets, no_offsets, no_offsets),
            no_offsets,
            ActiveProducers.of(producers),
            plan.first_uncleanable_offset,
            _NO_TIME_MS,
            replace(kafka, old_format=OldFormat.BECOMES_V2) if tombstones else kafka,
            erases=True,
            erases_values=tombstones,
            open_txns=np.array(first_offsets, np.int64),
        )

    def verdicts(self, rows: Rows, *, retain_by_mtime: bool = True) -> NDArray[np.uint8]:
        """As in a round of cleaning; the first batch of an open transaction is retained, too."""
        verdicts = super().verdicts(rows, retain_by_mtime=retain_by_mtime)
        verdicts[(rows["magic"] >= 2) & np.isin(rows["base_offset"], self.open_txns)] |= tables.RETAIN_EMPTY
        return verdicts


def plan_erasure(view: LogView, config: TopicConfig, rules: KafkaRules, *, include_active: bool) -> LogPlan:
    """The plan to examine a log: all segments, each as a group. Nothing is erased at or after the first uncleanable offset:
    without ``include_active``, that of the last segment."""
    examined = tuple(segment for segment in view.segments if segment.size_bytes > 0)
    return LogPlan(
        view=view,
        config=config,
        verdict=Verdict.CLEAN,
        reason="",
        first_dirty_offset=view.segments[0].base_offset if view.segments else 0,
        first_uncleanable_offset=_end_offset(view, include_active=include_active),
        groups=tuple(Group((segment,)) for segment in examined),
        rules=rules,
        compacts=False,
    )


def _end_offset(view: LogView, *, include_active: bool) -> int:
    if include_active or not view.segments:
        return view.log_end_offset
    # the batch before the active segment may end below its base
    return max((segment.next_offset for segment in view.segments[:-1]), default=view.segments[-1].base_offset)


def narrowed(plan: LogPlan, bases: frozenset[int], reason: str) -> LogPlan:
    """The plan for the segments with these base offsets, which have records to be erased; without any the log is skipped."""
    groups = tuple(group for group in plan.groups if group.base_offset in bases)
    return replace(plan, groups=groups, verdict=Verdict.CLEAN if groups else Verdict.SKIP, reason=reason)
