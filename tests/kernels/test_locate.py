"""Located records against records decoded one by one, and errors for bytes that are not records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.formats.message_set import parse_message_entry
from compaction.formats.record_batch import HEADER_SIZE, Header, Record, parse_batch
from compaction.kernels.batches import scan_batches
from compaction.kernels.locate import (
    HEADERS,
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
from tests.kafka.encode import Batch, Legacy

Fields = tuple[int, bytes | None, bytes | None, tuple[Header, ...]]
TEXTS = st.none() | st.binary(max_size=200)
NAMED = st.tuples(st.text(max_size=5), TEXTS).map(lambda pair: Header(*pair))
FIELDS = st.tuples(st.integers(1, 2**40), TEXTS, TEXTS, st.lists(NAMED, max_size=3).map(tuple))
SOME = st.lists(FIELDS, min_size=1, max_size=6)


def records(fields: list[Fields]) -> list[Record]:
    return [Record(10 + 2 * at, *each) for at, each in enumerate(fields)]


def located(raw: bytes) -> tuple[NDArray[np.uint8], NDArray[np.void]]:
    data = np.frombuffer(raw, np.uint8)
    rows = scan_batches(data, 0, check_crc=True).rows
    found = np.zeros(int(rows["count"].sum()), RECORD_ROW)
    starts, ends = rows["position"] + HEADER_SIZE, rows["position"] + rows["size"]
    assert locate_records(data, rows, starts, ends.astype(np.int64), found) == (len(found), -1)
    return data, found


def field(data: NDArray[np.uint8], at: int, size: int) -> bytes | None:
    return None if size < 0 else data[at : at + size].tobytes()


@given(SOME)
def test_records_are_located_at_their_positions(fields: list[Fields]) -> None:
    batch = Batch(records(fields)).encode()
    data, found = located(batch + batch)
    expected = list(parse_batch(batch).records()) * 2
    assert [(r["offset"], r["timestamp"]) for r in found] == [(r.offset, r.timestamp) for r in expected]
    assert [field(data, r["key_at"], r["key_size"]) for r in found] == [r.key for r in expected]
    assert [field(data, r["value_at"], r["value_size"]) for r in found] == [r.value for r in expected]
    assert found["batch"].tolist() == [0] * len(fields) + [1] * len(fields)


@given(SOME, st.sampled_from((0, 1)))
def test_messages_are_located_at_their_positions(fields: list[Fields], magic: int) -> None:
    plain = [Record(r.offset, r.timestamp, r.key, r.value) for r in records(fields)]
    raw = Legacy(plain, magic).encode()
    data = np.frombuffer(raw, np.uint8)
    rows = scan_batches(data, 0, check_crc=True).rows
    found = np.zeros(len(rows), RECORD_ROW)
    ends = (rows["position"] + rows["size"]).astype(np.int64)
    assert locate_messages(data, rows, rows["position"].astype(np.int64), ends, found) == (len(fields), -1)
    expected = [record for row in rows for record in parse_message_entry(raw, int(row["position"])).records()]
    assert found["offset"].tolist() == [r.offset for r in expected]
    assert [field(data, r["key_at"], r["key_size"]) for r in found] == [r.key for r in expected]
    assert [field(data, r["value_at"], r["value_size"]) for r in found] == [r.value for r in expected]


@given(st.binary(max_size=60), st.integers(1, 5))
def test_garbage_is_an_error_and_is_not_read_past_its_end(garbage: bytes, count: int) -> None:
    data, _ = located(Batch([Record(10, 1, b"key", b"value")]).encode())
    rows = scan_batches(data, 0, check_crc=True).rows
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
    (ONE._replace(headers=()), HEADERS),
    (ONE._replace(headers=(Header("name", None),), key=b"ke"), HEADERS | KEY),
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
