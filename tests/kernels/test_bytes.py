"""Integers, varints, UTF-8 and words at any address in byte arrays, each against plain Python."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from compaction.kernels.bytes import BAD_VARINT, be16, be32, be64, is_utf8, put_varlong, varint, varlong, varlong_size
from compaction.kernels.compiling import load8, load64, load_be16, load_be32, load_be64, store16, store32, store64
from tests.kafka.encode import varint as shortest
from tests.kernels.tables import as_array
from tests.oracle.oddities import padded

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
EDGES = [edge + step for power in range(0, 64, 7) for edge in (2**power // 2, -(2**power) // 2) for step in (-1, 0, 1)]


@given(INT64)
def test_integers_are_read(value: int) -> None:
    data = as_array(b"\0" + struct.pack(">q", value) + b"\0")
    assert be64(data, 1) == value
    assert be32(data, 1) == struct.unpack_from(">i", data, 1)[0]
    assert be16(data, 1) == struct.unpack_from(">h", data, 1)[0]


@given(INT64)
def test_a_varlong_is_written_in_its_shortest_form(value: int) -> None:
    data = as_array(bytes(12))
    end = put_varlong(data, 1, value)
    assert data.tobytes()[1:end] == shortest(value)
    assert varlong_size(value) == end - 1


@pytest.mark.parametrize("value", sorted({edge for edge in EDGES if -(2**63) <= edge < 2**63}))
def test_varlongs_are_right_at_every_change_of_length(value: int) -> None:
    data = as_array(shortest(value))
    assert varlong(data, 0, len(data)) == (value, len(data))
    assert varlong(data, 0, len(data) - 1)[1] == BAD_VARINT


@given(INT32, st.integers(1, 5), st.binary(max_size=3))
def test_a_varint_is_read_in_any_form(value: int, size: int, rest: bytes) -> None:
    written = padded(value, size)
    data = as_array(written + rest)
    assert varint(data, 0, len(data)) == (value, len(written))
    assert varlong(data, 0, len(data)) == (value, len(written))


@given(INT64, st.integers(1, 10))
def test_a_varlong_is_read_in_any_form(value: int, size: int) -> None:
    data = as_array(padded(value, size))
    assert varlong(data, 0, len(data)) == (value, len(data))


@pytest.mark.parametrize(("read", "longest"), [(varint, 5), (varlong, 10)])
def test_unterminated_varints_are_rejected(read: object, longest: int) -> None:
    assert callable(read)
    endless = as_array(b"\x80" * longest + b"\0")
    assert read(endless, 0, len(endless))[1] == BAD_VARINT
    for end in range(longest):
        assert read(endless, 0, end)[1] == BAD_VARINT
    assert read(as_array(b"\x80" * (longest - 1) + b"\0"), 0, longest)[1] == longest


def test_superfluous_bits_of_the_last_byte_are_dropped() -> None:
    assert varint(as_array(b"\xff\xff\xff\xff\x7f"), 0, 5) == (-(2**31), 5)
    assert varlong(as_array(b"\xff" * 9 + b"\x7f"), 0, 10) == (-(2**63), 10)


def naive_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@given(st.binary(max_size=12) | st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_utf8_is_valid_if_python_decodes_it(data: bytes) -> None:
    array = as_array(b"\xff" + data + b"\xff")
    assert is_utf8(array, 1, 1 + len(data)) == naive_utf8(data)


@pytest.mark.parametrize("first", range(256))
def test_utf8_by_first_byte(first: int) -> None:
    for more in (b"", b"\x80", b"\x8f\xbf", b"\x90\x80", b"\x9f\xbf\xbf", b"\xa0\x80", b"\xbf\xbf\xbf", b"A"):
        data = bytes([first]) + more
        assert is_utf8(as_array(data), 0, len(data)) == naive_utf8(data), data


@njit
def stored(data, at, bits, value):  # type: ignore[no-untyped-def]
    """Store a value of so many bits at ``data[at:]``."""
    address = np.uintp(data.ctypes.data + at)
    if bits == 16:
        store16(address, np.int64(value))
    elif bits == 32:
        store32(address, np.int64(value))
    else:
        store64(address, np.int64(value))


@njit
def loaded(data, at):  # type: ignore[no-untyped-def]
    """The word and the byte at ``data[at:]``."""
    address = np.uintp(data.ctypes.data + at)
    return load64(address), load8(address)


@njit
def loaded_big_endian(data, at):  # type: ignore[no-untyped-def]
    """The integers of two, four and eight bytes at ``data[at:]``."""
    address = np.uintp(data.ctypes.data + at)
    return load_be16(address), load_be32(address), load_be64(address)


@pytest.mark.parametrize("bits", [16, 32, 64])
@given(value=INT64, at=st.integers(0, 9))
def test_the_low_bytes_are_stored_big_endian_and_nothing_else(bits: int, value: int, at: int) -> None:
    data = np.full(20, 0xAA, np.uint8)
    stored(data, at, bits, value)
    low = struct.pack(">q", value)[-bits // 8 :]
    assert data.tobytes() == b"\xaa" * at + low + b"\xaa" * (20 - at - len(low))


@given(st.binary(min_size=20, max_size=20), st.integers(0, 12))
def test_words_are_loaded_little_endian(data: bytes, at: int) -> None:
    word, byte = loaded(np.frombuffer(bytearray(data), np.uint8), at)
    assert (int(word), int(byte)) == (int.from_bytes(data[at : at + 8], "little"), data[at])


@given(st.binary(min_size=20, max_size=20), st.integers(0, 12))
def test_integers_are_read_big_endian_with_their_sign(data: bytes, at: int) -> None:
    found = loaded_big_endian(np.frombuffer(bytearray(data), np.uint8), at)
    assert found == tuple(int.from_bytes(data[at : at + size], "big", signed=True) for size in (2, 4, 8))
