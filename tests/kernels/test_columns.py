"""Columns of records against records decoded one by one: the same rows, whatever their sizes, nulls, headers and bounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.formats.record_batch import HEADER_SIZE, Header, Record, parse_batch
from compaction.kernels.batches import scan_batches
from compaction.kernels.columns import (
    HEADERS,
    KEYS,
    VALUES,
    Bytes,
    Columns,
    fill_columns,
    measure_records,
    new_columns,
)
from compaction.kernels.records import BAD_RECORD, OK, RECORDS_MISSING, RECORDS_REMAINING
from tests.kafka.encode import Batch

ALL = KEYS | VALUES | HEADERS
EVERYTHING = (0, 2**63 - 1, -(2**63), 2**63 - 1)
NOTHING = np.empty(0, np.uint8)


def strings(column: Bytes) -> list[bytes | None]:
    """A column of bytes as a list: the plain reading of Arrow's layout."""
    found: list[bytes | None] = []
    for row in range(len(column.offsets) - 1):
        valid = column.valid[row // 8] >> (row % 8) & 1
        found.append(column.data[column.offsets[row] : column.offsets[row + 1]].tobytes() if valid else None)
    return found


def as_records(columns: Columns) -> Iterator[Record]:
    keys, values = strings(columns.keys), strings(columns.values)
    names, contents = strings(columns.header_keys), strings(columns.header_values)
    for row, (offset, time) in enumerate(zip(columns.offset.tolist(), columns.timestamp_ms.tolist(), strict=True)):
        mine = slice(columns.header_starts[row], columns.header_starts[row + 1])
        headers = [Header((name or b"").decode(), content) for name, content in zip(names[mine], contents[mine], strict=True)]
        yield Record(offset, time, keys[row], values[row], tuple(headers))


def decode(
    batches: list[bytes], bounds: tuple[int, int, int, int] = EVERYTHING, wanted: int = ALL
) -> tuple[Columns, list[int], int]:
    """The columns, how many records of each batch they hold, and the error."""
    raw = np.frombuffer(b"".join(batches), np.uint8)
    rows = scan_batches(raw, 0, check_crc=False).rows
    spans = np.zeros((len(rows), 3), np.int64)
    spans[:, 0] = rows["position"] + HEADER_SIZE
    spans[:, 1] = rows["position"] + rows["size"]
    chosen, sizes = np.empty(len(rows), np.int32), np.zeros(6, np.int64)
    limits = np.array(bounds, np.int64)
    _, error = measure_records(raw, NOTHING, rows, spans, limits, wanted, chosen, sizes)
    columns = new_columns(sizes, wanted)
    if error == OK:
        assert fill_columns(raw, NOTHING, rows, spans, limits, wanted, columns) == len(columns.offset)
    return columns, chosen.tolist(), int(error)


def some_bytes(longest: int) -> st.SearchStrategy[bytes | None]:
    return st.none() | st.binary(max_size=longest)


headers = st.lists(st.builds(Header, st.text(max_size=4), some_bytes(5)), max_size=3).map(tuple)
contents = st.tuples(st.integers(-1, 2**41), some_bytes(200), some_bytes(300), headers)


@st.composite
def logs(draw: st.DrawFn) -> list[list[Record]]:
    """Batches of records at ascending offsets with gaps."""
    made, offset = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 4))):
        batch = []
        for time, key, value, its_headers in draw(st.lists(contents, min_size=1, max_size=12)):
            batch.append(Record(offset, time, key, value, its_headers))
            offset += draw(st.integers(1, 300))
        made.append(batch)
    return made


@given(logs(), st.data())
@settings(max_examples=150)
def test_columns_hold_what_the_plain_decoder_reads(log: list[list[Record]], data: st.DataObject) -> None:
    offsets = [record.offset for batch in log for record in batch]
    times = [record.timestamp for batch in log for record in batch]
    first, last = sorted(data.draw(st.tuples(st.sampled_from(offsets), st.sampled_from(offsets))))
    since, until = sorted(data.draw(st.tuples(st.sampled_from(times), st.sampled_from(times))))
    bounds = data.draw(st.sampled_from([EVERYTHING, (first, last, since, until), (first, 2**63 - 1, since, 2**63 - 1)]))
    encoded = [Batch(batch).encode() for batch in log]
    expected = [
        [
            record
            for record in parse_batch(batch).records()
            if bounds[0] <= record.offset <= bounds[1] and bounds[2] <= record.timestamp <= bounds[3]
        ]
        for batch in encoded
    ]
    columns, chosen, error = decode(encoded, bounds)
    assert error == OK
    assert chosen == [len(each) for each in expected]
    assert list(as_records(columns)) == [record for each in expected for record in each]


@pytest.mark.parametrize("wanted", [0, KEYS, VALUES, HEADERS, KEYS | HEADERS])
def test_unwanted_columns_are_empty_and_change_no_other(wanted: int) -> None:
    records = [Record(at, at, b"k%d" % at, b"v" * at, (Header("h", b"x"),) * (at % 3)) for at in range(20)]
    batch = [Batch(records).encode()]
    all_columns, _, _ = decode(batch)
    columns, _, _ = decode(batch, wanted=wanted)
    assert columns.offset.tolist() == list(range(20))
    pairs = [(KEYS, "keys"), (VALUES, "values"), (HEADERS, "header_keys"), (HEADERS, "header_values")]
    for bit, name in pairs:
        if wanted & bit:
            assert strings(getattr(columns, name)) == strings(getattr(all_columns, name))
        else:
            assert strings(getattr(columns, name)) == []
            assert name[:6] == "header" or len(getattr(columns, name).data) == 0


def test_log_append_time_is_the_timestamp_of_every_record() -> None:
    records = [Record(at, 100 + at, b"k", b"v") for at in range(3)]
    columns, _, _ = decode([Batch(records, log_append_time=777).encode()])
    assert columns.timestamp_ms.tolist() == [777, 777, 777]
    none, chosen, _ = decode([Batch(records, log_append_time=777).encode()], (0, 9, 0, 776))
    assert (len(none.offset), chosen) == (0, [0])


def test_a_delete_horizon_is_not_taken_for_a_timestamp() -> None:
    records = [Record(at, 100 + at, b"k", None) for at in range(3)]
    columns, _, _ = decode([Batch(records, delete_horizon=5_000_000).encode()])
    assert columns.timestamp_ms.tolist() == [100, 101, 102]


def damaged(change: dict[int, int]) -> bytes:
    batch = bytearray(Batch([Record(at, 0, b"key", b"value") for at in range(3)]).encode())
    for position, value in change.items():
        batch[position] = value
    return bytes(batch)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({60: 2}, RECORDS_REMAINING),
        ({26: 3, 60: 4}, RECORDS_MISSING),
        ({61: 0x7E}, BAD_RECORD),
        ({65: 0x7F}, BAD_RECORD),
    ],
)
def test_malformed_records_are_rejected(change: dict[int, int], error: int) -> None:
    _, _, found = decode([damaged(change)])
    assert found == error
