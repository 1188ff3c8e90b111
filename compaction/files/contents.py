"""Reads the content of files: in blocks, ahead of the reader, from the device, and by views that read when they are used.

A run keeps size and content hash of every file that it writes, and verifies the file on the device: XXH3-128, as it guards
against accidents, not against forgery. Files are never memory-mapped: see ``local``.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from compaction.errors import StorageError
from compaction.files.filesystem import File, FileRange, ReadableFileSystem, read_full, truncated
from compaction.files.system_calls import data_ranges

#: a multiple of every device's block size
READ_BYTES = 2 << 20
_MAX_SPARE = 16
#: read-ahead of a task
_RANGE_BYTES = 8 << 20
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


def open_range(
    files: ReadableFileSystem, part: FileRange, start: int = 0, end: int | None = None, *, uncached: bool = False
) -> File:
    """Open a byte range of a file like a file of its own; see ``ReadableFileSystem.open``."""
    end = None if end is None else part.start + end
    return _FilePart(files.open(part.path, part.start + start, end, uncached=uncached), part)


class _FilePart(File):
    """A byte range of a file, read like a file of its own."""

    def __init__(self, source: File, file_range: FileRange) -> None:
        self._source, self._range = source, file_range

    def size(self) -> int:
        return max(0, min(self._range.size, self._source.size() - self._range.start))

    def pread(self, view: memoryview, position: int) -> int:
        left = max(0, self._range.size - position)
        return self._source.pread(view[:left], self._range.start + position) if left else 0

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        left = max(0, self._range.size - start)
        return self._source.read(self._range.start + start, left if length is None else min(left, length))

    def close(self) -> None:
        self._source.close()


class InMemory(File):
    """Bytes, read like a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        return self._data[start:] if length is None else self._data[start : start + length]


class ReadAhead(File):
    """Reads ``[start, end)`` of a file of a store sequentially, with a few byte ranges of read-ahead. The ranges before the
    position of a read are released; a later read of them requests them again.

    :param check: gets the bytes from ``start`` on, in order, before a reader has them
    """

    def __init__(self, file: File, start: int, end: int, check: Callable[[memoryview], object] | None = None) -> None:
        self._file, self._start, self._end, self._range_bytes = file, start, end, _RANGE_BYTES
        self._pool = ThreadPoolExecutor(_RANGES_AHEAD)
        #: the ranges from number ``_first`` on, read or in flight
        self._ranges: deque[Future[memoryview]] = deque()
        self._first = 0
        #: of the first ``_checked`` ranges
        self._check, self._checked = check, 0

    def size(self) -> int:
        return self._file.size()

    def pread(self, view: memoryview, position: int) -> int:
        first = (position - self._start) // self._range_bytes
        if first < self._first:
            # a batch that begins in the encoded chunk before the last one is read again
            self._ranges.clear()
            self._first = first
        while self._ranges and self._first < first:
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
        index, requested = number - self._first, self._first + len(self._ranges)
        for following in range(requested, number + _RANGES_AHEAD + 1):
            start = self._start + following * self._range_bytes
            if start < self._end:
                self._ranges.append(self._pool.submit(self._read, start, min(self._range_bytes, self._end - start)))
        if index >= len(self._ranges):
            return memoryview(b"")
        data = self._ranges[index].result()
        if number == self._checked and self._check is not None:
            self._checked += 1
            self._check(data)
        return data

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


#: the least that is read at once, and kept: headers are read a few bytes at a time
_WINDOW_BYTES = 64 * 1024
_CHUNK_BYTES = 8 << 20

#: position, length -> bytes; shorter only at the end of the file
ReadAt = Callable[[int, int], bytes]


class _File:
    """A file and its window read last, which all views of it share."""

    def __init__(self, path: str, read_at: ReadAt, size: int, open_file: Callable[[], File] | None) -> None:
        self._path, self._read_at, self._size, self.open = path, read_at, size, open_file
        self._start, self._window = 0, b""

    def read(self, start: int, end: int) -> bytes:
        """The bytes ``[start, end)``.

        :raises StorageError: the file was truncated
        """
        if end - start > _WINDOW_BYTES:
            data = self._read_at(start, end - start)
        else:
            if start < self._start or end - self._start > len(self._window):
                self._start, self._window = start, self._read_at(start, min(_WINDOW_BYTES, self._size - start))
            data = self._window[start - self._start : end - self._start]
        if len(data) < end - start:
            raise truncated(self._path, start + len(data))
        return data


class View:
    """A byte range of a file. Slicing makes another view without reading.

    :param path: for errors
    :param size: of the file, in bytes
    :param open_file: opens the file for kernels, if they can read it
    """

    def __init__(self, path: str, read_at: ReadAt, size: int, open_file: Callable[[], File] | None = None) -> None:
        self._file, self._start, self._end = _File(path, read_at, size, open_file), 0, size

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, part: slice) -> View:
        start, end, _ = part.indices(len(self))
        made = View.__new__(View)
        made._file, made._start, made._end = self._file, self._start + start, self._start + max(start, end)
        return made

    @property
    def bounds(self) -> tuple[int, int]:
        """Start and end in the file, in bytes."""
        return self._start, self._end

    def opened(self) -> File | None:
        """The file opened for kernels, to be closed by the caller; ``None`` if they cannot read it."""
        source = None if self._file.open is None else self._file.open()
        if source is not None and source.descriptor < 0:
            source.close()
            return None
        return source

    def fetch(self) -> NDArray[np.uint8]:
        """The bytes of the range, uint8[n], owned by the caller."""
        return np.frombuffer(bytearray(self.tobytes()), np.uint8)

    def tobytes(self) -> bytes:
        return self._file.read(self._start, self._end) if len(self) else b""

    def any(self) -> bool:
        """Whether any byte is not zero. Holes of a file are not read."""
        ranges: Sequence[tuple[int, int]] = [self.bounds]
        if len(self) > _WINDOW_BYTES and (source := self.opened()) is not None:
            with closing(source):
                ranges = list(data_ranges(source.descriptor, *self.bounds))
        for start, end in ranges:
            for position in range(start, end, _CHUNK_BYTES):
                data = self._file.read(position, min(position + _CHUNK_BYTES, end))
                if data != bytes(len(data)):
                    return True
        return False


def view(files: ReadableFileSystem, path: str) -> View:
    """A view of a file at its current size.

    :raises StorageError: the file is missing
    """
    stat = files.stat(path)
    if stat is None:
        raise StorageError("no such file", path=path, hint="make sure that nothing else works on this directory, and run again")
    real = files.real_path(path)
    opened = None if real is None or real.start else partial(files.open, path, 0, stat.size)
    return View(path, partial(files.read_bytes, path), stat.size, opened)
