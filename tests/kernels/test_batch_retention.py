"""Decisions from survivor entries only, against decisions from every record."""

from __future__ import annotations

import random

import numpy as np
import pytest

from compaction.kernels.retention import Limits, decide
from compaction.kernels.tables import (
    BATCH_ROW,
    COPY,
    DISCARD,
    DROP,
    EMPTY,
    MARKER_OF_EMPTY_TXN,
    OFFSET_SHIFT,
    RETAIN_EMPTY,
    REWRITE,
    TOMBSTONE,
)
from tests.kernels.situations import Situation, random_situation
from tests.kernels.tables import V2_LOG, blocks_of, random_segment
from tests.oracle.random_logs import Flavour
from tests.oracle.records import NaiveBatch

ALL_MAGICS = Flavour(batches=40, odd=0.3, magics=(0, 1, 2))


def outcome(situation: Situation, batch: NaiveBatch, verdict: int) -> int:
    """What becomes of a batch, from its records."""
    kept = situation.kept(batch, verdict)
    if not kept:
        return EMPTY if verdict & RETAIN_EMPTY else DROP
    horizon_due = any(record.value is None for record in kept) or verdict & MARKER_OF_EMPTY_TXN
    if batch.magic < 2 or len(kept) < batch.count or (horizon_due and batch.delete_horizon_ms is None):
        return REWRITE
    return COPY


def may_be_left_to_the_walk(situation: Situation, batch: NaiveBatch) -> bool:
    """Where survivors alone do not tell."""
    across = batch.base_offset < situation.first_dirty <= batch.last_offset
    return not batch.control and (batch.magic < 2 or across or batch.last_offset > situation.latest_offset)


@pytest.mark.parametrize("flavour", [V2_LOG, ALL_MAGICS], ids=["v2", "all magics"])
@pytest.mark.parametrize("seed", range(100))
def test_decisions_agree_with_the_records(seed: int, flavour: Flavour) -> None:
    rng = random.Random(seed)
    segment = random_segment(seed % 25, flavour)
    situation = random_situation(rng, segment.batches)
    rows = blocks_of(random_segment(seed % 25, V2_LOG)).rows if flavour is V2_LOG else _rows(segment.batches)
    actions = np.empty(len(rows), np.uint8)
    expired = decide(rows, np.array(situation.verdicts, np.uint8), situation.survivors, situation.limits, actions)
    expected_expired = 0
    for batch, verdict, action in zip(segment.batches, situation.verdicts, actions.tolist(), strict=True):
        expected = outcome(situation, batch, verdict)
        if action == REWRITE and may_be_left_to_the_walk(situation, batch):
            continue
        assert action == expected, (batch, verdict)
        if action in (DROP, EMPTY) and not verdict & DISCARD and not batch.control:
            expected_expired += sum(r.value is None and situation.is_latest(r) for r in batch.records())
    assert expired == expected_expired


def _rows(batches: tuple[NaiveBatch, ...]) -> np.ndarray:
    from tests.oracle.segments import NaiveSegment
    from tests.oracle.tables import batch_table

    return batch_table(NaiveSegment(0, b"".join(batch.raw for batch in batches)))


def test_survivor_entries_of_other_batches_are_skipped() -> None:
    """Gaps between batches, survivors in the gaps, thousands of survivors before: only a batch's own survivors count."""
    rows = np.zeros(3, BATCH_ROW)
    rows["base_offset"], rows["last_offset"], rows["count"] = [5_000, 9_000, 20_000], [5_001, 9_002, 20_000], [2, 3, 1]
    rows["magic"] = 2
    offsets = [*range(5_000), 5_000, 5_001, *range(5_002, 9_000), 9_001, *range(9_500, 19_000)]
    survivors = np.array([(offset + 1) << OFFSET_SHIFT for offset in offsets], np.uint64)
    actions = np.empty(3, np.uint8)
    limits = Limits(0, 1 << 40, 0, False)
    assert decide(rows, np.zeros(3, np.uint8), survivors, limits, actions) == 0
    assert actions.tolist() == [COPY, REWRITE, DROP]


@pytest.mark.parametrize(("now_ms", "action", "expired"), [(999, COPY, 0), (1_000, DROP, 1), (1_001, DROP, 1)])
def test_a_tombstone_is_dropped_at_its_delete_horizon(now_ms: int, action: int, expired: int) -> None:
    rows = np.zeros(1, BATCH_ROW)
    rows["count"], rows["magic"], rows["attributes"], rows["base_timestamp"] = 1, 2, 0x40, 1_000
    survivors = np.array([1 << OFFSET_SHIFT | TOMBSTONE], np.uint64)
    actions = np.empty(1, np.uint8)
    assert decide(rows, np.zeros(1, np.uint8), survivors, Limits(0, 10, now_ms, False), actions) == expired
    assert actions.tolist() == [action]


def test_an_erasure_drops_no_tombstone_even_if_its_delete_horizon_is_before_any_time() -> None:
    rows = np.zeros(1, BATCH_ROW)
    rows["count"], rows["magic"], rows["attributes"], rows["base_timestamp"] = 1, 2, 0x40, -1
    survivors = np.array([1 << OFFSET_SHIFT | TOMBSTONE], np.uint64)
    actions, limits = np.empty(1, np.uint8), Limits(10, 9, -1, False, erases=True)
    assert decide(rows, np.zeros(1, np.uint8), survivors, limits, actions) == 0
    assert actions.tolist() == [COPY]


@pytest.mark.parametrize(("retain_by_mtime", "action"), [(True, COPY), (False, DROP)])
@pytest.mark.parametrize("attributes", [0, 0x40])
def test_before_kafka_3_1_the_segments_mtime_decides_instead(retain_by_mtime: bool, action: int, attributes: int) -> None:
    rows = np.zeros(1, BATCH_ROW)
    rows["count"], rows["magic"], rows["attributes"], rows["base_timestamp"] = 1, 2, attributes, 1_000
    survivors = np.array([1 << OFFSET_SHIFT | TOMBSTONE], np.uint64)
    actions, limits = np.empty(1, np.uint8), Limits(0, 10, 2_000, retain_by_mtime, mtime_only=True)
    assert decide(rows, np.zeros(1, np.uint8), survivors, limits, actions) == int(not retain_by_mtime)
    assert actions.tolist() == [action]
