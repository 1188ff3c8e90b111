"""Rewritten batches against the plain encoder, byte for byte, with buffers of any size."""

from __future__ import annotations

import random

import google_crc32c
import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.formats.record_batch import HEADER_SIZE
from compaction.kernels.records import OK
from compaction.kernels.retention import BAD_NAMES, decide
from compaction.kernels.rewrite import (
    ABORTED_RECORDS,
    BAD_PRODUCER,
    BAD_TIMESTAMP,
    BYTES_READ,
    COUNTERS,
    MARKERS_REMOVED,
    MESSAGES_KEPT,
    MESSAGES_READ,
    RECORD_GROWTH,
    TOMBSTONES_REMOVED,
    rewrite,
)
from compaction.kernels.tables import (
    DISCARD,
    IN_BLOCK,
    MARKER_OF_EMPTY_TXN,
    OUT_ROW,
    RETAIN_EMPTY,
    REWRITE,
    TO_COMPRESS,
)
from tests.kernels.situations import Situation, random_situation
from tests.kernels.tables import Blocks, blocks_of, random_segment
from tests.oracle import compression
from tests.oracle.logs import Batching, LogBuilder, Sent
from tests.oracle.random_logs import Flavour
from tests.oracle.records import NaiveBatch, encode, encode_empty

NEW_HORIZON_MS = 1_800_000_000_000
#: every codec, and forms that no producer writes; names that are no text are told from them in the tests below
ODD = Flavour(batches=40, odd=0.5, codecs=(0, 0, 1))


def naive(situation: Situation, batch: NaiveBatch, verdict: int) -> bytes | None:
    """The batch that stays, if any."""
    kept = situation.kept(batch, verdict)
    if not kept:
        return encode_empty(batch) if verdict & RETAIN_EMPTY else None
    horizon = -1 if batch.delete_horizon_ms is None else batch.delete_horizon_ms
    due = any(record.value is None for record in kept) or verdict & MARKER_OF_EMPTY_TXN
    new = bool(due) and batch.delete_horizon_ms is None
    if len(kept) == batch.count and not new:
        return batch.raw
    return encode(batch, kept, NEW_HORIZON_MS if new else horizon)


class Output:
    """What calls of the kernel gave, one after the other."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.rows: list[tuple[int, int]] = []
        self.counters = np.zeros(COUNTERS, np.int64)

    def take(self, blocks: Blocks, out: NDArray[np.uint8], out_rows: NDArray[np.void]) -> None:
        for row in out_rows:
            start, size, source = int(row["start"]), int(row["size"]), int(row["source"])
            data = (blocks.raw if source == IN_BLOCK else out)[start : start + size].tobytes()
            self.batches.append(sealed(data) if source == TO_COMPRESS else data)
            self.rows.append((int(row["last_offset"]), int(row["max_timestamp"])))


def sealed(plain: bytes) -> bytes:
    """A batch whose records are still to be compressed."""
    counted: bytes = plain[21:HEADER_SIZE] + compression.compress(plain[22] & 7, plain[HEADER_SIZE:])
    crc = int(google_crc32c.value(counted)).to_bytes(4, "big")
    return plain[:8] + (9 + len(counted)).to_bytes(4, "big") + plain[12:17] + crc + counted


def run(blocks: Blocks, situation: Situation, out_bytes: int, kept_rows: int) -> Output:
    """Decide and rewrite, call after call."""
    verdicts = np.array(situation.verdicts, np.uint8)
    actions = np.empty(len(blocks.rows), np.uint8)
    found = Output()
    found.counters[TOMBSTONES_REMOVED] += decide(blocks.rows, verdicts, situation.survivors, situation.limits, actions)
    out, kept = np.empty(out_bytes, np.uint8), np.empty((kept_rows, 6), np.int64)
    at = 0
    while at < len(blocks.rows):
        out_rows = np.empty(len(blocks.rows), OUT_ROW)
        next_at, n, used, error = rewrite(
            blocks.raw, blocks.scratch, blocks.rows, blocks.spans, actions, verdicts, situation.survivors, situation.limits,
            NEW_HORIZON_MS, at, 0, out, out_rows, kept, found.counters,
        )  # fmt: skip
        assert error == OK
        assert next_at > at, "no progress"
        assert used <= out_bytes
        found.take(blocks, out, out_rows[:n])
        at = next_at
    return found


def room_for_one(blocks: Blocks) -> tuple[int, int]:
    plain = blocks.spans[:, 1] - blocks.spans[:, 0]
    most = int((plain + RECORD_GROWTH * blocks.rows["count"].astype(np.int64)).max()) + HEADER_SIZE
    return most, max(1, int(blocks.rows["count"].max()))


def text_only(batches: tuple[NaiveBatch, ...]) -> bool:
    names = [name for batch in batches for record in batch.records() for name, _ in record.headers]
    return all(name.decode("utf-8", "replace").encode() == name for name in names)


@pytest.mark.parametrize("seed", range(120))
def test_every_batch_equals_that_of_the_plain_encoder(seed: int) -> None:
    rng = random.Random(seed)
    segment = random_segment(seed % 40, ODD if seed % 2 else Flavour(batches=40, codecs=(0, 2)))
    blocks = blocks_of(segment)
    texts = [text_only((batch,)) for batch in blocks.batches]
    blocks = keep_rows(blocks, texts)
    situation = random_situation(rng, blocks.batches)
    out_bytes, kept_rows = room_for_one(blocks)
    found = run(blocks, situation, out_bytes * rng.choice((1, 3, 50)), kept_rows * rng.choice((1, 10)))
    expected = [naive(situation, b, v) for b, v in zip(situation.batches, situation.verdicts, strict=True)]
    assert found.batches == [raw for raw in expected if raw is not None]
    assert found.counters.tolist()[:1] == [messages_read(situation)]
    check_counters(situation, found)


def keep_rows(blocks: Blocks, wanted: list[bool]) -> Blocks:
    chosen = np.array(wanted)
    batches = tuple(batch for batch, keep in zip(blocks.batches, wanted, strict=True) if keep)
    return Blocks(batches, blocks.raw, blocks.scratch, blocks.rows[chosen], blocks.spans[chosen])


def messages_read(situation: Situation) -> int:
    pairs = zip(situation.batches, situation.verdicts, strict=True)
    return sum(batch.count for batch, verdict in pairs if not verdict & DISCARD or verdict & RETAIN_EMPTY)


def check_counters(situation: Situation, found: Output) -> None:
    pairs = list(zip(situation.batches, situation.verdicts, strict=True))
    kept = [situation.kept(batch, verdict) for batch, verdict in pairs]
    assert found.counters[MESSAGES_KEPT] == sum(map(len, kept))
    assert found.counters[BYTES_READ] == sum(len(batch.raw) for batch in situation.batches)
    discarded = [batch for batch, verdict in pairs if verdict & DISCARD]
    assert found.counters[ABORTED_RECORDS] == sum(batch.count for batch in discarded if not batch.control)
    assert found.counters[MARKERS_REMOVED] == sum(batch.count for batch in discarded if batch.control)
    expired = [
        record
        for (batch, verdict), stay in zip(pairs, kept, strict=True)
        for record in ([] if batch.control or verdict & DISCARD else batch.records())
        if record.value is None and situation.is_latest(record) and record not in stay
    ]
    assert found.counters[TOMBSTONES_REMOVED] == len(expired)
    assert found.counters[MESSAGES_READ] == messages_read(situation)


def test_buffers_that_are_too_small_make_no_progress() -> None:
    blocks, situation = one_batch([Sent(b"a", b"1"), Sent(b"b", b"2")])
    for out_bytes, kept_rows in ((room_for_one(blocks)[0] - 1, 2), (10_000, 1)):
        assert call(blocks, situation, out_bytes, kept_rows)[:2] == (0, 0)
    assert call(blocks, situation, *room_for_one(blocks))[:2] == (1, 1)


def one_batch(records: list[Sent], how: Batching | None = None, **fields: int) -> tuple[Blocks, Situation]:
    """A batch of which the record with key ``a`` goes; ``fields`` of its row are set afterwards."""
    log = LogBuilder()
    log.batch(records, how or Batching())
    blocks = blocks_of(log.build()[0])
    for name, value in fields.items():
        blocks.rows[name] = value
    return blocks, Situation(blocks.batches, {b"a": 99}, (0,), 0, 98, 0, False)


def call(blocks: Blocks, situation: Situation, out_bytes: int = 10_000, kept_rows: int = 100) -> tuple[int, int, int, int]:
    out, kept = np.empty(out_bytes, np.uint8), np.empty((kept_rows, 6), np.int64)
    rows = len(blocks.rows)
    return tuple(
        rewrite(
            blocks.raw, blocks.scratch, blocks.rows, blocks.spans, np.full(rows, REWRITE, np.uint8),
            np.zeros(rows, np.uint8), situation.survivors, situation.limits, NEW_HORIZON_MS, 0, 0, out,
            np.empty(rows, OUT_ROW), kept, np.zeros(COUNTERS, np.int64),
        )
    )  # fmt: skip


TWO = [Sent(b"a", b"1"), Sent(b"b", b"2")]


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        pytest.param(one_batch(TWO), OK, id="sound"),
        pytest.param(one_batch(TWO, base_timestamp=-2), BAD_TIMESTAMP, id="time before the epoch"),
        pytest.param(one_batch(TWO, base_timestamp=-1), OK, id="no time"),
        pytest.param(one_batch(TWO, attributes=0x10), BAD_PRODUCER, id="transactional without a producer"),
        pytest.param(one_batch(TWO, producer_id=3), BAD_PRODUCER, id="producer without an epoch"),
        pytest.param(one_batch(TWO, producer_id=3, producer_epoch=0), BAD_PRODUCER, id="producer without a sequence"),
        pytest.param(one_batch(TWO, producer_id=3, producer_epoch=0, base_sequence=0), OK, id="producer"),
        pytest.param(one_batch([*TWO, Sent(b"c", b"3", headers=((b"\xff", b""),))]), BAD_NAMES, id="a name that is no text"),
        pytest.param(one_batch([Sent(b"a", b"1", headers=((b"\xff", b""),)), TWO[1]]), OK, id="such a name in what goes"),
    ],
)
def test_batches_that_kafka_refuses_give_their_error(blocks: tuple[Blocks, Situation], error: int) -> None:
    next_at, _, _, found = call(*blocks)
    assert (found, next_at) == (error, 1 if error == OK else 0)


def test_a_negative_horizon_is_none() -> None:
    blocks, situation = one_batch(TWO, Batching(horizon_ms=5), base_timestamp=-1)
    out, kept, out_rows = np.zeros(500, np.uint8), np.empty((2, 6), np.int64), np.empty(1, OUT_ROW)
    actions, verdicts = np.array([REWRITE], np.uint8), np.zeros(1, np.uint8)
    rewrite(
        blocks.raw, blocks.scratch, blocks.rows, blocks.spans, actions, verdicts, situation.survivors, situation.limits,
        NEW_HORIZON_MS, 0, 0, out, out_rows, kept, np.zeros(COUNTERS, np.int64),
    )  # fmt: skip
    assert out[22] & 0x40 == 0
