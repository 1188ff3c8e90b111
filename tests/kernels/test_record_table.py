"""The fields of records as a table are those that plain Python reads."""

from __future__ import annotations

import numpy as np
import pytest

from compaction.formats.record_batch import Header, Record, RecordBase, encode_record
from compaction.kernels.records import (
    COLUMNS,
    END,
    HEADERS_AT,
    KEY_AT,
    KEY_SIZE,
    OFFSET,
    TIMESTAMP,
    VALUE_AT,
    VALUE_SIZE,
    locate_fields,
)

RECORDS = (
    Record(0, 5, b"key", b"value"),
    Record(3, -900, None, b"v" * 300, (Header("name", None), Header("other", b"x"))),
    Record(2**20, 2**40, b"", None),
)
BASE = RecordBase(-40, 1_000)
ENCODED = [encode_record(record, BASE) for record in RECORDS]
DATA = b"".join(ENCODED)


def located(data: bytes, count: int, at: int = 0, rows: int = 9) -> tuple[list[list[int]], int]:
    table = np.full((rows, COLUMNS), -7, np.int64)
    filled, after = locate_fields(np.frombuffer(data, np.uint8), at, count, BASE.offset, BASE.timestamp, table)
    assert (table[filled:] == -7).all()
    return table[:filled].tolist(), int(after)


def test_fields_are_located() -> None:
    rows, after = located(DATA, 3)
    assert after == len(DATA)
    assert [row[END] for row in rows] == np.cumsum([len(each) for each in ENCODED]).tolist()
    for record, row in zip(RECORDS, rows, strict=True):
        assert (row[OFFSET], row[TIMESTAMP]) == (record.offset, record.timestamp)
        for field, at, size in ((record.key, KEY_AT, KEY_SIZE), (record.value, VALUE_AT, VALUE_SIZE)):
            assert (None if row[size] < 0 else DATA[row[at] : row[at] + row[size]]) == field
        assert DATA[row[HEADERS_AT]] == 2 * len(record.headers)


def test_a_full_table_is_continued_where_it_ended() -> None:
    first, after = located(DATA, 3, rows=2)
    rest, end = located(DATA, 1, after, rows=2)
    assert (first + rest, end) == located(DATA, 3)


@pytest.mark.parametrize("end", [1, len(ENCODED[0]) - 1, len(ENCODED[0]), len(DATA) - 1])
def test_the_records_before_a_malformed_one_are_located(end: int) -> None:
    complete = 0 if end < len(ENCODED[0]) else 1 if end == len(ENCODED[0]) else 2
    assert located(DATA[:end], 3) == (located(DATA, complete)[0], -1)
