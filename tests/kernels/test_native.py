"""Loads and stores of words at any address, compiled or not."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from compaction.kernels.compiling import load8, load64, load_be16, load_be32, load_be64, store16, store32, store64

INT64 = st.integers(-(2**63), 2**63 - 1)


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
