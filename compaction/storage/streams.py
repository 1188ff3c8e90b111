"""Objects as streams: ranges read ahead, outputs that appear when they are closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType

from compaction.errors import StorageError
from compaction.storage.stores import located, remote_errors, repeated

#: what a task has under way ahead of what it works on
_RANGE_BYTES = 8 << 20
_RANGES_AHEAD = 2
COPY_BYTES = 16 << 20


class RangeReader:
    """Reads ``[start, end)`` of an object from front to back, a few ranges ahead of what is asked for.

    :raises StorageError: the object cannot be opened
    """

    def __init__(self, path: str, start: int, end: int, range_bytes: int = _RANGE_BYTES) -> None:
        self._path, self._start, self._end, self._range_bytes = path, start, end, range_bytes
        store, key = located(path)
        with remote_errors(path, "open"):
            self._file = store.open_input_file(key)
        self._pool = ThreadPoolExecutor(_RANGES_AHEAD)
        #: the ranges from number ``_first`` on, read or being read
        self._ranges: deque[Future[bytes]] = deque()
        self._first = 0

    def read_into(self, view: memoryview, position: int, floor: int) -> int:
        """Fill ``view`` from ``position``: how many bytes, 0 at the end of the object. Nothing before ``floor`` is asked for
        again.

        :raises StorageError: the store refused
        """
        number, at = divmod(position - self._start, self._range_bytes)
        while self._ranges and self._first < (floor - self._start) // self._range_bytes:
            self._ranges.popleft()
            self._first += 1
        while len(self._ranges) <= number - self._first + _RANGES_AHEAD and self._ask():
            pass
        with remote_errors(self._path, "read"):
            data = self._ranges[number - self._first].result()
        n = min(len(view), len(data) - at)
        if n > 0:
            view[:n] = memoryview(data)[at : at + n]
        return max(0, n)

    def _ask(self) -> bool:
        start = self._start + (self._first + len(self._ranges)) * self._range_bytes
        length = min(self._range_bytes, self._end - start)
        if length > 0:
            self._ranges.append(self._pool.submit(repeated, partial(self._file.read_at, length, start)))
        return length > 0

    def close(self) -> None:
        """Let go of the object."""
        self._pool.shutdown(cancel_futures=True)
        self._file.close()


class ObjectOutput:
    """An object being written, see ``compaction.storage.segment_writer.Output``: it appears when it is closed. Large ones go in
    parts.

    :raises StorageError: the store refuses
    """

    def __init__(self, path: str) -> None:
        self.path = path
        store, key = located(path)
        with remote_errors(path, "write"):
            self._stream = store.open_output_stream(key)

    def write(self, chunks: Sequence[memoryview | bytes]) -> None:
        """Append the chunks."""
        with remote_errors(self.path, "write"):
            for chunk in chunks:
                self._stream.write(chunk)

    def copy_from(self, path: str) -> None:
        """Append all of another object."""
        with open_input(path) as source:
            while True:
                data = source.read(COPY_BYTES)
                if not data:
                    return
                self.write([data])

    def settle(self) -> None:
        """Nothing: closing is what sends the rest."""

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        """Close: the object is there afterwards, whole."""
        with remote_errors(self.path, "write"):
            self._stream.close()

    def abandon(self) -> None:
        """Nothing: it is closed already."""

    def remove(self) -> None:
        """Close and take it away: a client cannot break off an upload."""
        with suppress(StorageError):
            with remote_errors(self.path, "write"):
                self._stream.close()
            delete_object(self.path)


class ObjectInput:
    """A stream over an object's bytes; a context manager.

    :raises StorageError: the store refuses
    """

    def __init__(self, path: str) -> None:
        self._path = path
        store, key = located(path)
        with remote_errors(path, "read"):
            self._stream = store.open_input_stream(key)

    def __enter__(self) -> ObjectInput:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()

    def read(self, size: int | None) -> bytes:
        """The next ``size`` bytes, all that are left for ``None``; fewer only at the end."""
        with remote_errors(self._path, "read"):
            return repeated(partial(self._stream.read, size))


def open_input(path: str) -> ObjectInput:
    """A stream over an object's bytes."""
    return ObjectInput(path)


def delete_object(path: str) -> None:
    """Remove an object; no error when it is gone already."""
    store, key = located(path)
    with remote_errors(path, "remove"):
        try:
            store.delete_file(key)
        except FileNotFoundError:
            return


def etag_of(path: str) -> str | None:
    """The store's mark of an object's content, where it has one."""
    store, key = located(path)
    with remote_errors(path, "look at"), store.open_input_file(key) as file:
        found: bytes | str | None = (file.metadata() or {}).get("ETag")
    if found is None:
        return None
    return (found.decode() if isinstance(found, bytes) else found).strip('"')


def read_whole(path: str) -> bytes:
    """All bytes of an object."""
    with open_input(path) as stream:
        return stream.read(None)
