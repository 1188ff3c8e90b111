"""The tasks of worker processes. A task puts its results for other tasks into the spool of its process.

A spool is an unnamed file of pickled values, which other processes of the run read while its writer runs. Other users cannot
open it, and nothing remains after ``kill -9``: the file ends with its last process. A worker appends to one file on the
temporary file system; values that the driver shares with all tasks stay in memory.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple, TypeVar

from compaction.passes.merge import resolve_into_parts
from compaction.passes.tasks import SUMMARY, Key
from compaction.run.passes import CleanedParts, CleanInputs, MapInputs, clean_task
from compaction.storage.filesystem import storage_errors
from compaction.task_runner import Item


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

    def __init__(self, file: BinaryIO, location: str) -> None:
        self._file, self._location = file, location
        self._end = 0

    @classmethod
    def on_disk(cls) -> Spool:
        """:raises StorageError: the temporary directory takes no file"""
        directory = tempfile.gettempdir()
        with storage_errors(directory, "hold intermediate results"):
            return cls(tempfile.TemporaryFile(buffering=0), directory)

    @classmethod
    def in_memory(cls) -> Spool:
        return cls(open(os.memfd_create("kafka-log-compaction"), "w+b", buffering=0), "memory")  # noqa: PTH123

    def put(self, value: Any) -> Piece:
        """Appends a value.

        :raises StorageError: the temporary directory is full
        """
        data = memoryview(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        start = self._end
        with storage_errors(self._location, "hold intermediate results"):
            while data:
                written = os.pwrite(self._file.fileno(), data, self._end)
                self._end, data = self._end + written, data[written:]
        return Piece(os.getpid(), self._file.fileno(), start, self._end - start)

    def close(self) -> None:
        self._file.close()


@lru_cache(maxsize=1)
def _process_spool(pid: int) -> Spool:
    return Spool.on_disk()


def put(value: Any) -> Piece:
    """Appends a value to this process's file on the temporary file system; see :meth:`Spool.put`."""
    return _process_spool(os.getpid()).put(value)


@lru_cache(maxsize=1)
def load_shared(number: int, piece: Piece) -> Any:
    """A value that many tasks share, loaded once. ``number`` distinguishes it from others, as descriptors are reused."""
    return piece.load()


def _read(descriptor: int, start: int, size: int) -> bytes:
    parts, filled = [], 0
    while filled < size:
        data = os.pread(descriptor, size - filled, start + filled)
        if not data:
            raise EOFError(f"intermediate results end at {start + filled}, not at {start + size}")
        parts.append(data)
        filled += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


T = TypeVar("T")
R = TypeVar("R")

#: keys with the positions of their values
Placed = list[tuple[Any, Piece]]


def call(number: int, work: Piece, task: Any) -> Any:
    """Runs a task of job ``number``, whose ``work`` the driver has put into its spool."""
    return load_shared(number, work)(task)


def emitted(emit: Callable[[T], Iterable[Item]], task: T) -> Placed:
    return [(key, put(value)) for key, value in emit(task)]


def joined(join: Callable[[Iterable[Item]], Iterable[R]], placed: Placed) -> list[R]:
    return list(join((key, piece.load()) for key, piece in placed))


class Scan:
    """A task of pass 1: returns its summaries, and the positions of its entries."""

    def __init__(self, inputs: MapInputs) -> None:
        self._scan, self._contexts, self._settings = inputs.scan, inputs.known, inputs.settings

    def __call__(self, task: Sequence[Any]) -> tuple[list[Any], Placed]:
        summaries: list[Any] = []
        placed: Placed = []
        for key, values in self._scan(task, self._contexts, self._settings):
            if key[1] == SUMMARY:
                summaries += values
            else:
                placed.append((key, put(values)))
        return summaries, placed


def _merged(placed: Placed) -> Iterator[tuple[Key, list[Any]]]:
    """The values of each key, one key in memory at a time."""
    pieces: dict[Key, list[Piece]] = {}
    for key, piece in placed:
        pieces.setdefault(key, []).append(piece)
    for key, key_pieces in pieces.items():
        yield key, [value for piece in key_pieces for value in piece.load()]


class ShardWork:
    """Runs ``work`` for each shard of pass 1."""

    def __init__(self, work: Callable[[Key, list[Any]], Iterable[Any]]) -> None:
        self._work = work

    def __call__(self, shards: Placed) -> list[Any]:
        return [result for key, packed in _merged(shards) for result in self._work(key, packed)]


class Resolve:
    """Resolves shards between the passes: returns the positions of their survivor entries."""

    def __init__(self, inputs: CleanInputs[Any]) -> None:
        self._maps, self._load_factor = inputs.maps, inputs.load_factor

    def __call__(self, shards: Placed) -> list[tuple[tuple[int, Hashable], Piece]]:
        return [(key, put(entries)) for key, entries in resolve_into_parts(_merged(shards), self._maps, self._load_factor)]


class Clean:
    """A task of pass 2."""

    def __init__(self, inputs: CleanInputs[Any]) -> None:
        self._clean, self._contexts, self._threads = inputs.clean, inputs.known, inputs.threads

    def __call__(self, task: tuple[Sequence[Any], Placed]) -> CleanedParts[Any]:
        parts, items = task
        return clean_task(self._clean, self._contexts, parts, _merged(items), self._threads)
