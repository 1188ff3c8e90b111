"""Malformed and truncated records are rejected, and no byte outside of them is read; the fast reader and the slow one agree.
``tests/scenarios/test_drawn.py`` compares the map that is built of valid ones, ``tests/dumping`` their fields."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from compaction.kernels.batches import scan_batches
from compaction.kernels.bytes import put_varlong, short_varint, varint
from compaction.kernels.keys import UNHASHED
from compaction.kernels.messages import plain_messages
from compaction.kernels.records import (
    BAD_RECORD,
    OFFSET_ORDER,
    OK,
    RECORDS_MISSING,
    RECORDS_REMAINING,
    quick_bounds,
    quick_record,
    read_record,
    scan_records,
)
from compaction.kernels.tables import BATCH_ROW
from tests.kafka.encode import Legacy, Record
from tests.kafka.encode import varint as canonical
from tests.kernels.tables import Blocks, as_array, random_segment, scanned
from tests.oracle.logs import LogBuilder, Sent
from tests.oracle.records import HEADER


def test_buffers_too_small_for_one_batch_make_no_progress() -> None:
    log = LogBuilder()
    log.batch([Sent(b"a", b"1"), Sent(b"b", b"2")])
    blocks = scanned(log.build()[0].log)
    room: NDArray[np.uint64] = np.empty((1, 3), np.uint64)
    args = (blocks.raw, blocks.scratch, blocks.rows, blocks.spans, np.zeros(1, np.uint8), 0, 0, room, room.copy())
    assert scan_records(*args, np.zeros(1, np.int32), np.zeros(2, np.int64), UNHASHED) == (0, 0, 0, OK)


def one_batch(body: bytes, count: int, last_offset: int = 10) -> Blocks:
    """A batch at offset 0 whose records are these bytes, whatever they are."""
    rows = np.zeros(1, BATCH_ROW)
    rows["count"], rows["last_offset"], rows["magic"] = count, last_offset, 2
    spans = np.array([[HEADER.size, HEADER.size + len(body), 0]], np.int64)
    return Blocks(as_array(bytes(HEADER.size) + body), np.empty(0, np.uint8), rows, spans)


def record(*, delta: int = 0, body: bytes | None = None, length: int | None = None) -> bytes:
    body = b"\0" + canonical(0) + canonical(delta) + b"\x02k\x02v\0" if body is None else body
    return canonical(len(body) if length is None else length) + body


@pytest.mark.parametrize(
    ("body", "count", "error"),
    [
        pytest.param(record(), 1, OK, id="sound"),
        pytest.param(record() + record(delta=1), 1, RECORDS_REMAINING, id="a record too many"),
        pytest.param(record() + b"\0", 1, RECORDS_REMAINING, id="a byte too many"),
        pytest.param(record(), 2, RECORDS_MISSING, id="a record too few"),
        pytest.param(b"", 1, RECORDS_MISSING, id="no bytes"),
        pytest.param(record() + record(), 2, OFFSET_ORDER, id="the same offset twice"),
        pytest.param(record(delta=2) + record(delta=1), 2, OFFSET_ORDER, id="offsets that fall"),
        pytest.param(record(delta=-1), 1, OFFSET_ORDER, id="an offset below the base"),
        pytest.param(record(delta=11), 1, OFFSET_ORDER, id="an offset past the batch's last"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\0\0"), 1, BAD_RECORD, id="longer than its fields"),
        pytest.param(record(length=7), 1, BAD_RECORD, id="shorter than its fields"),
        pytest.param(record(length=9), 1, BAD_RECORD, id="longer than the batch"),
        pytest.param(record(length=-1), 1, BAD_RECORD, id="negative length"),
        pytest.param(record(length=0), 1, BAD_RECORD, id="no attributes"),
        pytest.param(record(length=2**31 - 1), 1, BAD_RECORD, id="length past the batch"),
        pytest.param(record(body=b"\0\0\0" + canonical(100) + b"k\x02v\0"), 1, BAD_RECORD, id="key past the record"),
        pytest.param(record(body=b"\0\0\0\x02k" + canonical(2**31 - 1) + b"v\0"), 1, BAD_RECORD, id="value past the record"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v"), 1, BAD_RECORD, id="no header count"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x01"), 1, BAD_RECORD, id="negative header count"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02"), 1, BAD_RECORD, id="a header that is not there"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02\x01\x01"), 1, BAD_RECORD, id="a header without a name"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02\x02n\x01"), 1, OK, id="a header without a value"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02\x02n\x04v"), 1, BAD_RECORD, id="a header value past the record"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v" + canonical(2**31 - 1)), 1, BAD_RECORD, id="headers without end"),
        pytest.param(record(body=b"\0" + b"\x80" * 10 + b"\0\0\x02k\x02v\0"), 1, BAD_RECORD, id="timestamp without end"),
        pytest.param(record(body=b"\0\0" + b"\x80" * 5 + b"\0\x02k\x02v\0"), 1, BAD_RECORD, id="offset without end"),
        pytest.param(record(body=b"\0\0\0\x01\x01\0"), 1, OK, id="neither key nor value"),
        pytest.param(record(body=b"\0\0\0\x09\x09\0"), 1, OK, id="sizes below -1 are null"),
    ],
)
def test_malformed_records_give_their_error(body: bytes, count: int, error: int) -> None:
    blocks = one_batch(body, count)
    room = np.empty((4, 3), np.uint64)
    args = (blocks.raw, blocks.scratch, blocks.rows, blocks.spans, np.zeros(1, np.uint8), 0, 0, room, room.copy())
    next_at, *_, found = scan_records(*args, np.zeros(1, np.int32), np.zeros(2, np.int64), UNHASHED)
    assert (found, next_at) == (error, 1 if error == OK else 0)


@pytest.mark.parametrize("seed", range(6))
def test_a_truncated_batch_is_not_read_past_its_end(seed: int) -> None:
    """Every shorter stretch of a batch's records is refused; what lies behind it would read as records."""
    blocks = scanned(random_segment(seed).log)
    row = int(np.argmax(blocks.rows["count"]))
    start, end, where = blocks.spans[row].tolist()
    room = np.empty((int(blocks.rows["count"][row]), 3), np.uint64)
    for cut in range(start, end):
        spans = np.array([[start, cut, where]], np.int64)
        args = (blocks.raw, blocks.scratch, blocks.rows[row : row + 1], spans, np.zeros(1, np.uint8), 0, 0, room, room.copy())
        assert scan_records(*args, np.zeros(1, np.int32), np.zeros(2, np.int64), UNHASHED)[3] != OK


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


def common_record(
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
    data = common_record(key, value, deltas)
    quick = agree(fenced.place(data + rest, last=last))
    if len(canonical(deltas[0])) <= 3 and len(data + rest) >= 18 and len(rest) >= 8:
        assert quick


@given(
    data=st.builds(
        common_record,
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


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    ("field", "value"), [("key", -2), ("key", 9), ("key", 2**31 - 1), ("value", -2), ("value", 4), ("value", 6)]
)
def test_lengths_that_contradict_the_size_are_rejected(magic: int, field: str, value: int) -> None:
    raw = bytearray(Legacy([Record(7, 1_000, b"key", b"value")], magic).encode())
    key_at = 26 if magic else 18
    struct.pack_into(">i", raw, key_at if field == "key" else key_at + 7, value)
    data = as_array(bytes(raw))
    rows = scan_batches(data, 0, check_crc=False).rows.copy()
    done, ok = plain_messages(data, 0, rows, 0, np.empty(500, np.uint8), np.zeros((1, 3), np.int64))
    assert (done, ok) == (0, False)
