"""Writes files past the page cache, where the file system allows that.

A segment that goes through the page cache is copied there, written from there when it is flushed, and pushes out what others
read; measured, that takes four times as long. Here two buffers take turns: one is filled while a thread writes the other.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from compaction.fs.contents import borrow_buffer, return_buffer

_SYNC_FILE_RANGE_WRITE = 2


def set_direct(descriptor: int, *, direct: bool) -> bool:
    """Have an open file pass by the page cache, or not; whether it does now: tmpfs, for one, has nothing to pass by."""
    flag = getattr(os, "O_DIRECT", 0)
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag if direct else flags & ~flag)
    except OSError:
        return False
    return direct and flag != 0


class DirectWriter:
    """Writes an open, empty file from its beginning; everything raises what the system refuses as ``OSError``, once.

    What fits into one buffer, and the end of what does not, goes through the page cache.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        #: the one that is being filled, and the other one
        self._buffers: list[NDArray[np.uint8]] = []
        self._filled = 0
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._direct = False

    def room(self) -> memoryview:
        """Where the next bytes go: at least one; see :meth:`took`."""
        if not self._buffers:
            self._buffers.append(borrow_buffer())
        return memoryview(self._buffers[0])[self._filled :]

    def took(self, size: int) -> None:
        """So many bytes were put into the room."""
        self._filled += size
        if self._filled < len(self._buffers[0]):
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
            self._direct = set_direct(self._descriptor, direct=True)
            self._buffers.append(borrow_buffer())
        self._wait()
        self._writing = self._thread.submit(self._write, memoryview(self._buffers[0]))
        self._buffers.reverse()
        self._filled = 0

    def finish(self) -> None:
        """Give the file system what is left, and have the disk begin with it."""
        self._wait()
        if self._filled:
            self._direct = set_direct(self._descriptor, direct=False)
            rest, self._filled = memoryview(self._buffers[0])[: self._filled], 0
            self._write(rest)

    def abandon(self) -> None:
        """No more bytes follow, and none are being written when this returns: the descriptor may be closed."""
        if self._thread is not None:
            self._thread.shutdown()
        while self._buffers:
            return_buffer(self._buffers.pop())

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                # the device wants other blocks, or the file system cannot after all
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                self._direct = set_direct(self._descriptor, direct=False)
        if not self._direct:
            start_writing(self._descriptor)


def _system_call() -> Callable[[int, int, int, int], int] | None:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_sync_file_range = _system_call()


def start_writing(descriptor: int) -> None:
    """Have the system begin to write the dirty pages of a file, without waiting; nothing if it has no such call."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)
