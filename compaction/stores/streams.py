"""Objects as files and streams: ranges read ahead, outputs that appear when they are closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import xxhash

from compaction.errors import StorageError
from compaction.fs.filesystem import FileStat
from compaction.stores.clients import located, remote_errors, repeated
from compaction.stores.listings import stat_objects
from compaction.stores.manifest import Content
from compaction.stores.source_check import Sources, shared

#: what a task has under way ahead of what it works on
_RANGE_BYTES = 8 << 20
_RANGES_AHEAD = 2
COPY_BYTES = 16 << 20
#: what is sent at once to a store whose client sends each write by itself and waits for the answer
_UPLOAD_BYTES = 8 << 20
_SENDS_EACH_WRITE = "gcs"


class ObjectFile:
    """An object that is read anywhere, by several threads at once.

    The client of gs: opens an object when it is first read, and takes a file for closed where that fails. A stream of the same
    object tells why.

    :param sources: has the manifest that the object is held against when its store tells of it
    :raises StorageError: the object cannot be opened
    """

    def __init__(self, path: str, sources: Sources | None = None) -> None:
        self._path, self._sources = path, sources
        self._store, self._key = located(path)
        with remote_errors(path, "open"):
            self._file = self._store.open_input_file(self._key)

    def size(self) -> int:
        """Bytes.

        :raises StorageError: the store refused
        :raises CorruptLogError: the object is not the one that its manifest lists
        """
        with remote_errors(self._path, "read"):
            self._require_open()
            return int(self._file.size())

    def etag(self) -> str | None:
        """The store's mark of the object's content, where it has one."""
        with remote_errors(self._path, "look at"):
            self._require_open()
            return _etag(self._file)

    def read_at(self, length: int, start: int) -> bytes:
        """``length`` bytes from ``start``; fewer only at the end.

        :raises StorageError: the store refused
        :raises CorruptLogError: the object is not the one that its manifest lists
        """
        with remote_errors(self._path, "read"):
            return repeated(partial(self._read, length, start))

    def _read(self, length: int, start: int) -> bytes:
        self._require_open()
        data: bytes = self._file.read_at(length, start)
        return data

    def _require_open(self) -> None:
        if self._file.closed:
            self._store.open_input_stream(self._key, compression=None).close()
            if self._file.closed:
                raise OSError("the client takes it for closed")
        # several threads may come here at first
        sources = self._sources
        if sources is not None:
            sources.check_opened(self._path, int(self._file.size()), _etag(self._file))
            self._sources = None

    def close(self) -> None:
        """Let go of the object."""
        self._file.close()


class RangeReader:
    """Reads ``[start, end)`` of an object from front to back, a few ranges ahead of what is asked for. Bytes of an output are
    held against its manifest: each object as it is opened, and the last range of one that is read whole.

    :param checked: not when a run reads back what it has written itself, of which there is no manifest yet
    :raises StorageError: the object cannot be opened
    """

    def __init__(self, path: str, start: int, end: int, range_bytes: int = _RANGE_BYTES, *, checked: bool = True) -> None:
        self._path, self._start, self._end, self._range_bytes = path, start, end, range_bytes
        self._sources = shared() if checked else None
        self._file = ObjectFile(path, self._sources)
        self._pool = ThreadPoolExecutor(_RANGES_AHEAD)
        #: the ranges from number ``_first`` on, read or being read
        self._ranges: deque[Future[bytes]] = deque()
        self._first = 0
        #: of the first ``_hashed`` ranges
        self._hash = xxhash.xxh3_128()
        self._hashed = 0

    def size(self) -> int:
        """The whole object's bytes.

        :raises StorageError: the store refused
        """
        return self._file.size()

    def read_into(self, view: memoryview, position: int, floor: int) -> int:
        """Fill ``view`` from ``position``: how many bytes, 0 at the end of the object. Nothing before ``floor`` is asked for
        again.

        :raises StorageError: the store refused
        :raises CorruptLogError: the object is not the one that its manifest lists
        """
        number, at = divmod(position - self._start, self._range_bytes)
        while self._ranges and self._first < (floor - self._start) // self._range_bytes:
            self._ranges.popleft()
            self._first += 1
        while len(self._ranges) <= number - self._first + _RANGES_AHEAD and self._ask():
            pass
        data = self._ranges[number - self._first].result()
        if number == self._hashed:
            self._count(data)
        n = min(len(view), len(data) - at)
        if n > 0:
            view[:n] = memoryview(data)[at : at + n]
        return max(0, n)

    def blocks(self) -> Iterator[memoryview]:
        """The whole range in blocks, each valid until the next; ends early if the object is shorter."""
        at = self._start
        buffer = memoryview(bytearray(min(COPY_BYTES, max(1, self._end - at))))
        while at < self._end and (n := self.read_into(buffer[: self._end - at], at, at)):
            yield buffer[:n]
            at += n

    def _count(self, data: bytes) -> None:
        """Take the next range into the hash; an object that comes to its end is checked."""
        self._hash.update(data)
        self._hashed += 1
        if self._sources is None or self._start != 0:
            return
        if self._hashed * self._range_bytes >= self._end == self._file.size():
            self._sources.check_content(self._path, Content(self._end, self._hash.hexdigest()))

    def _ask(self) -> bool:
        start = self._start + (self._first + len(self._ranges)) * self._range_bytes
        length = min(self._range_bytes, self._end - start)
        if length > 0:
            self._ranges.append(self._pool.submit(self._file.read_at, length, start))
        return length > 0

    def close(self) -> None:
        """Let go of the object."""
        self._pool.shutdown(cancel_futures=True)
        self._file.close()


class ObjectOutput:
    """An object being written, see ``compaction.output.segment_writer.Output``: it appears when it is closed. Large ones go in
    parts.

    :raises StorageError: the store refuses, or has stored something else than was written
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.content: Content | None = None
        self._size_bytes, self._hash = 0, xxhash.xxh3_128()
        store, key = located(path)
        with remote_errors(path, "write"):
            # a name like data.gz would be a wish to compress
            buffer_bytes = _UPLOAD_BYTES if store.type_name == _SENDS_EACH_WRITE else None
            self._stream = store.open_output_stream(key, compression=None, buffer_size=buffer_bytes)

    def write(self, chunks: Sequence[memoryview | bytes]) -> None:
        """Append the chunks."""
        with remote_errors(self.path, "write"):
            for chunk in chunks:
                self._hash.update(chunk)
                self._size_bytes += memoryview(chunk).nbytes
                self._stream.write(chunk)

    def copy_from(self, path: str) -> None:
        """Append all of another object."""
        with open_input(path) as source:
            while True:
                data = source.read(COPY_BYTES)
                if not data:
                    return
                self.write([data])

    def start_writeback(self) -> None:
        """Nothing: closing is what sends the rest."""

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        """Close: the object is there afterwards, whole."""
        with remote_errors(self.path, "write"):
            self._stream.close()
        require_stored(self.path, stat_objects([self.path])[0], self._size_bytes)
        self.content = Content(self._size_bytes, self._hash.hexdigest())

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
            self._stream = store.open_input_stream(key, compression=None)

    def __enter__(self) -> ObjectInput:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.close()

    def etag(self) -> str | None:
        """The store's mark of the object's content, where it has one."""
        with remote_errors(self._path, "look at"):
            return _etag(self._stream)

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


def require_stored(path: str, found: FileStat | None, size_bytes: int) -> None:
    """:raises StorageError: of the bytes that were written to an object, some are not there"""
    if found is None or not found.is_file:
        raise StorageError("output of this run has vanished", path=path, hint="run again")
    if found.size != size_bytes:
        what = f"output of this run has {found.size} bytes in the store, {size_bytes} were written"
        raise StorageError(what, path=path, hint="run again; if it happens again, the store loses data")


def _etag(stream: Any) -> str | None:
    """The ETag of an object that pyarrow has opened."""
    fields = {name.lower(): value for name, value in (stream.metadata() or {}).items()}
    found: bytes | str | None = fields.get("etag")
    if found is None:
        return None
    return (found.decode() if isinstance(found, bytes) else found).strip('"')


def read_whole(path: str) -> bytes:
    """All bytes of an object."""
    with open_input(path) as stream:
        return stream.read(None)
