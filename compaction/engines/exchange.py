"""Values that processes of one run exchange: pickled into a file without a name, which others read while its writer lives.

Nothing of it can be opened by another user, and nothing remains after ``kill -9``: the file ends with its last process. A
worker appends to one file on the temporary file system; what the driver shares with all tasks stays in memory.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

from compaction.storage.filesystem import storage_errors


class Piece(NamedTuple):
    """A pickled value: bytes [start, start + size) of a file that process ``pid`` has open as ``descriptor``."""

    pid: int
    descriptor: int
    start: int
    size: int

    def load(self) -> Any:
        """The value.

        :raises OSError: its writer has ended
        """
        if self.pid == os.getpid():
            return pickle.loads(_read(self.descriptor, self.start, self.size))  # noqa: S301 - written by this process
        with open(f"/proc/{self.pid}/fd/{self.descriptor}", "rb", buffering=0) as file:  # noqa: PTH123 - not a path of a file
            return pickle.loads(_read(file.fileno(), self.start, self.size))  # noqa: S301 - written by a process of this run


class Spool:
    """A file to append to, of this process alone. On a directory that cannot hold it, errors name that directory."""

    def __init__(self, file: BinaryIO, place: str) -> None:
        self._file, self._place = file, place
        self._end = 0

    @classmethod
    def on_disk(cls) -> Spool:
        """:raises StorageError: the temporary directory takes no file"""
        place = tempfile.gettempdir()
        with storage_errors(place, "hold intermediate results"):
            return cls(tempfile.TemporaryFile(buffering=0), place)

    @classmethod
    def in_memory(cls) -> Spool:
        return cls(open(os.memfd_create("kafka-log-compaction"), "w+b", buffering=0), "memory")  # noqa: PTH123

    def put(self, value: Any) -> Piece:
        """Appends a value.

        :raises StorageError: the temporary directory is full
        """
        data = memoryview(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        start = self._end
        with storage_errors(self._place, "hold intermediate results"):
            while data:
                written = os.pwrite(self._file.fileno(), data, self._end)
                self._end, data = self._end + written, data[written:]
        return Piece(os.getpid(), self._file.fileno(), start, self._end - start)

    def close(self) -> None:
        self._file.close()


@lru_cache(maxsize=1)
def _of_process(pid: int) -> Spool:
    return Spool.on_disk()


def put(value: Any) -> Piece:
    """Appends a value to this process's file on the temporary file system; see :meth:`Spool.put`."""
    return _of_process(os.getpid()).put(value)


@lru_cache(maxsize=1)
def load_shared(number: int, piece: Piece) -> Any:
    """A value that many tasks share, loaded once. ``number`` tells it from others, as descriptors are used again."""
    return piece.load()


def _read(descriptor: int, start: int, size: int) -> bytes:
    parts, done = [], 0
    while done < size:
        data = os.pread(descriptor, size - done, start + done)
        if not data:
            raise EOFError(f"intermediate results end at {start + done}, not at {start + size}")
        parts.append(data)
        done += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)
