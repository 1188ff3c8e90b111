"""Scanned records against decoded records: entries, lookups and counts, with buffers of any size."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.kernels.keys import HashSecret
from compaction.kernels.records import (
    BAD_RECORD,
    KEYLESS,
    LOOKUPS_ONLY,
    MAP,
    MESSAGES,
    OFFSET_ORDER,
    OK,
    RECORDS_MISSING,
    RECORDS_REMAINING,
    SKIP,
    TOMBSTONES,
    scan_records,
)
from compaction.kernels.tables import BATCH_ROW
from tests.kafka.encode import varint
from tests.kernels.tables import Blocks, as_array, blocks_of, random_segment
from tests.oracle.logs import LogBuilder, Sent
from tests.oracle.records import HEADER, NaiveBatch
from tests.oracle.siphash import naive_siphash

Entry = tuple[int, int, int]
SECRET = HashSecret(2**63 + 5, 2**64 - 7)


def entry(key: bytes | None, offset: int, flags: int) -> Entry:
    """Two halves of the hash and the mark; a record without a key has no hash."""
    low, high = (0, 0) if key is None else naive_siphash(SECRET.low, SECRET.high, key)
    return low, high, (offset + 1) << 2 | flags


def naive_scan(batches: Sequence[NaiveBatch], actions: Sequence[int], first_dirty: int) -> tuple[list[Entry], list[Entry]]:
    """Entries and lookups, record by record."""
    entries, lookups = [], []
    for batch, action in zip(batches, actions, strict=True):
        for record in batch.records() if action != SKIP else ():
            flags = 1 if record.value is None else 0
            if record.offset < first_dirty or (action == LOOKUPS_ONLY and record.key is not None):
                lookups.append(entry(record.key, record.offset, flags | 2))
            elif record.key is not None:
                entries.append(entry(record.key, record.offset, flags))
    return entries, lookups


def scan(blocks: Blocks, actions: Sequence[int], first_dirty: int, capacity: int) -> tuple[list[Entry], list[Entry], list[int]]:
    """Everything that the kernel finds, call after call, and the three counters."""
    entries, lookups = np.empty((capacity, 3), np.uint64), np.empty((capacity, 3), np.uint64)
    keyless, counters = np.zeros(len(blocks.rows), np.int32), np.zeros(3, np.int64)
    at = 0
    found: tuple[list[Entry], list[Entry]] = ([], [])
    while at < len(blocks.rows):
        next_at, n, m, error = scan_records(
            blocks.raw, blocks.scratch, blocks.rows, blocks.spans, np.array(actions, np.uint8), first_dirty, at,
            entries, lookups, keyless, counters, SECRET.state(),
        )  # fmt: skip
        assert error == OK
        assert next_at > at, "no progress"
        found[0].extend(map(tuple, entries[:n].tolist()))
        found[1].extend(map(tuple, lookups[:m].tolist()))
        at = next_at
    assert keyless.sum() == counters[KEYLESS]
    return *found, counters.tolist()


@pytest.mark.parametrize("seed", range(60))
def test_entries_and_lookups_equal_those_of_decoded_records(seed: int) -> None:
    rng = random.Random(seed)
    blocks = blocks_of(random_segment(seed))
    actions = [SKIP if batch.control else rng.choice((MAP, MAP, MAP, LOOKUPS_ONLY, SKIP)) for batch in blocks.batches]
    first_dirty = rng.randrange(int(blocks.rows["base_offset"][0]), int(blocks.rows["last_offset"][-1]) + 2)
    most = max(int(blocks.rows["count"].max()), 1)
    entries, lookups, counters = scan(blocks, actions, first_dirty, rng.choice((most, most + 3, 10_000)))
    assert (entries, lookups) == naive_scan(blocks.batches, actions, first_dirty)
    read = [r for batch, action in zip(blocks.batches, actions, strict=True) if action != SKIP for r in batch.records()]
    assert counters[MESSAGES] == len(read)
    assert counters[KEYLESS] == sum(record.key is None for record in read)
    assert counters[TOMBSTONES] == sum(record.value is None for record in read)


def test_buffers_too_small_for_one_batch_make_no_progress() -> None:
    log = LogBuilder()
    log.batch([Sent(b"a", b"1"), Sent(b"b", b"2")])
    blocks = blocks_of(log.build()[0])
    room: NDArray[np.uint64] = np.empty((1, 3), np.uint64)
    args = (blocks.raw, blocks.scratch, blocks.rows, blocks.spans, np.zeros(1, np.uint8), 0, 0, room, room.copy())
    assert scan_records(*args, np.zeros(1, np.int32), np.zeros(3, np.int64), SECRET.state()) == (0, 0, 0, OK)


def one_batch(body: bytes, count: int, last_offset: int = 10) -> Blocks:
    """A batch at offset 0 whose records are these bytes, whatever they are."""
    rows = np.zeros(1, BATCH_ROW)
    rows["count"], rows["last_offset"], rows["magic"] = count, last_offset, 2
    spans = np.array([[HEADER.size, HEADER.size + len(body), 0]], np.int64)
    return Blocks((), as_array(bytes(HEADER.size) + body), np.empty(0, np.uint8), rows, spans)


def record(*, delta: int = 0, body: bytes | None = None, length: int | None = None) -> bytes:
    body = b"\0" + varint(0) + varint(delta) + b"\x02k\x02v\0" if body is None else body
    return varint(len(body) if length is None else length) + body


@pytest.mark.parametrize(
    ("body", "count", "error"),
    [
        pytest.param(record(), 1, OK, id="sound"),
        pytest.param(record() + record(delta=1), 1, RECORDS_REMAINING, id="a record too many"),
        pytest.param(record() + b"\0", 1, RECORDS_REMAINING, id="a byte too many"),
        pytest.param(record(), 2, RECORDS_MISSING, id="a record too few"),
        pytest.param(b"", 1, RECORDS_MISSING, id="no bytes"),
        pytest.param(record() + record(), 2, OFFSET_ORDER, id="the same offset twice"),
        pytest.param(record(delta=2) + record(delta=1), 2, OFFSET_ORDER, id="offsets that fall"),
        pytest.param(record(delta=-1), 1, OFFSET_ORDER, id="an offset below the base"),
        pytest.param(record(delta=11), 1, OFFSET_ORDER, id="an offset past the batch's last"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\0\0"), 1, BAD_RECORD, id="longer than its fields"),
        pytest.param(record(length=7), 1, BAD_RECORD, id="shorter than its fields"),
        pytest.param(record(length=9), 1, BAD_RECORD, id="longer than the batch"),
        pytest.param(record(length=-1), 1, BAD_RECORD, id="negative length"),
        pytest.param(record(length=0), 1, BAD_RECORD, id="no attributes"),
        pytest.param(record(length=2**31 - 1), 1, BAD_RECORD, id="length past the batch"),
        pytest.param(record(body=b"\0\0\0" + varint(100) + b"k\x02v\0"), 1, BAD_RECORD, id="key past the record"),
        pytest.param(record(body=b"\0\0\0\x02k" + varint(2**31 - 1) + b"v\0"), 1, BAD_RECORD, id="value past the record"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v"), 1, BAD_RECORD, id="no header count"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x01"), 1, BAD_RECORD, id="negative header count"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02"), 1, BAD_RECORD, id="a header that is not there"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02\x01\x01"), 1, BAD_RECORD, id="a header without a name"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02\x02n\x01"), 1, OK, id="a header without a value"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02\x02n\x04v"), 1, BAD_RECORD, id="a header value past the record"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v" + varint(2**31 - 1)), 1, BAD_RECORD, id="headers without end"),
        pytest.param(record(body=b"\0" + b"\x80" * 10 + b"\0\0\x02k\x02v\0"), 1, BAD_RECORD, id="timestamp without end"),
        pytest.param(record(body=b"\0\0" + b"\x80" * 5 + b"\0\x02k\x02v\0"), 1, BAD_RECORD, id="offset without end"),
        pytest.param(record(body=b"\0\0\0\x01\x01\0"), 1, OK, id="neither key nor value"),
        pytest.param(record(body=b"\0\0\0\x09\x09\0"), 1, OK, id="sizes below -1 are null"),
    ],
)
def test_malformed_records_give_their_error(body: bytes, count: int, error: int) -> None:
    blocks = one_batch(body, count)
    room = np.empty((4, 3), np.uint64)
    args = (blocks.raw, blocks.scratch, blocks.rows, blocks.spans, np.zeros(1, np.uint8), 0, 0, room, room.copy())
    next_at, *_, found = scan_records(*args, np.zeros(1, np.int32), np.zeros(3, np.int64), SECRET.state())
    assert (found, next_at) == (error, 1 if error == OK else 0)


@pytest.mark.parametrize("seed", range(6))
def test_a_truncated_batch_is_not_read_past_its_end(seed: int) -> None:
    """Every shorter stretch of a batch's records is refused; what lies behind it would read as records."""
    segment = random_segment(seed)
    blocks = blocks_of(segment)
    row = int(np.argmax(blocks.rows["count"]))
    start, end, where = blocks.spans[row].tolist()
    room = np.empty((int(blocks.rows["count"][row]), 3), np.uint64)
    for cut in range(start, end):
        spans = np.array([[start, cut, where]], np.int64)
        args = (blocks.raw, blocks.scratch, blocks.rows[row : row + 1], spans, np.zeros(1, np.uint8), 0, 0, room, room.copy())
        assert scan_records(*args, np.zeros(1, np.int32), np.zeros(3, np.int64), SECRET.state())[3] != OK
