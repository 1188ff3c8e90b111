"""Batch scanning of any byte range, of all bytes and of headers only, checksums against their libraries, and every kind of
damage. ``tests/scenarios/test_drawn.py`` depends on every field of a row."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from compaction.files.contents import View, view
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentScan
from compaction.formats.record_batch import HEADER_SIZE
from compaction.kernels.batches import IO_ERROR, crc32, header_buffer, last_record_offsets, scan_batches, walk_headers
from compaction.kernels.compiling import crc32c, load_crc32c
from compaction.kernels.tables import BATCH_ROW
from tests.kafka.encode import ABORT, COMMIT, Batch, Legacy, Producer, Record, marker
from tests.kernels.tables import as_array, random_segment
from tests.oracle.logs import Batching, LogBuilder, Sent
from tests.oracle.random_logs import Flavour
from tests.oracle.segments import NaiveSegment

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
        found = scan_batches(log[:end], 1000, check_crc=True)
        assert (len(found.rows), found.error) == (whole, None)
        if end - found.consumed >= 17:
            batch = segment.batches[whole]
            assert found.need == len(batch.raw)
        assert found.rows["position"].tolist() == [1000 + batch.position for batch in segment.batches[:whole]]


def test_a_full_table_ends_the_scan() -> None:
    segment = random_segment(0)
    table = np.empty(3, BATCH_ROW)
    first = scan_batches(as_array(segment.log), 0, check_crc=True, rows=table)
    assert (len(first.rows), first.error, first.consumed) == (3, None, segment.batches[3].position)


def one_batch() -> bytearray:
    log = LogBuilder()
    log.skip(5)
    log.batch([Sent(b"a", b"1"), Sent(b"b", b"2")], Batching(producer=1, transactional=True))
    (segment,) = log.build()
    return bytearray(segment.log)


def resealed(raw: bytearray) -> bytearray:
    raw[17:21] = struct.pack(">I", google_crc32c.value(bytes(raw[21:])))
    return raw


def changed(at: int, code: str, value: int) -> bytearray:
    raw = one_batch()
    struct.pack_into(code, raw, at, value)
    return resealed(raw)


@pytest.mark.parametrize("at", range(HEADER_SIZE + 4))
def test_any_flipped_byte_after_the_length_is_detected(at: int) -> None:
    raw = one_batch()
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
@pytest.mark.parametrize("after", [b"", bytes(one_batch()), bytes(17)], ids=["last", "more batches", "zeros"])
def test_impossible_batches_are_reported_with_their_position(raw: bytearray, error: str, after: bytes) -> None:
    before = one_batch()
    found = scan_batches(as_array(bytes(before + raw + after)), 100, check_crc=True)
    assert (len(found.rows), found.error, found.consumed) == (1, error, len(before))


def test_a_batch_may_have_more_records_than_offsets() -> None:
    scan = scan_batches(as_array(bytes(changed(57, ">i", 3))), 0, check_crc=True)
    assert scan.error is None
    base, last = scan.rows["base_offset"][0], scan.rows["last_offset"][0]
    assert last == base + 1
    assert last_record_offsets(scan.rows).tolist() == [base + 2]


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


def control(kind: int, *, empty: bool = False) -> NaiveSegment:
    log = LogBuilder()
    log.marker(3, kind, empty=empty)
    (segment,) = log.build()
    return segment


@pytest.mark.parametrize("kind", [0, 1, 2, 6, 300, 2**15 - 1])
def test_control_types_are_read(kind: int) -> None:
    (row,) = scan_batches(as_array(control(kind).log), 0, check_crc=True).rows
    assert row["control_type"] == kind


@pytest.mark.parametrize("kind", [-1, -2, -3, -(2**15)])
def test_negative_control_types_are_unknown(kind: int) -> None:
    (row,) = scan_batches(as_array(control(kind).log), 0, check_crc=True).rows
    assert row["control_type"] > 6


def test_a_control_batch_without_records_has_its_own_type() -> None:
    (row,) = scan_batches(as_array(control(ABORT, empty=True).log), 0, check_crc=True).rows
    assert row["control_type"] == -2


#: where a file is past what an int32 counts
FAR = 2**31 + 4096


def forged(length: int) -> bytes:
    """A batch whose length field lies."""
    raw = bytearray(Batch([Record(7, 1000, b"k", b"v")]).encode())
    raw[8:12] = struct.pack(">i", length)
    return bytes(raw)


@pytest.mark.parametrize("position", [0, FAR])
@pytest.mark.parametrize(
    ("length", "error", "need"),
    [
        (2**31 - 1, None, 2**31 + 11),
        (2**31 - 12, None, 2**31),
        (2**31 - 13, None, 2**31 - 1),
        (-1, "batch has an impossible length", 0),
        (-(2**31), "batch has an impossible length", 0),
        (0, "batch has an impossible length", 0),
    ],
)
def test_a_wrong_length_is_an_error_or_a_partial_batch(position: int, length: int, error: str | None, need: int) -> None:
    found = scan_batches(as_array(forged(length)), position, check_crc=False)
    assert (len(found.rows), found.consumed, found.error) == (0, 0, error)
    assert found.need == need


def test_positions_beyond_two_gib_are_right() -> None:
    raw = Batch([Record(7, 1000, b"k", b"v")]).encode()
    found = scan_batches(as_array(raw + raw), FAR, check_crc=True)
    assert found.rows["position"].tolist() == [FAR, FAR + len(raw)]


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
