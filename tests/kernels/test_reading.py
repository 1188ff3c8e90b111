"""Integers, varints, UTF-8 and words at any address, batches and records are read as by plain Python, from any byte range, and
every kind of damage is found. ``tests/scenarios/test_drawn.py`` depends on every field of a batch's row, and compares the map
that is built of valid records; ``tests/dumping`` their fields."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from compaction.files.contents import View, view
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentScan
from compaction.formats.record_batch import HEADER_SIZE
from compaction.kernels.batches import IO_ERROR, crc32, header_buffer, last_record_offsets, scan_batches, walk_headers
from compaction.kernels.bytes import (
    BAD_VARINT,
    be16,
    be32,
    be64,
    is_utf8,
    put_varlong,
    short_varint,
    varint,
    varlong,
    varlong_size,
)
from compaction.kernels.columns import HEADERS, measure_records
from compaction.kernels.compiling import (
    crc32c,
    load8,
    load64,
    load_be16,
    load_be32,
    load_be64,
    load_crc32c,
    store16,
    store32,
    store64,
)
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
from compaction.kernels.tables import BATCH_ROW, EMPTY_CONTROL
from tests.kafka.encode import ABORT, COMMIT, Batch, Legacy, Producer, Record, marker
from tests.kafka.encode import varint as shortest
from tests.kernels.tables import Blocks, Fenced, as_array, random_segment, scanned
from tests.oracle.logs import LogBuilder, Sent
from tests.oracle.oddities import padded
from tests.oracle.random_logs import Flavour
from tests.oracle.records import HEADER

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
EDGES = [edge + step for power in range(0, 64, 7) for edge in (2**power // 2, -(2**power) // 2) for step in (-1, 0, 1)]


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
def test_unterminated_varints_are_rejected(read: Callable[..., Any], longest: int) -> None:
    endless = as_array(b"\x80" * longest + b"\0")
    assert read(endless, 0, len(endless))[1] == BAD_VARINT
    for end in range(longest):
        assert read(endless, 0, end)[1] == BAD_VARINT
    assert read(as_array(b"\x80" * (longest - 1) + b"\0"), 0, longest)[1] == longest


def test_superfluous_bits_of_the_last_byte_are_dropped() -> None:
    assert varint(as_array(b"\xff\xff\xff\xff\x7f"), 0, 5) == (-(2**31), 5)
    assert varlong(as_array(b"\xff" * 9 + b"\x7f"), 0, 10) == (-(2**63), 10)


def naive_utf8(data: bytes) -> bool:
    return data.decode(errors="ignore").encode() == data


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


@pytest.mark.parametrize("bits", [16, 32, 64])
@given(value=INT64, at=st.integers(0, 9))
def test_the_low_bytes_are_stored_big_endian_and_nothing_else(bits: int, value: int, at: int) -> None:
    data = np.full(20, 0xAA, np.uint8)
    stored(data, at, bits, value)
    low = struct.pack(">q", value)[-bits // 8 :]
    assert data.tobytes() == b"\xaa" * at + low + b"\xaa" * (20 - at - len(low))


@njit
def loaded(data, at):  # type: ignore[no-untyped-def]
    """What is read at ``data[at:]``: integers of two, four and eight bytes, the word, and the byte."""
    address = np.uintp(data.ctypes.data + at)
    return (load_be16(address), load_be32(address), load_be64(address)), load64(address), load8(address)


@given(st.binary(min_size=20, max_size=20), st.integers(0, 12))
def test_integers_are_read_big_endian_with_their_sign_and_words_little_endian(data: bytes, at: int) -> None:
    array = as_array(data)
    integers = tuple(int.from_bytes(data[at : at + size], "big", signed=True) for size in (2, 4, 8))
    assert (be16(array, at), be32(array, at), be64(array, at)) == integers
    found, word, byte = loaded(array, at)
    assert (found, int(word), int(byte)) == (integers, int.from_bytes(data[at : at + 8], "little"), data[at])


#: where a file is past what an int32 counts
FAR = 2**31 + 4096
ALL_MAGICS = Flavour(batches=40, odd=0.3, magics=(0, 1, 2), codecs=(0, 1, 2))


@given(st.binary(max_size=80), st.integers(0, 20))
def test_checksums_equal_those_of_their_libraries(data: bytes, start: int) -> None:
    # as the first kernel of a process does: this function is not a kernel of the package
    load_crc32c()
    start = min(start, len(data))
    array = as_array(data + b"tail")
    assert crc32(array, start, len(data)) == zlib.crc32(data[start:])
    assert crc32c_of(array, start, len(data)) == google_crc32c.value(data[start:])


@njit
def crc32c_of(data, start, end):  # type: ignore[no-untyped-def]
    """The kernels' CRC-32C, which only compiled code can call."""
    return crc32c(np.uintp(data.ctypes.data + start), np.uintp(end - start))


@pytest.mark.parametrize("seed", range(4))
def test_a_byte_range_that_ends_anywhere_gives_its_complete_batches(seed: int) -> None:
    segment = random_segment(seed, ALL_MAGICS)
    log, ends = as_array(segment.log), {batch.position + len(batch.raw): batch for batch in segment.batches}
    whole = 0
    for end in range(len(log) + 1):
        whole += end in ends
        found = scan_batches(log[:end], FAR, check_crc=True)
        assert (len(found.rows), found.error) == (whole, None)
        if end - found.consumed >= 17:
            batch = segment.batches[whole]
            assert found.need == len(batch.raw)
        assert found.rows["position"].tolist() == [FAR + batch.position for batch in segment.batches[:whole]]


def test_a_full_table_ends_the_scan() -> None:
    segment = random_segment(0)
    table = np.empty(3, BATCH_ROW)
    first = scan_batches(as_array(segment.log), 0, check_crc=True, rows=table)
    assert (len(first.rows), first.error, first.consumed) == (3, None, segment.batches[3].position)


ONE = Batch(
    [Record(5, 1_000, b"a", b"1"), Record(6, 1_000, b"b", b"2")], producer_id=1, producer_epoch=0, base_sequence=0
).encode()


def changed(at: int, code: str, value: int) -> bytes:
    """``ONE`` with another value of a field, and with its checksum."""
    raw = bytearray(ONE)
    struct.pack_into(code, raw, at, value)
    raw[17:21] = struct.pack(">I", google_crc32c.value(bytes(raw[21:])))
    return bytes(raw)


@pytest.mark.parametrize("at", range(HEADER_SIZE + 4))
def test_any_flipped_byte_after_the_length_is_detected(at: int) -> None:
    raw = bytearray(ONE)
    raw[at] ^= 0x04
    found = scan_batches(as_array(bytes(raw)), 7, check_crc=True)
    if at in (16,):
        assert found.error == "batch has an unknown magic"
    elif 8 <= at < 12:
        assert not len(found.rows)
    elif at < 8 or 12 <= at < 16:
        # offset and leader epoch lie outside of the checksum: a broker sets them without touching the rest
        assert found.error in (None, "batch has impossible offsets")
    else:
        assert (found.error, found.consumed) == ("batch fails its CRC", 0)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        pytest.param(changed(8, ">i", 13), "batch has an impossible length", id="shorter than a message"),
        pytest.param(changed(8, ">i", -1), "batch has an impossible length", id="negative length"),
        pytest.param(changed(8, ">i", 40), "batch has an impossible length", id="shorter than a header"),
        pytest.param(changed(16, ">b", 3), "batch has an unknown magic", id="magic 3"),
        pytest.param(changed(16, ">b", -1), "batch has an unknown magic", id="magic -1"),
        pytest.param(changed(0, ">q", -1), "batch has impossible offsets", id="negative base offset"),
        pytest.param(changed(0, ">q", 2**63 - 1), "batch has impossible offsets", id="last offset over 64 bits"),
        pytest.param(changed(23, ">i", -1), "batch has impossible offsets", id="negative last offset delta"),
        pytest.param(changed(57, ">i", -1), "batch has an impossible record count", id="negative count"),
        pytest.param(changed(57, ">i", 2**31 - 1), "batch has an impossible record count", id="more records than bytes"),
        pytest.param(changed(21, ">h", 0x30), "control batch has no readable control record", id="data said to be control"),
    ],
)
@pytest.mark.parametrize("after", [b"", ONE, bytes(17)], ids=["last", "more batches", "zeros"])
def test_impossible_batches_are_reported_with_their_position(raw: bytes, error: str, after: bytes) -> None:
    found = scan_batches(as_array(ONE + raw + after), 100, check_crc=True)
    assert (len(found.rows), found.error, found.consumed) == (1, error, len(ONE))


def test_a_batch_may_have_more_records_than_offsets() -> None:
    scan = scan_batches(as_array(changed(57, ">i", 3)), 0, check_crc=True)
    assert (scan.error, scan.rows["last_offset"].tolist(), last_record_offsets(scan.rows).tolist()) == (None, [6], [7])


@pytest.mark.parametrize("magic", [0, 1])
def test_corrupt_messages_of_magic_0_and_1_are_detected(magic: int) -> None:
    log = LogBuilder()
    log.legacy([Sent(b"key", b"value")], magic)
    (segment,) = log.build()
    for at in range(12, len(segment.log)):
        raw = bytearray(segment.log)
        raw[at] ^= 0x40
        expected = "batch has an unknown magic" if at == 16 else "batch fails its CRC"
        assert scan_batches(as_array(bytes(raw)), 0, check_crc=True).error == expected
        assert (scan_batches(as_array(bytes(raw)), 0, check_crc=False).error is None) == (at != 16)


@pytest.mark.parametrize(
    ("kind", "empty", "found"),
    [
        (ABORT, True, EMPTY_CONTROL),
        *((kind, False, kind) for kind in (0, 1, 2, 6, 300, 2**15 - 1)),
        # none that Kafka knows
        *((kind, False, 2**15 - 1) for kind in (-1, -2, -3, -(2**15))),
    ],
)
def test_the_type_of_a_control_batch_is_read(kind: int, empty: bool, found: int) -> None:
    log = LogBuilder()
    log.marker(3, kind, empty=empty)
    (row,) = scan_batches(as_array(log.build()[0].log), 0, check_crc=True).rows
    assert row["control_type"] == found


def forged(length: int) -> bytes:
    """A batch whose length field lies."""
    return ONE[:8] + struct.pack(">i", length) + ONE[12:]


@pytest.mark.parametrize("position", [0, FAR])
@pytest.mark.parametrize("length", [2**31 - 1, 2**31 - 12, 2**31 - 13, -1, 0, -(2**31)])
def test_a_wrong_length_is_an_error_or_a_partial_batch(position: int, length: int) -> None:
    found = scan_batches(as_array(forged(length)), position, check_crc=False)
    expected = (None, length + 12) if length > 0 else ("batch has an impossible length", 0)
    assert (len(found.rows), found.consumed, found.error, found.need) == (0, 0, *expected)


@pytest.mark.parametrize("start", [0, FAR])
@pytest.mark.parametrize("length", [2**31 - 1, 2**31 - 12])
def test_a_size_past_an_int32_does_not_wrap_in_a_file_that_has_room_for_it(tmp_path: Path, start: int, length: int) -> None:
    """Such a row's size was negative, so that a walk over the file went backwards for ever."""
    path = tmp_path / "segment"
    with path.open("wb") as file:
        file.seek(start)
        file.write(forged(length))
        file.truncate(start + 2**31 + 100)
    scan = SegmentScan(view(LocalFileSystem(), str(path)), start)
    assert list(scan) == []
    assert (scan.error or "").startswith("batch ") and scan.position == start


def batches(chance: random.Random) -> list[bytes]:
    """Large and small ones of every kind."""
    made: list[bytes] = []
    for base in range(0, 40 * 4, 4):
        size = chance.choice([1, 100, 5_000, 9_000, 70_000])
        record = Record(base, 1_000 + base, b"k", bytes(size))
        kind = chance.random()
        if kind < 0.1:
            made.append(Legacy([record], chance.choice([0, 1])).encode())
        elif kind < 0.3:
            made.append(marker(base, 1_000, Producer(7), chance.choice([ABORT, COMMIT])))
        else:
            made.append(Batch([record], producer_id=3, producer_epoch=0, base_sequence=base).encode())
    return made


@pytest.mark.parametrize("seed", range(12))
def test_reading_headers_only_gives_the_same_rows_as_reading_all_bytes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(b"".join(batches(chance)))
    harm = chance.choice(["none", "cut", "turned", "zeros"])
    if harm == "cut":
        del data[chance.randrange(len(data)) :]
    elif harm == "turned":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif harm == "zeros":
        data += bytes(500)
    path = tmp_path / "segment"
    path.write_bytes(data)
    plain = View("plain", lambda start, length: bytes(data[start : start + length]), len(data))
    near, far = SegmentScan(view(LocalFileSystem(), str(path))), SegmentScan(plain)
    found = [np.concatenate([np.empty(0, BATCH_ROW), *scan]) for scan in (near, far)]
    assert found[0].tolist() == found[1].tolist()
    assert (near.position, near.error, near.next_offset) == (far.position, far.error, far.next_offset)
    assert near.damage() == far.damage()


def test_headers_of_a_byte_range_are_read_from_its_start(tmp_path: Path) -> None:
    first, second = (Batch([Record(base, 0, b"k", bytes(90_000))]).encode() for base in (0, 1))
    (tmp_path / "segment").write_bytes(first + second)
    whole = view(LocalFileSystem(), str(tmp_path / "segment"))
    rows = np.concatenate(list(SegmentScan(whole[len(first) :])))
    assert rows["position"].tolist() == [0]
    assert rows["base_offset"].tolist() == [1]


def test_an_unreadable_file_gives_an_error_code_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(Batch([Record(0, 0, b"k", bytes(9_000))]).encode())
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    path.write_bytes(b"short")
    assert walk_headers(descriptor, 0, size, header_buffer(), np.empty(4, BATCH_ROW)) == (0, 0, IO_ERROR)
    os.close(descriptor)
    assert walk_headers(descriptor, 0, size, header_buffer(), np.empty(4, BATCH_ROW)) == (0, 0, IO_ERROR)


def scanned_records(blocks: Blocks, room: int) -> tuple[int, ...]:
    """What ``scan_records`` says of the records of a batch, with room for so many of them."""
    entries: NDArray[np.uint64] = np.empty((room, 3), np.uint64)
    args = (*blocks, np.zeros(1, np.uint8), 0, 0, entries, entries.copy())
    found: tuple[int, ...] = scan_records(*args, np.zeros(1, np.int32), np.zeros(2, np.int64), UNHASHED)
    return found


def test_buffers_too_small_for_one_batch_make_no_progress() -> None:
    assert scanned_records(scanned(ONE), 1) == (0, 0, 0, OK)


def batch_of(body: bytes, count: int, last_offset: int = 10) -> Blocks:
    """A batch at offset 0 whose records are these bytes, whatever they are."""
    rows = np.zeros(1, BATCH_ROW)
    rows["count"], rows["last_offset"], rows["magic"] = count, last_offset, 2
    spans = np.array([[HEADER.size, HEADER.size + len(body), 0]], np.int64)
    return Blocks(as_array(bytes(HEADER.size) + body), np.empty(0, np.uint8), rows, spans)


def record(*, delta: int = 0, body: bytes | None = None, length: int | None = None) -> bytes:
    body = b"\0" + shortest(0) + shortest(delta) + b"\x02k\x02v\0" if body is None else body
    return shortest(len(body) if length is None else length) + body


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
        pytest.param(record(body=b"\0\0\0" + shortest(100) + b"k\x02v\0"), 1, BAD_RECORD, id="key past the record"),
        pytest.param(record(body=b"\0\0\0\x02k" + shortest(2**31 - 1) + b"v\0"), 1, BAD_RECORD, id="value past the record"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v"), 1, BAD_RECORD, id="no header count"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x01"), 1, BAD_RECORD, id="negative header count"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02"), 1, BAD_RECORD, id="a header that is not there"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02\x01\x01"), 1, BAD_RECORD, id="a header without a name"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02\x02n\x01"), 1, OK, id="a header without a value"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v\x02\x02n\x04v"), 1, BAD_RECORD, id="a header value past the record"),
        pytest.param(record(body=b"\0\0\0\x02k\x02v" + shortest(2**31 - 1)), 1, BAD_RECORD, id="headers without end"),
        pytest.param(record(body=b"\0" + b"\x80" * 10 + b"\0\0\x02k\x02v\0"), 1, BAD_RECORD, id="timestamp without end"),
        pytest.param(record(body=b"\0\0" + b"\x80" * 5 + b"\0\x02k\x02v\0"), 1, BAD_RECORD, id="offset without end"),
        pytest.param(record(body=b"\0\0\0\x01\x01\0"), 1, OK, id="neither key nor value"),
        pytest.param(record(body=b"\0\0\0\x09\x09\0"), 1, OK, id="sizes below -1 are null"),
    ],
)
def test_malformed_records_give_their_error(body: bytes, count: int, error: int) -> None:
    blocks = batch_of(body, count)
    next_at, *_, found = scanned_records(blocks, 4)
    assert (found, next_at) == (error, 1 if error == OK else 0)
    limits = np.array((-1, 2**63 - 1, -(2**63), 2**63 - 1), np.int64)
    sizes = np.empty(1, np.int32), np.zeros(6, np.int64)
    # columns do not depend on the order of offsets
    assert measure_records(*blocks, limits, HEADERS, *sizes)[1] == (OK if error == OFFSET_ORDER else error)


@pytest.mark.parametrize("seed", range(6))
def test_a_truncated_batch_is_not_read_past_its_end(seed: int) -> None:
    """Every shorter stretch of a batch's records is refused; what lies behind it would read as records."""
    blocks = scanned(random_segment(seed).log)
    row = int(np.argmax(blocks.rows["count"]))
    start, end, where = blocks.spans[row].tolist()
    for cut in range(start, end):
        one = blocks._replace(rows=blocks.rows[row : row + 1], spans=np.array([[start, cut, where]], np.int64))
        assert scanned_records(one, int(blocks.rows["count"][row]))[3] != OK


_VALUES = st.one_of(
    st.integers(-70, 70), st.integers(-(2**15), 2**15), st.integers(-(2**22), 2**22), st.integers(-(2**31), 2**31 - 1)
)


@njit
def read_all(address, data, at, end):  # type: ignore[no-untyped-def]
    return quick_bounds(address, at, end), quick_record(address, at, end), read_record(data, at, end)


@pytest.fixture(scope="module")
def fenced() -> Fenced:
    return Fenced()


def common_record(
    key: bytes | None, value: bytes | None, deltas: tuple[int, int], headers: bytes = b"\0", attributes: int = 0
) -> bytes:
    """A canonical record."""
    body = bytes([attributes]) + shortest(deltas[0]) + shortest(deltas[1])
    for field in (key, value):
        body += shortest(-1) if field is None else shortest(len(field)) + field
    body += headers
    return shortest(len(body)) + body


def agree(data: NDArray[np.uint8], end: int | None = None) -> bool:
    """Both quick readings say nothing, or what ``read_record`` says; whether the record was read quickly."""
    bounds, quick, slow = read_all(np.uintp(data.ctypes.data), data, 0, len(data) if end is None else end)
    if quick[0]:
        stop, timestamp_delta, offset_delta, tail, key_at, key_size, value_size = quick
        assert (stop, timestamp_delta, offset_delta, key_at, key_size, value_size) == slow
        assert tail == key_at - len(shortest(int(key_size)))
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
    if len(shortest(deltas[0])) <= 3 and len(data + rest) >= 18 and len(rest) >= 8:
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
