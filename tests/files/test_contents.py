"""Files are compared with what was written to them."""

from __future__ import annotations

import multiprocessing
import random
from pathlib import Path

import numpy as np
import pytest

from compaction.errors import StorageError
from compaction.files import read_counter
from compaction.files.contents import (
    READ_BYTES,
    View,
    borrow_buffer,
    digest_of,
    find_mismatch,
    read_device_blocks,
    read_range,
    return_buffer,
    verify_file,
    view,
)
from compaction.files.filesystem import FileRange
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentReader, SegmentScan
from tests.dumping.segments import write_segment
from tests.kafka.encode import Batch, Record

FS = LocalFileSystem()
MISMATCHES = [
    (b"abc", None),
    (b"abd", "other bytes than were written"),
    (b"ab", "2 bytes, 3 were written"),
    (b"abcd", "more than 3 bytes"),
    (b"", "0 bytes, 3 were written"),
]


@pytest.mark.parametrize(("content", "expected"), MISMATCHES)
def test_a_difference_in_size_or_bytes_is_found(tmp_path: Path, content: bytes, expected: str | None) -> None:
    (tmp_path / "file").write_bytes(content)
    assert find_mismatch(FS, str(tmp_path / "file"), digest_of(b"abc")) == expected


def test_a_mismatch_is_an_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abd")
    with pytest.raises(StorageError, match=f"{tmp_path}/file: output is read back otherwise than it was written: other bytes"):
        verify_file(FS, str(tmp_path / "file"), digest_of(b"abc"))


@pytest.mark.parametrize("size", [0, 1, 4097, READ_BYTES, READ_BYTES + 5])
def test_the_device_blocks_are_the_content(tmp_path: Path, size: int) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert b"".join(block.tobytes() for block in read_device_blocks(FS, str(tmp_path / "file"))) == content[:size]


def test_a_byte_range_is_read_in_blocks(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    blocks = read_range(FS, FileRange(str(tmp_path / "file"), 2, 7), block_bytes=3)
    assert [bytes(block) for block in blocks] == [b"234", b"567", b"8"]


def test_a_byte_range_past_the_end_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with pytest.raises(StorageError, match="at byte 10: file was truncated while it was read"):
        list(read_range(FS, FileRange(str(tmp_path / "file"), 8, 4)))


def test_a_returned_buffer_is_reused() -> None:
    buffer = borrow_buffer()
    return_buffer(buffer)
    assert borrow_buffer() is buffer
    assert buffer.ctypes.data % 4096 == 0


@pytest.mark.parametrize("seed", range(5))
def test_batches_are_found_through_windows_as_in_a_local_file(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([1, 100, 40_000, 70_000, 200_000]) for _ in range(60)]
    batches = [Batch([Record(i, 0, b"k", bytes(size))]).encode() for i, size in enumerate(sizes)]
    whole = b"".join(batches) + chance.choice([b"", bytes(30), batches[0][:-1], b"\xff" * 100])
    (tmp_path / "segment").write_bytes(whole)
    ranged = View("far", lambda start, length: whole[start : start + length], len(whole))
    near = SegmentScan(view(LocalFileSystem(), str(tmp_path / "segment")), check_crc=True)
    far = SegmentScan(ranged, check_crc=True)
    rows = [np.concatenate(list(scan)) for scan in (near, far)]
    assert np.array_equal(rows[0], rows[1])
    ends = [(scan.position, scan.error, scan.next_offset, scan.complete) for scan in (near, far)]
    assert ends[0] == ends[1]
    assert near.damage() == far.damage()


def test_slices_can_be_sliced() -> None:
    data = bytes(range(256)) * 1000
    ranged = View("far", lambda start, length: data[start : start + length], len(data))
    assert ranged[1000:][5:20].tobytes() == data[1005:1020]
    assert len(ranged[10:5]) == 0
    assert ranged[-3:].tobytes() == data[-3:]
    assert ranged[300_000:].tobytes() == b""
    assert ranged.any() and not ranged[0:1].any()


def test_a_file_truncated_after_the_view_was_made_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    found = view(LocalFileSystem(), str(path))
    path.write_bytes(b"0123")
    with pytest.raises(StorageError, match="at byte 4: file was truncated while it was read"):
        found.tobytes()


@pytest.mark.parametrize("last", [b"", b"x"])
def test_the_holes_of_a_file_are_not_read_to_find_a_byte(tmp_path: Path, last: bytes) -> None:
    path = tmp_path / "segment"
    with path.open("wb") as file:
        file.write(b"data")
        # it would take minutes to read
        file.seek(1 << 40)
        file.write(last)
        file.truncate((1 << 40) + 4096)
    assert view(LocalFileSystem(), str(path))[4:].any() == bool(last)


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory of counts, which this process knows."""
    directory = tmp_path / "counts"
    directory.mkdir()
    monkeypatch.setenv(read_counter.VARIABLE, str(directory))
    return str(directory)


def test_blocks_count_before_the_segment_is_read(tmp_path: Path, counts: str) -> None:
    made = write_segment(tmp_path / "long-0", batches=100)
    size = made.path.stat().st_size
    with SegmentReader(LocalFileSystem(), str(made.path), 0, size, block_bytes=size // 4) as reader:
        blocks = reader.blocks(check_crc=True)
        next(blocks)
        next(blocks)
        assert 0 < read_counter.total(counts) < size
        assert list(blocks)
    assert read_counter.total(counts) == size


def test_each_process_has_its_own_count_also_if_it_was_forked(counts: str) -> None:
    read_counter.count(10)
    forked = multiprocessing.get_context("fork").Process(target=read_counter.count, args=(5,))
    forked.start()
    forked.join()
    read_counter.count(1)
    assert read_counter.total(counts) == 16


def test_a_count_that_cannot_be_written_is_no_error(counts: str) -> None:
    Path(counts).rmdir()
    read_counter.count(10)
    assert read_counter.total(counts) == 0


def test_nothing_is_counted_unless_somebody_wants_to_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(read_counter.VARIABLE, raising=False)
    read_counter.count(10)
    assert list(tmp_path.iterdir()) == []
