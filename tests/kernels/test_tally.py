"""The compiled tally of dropped records by age and position, against a plain reading of each record."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.kernels.records import BAD_RECORD, OK
from compaction.kernels.retention import BYTES, COLUMNS, KEYLESS, RECORDS, TOMBSTONES, LogRange, age_bucket, decide, tally
from compaction.kernels.tables import COPY, DROP, EMPTY, REWRITE
from tests.kernels.situations import Situation, random_situation
from tests.kernels.tables import Blocks, blocks_of, random_segment
from tests.oracle.records import NaiveBatch, NaiveRecord

BOUNDS = (0, 500, 2_000, 5_000)
PLACES = 7


class Counts:
    """Counts of records as the kernel takes them."""

    def __init__(self) -> None:
        self.positions: NDArray[np.int64] = np.zeros((PLACES, COLUMNS), np.int64)
        self.ages: NDArray[np.int64] = np.zeros((len(BOUNDS) + 2, COLUMNS), np.int64)

    def add(self, batch: NaiveBatch, record: NaiveRecord, frame: tuple[int, int, int]) -> None:
        """Count a record, its bytes left out."""
        first, end, now_ms = frame
        place = min(PLACES - 1, int((record.offset - first) / (end - first) * PLACES))
        age = len(BOUNDS) + 1 if record.timestamp < 0 else sum(now_ms - record.timestamp >= bound for bound in BOUNDS)
        for table, at in ((self.positions, place), (self.ages, age)):
            table[at, RECORDS] += 1
            table[at, TOMBSTONES] += record.value is None and not batch.control
            table[at, KEYLESS] += record.key is None and not batch.control


def run(blocks: Blocks, situation: Situation, actions: NDArray[np.uint8], frame: tuple[int, int, int]) -> Counts:
    counts = Counts()
    found = tally(
        blocks.raw, blocks.scratch, blocks.rows, blocks.spans, actions, np.array(situation.verdicts, np.uint8),
        situation.survivors, situation.limits, LogRange(*frame), np.array(BOUNDS, np.int64),
        counts.positions, counts.ages,
    )  # fmt: skip
    assert found == (len(blocks.rows), OK)
    return counts


def without_bytes(counts: Counts) -> list[list[list[int]]]:
    return [np.delete(table, BYTES, axis=1).tolist() for table in (counts.positions, counts.ages)]


def setting(seed: int) -> tuple[Blocks, Situation, tuple[int, int, int]]:
    segment = random_segment(seed)
    blocks = blocks_of(segment)
    situation = random_situation(random.Random(seed), blocks.batches)
    latest = max(record.timestamp for batch in blocks.batches for record in batch.records())
    return blocks, situation, (segment.base_offset, segment.next_offset, latest - 300)


@pytest.mark.parametrize("seed", range(12))
def test_the_dropped_records_of_a_round_are_counted(seed: int) -> None:
    blocks, situation, frame = setting(seed)
    actions = np.empty(len(blocks.rows), np.uint8)
    decide(blocks.rows, np.array(situation.verdicts, np.uint8), situation.survivors, situation.limits, actions)
    expected = Counts()
    for batch, verdict in zip(blocks.batches, situation.verdicts, strict=True):
        kept = {record.offset for record in situation.kept(batch, verdict)}
        for record in batch.records():
            if record.offset not in kept:
                expected.add(batch, record, frame)
    assert without_bytes(run(blocks, situation, actions, frame)) == without_bytes(expected)


@pytest.mark.parametrize("seed", range(4))
def test_every_record_of_dropped_and_emptied_batches_is_counted_and_none_of_copied_ones(seed: int) -> None:
    blocks, situation, frame = setting(seed)
    actions = np.array([(DROP, EMPTY, COPY)[at % 3] for at in range(len(blocks.rows))], np.uint8)
    expected = Counts()
    for at, batch in enumerate(blocks.batches):
        for record in batch.records() if at % 3 != 2 else ():
            expected.add(batch, record, frame)
    assert without_bytes(run(blocks, situation, actions, frame)) == without_bytes(expected)


def test_the_counted_bytes_are_those_of_the_records() -> None:
    blocks, situation, frame = setting(1)
    counts = run(blocks, situation, np.full(len(blocks.rows), DROP, np.uint8), frame)
    plain = int((blocks.spans[:, 1] - blocks.spans[:, 0])[blocks.rows["count"] > 0].sum())
    assert counts.ages[:, BYTES].sum() == counts.positions[:, BYTES].sum() == plain


def test_a_malformed_record_is_rejected() -> None:
    blocks, situation, frame = setting(2)
    at = next(at for at, span in enumerate(blocks.spans) if span[1] > span[0] and not span[2])
    blocks.raw[blocks.spans[at, 0]] = 0xFF
    counts, actions = Counts(), np.full(len(blocks.rows), DROP, np.uint8)
    actions[:at] = COPY
    found = tally(
        blocks.raw, blocks.scratch, blocks.rows, blocks.spans, actions, actions, situation.survivors, situation.limits,
        LogRange(*frame), np.array(BOUNDS, np.int64), counts.positions, counts.ages,
    )  # fmt: skip
    assert found == (at, BAD_RECORD)


@pytest.mark.parametrize(
    ("age", "bucket"), [(-1, 0), (0, 1), (499, 1), (500, 2), (1_999, 2), (2_000, 3), (4_999, 3), (5_000, 4), (10**9, 4)]
)
def test_ages_are_counted_from_each_bound_up_to_the_next(age: int, bucket: int) -> None:
    now_ms = 10**12
    assert age_bucket(now_ms - age, now_ms, np.array(BOUNDS, np.int64)) == bucket


def test_a_record_without_a_timestamp_has_no_age() -> None:
    assert age_bucket(-1, 10**12, np.array(BOUNDS, np.int64)) == len(BOUNDS) + 1


def test_the_random_batches_include_rewritten_ones() -> None:
    seen = set()
    for seed in range(12):
        blocks, situation, _ = setting(seed)
        actions = np.empty(len(blocks.rows), np.uint8)
        decide(blocks.rows, np.array(situation.verdicts, np.uint8), situation.survivors, situation.limits, actions)
        seen |= set(actions.tolist())
    assert seen == {DROP, COPY, EMPTY, REWRITE}
