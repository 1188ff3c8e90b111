"""What a worker process does: a task of one of the passes, whose results for other tasks it puts into its spool.

Values that processes of one run exchange: pickled into a file without a name, which others read while its writer lives.

Nothing of it can be opened by another user, and nothing remains after ``kill -9``: the file ends with its last process. A
worker appends to one file on the temporary file system; what the driver shares with all tasks stays in memory.
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


T = TypeVar("T")
R = TypeVar("R")

#: by key, where its values are
Placed = list[tuple[Any, Piece]]


def call(number: int, work: Piece, task: Any) -> Any:
    """Runs a task of job ``number``, whose ``work`` the driver has put where all workers read it."""
    return load_shared(number, work)(task)


def emitted(emit: Callable[[T], Iterable[Item]], task: T) -> Placed:
    return [(place, put(value)) for place, value in emit(task)]


def joined(join: Callable[[Iterable[Item]], Iterable[R]], placed: Placed) -> list[R]:
    return list(join((place, piece.load()) for place, piece in placed))


class Scan:
    """A task of pass 1: its summaries, and where its entries are."""

    def __init__(self, inputs: MapInputs) -> None:
        self._scan, self._known, self._settings = inputs.scan, inputs.known, inputs.settings

    def __call__(self, task: Sequence[Any]) -> tuple[list[Any], Placed]:
        summaries: list[Any] = []
        placed: Placed = []
        for key, values in self._scan(task, self._known, self._settings):
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
    for key, found in pieces.items():
        yield key, [value for piece in found for value in piece.load()]


class EachShard:
    """Does some work for each shard of pass 1."""

    def __init__(self, work: Callable[[Key, list[Any]], Iterable[Any]]) -> None:
        self._work = work

    def __call__(self, shards: Placed) -> list[Any]:
        return [result for key, packed in _merged(shards) for result in self._work(key, packed)]


class Resolve:
    """Between the passes: where the survivor entries of some shards are."""

    def __init__(self, inputs: CleanInputs[Any]) -> None:
        self._maps, self._load_factor = inputs.maps, inputs.load_factor

    def __call__(self, shards: Placed) -> list[tuple[tuple[int, Hashable], Piece]]:
        return [(key, put(found)) for key, found in resolve_into_parts(_merged(shards), self._maps, self._load_factor)]


class Clean:
    """A task of pass 2."""

    def __init__(self, inputs: CleanInputs[Any]) -> None:
        self._clean, self._known, self._threads = inputs.clean, inputs.known, inputs.threads

    def __call__(self, task: tuple[Sequence[Any], Placed]) -> CleanedParts[Any]:
        parts, items = task
        return clean_task(self._clean, self._known, parts, _merged(items), self._threads)
