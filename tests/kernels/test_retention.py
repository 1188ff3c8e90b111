"""Decisions on batches, counts of dropped records, and batches that cannot be rewritten; ``tests/scenarios/test_drawn.py``
compares what is retained with a plain cleaner, ``tests/policies`` the counts with a plain reader."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.formats.record_batch import HEADER_SIZE
from compaction.kernels.records import BAD_RECORD, OK
from compaction.kernels.retention import BAD_NAMES, BYTES, COLUMNS, Limits, LogRange, age_bucket, decide, tally
from compaction.kernels.rewrite import BAD_PRODUCER, BAD_TIMESTAMP, COUNTERS, RECORD_GROWTH, rewrite
from compaction.kernels.tables import BATCH_ROW, COPY, DROP, DROPPED, OFFSET_SHIFT, OUT_ROW, REWRITE, TOMBSTONE
from tests.kernels.tables import Blocks, Bytes, random_segment, scanned
from tests.oracle.logs import LogBuilder, Sent
from tests.oracle.oddities import padded


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


@pytest.mark.parametrize(
    ("attributes", "base_timestamp", "limits", "action"),
    [
        pytest.param(0x40, 1_000, Limits(0, 10, 999, False), COPY, id="before its delete horizon"),
        pytest.param(0x40, 1_000, Limits(0, 10, 1_000, False), DROP, id="at its delete horizon"),
        pytest.param(0x40, 1_000, Limits(0, 10, 1_001, False), DROP, id="after its delete horizon"),
        pytest.param(0x40, -1, Limits(10, 9, -1, False, erases=True), COPY, id="by no erasure, whatever its delete horizon"),
        pytest.param(
            0x40, 1_000, Limits(0, 10, 2_000, True, mtime_only=True), COPY, id="not before Kafka 3.1 in a young segment"
        ),
        pytest.param(0x40, 1_000, Limits(0, 10, 2_000, False, mtime_only=True), DROP, id="before Kafka 3.1 in an old segment"),
        pytest.param(0, 1_000, Limits(0, 10, 2_000, True, mtime_only=True), COPY, id="a young segment, no delete horizon"),
        pytest.param(0, 1_000, Limits(0, 10, 2_000, False, mtime_only=True), DROP, id="an old segment, no delete horizon"),
    ],
)
def test_a_tombstone_is_dropped(attributes: int, base_timestamp: int, limits: Limits, action: int) -> None:
    rows = np.zeros(1, BATCH_ROW)
    rows["count"], rows["magic"], rows["attributes"], rows["base_timestamp"] = 1, 2, attributes, base_timestamp
    survivors = np.array([1 << OFFSET_SHIFT | TOMBSTONE], np.uint64)
    actions = np.empty(1, np.uint8)
    assert decide(rows, np.zeros(1, np.uint8), survivors, limits, actions) == int(action == DROP)
    assert actions.tolist() == [action]


BOUNDS = np.array((0, 500, 2_000, 5_000), np.int64)


def tallied(blocks: Blocks, actions: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, int]]:
    """The counts of dropped records by position and by age; the last batch and the error."""
    positions, ages = np.zeros((7, COLUMNS), np.int64), np.zeros((len(BOUNDS) + 2, COLUMNS), np.int64)
    end = tally(
        blocks.raw, blocks.scratch, blocks.rows, blocks.spans, actions, np.zeros(len(actions), np.uint8),
        np.empty(0, np.uint64), Limits(0, 0, 0, False), LogRange(0, 1 << 20, 0), BOUNDS, positions, ages,
    )  # fmt: skip
    return positions, ages, end


def test_the_counted_bytes_are_those_of_the_records() -> None:
    blocks = scanned(random_segment(1).log)
    positions, ages, _ = tallied(blocks, np.full(len(blocks.rows), DROP, np.uint8))
    plain = int((blocks.spans[:, 1] - blocks.spans[:, 0])[blocks.rows["count"] > 0].sum())
    assert ages[:, BYTES].sum() == positions[:, BYTES].sum() == plain


def test_a_malformed_record_is_rejected() -> None:
    blocks = scanned(random_segment(2).log)
    at = next(at for at, span in enumerate(blocks.spans) if span[1] > span[0] and not span[2])
    blocks.raw[blocks.spans[at, 0]] = 0xFF
    actions = np.full(len(blocks.rows), DROP, np.uint8)
    actions[:at] = COPY
    assert tallied(blocks, actions)[2] == (at, BAD_RECORD)


@pytest.mark.parametrize(
    ("age", "bucket"), [(-1, 0), (0, 1), (499, 1), (500, 2), (1_999, 2), (2_000, 3), (4_999, 3), (5_000, 4), (10**9, 4)]
)
def test_ages_are_counted_from_each_bound_up_to_the_next(age: int, bucket: int) -> None:
    now_ms = 10**12
    assert age_bucket(now_ms - age, now_ms, BOUNDS) == bucket
    # without a timestamp
    assert age_bucket(-1, now_ms, BOUNDS) == len(BOUNDS) + 1


def batch_of(*records: Sent) -> bytes:
    log = LogBuilder()
    log.batch(list(records))
    return log.build()[0].log


A, B = Sent(b"a", b"1"), Sent(b"b", b"2")
TWO = batch_of(A, B)


def rewritten(log: bytes, fields: Mapping[str, int], out: Bytes | None = None, kept_rows: int = 100) -> tuple[int, int]:
    """The number of batches read and the error for a batch of which the first record is dropped; ``fields`` of its row are set
    before."""
    out = np.zeros(10_000, np.uint8) if out is None else out
    blocks = scanned(log)
    for name, value in fields.items():
        blocks.rows[name] = value
    next_row, _, _, error = rewrite(
        blocks.raw, blocks.scratch, blocks.rows, blocks.spans, np.array([REWRITE], np.uint8), np.zeros(1, np.uint8),
        np.array([1 << OFFSET_SHIFT | DROPPED], np.uint64), Limits(99, 98, 0, False), 0, 0, 0, out,
        np.empty(1, OUT_ROW), np.empty((kept_rows, 6), np.int64), np.zeros(COUNTERS, np.int64),
    )  # fmt: skip
    return int(next_row), int(error)


def test_buffers_that_are_too_small_make_no_progress() -> None:
    plain_size = 2 * 9
    least = np.zeros(HEADER_SIZE + plain_size + 2 * RECORD_GROWTH, np.uint8)
    assert rewritten(TWO, {}, least[:-1], 2) == rewritten(TWO, {}, least, 1) == (0, OK)
    assert rewritten(TWO, {}, least, 2) == (1, OK)


def test_a_negative_horizon_is_none() -> None:
    out = np.zeros(10_000, np.uint8)
    rewritten(TWO, {"attributes": 0x40, "base_timestamp": -1}, out)
    assert out[16] == 2
    assert out[22] & 0x40 == 0


def padded_record(longer: int | None) -> bytes:
    """A record at offset delta 1; one of its varints is a byte longer than necessary."""
    *fields, name, value = (padded(int(at > 0), 1 + (at == longer)) for at in range(7))
    body = b"\0" + b"".join([*fields[:3], b"b", fields[3], b"2", fields[4], name, b"h", value, b"x"])
    return padded(len(body), 1 + (longer == 7)) + body


@pytest.mark.parametrize("longer", range(8))
def test_a_record_becomes_canonical_whichever_of_its_varints_is_padded(longer: int) -> None:
    records = TWO[HEADER_SIZE : HEADER_SIZE + 9] + padded_record(longer)
    log, out, expected = bytearray(TWO[:HEADER_SIZE] + records), np.zeros(10_000, np.uint8), padded_record(None)
    log[8:12] = (len(log) - 12).to_bytes(4, "big")
    assert rewritten(bytes(log), {}, out) == (1, OK)
    assert out[HEADER_SIZE:].tobytes().rstrip(b"\0") == expected


BAD_NAME = ((b"\xff", b""),)


@pytest.mark.parametrize(
    ("log", "fields", "error"),
    [
        pytest.param(TWO, {}, OK, id="sound"),
        pytest.param(TWO, {"base_timestamp": -2}, BAD_TIMESTAMP, id="time before the epoch"),
        pytest.param(TWO, {"base_timestamp": -1}, OK, id="no time"),
        pytest.param(TWO, {"attributes": 0x10}, BAD_PRODUCER, id="transactional without a producer"),
        pytest.param(TWO, {"producer_id": 3}, BAD_PRODUCER, id="producer without an epoch"),
        pytest.param(TWO, {"producer_id": 3, "producer_epoch": 0}, BAD_PRODUCER, id="producer without a sequence"),
        pytest.param(TWO, {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}, OK, id="producer"),
        pytest.param(batch_of(A, B, Sent(b"c", b"3", headers=BAD_NAME)), {}, BAD_NAMES, id="a name that is no text"),
        pytest.param(batch_of(Sent(b"a", b"1", headers=BAD_NAME), B), {}, OK, id="such a name in what goes"),
    ],
)
def test_batches_that_kafka_refuses_give_their_error(log: bytes, fields: dict[str, int], error: int) -> None:
    assert rewritten(log, fields) == (1 if error == OK else 0, error)
