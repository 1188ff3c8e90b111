"""Field tables are those of ``struct`` and numpy; varints are Kafka's: zig-zag, seven bits a byte, at most 5 or 10 bytes."""

from __future__ import annotations

import pickle
import struct
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.formats import primitives as varint
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


#: values and bytes from Kafka's ByteUtilsTest
VARINTS = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (-8192, "ff7f"),
    (8192, "808001"),
    (-8193, "818001"),
    (1048575, "feff7f"),
    (-1048576, "ffff7f"),
    (1048576, "80808001"),
    (134217727, "feffff7f"),
    (-134217728, "ffffff7f"),
    (134217728, "8080808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]
VARLONGS = [*VARINTS, (17179869183, "feffffff7f"), (-17179869185, "818080808001"), (2**63 - 1, "fe" + "ff" * 8 + "01")]
VARLONGS += [(-(2**63), "ff" * 9 + "01")]


@pytest.mark.parametrize(("bits", "value", "data"), [*((32, *row) for row in VARINTS), *((64, *row) for row in VARLONGS)])
def test_known_varints(bits: int, value: int, data: str) -> None:
    assert varint.encode_varint(value, bits).hex() == data
    assert varint.decode_varint(b"\x80" + bytes.fromhex(data) + b"\x80", 1, bits) == (value, 1 + len(data) // 2)


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.data())
def test_varints_round_trip(bits: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    encoded = varint.encode_varint(value, bits)
    for buffer in (memoryview(encoded), bytearray(encoded)):
        assert varint.decode_varint(buffer, 0, bits) == (value, len(encoded))


@given(st.integers(0, 2**32 - 1))
def test_unsigned_round_trip(value: int) -> None:
    data = varint.encode_unsigned(value)
    assert varint.decode_unsigned(data, 0) == (value, len(data))


@pytest.mark.parametrize("bits", [32, 64])
def test_a_value_out_of_range_is_an_error(bits: int) -> None:
    half = 2 ** (bits - 1)
    for encode, value in (
        (varint.encode_varint, half),
        (varint.encode_varint, -half - 1),
        (varint.encode_unsigned, -1),
        (varint.encode_unsigned, 2 * half),
    ):
        with pytest.raises(FormatError, match="does not fit"):
            encode(value, bits)


@pytest.mark.parametrize("data", ["", "80", "ffff"])
def test_the_end_of_the_buffer_inside_a_number_is_an_error(data: str) -> None:
    with pytest.raises(FormatError, match="ends inside") as caught:
        varint.decode_varint(b"\x00" + bytes.fromhex(data), 1)
    assert caught.value.position == 1


def test_a_number_that_is_too_long_is_an_error() -> None:
    with pytest.raises(FormatError, match="within 5 bytes"):
        varint.decode_varint(b"\xff" * 6, 0)
    with pytest.raises(FormatError, match="within 10 bytes"):
        varint.decode_varint(b"\xff" * 11, 0, 64)


def test_high_bits_of_the_last_byte_are_dropped_as_in_java() -> None:
    assert varint.decode_varint(bytes.fromhex("feffffff7f"), 0) == (2**31 - 1, 5)
