"""Located fields and records of backup sets against records decoded one by one. ``tests/source`` compares columns with what a
plain consumer is served, ``test_reading.py`` their errors."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.formats.message_set import parse_message_entry
from compaction.formats.record_batch import HEADER_SIZE, Header, Record, RecordBatch, parse_batch
from compaction.kernels import locate
from compaction.kernels.backup_records import (
    BAD_FIELDS,
    BAD_HEADERS,
    BAD_ORDER,
    BAD_TIME,
    COMPLETE,
    COUNT,
    FLOOR,
    NO_SPACE,
    POSITION,
    USED,
    batches_of_backup,
    put_backup_records,
)
from compaction.kernels.batches import scan_batches
from compaction.kernels.columns import HEADERS, KEYS, VALUES, Columns, fill_columns, measure_records, new_columns
from compaction.kernels.locate import (
    KEY,
    RECORD_ROW,
    TIMESTAMP,
    VALUE,
    assign_parts,
    compare_records,
    gather_keys,
    locate_messages,
    locate_records,
)
from compaction.kernels.records import OK
from tests.kafka.encode import Batch, Legacy
from tests.kernels.tables import scanned
from tests.log.logs import iter_batches
from tests.oracle.backup_segments import decode_records, encode_record

ALL = KEYS | VALUES | HEADERS
T0 = 1_700_000_000_000


def some_bytes(longest: int) -> st.SearchStrategy[bytes | None]:
    return st.none() | st.binary(max_size=longest)


@st.composite
def records(draw: st.DrawFn, most: int = 12, gaps: tuple[int, ...] = (1, 1, 1, 2, 300), *, least: int = 1) -> list[Record]:
    """Records at ascending offsets with gaps."""
    found, offset = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(least, most))):
        offset += draw(st.sampled_from(gaps))
        time = draw(st.sampled_from((-1, 0, T0, T0 + 5, 2**62)) | st.integers(-1, 2**41))
        headers = draw(st.lists(st.builds(Header, st.text("abä€", max_size=70), some_bytes(20)), max_size=3))
        found.append(Record(offset, time, draw(some_bytes(200)), draw(some_bytes(300)), tuple(headers)))
    return found


def located(raw: bytes) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    data, _, rows, spans = scanned(raw)
    found = np.zeros(int(rows["count"].sum()), RECORD_ROW)
    assert locate_records(data, rows, spans[:, 0].copy(), spans[:, 1].copy(), found) == (len(found), -1)
    return data, found


def field(data: NDArray[np.uint8], at: int, size: int) -> bytes | None:
    return None if size < 0 else data[at : at + size].tobytes()


@given(records(6))
def test_records_are_located_at_their_positions(given_records: list[Record]) -> None:
    batch = Batch(given_records).encode()
    data, found = located(batch + batch)
    expected = list(parse_batch(batch).records()) * 2
    assert [(r["offset"], r["timestamp"]) for r in found] == [(r.offset, r.timestamp) for r in expected]
    assert [field(data, r["key_at"], r["key_size"]) for r in found] == [r.key for r in expected]
    assert [field(data, r["value_at"], r["value_size"]) for r in found] == [r.value for r in expected]
    assert found["batch"].tolist() == [0] * len(given_records) + [1] * len(given_records)


@given(records(6), st.sampled_from((0, 1)))
def test_messages_are_located_at_their_positions(given_records: list[Record], magic: int) -> None:
    raw = Legacy(given_records, magic).encode()
    data = np.frombuffer(raw, np.uint8)
    rows = scan_batches(data, 0, check_crc=True).rows
    found = np.zeros(len(rows), RECORD_ROW)
    ends = (rows["position"] + rows["size"]).astype(np.int64)
    assert locate_messages(data, rows, rows["position"].astype(np.int64), ends, found) == (len(given_records), -1)
    expected = [record for row in rows for record in parse_message_entry(raw, int(row["position"])).records()]
    assert found["offset"].tolist() == [r.offset for r in expected]
    assert [field(data, r["key_at"], r["key_size"]) for r in found] == [r.key for r in expected]
    assert [field(data, r["value_at"], r["value_size"]) for r in found] == [r.value for r in expected]


@given(st.binary(max_size=60), st.integers(1, 5))
def test_garbage_is_an_error_and_is_not_read_past_its_end(garbage: bytes, count: int) -> None:
    rows = scanned(Batch([Record(10, 1, b"key", b"value")]).encode()).rows
    rows["count"] = count
    bounds = np.zeros(1, np.int64), np.array([len(garbage)], np.int64)
    n, fault = locate_records(np.frombuffer(garbage, np.uint8), rows, *bounds, np.zeros(count, RECORD_ROW))
    assert (n == count) if fault < 0 else (n <= count and fault == 0)


ONE = Record(10, 5, b"key", b"value", (Header("name", b"content"),))
CHANGES = [
    (ONE, 0),
    (ONE._replace(timestamp=6), TIMESTAMP),
    (ONE._replace(key=b"kez"), KEY),
    (ONE._replace(key=None), KEY),
    (ONE._replace(value=b""), VALUE),
    (ONE._replace(value=None), VALUE),
    (ONE._replace(headers=()), locate.HEADERS),
    (ONE._replace(headers=(Header("name", None),), key=b"ke"), locate.HEADERS | KEY),
]


@pytest.mark.parametrize(("changed", "expected"), CHANGES)
def test_each_difference_sets_its_bit(changed: Record, expected: int) -> None:
    (data, before), (other, after) = (located(Batch([each]).encode()) for each in (ONE, changed))
    found = np.full(1, 99, np.uint8)
    compare_records(after, other, before, data, np.zeros(1, np.int64), found)
    assert found.tolist() == [expected]
    compare_records(after, other, before, data, np.full(1, -1, np.int64), found)
    assert found.tolist() == [0]


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20), st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_keys_are_concatenated_and_equal_keys_get_the_same_part(keys: list[bytes], seed: int, parts: int) -> None:
    batch = Batch([Record(10 + at, 1, key, None) for at, key in enumerate(keys)]).encode()
    data, found = located(batch)
    offsets, gathered = np.zeros(len(keys) + 1, np.int32), np.empty(sum(map(len, keys)), np.uint8)
    gather_keys(data, found, offsets, gathered)
    assert [gathered[a:b].tobytes() for a, b in zip(offsets, offsets[1:], strict=False)] == keys
    part_of = np.full(len(keys), -1, np.int32)
    assign_parts(offsets, gathered, seed, parts, part_of)
    assert all(0 <= part < parts for part in part_of)
    assert len(set(zip(keys, part_of.tolist(), strict=True))) == len(set(keys))


def convert(data: bytes, end: int, out_bytes: int, batch_bytes: int = 300) -> tuple[bytes, int, int, int]:
    """The batches of a buffer, their records, the bytes that are left, and the error."""
    raw, out = np.frombuffer(data + b"\0", np.uint8), np.empty(out_bytes, np.uint8)
    state, made = np.zeros(4, np.int64), b""
    while True:
        error = batches_of_backup(raw, end, batch_bytes, out, state)
        made += out[: state[USED]].tobytes()
        if error != NO_SPACE or state[USED] == 0:
            return made, int(state[COUNT]), end - int(state[POSITION]), int(error)


def single(record: Record) -> bytes:
    """A batch of one record."""
    return Batch([record]).encode()


def records_of(data: bytes) -> list[Record]:
    found = []
    for batch in iter_batches(data):
        assert isinstance(batch, RecordBatch)
        batch.ensure_valid()
        assert (batch.header.producer_id, batch.header.leader_epoch) == (-1, -1)
        own = list(batch.records())
        assert batch.header.max_timestamp == max(record.timestamp for record in own)
        assert (batch.base_offset, batch.last_offset) == (own[0].offset, own[-1].offset)
        found += own
    return found


@given(records(12, (1, 1, 1, 2, 300, 2**31), least=0), st.integers(0, 50), st.integers(1, 2000))
@settings(max_examples=60)
def test_records_become_batches_of_the_same_records(given_records: list[Record], missing: int, out_bytes: int) -> None:
    encoded = [encode_record(record) for record in given_records]
    data = b"".join(encoded)
    end = max(0, len(data) - missing)
    made, count, left, error = convert(data, end, out_bytes)
    complete = sum(1 for at in np.cumsum([len(each) for each in encoded]) if at <= end)
    found = records_of(made)
    assert found == given_records[: len(found)]
    assert count == len(found)
    if error == COMPLETE:
        assert (len(found), left) == (complete, end - sum(map(len, encoded[:complete])))
    else:
        # the next record alone needs more than the buffer has
        assert error == NO_SPACE
        assert len(found) < complete and len(single(given_records[len(found)])) > out_bytes


def test_batches_end_at_their_size_and_at_the_widest_delta() -> None:
    given_records = [Record(offset, T0, b"k", b"v" * 100) for offset in (5, 6, 7, 8, 2**31 + 20, 2**31 + 21)]
    made, _, _, _ = convert(b"".join(map(encode_record, given_records)), 10**6, 10**6, batch_bytes=HEADER_SIZE + 150)
    assert [batch.header.base_offset for batch in iter_batches(made) if isinstance(batch, RecordBatch)] == [5, 7, 2**31 + 20]


PLAIN = Record(3, T0, b"key", b"value", (Header("h", b"x"),))


@pytest.mark.parametrize(
    ("at", "form", "value", "error"),
    [
        (0, "<I", 25, BAD_FIELDS),
        (4, "<q", -2, BAD_TIME),
        (12, "<q", -1, BAD_ORDER),
        (12, "<q", 2**62, BAD_ORDER),
        (20, "<i", -2, BAD_FIELDS),
        (20, "<i", 4, BAD_FIELDS),
        (20, "<i", 2**31 - 1, BAD_FIELDS),
        (27, "<i", 6, BAD_FIELDS),
        (36, "<H", 0, BAD_FIELDS),
        (36, "<H", 2, BAD_FIELDS),
        (38, "<H", 2, BAD_FIELDS),
        (41, "<i", 2, BAD_FIELDS),
        (41, "<i", -1, BAD_FIELDS),
    ],
)
def test_a_malformed_record_is_an_error_at_its_position(at: int, form: str, value: int, error: int) -> None:
    good, data = encode_record(PLAIN._replace(offset=2)), bytearray(encode_record(PLAIN))
    struct.pack_into(form, data, at, value)
    made, count, left, found = convert(good + bytes(data), len(good) + len(data), 1000)
    assert (found, count, left) == (error, 1, len(data))
    assert len(records_of(made)) == 1


def test_offsets_ascend_across_calls() -> None:
    data = encode_record(PLAIN)
    state, out = np.zeros(4, np.int64), np.empty(1000, np.uint8)
    raw = np.frombuffer(data + b"\0", np.uint8)
    assert batches_of_backup(raw, len(data), 300, out, state) == COMPLETE
    assert state[FLOOR] == PLAIN.offset + 1
    state[POSITION] = 0
    assert batches_of_backup(raw, len(data), 300, out, state) == BAD_ORDER


def columns_of(given_records: list[Record]) -> Columns:
    blocks = scanned(b"".join(map(single, given_records)))
    chosen, sizes = np.empty(len(blocks.rows), np.int32), np.zeros(6, np.int64)
    limits = np.array((0, 2**63 - 1, -(2**63), 2**63 - 1), np.int64)
    assert measure_records(*blocks, limits, ALL, chosen, sizes)[1] == OK
    columns = new_columns(sizes, ALL)
    assert fill_columns(*blocks, limits, ALL, columns) == len(columns.offset) == len(given_records)
    return columns


@given(records(12, (1, 1, 1, 2, 300, 2**31), least=0), st.integers(200, 2000))
@settings(max_examples=30)
def test_columns_become_records_of_a_backup_set(given_records: list[Record], out_bytes: int) -> None:
    columns, out, made, at = columns_of(given_records), np.empty(out_bytes, np.uint8), b"", 0
    while True:
        at, used, error = put_backup_records(columns, at, out)
        made += out[:used].tobytes()
        if error != NO_SPACE or used == 0:
            break
    found = decode_records(made)
    assert found == given_records[: len(found)]
    if len(found) < len(given_records):
        assert error == NO_SPACE and len(encode_record(given_records[len(found)])) > out_bytes
    assert made == b"".join(map(encode_record, given_records[: len(found)]))


def test_header_names_and_counts_have_16_bits() -> None:
    for headers in ((Header("n" * 65_536, None),), (Header("n", None),) * 65_536):
        columns = columns_of([PLAIN, PLAIN._replace(offset=4, headers=headers)])
        out = np.empty(10**6, np.uint8)
        assert put_backup_records(columns, 0, out) == (1, len(encode_record(PLAIN)), BAD_HEADERS)
    longest = PLAIN._replace(headers=(Header("n" * 65_535, None),) * 2)
    _, used, error = put_backup_records(columns_of([longest]), 0, out)
    assert (decode_records(out[:used].tobytes()), error) == ([longest], COMPLETE)
