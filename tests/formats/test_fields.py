"""A field table reads and writes what ``struct`` and numpy would, and says where a buffer is too short."""

from __future__ import annotations

import pickle
import struct
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.formats.primitives import BufferTooSmall, CodecError, FieldTable, FormatError, Int8, Int16, Int32, Int64, UInt32


class Sample(NamedTuple):
    small: Int16
    flag: Int8
    wide: Int64
    plain: Int32
    unsigned: UInt32


TABLE = FieldTable(Sample)
ROWS = st.builds(
    Sample,
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**7), 2**7 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**32 - 1),
)


@given(st.lists(ROWS, max_size=5), st.integers(0, 7))
def test_packed_rows_are_unpacked_unchanged(rows: list[Sample], shift: int) -> None:
    data = b"\xff" * shift + b"".join(TABLE.pack(row) for row in rows)
    assert [TABLE.unpack(data, shift + index * TABLE.size) for index in range(len(rows))] == rows
    assert TABLE.array(data[shift:]).tolist() == [tuple(row) for row in rows]


@given(ROWS)
def test_fields_are_at_their_offsets(row: Sample) -> None:
    data = bytearray(TABLE.pack(row))
    assert bytes(data) == struct.pack(">hbqiI", *row)
    for name, value in row._asdict().items():
        assert TABLE.get(data, name) == value
        TABLE.put(data, name, 1)
    assert TABLE.unpack(data) == (1, 1, 1, 1, 1)


def test_offsets_are_computed() -> None:
    assert [TABLE.offset(name) for name in Sample._fields] == [0, 2, 3, 11, 15]
    assert TABLE.size == TABLE.dtype.itemsize == 19


@pytest.mark.parametrize("length", range(19))
def test_a_short_buffer_is_an_error_with_its_position(length: int) -> None:
    with pytest.raises(FormatError, match=f"19 bytes of Sample expected, {length} left") as caught:
        TABLE.unpack(bytes(3 + length), 3)
    assert caught.value.position == 3


def test_an_incomplete_record_is_ignored() -> None:
    assert len(TABLE.array(bytes(2 * 19 + 18))) == 2


def test_reading_one_field_past_the_end_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"Sample\.unsigned"):
        TABLE.get(bytes(18), "unsigned")


@pytest.mark.parametrize("row", [Sample(2**15, 0, 0, 0, 0), Sample(0, -129, 0, 0, 0), Sample(0, 0, 0, 0, -1)])
def test_a_value_that_does_not_fit_is_an_error(row: Sample) -> None:
    with pytest.raises(FormatError, match="cannot be written"):
        TABLE.pack(row)


def test_one_field_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"Sample\.small"):
        TABLE.put(bytearray(19), "small", 2**15)


@pytest.mark.parametrize("error", [FormatError("what", 7), CodecError("what"), BufferTooSmall()], ids=lambda e: repr(e))
def test_errors_can_be_pickled(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
