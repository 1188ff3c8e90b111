"""Files are compared with what was written to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files.contents import (
    READ_BYTES,
    borrow_buffer,
    digest_of,
    find_mismatch,
    read_device_blocks,
    read_range,
    return_buffer,
    verify_file,
)
from compaction.files.filesystem import FileRange
from compaction.files.local import LocalFileSystem

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
