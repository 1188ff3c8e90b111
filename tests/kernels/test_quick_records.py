"""The fast reader of common records agrees with ``read_record``, and reads no byte outside of the batch."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from compaction.kernels.bytes import put_varlong, short_varint, varint
from compaction.kernels.records import quick_bounds, quick_record, read_record
from tests.kafka.encode import varint as canonical

_UNTOUCHABLE = 0
_VALUES = st.one_of(
    st.integers(-70, 70), st.integers(-(2**15), 2**15), st.integers(-(2**22), 2**22), st.integers(-(2**31), 2**31 - 1)
)


@njit
def read_all(address, data, at, end):  # type: ignore[no-untyped-def]
    return quick_bounds(address, at, end), quick_record(address, at, end), read_record(data, at, end)


class Fenced:
    """One page between two that cannot be touched; data lies at its very start or its very end."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._map = mmap.mmap(-1, 3 * page)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for address in (self._start, self._start + 2 * page):
            assert libc.mprotect(ctypes.c_void_p(address), page, _UNTOUCHABLE) == 0
        self.page = np.frombuffer(self._map, np.uint8)[page : 2 * page]

    def place(self, data: bytes, *, last: bool) -> NDArray[np.uint8]:
        """``data`` at one end of the page."""
        room = self.page[len(self.page) - len(data) :] if last else self.page[: len(data)]
        room[:] = np.frombuffer(data, np.uint8)
        return room


@pytest.fixture(scope="module")
def fenced() -> Iterator[Fenced]:
    yield Fenced()


def record(
    key: bytes | None, value: bytes | None, deltas: tuple[int, int], headers: bytes = b"\0", attributes: int = 0
) -> bytes:
    """A canonical record."""
    body = bytes([attributes]) + canonical(deltas[0]) + canonical(deltas[1])
    for field in (key, value):
        body += canonical(-1) if field is None else canonical(len(field)) + field
    body += headers
    return canonical(len(body)) + body


def agree(data: NDArray[np.uint8], end: int | None = None) -> bool:
    """Both quick readings say nothing, or what ``read_record`` says; whether the record was read quickly."""
    bounds, quick, slow = read_all(np.uintp(data.ctypes.data), data, 0, len(data) if end is None else end)
    if quick[0]:
        stop, timestamp_delta, offset_delta, tail, key_at, key_size, value_size = quick
        assert (stop, timestamp_delta, offset_delta, key_at, key_size, value_size) == slow
        assert tail == key_at - len(canonical(int(key_size)))
        assert bounds == (stop, offset_delta)
    if bounds[0] and slow[0] > 0:
        assert bounds == (slow[0], slow[2])
    return bool(quick[0])


@given(_VALUES)
def test_a_short_varint_is_what_varint_reads(value: int) -> None:
    data = np.zeros(16, np.uint8)
    size = put_varlong(data, 0, value)
    assert varint(data, 0, 16) == (value, size)
    found, taken = short_varint(data[:8].view(np.uint64)[0])
    assert taken == (size if size <= 3 else 0)
    assert found == value or not taken


@pytest.mark.parametrize("raw", [b"\x80\x00", b"\x82\x80\x00", b"\x80\x80\x80\x00", b"\xff\xff\xff\x01"])
def test_a_varint_longer_than_necessary_is_left_to_the_slow_reader(raw: bytes) -> None:
    assert short_varint(np.frombuffer(raw.ljust(8, b"\x55"), np.uint64)[0])[1] == 0


_FIELDS = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=60, max_size=300))


@given(
    key=_FIELDS,
    value=_FIELDS,
    deltas=st.tuples(_VALUES, st.integers(0, 2**20 - 1)),
    rest=st.binary(max_size=30),
    last=st.booleans(),
)
def test_records_of_the_common_form_are_read_by_the_fast_reader(
    fenced: Fenced, key: bytes | None, value: bytes | None, deltas: tuple[int, int], rest: bytes, last: bool
) -> None:
    data = record(key, value, deltas)
    quick = agree(fenced.place(data + rest, last=last))
    if len(canonical(deltas[0])) <= 3 and len(data + rest) >= 18 and len(rest) >= 8:
        assert quick


@given(
    data=st.builds(
        record,
        _FIELDS,
        _FIELDS,
        st.tuples(_VALUES, _VALUES),
        st.sampled_from((b"\0", b"\2\2a\1", b"\1", b"")),
        st.integers(0, 3),
    ),
    at=st.integers(0, 30),
    byte=st.integers(0, 255),
    cut=st.integers(0, 60),
    last=st.booleans(),
)
def test_both_readers_agree_on_damaged_records_and_stay_in_bounds(
    fenced: Fenced, data: bytes, at: int, byte: int, cut: int, last: bool
) -> None:
    changed = bytearray(data)
    changed[at % len(changed)] = byte
    cut = min(cut, len(changed))
    agree(fenced.place(bytes(changed), last=last), len(changed) - cut)
    agree(fenced.place(bytes(changed[: len(changed) - cut]), last=last))


@given(st.binary(max_size=64), st.booleans())
def test_both_readers_agree_on_noise(fenced: Fenced, data: bytes, last: bool) -> None:
    agree(fenced.place(data, last=last))
