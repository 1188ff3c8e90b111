"""Lazy access to the bytes of a file, local or remote. Files are never memory-mapped: see ``local``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compaction.errors import StorageError
from compaction.storage.direct import data_ranges
from compaction.storage.filesystem import File, ReadableFileSystem, truncated

#: the least that is read at once, and kept: headers are read a few bytes at a time
_WINDOW_BYTES = 64 * 1024
_CHUNK_BYTES = 8 << 20

#: position, length -> bytes; shorter only at the end of the file
ReadAt = Callable[[int, int], bytes]


class _File:
    """A file and its window read last."""

    def __init__(self, path: str, read_at: ReadAt, size: int) -> None:
        self._path, self._read_at, self._size = path, read_at, size
        self._start, self._window = 0, b""

    def read(self, start: int, end: int) -> bytes:
        """The bytes ``[start, end)``.

        :raises StorageError: the file was truncated
        """
        data = self._read(start, end)
        if len(data) < end - start:
            raise truncated(self._path, start + len(data))
        return data

    def _read(self, start: int, end: int) -> bytes:
        offset = start - self._start
        if offset < 0 or end - self._start > len(self._window):
            if end - start > _WINDOW_BYTES:
                return self._read_at(start, end - start)
            self._start, self._window, offset = start, self._read_at(start, min(_WINDOW_BYTES, self._size - start)), 0
        return self._window[offset : offset + end - start]


class View:
    """A byte range of a file. Slicing makes another view without reading.

    :param path: for errors
    :param read_at: reads from the file
    :param size: the size of the file, in bytes
    :param open_file: opens the file for kernels, if they can read it
    """

    def __init__(self, path: str, read_at: ReadAt, size: int, open_file: Callable[[], File] | None = None) -> None:
        self._file, self._start, self._end = _File(path, read_at, size), 0, size
        self._open = open_file

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, part: slice) -> View:
        start, end, _ = part.indices(len(self))
        made = View.__new__(View)
        made._file, made._start, made._end = self._file, self._start + start, self._start + max(start, end)
        made._open = self._open
        return made

    @property
    def bounds(self) -> tuple[int, int]:
        """Start and end in the file, in bytes."""
        return self._start, self._end

    def opened(self) -> File | None:
        """The file opened for kernels, to be closed by the caller; ``None`` if they cannot read it."""
        source = None if self._open is None else self._open()
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
        for start, end in self._data_ranges():
            for position in range(start, end, _CHUNK_BYTES):
                data = self._file.read(position, min(position + _CHUNK_BYTES, end))
                if data != bytes(len(data)):
                    return True
        return False

    def _data_ranges(self) -> Sequence[tuple[int, int]]:
        source = None if len(self) <= _WINDOW_BYTES else self.opened()
        if source is None:
            return [self.bounds]
        try:
            return list(data_ranges(source.descriptor, *self.bounds))
        finally:
            source.close()


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
