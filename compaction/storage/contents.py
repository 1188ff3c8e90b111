"""Verifies that a file on the device has the content that was written to it.

A run keeps size and content hash of every file that it writes: XXH3-128, as it guards against accidents, not against forgery.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from compaction.errors import StorageError
from compaction.storage.filesystem import File, FileRange, ReadableFileSystem, read_full, truncated

#: a multiple of every device's block size
READ_BYTES = 2 << 20
_MAX_SPARE = 16
#: read-ahead of a task
RANGE_BYTES = 8 << 20
_RANGES_AHEAD = 2


class FileDigest(NamedTuple):
    """Size and content hash of a file, or of a part of a joined one: ``digest`` is the XXH3-128 of its ``size`` bytes, in hex.

    ``kind`` is the file's suffix (``.log``, ``.index``, …); ``mtime_ns`` is the modification time when it was read back, which
    any later write changes.
    """

    kind: str
    size: int
    digest: str
    mtime_ns: int = 0


def digest_of(data: bytes) -> FileDigest:
    return FileDigest("", len(data), xxhash.xxh3_128_hexdigest(data))


def verify_file(files: ReadableFileSystem, path: str, written: FileDigest) -> None:
    """Read a file back from the device and compare it with what was written.

    :raises StorageError: the content differs
    """
    if (problem := find_mismatch(files, path, written)) is not None:
        raise read_back_error(path, problem)


def find_mismatch(files: ReadableFileSystem, path: str, written: FileDigest) -> str | None:
    """How a file on the device differs from what was written; ``None`` if it does not.

    :raises StorageError: it cannot be read
    """
    content, size = xxhash.xxh3_128(), 0
    for data in read_device_blocks(files, path):
        content.update(data)
        size += len(data)
        if size > written.size:
            break
    if size != written.size:
        return f"{size} bytes, {written.size} were written" if size < written.size else f"more than {written.size} bytes"
    return None if content.hexdigest() == written.digest else "other bytes than were written"


def read_back_error(path: str, problem: str) -> StorageError:
    hint = "the log was left as it was; check the disk, its controller and the memory before anything else"
    return StorageError(f"output is read back otherwise than it was written: {problem}", path=path, hint=hint)


def read_device_blocks(files: ReadableFileSystem, path: str) -> Iterator[NDArray[np.uint8]]:
    """The content of a file read from the device, in uint8 blocks, each valid until the next; its size is that at opening.

    :raises StorageError: it cannot be read
    """
    source = files.open(path, 0, 2**63 - 1, uncached=True)
    buffer = borrow_buffer()
    try:
        size, position = source.size(), 0
        view = memoryview(buffer)[: -(-size // mmap.PAGESIZE) * mmap.PAGESIZE]
        while position < size and (n := source.pread(view, position)):
            yield buffer[:n]
            position += n
    finally:
        return_buffer(buffer)
        source.close()


def read_range(files: ReadableFileSystem, file_range: FileRange, block_bytes: int = READ_BYTES) -> Iterator[memoryview]:
    """The bytes of a byte range in blocks of ``block_bytes`` (the last may be shorter), each valid until the next.

    :raises StorageError: the file is shorter
    """
    end, position = file_range.start + file_range.size, file_range.start
    buffer = memoryview(bytearray(min(file_range.size, block_bytes)))
    with closing(files.open(file_range.path, position, end)) as source:
        while position < end:
            block = buffer[: end - position]
            count = read_full(source, block, position)
            if count < len(block):
                raise truncated(file_range.path, position + count)
            yield block
            position += count


class ReadAhead(File):
    """Reads ``[start, end)`` of a file of a store sequentially, with a few byte ranges of read-ahead. No read begins before the
    position of the previous one."""

    def __init__(self, file: File, start: int, end: int, range_bytes: int = RANGE_BYTES) -> None:
        self._file, self._start, self._end, self._range_bytes = file, start, end, range_bytes
        self._pool = ThreadPoolExecutor(_RANGES_AHEAD)
        #: the ranges from number ``_first`` on, read or in flight
        self._ranges: deque[Future[memoryview]] = deque()
        self._first = 0

    def size(self) -> int:
        return self._file.size()

    def pread(self, view: memoryview, position: int) -> int:
        """Fill ``view`` from ``position``; returns the byte count, which is less at the end only."""
        while self._ranges and self._first < (position - self._start) // self._range_bytes:
            self._ranges.popleft()
            self._first += 1
        filled = 0
        while filled < len(view):
            number, offset = divmod(position + filled - self._start, self._range_bytes)
            data = self._range(number)[offset:][: len(view) - filled]
            if not data:
                break
            view[filled : filled + len(data)] = data
            filled += len(data)
        return filled

    def _range(self, number: int) -> memoryview:
        """The bytes of a range; none past the end."""
        while len(self._ranges) <= number - self._first + _RANGES_AHEAD and self._request_next():
            pass
        index = number - self._first
        return self._ranges[index].result() if index < len(self._ranges) else memoryview(b"")

    def _request_next(self) -> bool:
        start = self._start + (self._first + len(self._ranges)) * self._range_bytes
        length = min(self._range_bytes, self._end - start)
        if length > 0:
            self._ranges.append(self._pool.submit(self._read, start, length))
        return length > 0

    def _read(self, start: int, length: int) -> memoryview:
        data = memoryview(bytearray(length))
        return data[: read_full(self._file, data, start)]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.close()


def borrow_buffer() -> NDArray[np.uint8]:
    """A page-aligned buffer, uint8[READ_BYTES], reused if possible: allocating one takes as long as reading a small file."""
    try:
        return _spare[os.getpid()].pop()
    except (KeyError, IndexError):
        return np.frombuffer(mmap.mmap(-1, READ_BYTES), np.uint8)


def return_buffer(buffer: NDArray[np.uint8]) -> None:
    spare = _spare.setdefault(os.getpid(), [])
    if len(spare) < _MAX_SPARE:
        spare.append(buffer)


#: by process: a fork shares the memory of those of its parent, which may still use them
_spare: dict[int, list[NDArray[np.uint8]]] = {}
