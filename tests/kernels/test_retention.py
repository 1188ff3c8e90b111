"""Random rounds over decoded records: decisions, counts, rewritten batches and index entries against plain Python."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.formats.indexes import OFFSET_ROW, TIME_ROW
from compaction.formats.record_batch import HEADER_SIZE
from compaction.kernels.records import BAD_RECORD, OK
from compaction.kernels.retention import (
    BAD_NAMES,
    BYTES,
    COLUMNS,
    KEYLESS,
    RECORDS,
    TOMBSTONES,
    Limits,
    LogRange,
    age_bucket,
    decide,
    tally,
)
from compaction.kernels.rewrite import (
    ABORTED_RECORDS,
    BAD_PRODUCER,
    BAD_TIMESTAMP,
    BYTES_READ,
    COUNTERS,
    LAST_TIME_ENTRY,
    MARKERS_REMOVED,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_OFFSET,
    MESSAGES_KEPT,
    MESSAGES_READ,
    RECORD_GROWTH,
    TOMBSTONES_REMOVED,
    index_entries,
    new_state,
    rewrite,
)
from compaction.kernels.tables import (
    BATCH_ROW,
    COPY,
    DISCARD,
    DROP,
    DROPPED,
    EMPTY,
    IN_BLOCK,
    MARKER_OF_EMPTY_TXN,
    OFFSET_SHIFT,
    OUT_ROW,
    RETAIN_EMPTY,
    REWRITE,
    TO_COMPRESS,
    TOMBSTONE,
)
from tests.kernels.tables import V2_LOG, Blocks, blocks_of, random_segment
from tests.oracle import compression
from tests.oracle.logs import Batching, LogBuilder, Sent
from tests.oracle.random_logs import Flavour
from tests.oracle.records import NaiveBatch, NaiveRecord, encode, encode_empty
from tests.oracle.segments import write_segment
from tests.oracle.tables import batch_table


@dataclass(frozen=True)
class Situation:
    """A round over some batches: the highest offset of each key, the verdict on each batch, and the kernels' limits."""

    batches: tuple[NaiveBatch, ...]
    latest: dict[bytes, int]
    verdicts: tuple[int, ...]
    first_dirty: int
    latest_offset: int
    now_ms: int
    retain_legacy: bool

    @property
    def limits(self) -> Limits:
        return Limits(self.first_dirty, self.latest_offset, self.now_ms, self.retain_legacy)

    @property
    def survivors(self) -> NDArray[np.uint64]:
        """Survivor entries: dirty records that the map holds, clean records to be dropped, and other clean tombstones."""
        found = []
        for batch in self.batches:
            for record in () if batch.control else batch.records():
                tombstone = TOMBSTONE if record.value is None else 0
                wins = self.is_latest(record)
                if record.offset >= self.first_dirty:
                    found += [tombstone | (record.offset + 1) << OFFSET_SHIFT] if wins else []
                elif not wins:
                    found.append(tombstone | DROPPED | (record.offset + 1) << OFFSET_SHIFT)
                elif tombstone:
                    found.append(tombstone | (record.offset + 1) << OFFSET_SHIFT)
        return np.array(sorted(found), np.uint64)

    def is_latest(self, record: NaiveRecord) -> bool:
        """Whether its key has no higher offset in the map; false without a key."""
        return record.key is not None and record.offset >= self.latest.get(record.key, -1)

    def decide(self, rows: NDArray[np.void]) -> tuple[NDArray[np.uint8], int]:
        """The kernel's actions, and the tombstones that it drops with their batches."""
        actions = np.empty(len(rows), np.uint8)
        return actions, decide(rows, np.array(self.verdicts, np.uint8), self.survivors, self.limits, actions)

    def kept(self, batch: NaiveBatch, verdict: int) -> list[NaiveRecord]:
        """The retained records of a batch."""
        if verdict & DISCARD:
            return []
        return [record for record in batch.records() if batch.control or self._is_retained(batch, record)]

    def _is_retained(self, batch: NaiveBatch, record: NaiveRecord) -> bool:
        if record.offset > self.latest_offset:
            return True
        if not self.is_latest(record):
            return False
        if record.value is not None:
            return True
        if batch.magic < 2:
            return self.retain_legacy
        return batch.delete_horizon_ms is None or self.now_ms < batch.delete_horizon_ms


def random_situation(rng: random.Random, batches: Sequence[NaiveBatch]) -> Situation:
    """A round over these batches, with any first dirty offset and any latest offset of the map."""
    low, high = batches[0].base_offset, batches[-1].last_offset
    first_dirty = rng.choice((low, rng.randrange(low, high + 1), high + 1))
    latest_offset = rng.choice((high, high, rng.randrange(low, high + 1)))
    latest: dict[bytes, int] = {}
    for batch in batches:
        for record in () if batch.control else batch.records():
            if record.key is not None and first_dirty <= record.offset <= latest_offset:
                latest[record.key] = record.offset
    verdicts = tuple(_verdict(rng, batch) for batch in batches)
    times = [batch.base_timestamp for batch in batches if batch.delete_horizon_ms is not None] or [0]
    now_ms = rng.choice(times) + rng.choice((-1, 0, 1))
    retain_legacy = rng.random() < 0.5
    return Situation(tuple(batches), latest, verdicts, first_dirty, latest_offset, now_ms, retain_legacy)


def _verdict(rng: random.Random, batch: NaiveBatch) -> int:
    retain = RETAIN_EMPTY if rng.random() < 0.3 and batch.magic == 2 else 0
    if batch.control:
        return retain | rng.choice((0, MARKER_OF_EMPTY_TXN, MARKER_OF_EMPTY_TXN | DISCARD))
    return retain | (DISCARD if batch.transactional and rng.random() < 0.4 else 0)


ALL_MAGICS = Flavour(batches=40, odd=0.3, magics=(0, 1, 2))


def outcome(situation: Situation, batch: NaiveBatch, verdict: int) -> int:
    """What becomes of a batch, from its records."""
    kept = situation.kept(batch, verdict)
    if not kept:
        return EMPTY if verdict & RETAIN_EMPTY else DROP
    return REWRITE if batch.magic < 2 or len(kept) < batch.count or sets_horizon(batch, kept, verdict) else COPY


def sets_horizon(batch: NaiveBatch, kept: list[NaiveRecord], verdict: int) -> bool:
    due = bool(verdict & MARKER_OF_EMPTY_TXN) or any(record.value is None for record in kept)
    return due and batch.delete_horizon_ms is None


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
    actions, expired = situation.decide(batch_table(segment))
    expected_expired = 0
    for batch, verdict, action in zip(segment.batches, situation.verdicts, actions.tolist(), strict=True):
        expected = outcome(situation, batch, verdict)
        if action == REWRITE and may_be_left_to_the_walk(situation, batch):
            continue
        assert action == expected, (batch, verdict)
        if action in (DROP, EMPTY) and not verdict & DISCARD and not batch.control:
            expected_expired += sum(r.value is None and situation.is_latest(r) for r in batch.records())
    assert expired == expected_expired


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


def tallied(
    blocks: Blocks,
    situation: Situation,
    actions: NDArray[np.uint8],
    frame: tuple[int, int, int],
    error: tuple[int, int] | None = None,
) -> Counts:
    counts = Counts()
    found = tally(
        blocks.raw, blocks.scratch, blocks.rows, blocks.spans, actions, np.array(situation.verdicts, np.uint8),
        situation.survivors, situation.limits, LogRange(*frame), np.array(BOUNDS, np.int64),
        counts.positions, counts.ages,
    )  # fmt: skip
    assert found == (error or (len(blocks.rows), OK))
    return counts


def without_bytes(counts: Counts) -> list[list[list[int]]]:
    return [np.delete(table, BYTES, axis=1).tolist() for table in (counts.positions, counts.ages)]


def setting(seed: int) -> tuple[Blocks, Situation, tuple[int, int, int]]:
    segment = random_segment(seed)
    blocks = blocks_of(segment)
    situation = random_situation(random.Random(seed), blocks.batches)
    latest = max(record.timestamp for batch in blocks.batches for record in batch.records())
    return blocks, situation, (segment.base_offset, segment.next_offset, latest - 300)


def test_the_dropped_records_of_a_round_are_counted() -> None:
    seen: set[int] = set()
    for seed in range(12):
        blocks, situation, frame = setting(seed)
        actions, _ = situation.decide(blocks.rows)
        expected = Counts()
        for batch, verdict in zip(blocks.batches, situation.verdicts, strict=True):
            kept = {record.offset for record in situation.kept(batch, verdict)}
            for record in batch.records():
                if record.offset not in kept:
                    expected.add(batch, record, frame)
        assert without_bytes(tallied(blocks, situation, actions, frame)) == without_bytes(expected), seed
        seen |= set(actions.tolist())
    assert seen == {DROP, COPY, EMPTY, REWRITE}


@pytest.mark.parametrize("seed", range(4))
def test_every_record_of_dropped_and_emptied_batches_is_counted_and_none_of_copied_ones(seed: int) -> None:
    blocks, situation, frame = setting(seed)
    actions = np.array([(DROP, EMPTY, COPY)[at % 3] for at in range(len(blocks.rows))], np.uint8)
    expected = Counts()
    for at, batch in enumerate(blocks.batches):
        for record in batch.records() if at % 3 != 2 else ():
            expected.add(batch, record, frame)
    assert without_bytes(tallied(blocks, situation, actions, frame)) == without_bytes(expected)


def test_the_counted_bytes_are_those_of_the_records() -> None:
    blocks, situation, frame = setting(1)
    counts = tallied(blocks, situation, np.full(len(blocks.rows), DROP, np.uint8), frame)
    plain = int((blocks.spans[:, 1] - blocks.spans[:, 0])[blocks.rows["count"] > 0].sum())
    assert counts.ages[:, BYTES].sum() == counts.positions[:, BYTES].sum() == plain


def test_a_malformed_record_is_rejected() -> None:
    blocks, situation, frame = setting(2)
    at = next(at for at, span in enumerate(blocks.spans) if span[1] > span[0] and not span[2])
    blocks.raw[blocks.spans[at, 0]] = 0xFF
    actions = np.full(len(blocks.rows), DROP, np.uint8)
    actions[:at] = COPY
    tallied(blocks, situation, actions, frame, error=(at, BAD_RECORD))


@pytest.mark.parametrize(
    ("age", "bucket"), [(-1, 0), (0, 1), (499, 1), (500, 2), (1_999, 2), (2_000, 3), (4_999, 3), (5_000, 4), (10**9, 4)]
)
def test_ages_are_counted_from_each_bound_up_to_the_next(age: int, bucket: int) -> None:
    now_ms, bounds = 10**12, np.array(BOUNDS, np.int64)
    assert age_bucket(now_ms - age, now_ms, bounds) == bucket
    # without a timestamp
    assert age_bucket(-1, now_ms, bounds) == len(BOUNDS) + 1


NEW_HORIZON_MS = 1_800_000_000_000
#: every codec, and forms that no producer writes; names that are no text are told from them in the tests below
ODD = Flavour(batches=40, odd=0.5, codecs=(0, 0, 1))


def naive(situation: Situation, batch: NaiveBatch, verdict: int) -> bytes | None:
    """The batch that stays, if any."""
    kept = situation.kept(batch, verdict)
    if not kept:
        return encode_empty(batch) if verdict & RETAIN_EMPTY else None
    if outcome(situation, batch, verdict) == COPY:
        return batch.raw
    horizon = -1 if batch.delete_horizon_ms is None else batch.delete_horizon_ms
    return encode(batch, kept, NEW_HORIZON_MS if sets_horizon(batch, kept, verdict) else horizon)


def sealed(plain: bytes) -> bytes:
    """A batch whose records are still to be compressed."""
    counted: bytes = plain[21:HEADER_SIZE] + compression.compress(plain[22] & 7, plain[HEADER_SIZE:])
    crc = int(google_crc32c.value(counted)).to_bytes(4, "big")
    return plain[:8] + (9 + len(counted)).to_bytes(4, "big") + plain[12:17] + crc + counted


class Room:
    """The buffers of a call."""

    def __init__(self, out_bytes: int = 10_000, kept_rows: int = 100) -> None:
        self.out, self.kept = np.zeros(out_bytes, np.uint8), np.empty((kept_rows, 6), np.int64)
        self.counters = np.zeros(COUNTERS, np.int64)
        self.rows = np.empty(0, OUT_ROW)

    def rewrite(
        self, blocks: Blocks, situation: Situation, actions: NDArray[np.uint8], at: int = 0
    ) -> tuple[int, int, int, int]:
        """The next batch, the numbers of batches and bytes written, and the error."""
        self.rows = np.empty(len(blocks.rows), OUT_ROW)
        found: tuple[int, int, int, int] = rewrite(
            blocks.raw, blocks.scratch, blocks.rows, blocks.spans, actions, np.array(situation.verdicts, np.uint8),
            situation.survivors, situation.limits, NEW_HORIZON_MS, at, 0, self.out, self.rows, self.kept, self.counters,
        )  # fmt: skip
        return found


def run(blocks: Blocks, situation: Situation, room: Room) -> list[bytes]:
    """The batches written, decided and rewritten call after call."""
    actions, room.counters[TOMBSTONES_REMOVED] = situation.decide(blocks.rows)
    at, found = 0, []
    while at < len(blocks.rows):
        next_at, n, used, error = room.rewrite(blocks, situation, actions, at)
        assert error == OK
        assert next_at > at, "no progress"
        assert used <= len(room.out)
        for row in room.rows[:n]:
            start, size, source = int(row["start"]), int(row["size"]), int(row["source"])
            data = (blocks.raw if source == IN_BLOCK else room.out)[start : start + size].tobytes()
            found.append(sealed(data) if source == TO_COMPRESS else data)
        at = next_at
    return found


def room_for_one(blocks: Blocks) -> tuple[int, int]:
    plain = blocks.spans[:, 1] - blocks.spans[:, 0]
    most = int((plain + RECORD_GROWTH * blocks.rows["count"].astype(np.int64)).max()) + HEADER_SIZE
    return most, max(1, int(blocks.rows["count"].max()))


def text_only(blocks: Blocks) -> Blocks:
    """The batches of which all header names are text."""
    names = [[name for record in batch.records() for name, _ in record.headers] for batch in blocks.batches]
    wanted = np.array([all(name.decode("utf-8", "replace").encode() == name for name in each) for each in names])
    batches = tuple(batch for batch, keep in zip(blocks.batches, wanted, strict=True) if keep)
    return Blocks(batches, blocks.raw, blocks.scratch, blocks.rows[wanted], blocks.spans[wanted])


@pytest.mark.parametrize("seed", range(120))
def test_every_batch_equals_that_of_the_plain_encoder(seed: int) -> None:
    rng = random.Random(seed)
    segment = random_segment(seed % 40, ODD if seed % 2 else Flavour(batches=40, codecs=(0, 2)))
    blocks = text_only(blocks_of(segment))
    situation = random_situation(rng, blocks.batches)
    out_bytes, kept_rows = room_for_one(blocks)
    room = Room(out_bytes * rng.choice((1, 3, 50)), kept_rows * rng.choice((1, 10)))
    found = run(blocks, situation, room)
    expected = [naive(situation, b, v) for b, v in zip(situation.batches, situation.verdicts, strict=True)]
    assert found == [raw for raw in expected if raw is not None]
    check_counters(situation, room.counters)


def check_counters(situation: Situation, counters: NDArray[np.int64]) -> None:
    pairs = list(zip(situation.batches, situation.verdicts, strict=True))
    kept = [situation.kept(batch, verdict) for batch, verdict in pairs]
    assert counters[MESSAGES_KEPT] == sum(map(len, kept))
    assert counters[BYTES_READ] == sum(len(batch.raw) for batch in situation.batches)
    discarded = [batch for batch, verdict in pairs if verdict & DISCARD]
    assert counters[ABORTED_RECORDS] == sum(batch.count for batch in discarded if not batch.control)
    assert counters[MARKERS_REMOVED] == sum(batch.count for batch in discarded if batch.control)
    expired = [
        record
        for (batch, verdict), stay in zip(pairs, kept, strict=True)
        for record in ([] if batch.control or verdict & DISCARD else batch.records())
        if record.value is None and situation.is_latest(record) and record not in stay
    ]
    assert counters[TOMBSTONES_REMOVED] == len(expired)
    assert counters[MESSAGES_READ] == sum(b.count for b, verdict in pairs if not verdict & DISCARD or verdict & RETAIN_EMPTY)


def test_buffers_that_are_too_small_make_no_progress() -> None:
    blocks, situation = one_batch(TWO)
    for out_bytes, kept_rows in ((room_for_one(blocks)[0] - 1, 2), (10_000, 1)):
        assert Room(out_bytes, kept_rows).rewrite(blocks, situation, REWRITE_ONE)[:2] == (0, 0)
    assert Room(*room_for_one(blocks)).rewrite(blocks, situation, REWRITE_ONE)[:2] == (1, 1)


def one_batch(records: list[Sent], how: Batching | None = None, **fields: int) -> tuple[Blocks, Situation]:
    """A batch of which the record with key ``a`` goes; ``fields`` of its row are set afterwards."""
    log = LogBuilder()
    log.batch(records, how or Batching())
    blocks = blocks_of(log.build()[0])
    for name, value in fields.items():
        blocks.rows[name] = value
    return blocks, Situation(blocks.batches, {b"a": 99}, (0,), 0, 98, 0, False)


TWO = [Sent(b"a", b"1"), Sent(b"b", b"2")]
REWRITE_ONE = np.array([REWRITE], np.uint8)


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
    next_at, _, _, found = Room().rewrite(*blocks, REWRITE_ONE)
    assert (found, next_at) == (error, 1 if error == OK else 0)


def test_a_negative_horizon_is_none() -> None:
    room = Room()
    room.rewrite(*one_batch(TWO, Batching(horizon_ms=5), base_timestamp=-1), REWRITE_ONE)
    assert room.out[22] & 0x40 == 0


@pytest.mark.parametrize("interval", [0, 1, 150, 4096])
@pytest.mark.parametrize("seed", range(25))
def test_index_entries_equal_those_of_single_appends(seed: int, interval: int) -> None:
    rng = random.Random(seed)
    segment = random_segment(seed, Flavour(batches=60, odd=0.3, magics=(0, 1, 2)))
    rows = np.zeros(len(segment.batches), OUT_ROW)
    rows["last_offset"] = [batch.last_offset for batch in segment.batches]
    rows["max_timestamp"] = [batch.max_timestamp for batch in segment.batches]
    rows["size"] = [len(batch.raw) for batch in segment.batches]
    state, base = new_state(segment.base_offset), segment.base_offset
    index, times, at = b"", b"", 0
    while at < len(rows):
        part = rows[at : at + rng.choice((1, 2, 7, 100))]
        offsets, stamps = np.empty(len(part), OFFSET_ROW), np.empty(len(part), TIME_ROW)
        n, m = index_entries(part, interval, state, offsets, stamps)
        index += b"".join(struct.pack(">ii", offset - base, position) for offset, position in offsets[:n].tolist())
        times += b"".join(struct.pack(">qi", stamp, offset - base) for stamp, offset in stamps[:m].tolist())
        at += len(part)
    if state[MAX_TIMESTAMP] > state[LAST_TIME_ENTRY]:
        times += struct.pack(">qi", state[MAX_TIMESTAMP], state[MAX_TIMESTAMP_OFFSET] - base)
    expected = write_segment(base, [batch.raw for batch in segment.batches], interval, 0)
    assert (index, times) == (expected.index, expected.time_index)
