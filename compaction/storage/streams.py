"""Objects as files and streams: byte ranges with read-ahead, and outputs that appear when they are closed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Any

import xxhash

from compaction.errors import StorageError
from compaction.storage.clients import located, remote_errors, repeated
from compaction.storage.filesystem import ByteSource, FileStat
from compaction.storage.listings import stat_objects
from compaction.storage.source_check import Manifests, shared

#: read-ahead of a task
_RANGE_BYTES = 8 << 20
_RANGES_AHEAD = 2
_COPY_BYTES = 16 << 20
#: buffer for the store whose client sends each write synchronously
_UPLOAD_BYTES = 8 << 20
_SENDS_EACH_WRITE = "gcs"


class ObjectFile:
    """An object with random access, for several threads.

    The client of gs: opens an object at the first read, and reports a failure only as a closed file; opening a stream of the
    same object raises the reason.

    :param sources: the manifests to compare the object with
    :raises StorageError: the object cannot be opened
    """

    def __init__(self, path: str, sources: Manifests | None = None) -> None:
        self._path, self._sources = path, sources
        self._store, self._key = located(path)
        with remote_errors(path, "open"):
            self._file = self._store.open_input_file(self._key)

    def size(self) -> int:
        """The size of the object, in bytes.

        :raises StorageError: the store refused
        :raises CorruptLogError: the object differs from its manifest entry
        """
        with remote_errors(self._path, "read"):
            self._require_open()
            return int(self._file.size())

    def etag(self) -> str | None:
        """The object's ETag, if the store has one."""
        with remote_errors(self._path, "look at"):
            self._require_open()
            return _etag(self._file)

    def read_at(self, length: int, start: int) -> bytes:
        """``length`` bytes from ``start``; fewer only at the end.

        :raises StorageError: the store refused
        :raises CorruptLogError: the object differs from its manifest entry
        """
        with remote_errors(self._path, f"read bytes {start} to {start + length - 1}"):
            return repeated(partial(self._read, length, start))

    def _read(self, length: int, start: int) -> bytes:
        self._require_open()
        data: bytes = self._file.read_at(length, start)
        return data

    def _require_open(self) -> None:
        if self._file.closed:
            self._store.open_input_stream(self._key, compression=None).close()
            if self._file.closed:
                raise OSError("the client reports a closed file")
        # several threads may be the first
        sources = self._sources
        if sources is not None:
            sources.check(self._path, int(self._file.size()), etag=_etag(self._file))
            self._sources = None

    def read(self, start: int, length: int | None) -> bytes:
        """Up to ``length`` bytes from ``start``; ``None``: to the end. Raises as ``read_at`` does."""
        end = self.size() if length is None else min(self.size(), start + length)
        return self.read_at(end - start, start) if end > start else b""

    def close(self) -> None:
        self._file.close()


class RangeReader(ByteSource):
    """Reads ``[start, end)`` of an object sequentially, with a few ranges of read-ahead. An object of an output is compared
    with its manifest entry: ETag and size on opening, the content hash if it is read completely.

    :param checked: ``False`` to read back an object of this run, whose manifest is not written yet
    :raises StorageError: the object cannot be opened
    """

    def __init__(self, path: str, start: int, end: int, range_bytes: int = _RANGE_BYTES, *, checked: bool = True) -> None:
        self._path, self._start, self._end, self._range_bytes = path, start, end, range_bytes
        self._sources = shared() if checked else None
        self._file = ObjectFile(path, self._sources)
        self._pool = ThreadPoolExecutor(_RANGES_AHEAD)
        #: the ranges from number ``_first`` on, read or in flight
        self._ranges: deque[Future[bytes]] = deque()
        self._first = 0
        #: of the first ``_hashed`` ranges
        self._hash = xxhash.xxh3_128()
        self._hashed = 0

    def size(self) -> int:
        """The size of the whole object, in bytes.

        :raises StorageError: the store refused
        """
        return self._file.size()

    def read_into(self, view: memoryview, position: int, floor: int) -> int:
        """Fill ``view`` from ``position``; returns the byte count, 0 at the end. Later reads start at ``floor`` or above.

        :raises StorageError: the store refused
        :raises CorruptLogError: the object differs from its manifest entry
        """
        number, offset = divmod(position - self._start, self._range_bytes)
        while self._ranges and self._first < (floor - self._start) // self._range_bytes:
            self._ranges.popleft()
            self._first += 1
        while len(self._ranges) <= number - self._first + _RANGES_AHEAD and self._request_next():
            pass
        data = self._ranges[number - self._first].result()
        if number == self._hashed:
            self._count(data)
        n = min(len(view), len(data) - offset)
        if n > 0:
            view[:n] = memoryview(data)[offset : offset + n]
        return max(0, n)

    def _count(self, data: bytes) -> None:
        """Add the next range to the hash; compare it at the end of the object."""
        self._hash.update(data)
        self._hashed += 1
        if self._sources is None or self._start != 0:
            return
        if self._hashed * self._range_bytes >= self._end == self._file.size():
            self._sources.check(self._path, self._end, xxh3_128=self._hash.hexdigest())

    def _request_next(self) -> bool:
        start = self._start + (self._first + len(self._ranges)) * self._range_bytes
        length = min(self._range_bytes, self._end - start)
        if length > 0:
            self._ranges.append(self._pool.submit(self._file.read_at, length, start))
        return length > 0

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.close()


class ObjectOutput:
    """An object being written, see ``filesystem.Output``: it appears when it is closed. Large objects are uploaded in parts.

    :raises StorageError: the store refused, or the stored size differs from the bytes written
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._size_bytes = 0
        store, key = located(path)
        with remote_errors(path, "write"):
            # otherwise a name such as data.gz would enable compression
            buffer_bytes = _UPLOAD_BYTES if store.type_name == _SENDS_EACH_WRITE else None
            self._stream = store.open_output_stream(key, compression=None, buffer_size=buffer_bytes)

    def write(self, chunks: Sequence[memoryview | bytes]) -> None:
        with remote_errors(self.path, "write"):
            for chunk in chunks:
                self._size_bytes += memoryview(chunk).nbytes
                self._stream.write(chunk)

    def copy_from(self, path: str) -> None:
        with closing(ObjectFile(path)) as source:
            for start in range(0, source.size(), _COPY_BYTES):
                self.write([source.read(start, _COPY_BYTES)])

    def start_writeback(self) -> None:
        """No operation: ``close`` uploads the rest."""

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        """Close: the object exists on return."""
        with remote_errors(self.path, "write"):
            self._stream.close()
        require_stored(self.path, stat_objects([self.path])[0], self._size_bytes)

    def abandon(self) -> None:
        """No operation: the object is closed already."""

    def remove(self) -> None:
        """Close and remove the object: clients cannot abort an upload."""
        with suppress(StorageError):
            with remote_errors(self.path, "write"):
                self._stream.close()
            delete_object(self.path)


def delete_object(path: str) -> None:
    """Remove an object; no error if it is missing."""
    store, key = located(path)
    with remote_errors(path, "remove"):
        try:
            store.delete_file(key)
        except FileNotFoundError:
            return


def require_stored(path: str, stat: FileStat | None, size_bytes: int) -> None:
    """:raises StorageError: the object is missing, or its size differs from the bytes written"""
    if stat is None or not stat.is_file:
        raise StorageError("output of this run has vanished", path=path, hint="run again")
    if stat.size != size_bytes:
        message = f"output of this run has {stat.size} bytes in the store, {size_bytes} were written"
        raise StorageError(message, path=path, hint="run again; if it happens again, the store loses data")


def _etag(stream: Any) -> str | None:
    """The ETag of an object that pyarrow has opened."""
    fields = {name.lower(): value for name, value in (stream.metadata() or {}).items()}
    found: bytes | str | None = fields.get("etag")
    if found is None:
        return None
    return (found.decode() if isinstance(found, bytes) else found).strip('"')
