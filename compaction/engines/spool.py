"""Values that the processes of one run exchange: pickled, in files without a name.

Other users cannot open such a file, and nothing remains after ``kill -9``: it ends with its process. Processes of the run read
it while its owner appends. Results of tasks are on the temporary file system; values that the driver shares with all tasks stay
in memory.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

from compaction.files.filesystem import storage_errors

_NAME = "kafka-log-compaction"
_USE = "hold intermediate results"


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
        with open(of_process(self.pid, self.descriptor), "rb", buffering=0) as file:  # noqa: PTH123 - not a path of a file
            return pickle.loads(_read(file.fileno(), self.start, self.size))  # noqa: S301 - written by a process of this run


def of_process(pid: int, descriptor: int) -> str:
    """The name by which other processes of this user open a file that has none."""
    return f"/proc/{pid}/fd/{descriptor}"


def _read(descriptor: int, start: int, size: int) -> bytes:
    parts, filled = [], 0
    while filled < size:
        data = os.pread(descriptor, size - filled, start + filled)
        if not data:
            raise EOFError(f"intermediate results end at {start + filled}, not at {start + size}")
        parts.append(data)
        filled += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Spool:
    """A file to append to, opened by the first value. One thread uses it. If its directory cannot hold it, errors name that.

    :param opened: opens the file
    :param location: for errors; by default the temporary directory
    """

    def __init__(self, opened: Callable[[], BinaryIO], location: str = "") -> None:
        self._opened, self._location = opened, location
        self._file: BinaryIO | None = None
        self._end = 0

    @classmethod
    def on_disk(cls) -> Spool:
        return cls(_unnamed_file)

    @classmethod
    def in_memory(cls) -> Spool:
        return cls(lambda: open(os.memfd_create(_NAME), "w+b", buffering=0), "memory")  # noqa: PTH123

    def put(self, value: Any) -> Piece:
        """Appends a value.

        :raises StorageError: the temporary directory is full, or takes no file
        """
        data = memoryview(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        if self._file is None:
            self._file = self._opened()
        start, descriptor = self._end, self._file.fileno()
        with storage_errors(self._location or tempfile.gettempdir(), _USE):
            while data:
                written = os.pwrite(descriptor, data, self._end)
                self._end, data = self._end + written, data[written:]
        return Piece(os.getpid(), descriptor, start, self._end - start)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._end = None, 0


def _unnamed_file() -> BinaryIO:
    with storage_errors(tempfile.tempdir or "the temporary directory", _USE):
        return tempfile.TemporaryFile(buffering=0)
