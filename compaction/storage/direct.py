"""Writes files with direct I/O if the file system supports it.

Buffered I/O copies a segment into the page cache, writes it from there on fsync, and evicts pages that others read; measured,
that takes four times as long. Here two buffers alternate: one is filled while a thread writes the other.

Also the calls on open files that differ between systems. Calls that only Linux has are left out elsewhere, or replaced.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from compaction.storage.contents import READ_BYTES, borrow_buffer, return_buffer
from compaction.storage.filesystem import Chunk

_SYNC_FILE_RANGE_WRITE = 2


def set_direct(descriptor: int, *, direct: bool) -> bool:
    """Switch direct I/O of an open file on or off; returns whether it is on now. Some file systems, e.g. tmpfs, have none."""
    flag = getattr(os, "O_DIRECT", 0)
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag if direct else flags & ~flag)
    except OSError:
        return False
    return direct and flag != 0


def flush(descriptor: int) -> None:
    """Make the content of an open file or directory durable. On macOS, ``fsync`` leaves it in the cache of the drive."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):
            # some file systems have no such call
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def read_at(descriptor: int, view: memoryview, position: int) -> int:
    """Read from an open file into ``view``; returns the byte count."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], position)
    data = os.pread(descriptor, len(view), position)
    view[: len(data)] = data
    return len(data)


def data_ranges(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The byte ranges within ``[start, end)`` of an open file, ascending, that are not holes: these are zeros without blocks on
    the disk. All of it if the file system does not report holes."""
    while start < end:
        try:
            first = os.lseek(descriptor, start, os.SEEK_DATA)
            stop = min(end, os.lseek(descriptor, first, os.SEEK_HOLE))
        except (OSError, AttributeError) as error:
            if getattr(error, "errno", None) != errno.ENXIO:
                yield start, end
            return
        if first < end:
            yield first, stop
        start = stop


class DirectWriter:
    """Writes an open, empty file from its beginning. Each ``OSError`` of a write is raised once.

    A file that fits into one buffer, and the last partial buffer of a larger one, is written through the page cache.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        #: the buffer being filled, then the one being written
        self._buffers: list[NDArray[np.uint8]] = []
        self._filled = 0
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._direct = False

    def write(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            data = memoryview(chunk)
            while data:
                free = self._free()
                size = min(len(free), len(data))
                free[:size] = data[:size]
                self._advance(size)
                data = data[size:]

    def copy(self, source: int, start: int, limit: int) -> int:
        copied = read_at(source, self._free()[:limit], start)
        self._advance(copied)
        return copied

    def skip(self, size: int) -> None:
        for start in range(0, size, READ_BYTES):
            self.write([bytes(min(READ_BYTES, size - start))])

    def _free(self) -> memoryview:
        """The unfilled part of the buffer, at least one byte."""
        if not self._buffers:
            self._buffers.append(borrow_buffer())
        return memoryview(self._buffers[0])[self._filled :]

    def _advance(self, size: int) -> None:
        self._filled += size
        if self._filled < len(self._buffers[0]):
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
            self._direct = set_direct(self._descriptor, direct=True)
            self._buffers.append(borrow_buffer())
        self._wait()
        self._writing = self._thread.submit(self._write_all, memoryview(self._buffers[0]))
        self._buffers.reverse()
        self._filled = 0

    def finish(self) -> None:
        """Write the last partial buffer, and start its writeback."""
        self._wait()
        if self._filled:
            self._direct = set_direct(self._descriptor, direct=False)
            rest, self._filled = memoryview(self._buffers[0])[: self._filled], 0
            self._write_all(rest)

    def abandon(self) -> None:
        """Stop writing; the descriptor may be closed afterwards."""
        if self._thread is not None:
            self._thread.shutdown()
        while self._buffers:
            return_buffer(self._buffers.pop())

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_all(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                # the device requires a larger block size, or the file system has no direct I/O
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                self._direct = set_direct(self._descriptor, direct=False)
        if not self._direct:
            _start_writeback(self._descriptor)


def _system_call() -> Callable[[int, int, int, int], int] | None:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_sync_file_range = _system_call()


def _start_writeback(descriptor: int) -> None:
    """Start writing the dirty pages of a file without waiting; no operation if the system has no such call."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)
