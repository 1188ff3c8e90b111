"""Records of backup sets against the plain encoder, in both directions, with buffers of any size."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.formats.message_set import iter_batches
from compaction.formats.record_batch import HEADER_SIZE, Header, Record, RecordBatch
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
from compaction.kernels.columns import HEADERS, KEYS, VALUES, fill_columns, measure_records, new_columns
from tests.kafka.encode import Batch
from tests.oracle.backup_segments import decode_records, encode_record

T0 = 1_700_000_000_000
NOTHING = np.empty(0, np.uint8)


def some_bytes(longest: int = 20) -> st.SearchStrategy[bytes | None]:
    return st.none() | st.binary(max_size=longest)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    found, offset = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 12))):
        offset += draw(st.sampled_from((1, 1, 1, 2, 300, 2**31)))
        time = draw(st.sampled_from((-1, 0, T0, T0 + 5, 2**62)))
        headers = draw(st.lists(st.builds(Header, st.text("abä€", max_size=70), some_bytes()), max_size=3))
        found.append(Record(offset, time, draw(some_bytes()), draw(some_bytes(200)), tuple(headers)))
    return found


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


def as_records(data: bytes) -> list[Record]:
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


@given(records(), st.integers(0, 50), st.integers(1, 2000))
@settings(max_examples=60)
def test_records_become_batches_of_the_same_records(given_records: list[Record], missing: int, out_bytes: int) -> None:
    encoded = [encode_record(record) for record in given_records]
    data = b"".join(encoded)
    end = max(0, len(data) - missing)
    made, count, left, error = convert(data, end, out_bytes)
    complete = sum(1 for at in np.cumsum([len(each) for each in encoded]) if at <= end)
    found = as_records(made)
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
    assert len(as_records(made)) == 1


def test_offsets_ascend_across_calls() -> None:
    data = encode_record(PLAIN)
    state, out = np.zeros(4, np.int64), np.empty(1000, np.uint8)
    raw = np.frombuffer(data + b"\0", np.uint8)
    assert batches_of_backup(raw, len(data), 300, out, state) == COMPLETE
    assert state[FLOOR] == PLAIN.offset + 1
    state[POSITION] = 0
    assert batches_of_backup(raw, len(data), 300, out, state) == BAD_ORDER


def columns_of(given_records: list[Record]):  # type: ignore[no-untyped-def]
    raw = np.frombuffer(b"".join(map(single, given_records)), np.uint8)
    rows = scan_batches(raw, 0, check_crc=False).rows
    spans = np.zeros((len(rows), 3), np.int64)
    spans[:, 0], spans[:, 1] = rows["position"] + HEADER_SIZE, rows["position"] + rows["size"]
    bounds = np.array((0, 2**63 - 1, -(2**63), 2**63 - 1), np.int64)
    chosen, sizes, wanted = np.empty(len(rows), np.int32), np.zeros(6, np.int64), KEYS | VALUES | HEADERS
    measure_records(raw, NOTHING, rows, spans, bounds, wanted, chosen, sizes)
    columns = new_columns(sizes, wanted)
    fill_columns(raw, NOTHING, rows, spans, bounds, wanted, columns)
    return columns


@given(records(), st.integers(200, 2000))
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
