"""Bytes that are fetched when they are looked at: what a remote file system gives instead of a memory map."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

#: fetched at least, and kept: headers are read a few bytes at a time
_WINDOW_BYTES = 64 * 1024
_CHUNK_BYTES = 8 << 20

#: reads so many bytes from a position; fewer only at the end of the file
ReadAt = Callable[[int, int], bytes]


class _File:
    """One file and the window of it that was fetched last."""

    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._read_at, self._size = read_at, size
        self._start, self._window = 0, b""

    def read(self, start: int, end: int) -> bytes:
        """The bytes ``[start, end)``."""
        at = start - self._start
        if at < 0 or end - self._start > len(self._window):
            if end - start > _WINDOW_BYTES:
                return self._read_at(start, end - start)
            self._start, self._window, at = start, self._read_at(start, min(_WINDOW_BYTES, self._size - start)), 0
        return self._window[at : at + end - start]


class RangedBytes:
    """A stretch of a remote file. A slice of it is another one; only ``fetch`` and what is made of it read anything.

    :param read_at: reads from the file
    :param size: the file's
    """

    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._file, self._start, self._end = _File(read_at, size), 0, size

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, part: slice) -> RangedBytes:
        start, end, _ = part.indices(len(self))
        made = RangedBytes.__new__(RangedBytes)
        made._file, made._start, made._end = self._file, self._start + start, self._start + max(start, end)
        return made

    def fetch(self) -> NDArray[np.uint8]:
        """All of the stretch, uint8[n]."""
        return np.frombuffer(self.tobytes(), np.uint8)

    def tobytes(self) -> bytes:
        """All of the stretch."""
        return self._file.read(self._start, self._end) if len(self) else b""

    def any(self) -> bool:
        """Whether any byte is not zero."""
        return any(any(self[at : at + _CHUNK_BYTES].tobytes()) for at in range(0, len(self), _CHUNK_BYTES))


#: a file's bytes: a memory map, or fetched when looked at
View = NDArray[np.uint8] | RangedBytes


def fetched(view: View) -> NDArray[np.uint8]:
    """All of a view as an array."""
    return view.fetch() if isinstance(view, RangedBytes) else view
