"""Objects as files and streams: byte ranges with read-ahead, and outputs that appear when they are closed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import xxhash

from compaction.errors import StorageError
from compaction.storage.clients import located, remote_errors, repeated
from compaction.storage.contents import RANGE_BYTES, ReadAhead
from compaction.storage.filesystem import File, FileStat
from compaction.storage.listings import stat_objects
from compaction.storage.source_check import Manifests, shared

_COPY_BYTES = 16 << 20
#: buffer for the store whose client sends each write synchronously
_UPLOAD_BYTES = 8 << 20
_SENDS_EACH_WRITE = "gcs"


class ObjectFile(File):
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

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        """Up to ``length`` bytes from ``start``.

        :raises StorageError: the store refused
        :raises CorruptLogError: the object differs from its manifest entry
        """
        end = self.size() if length is None else min(self.size(), start + length)
        return self._read_at(end - start, start) if end > start else b""

    def pread(self, view: memoryview, position: int) -> int:
        data = self._read_at(len(view), position)
        view[: len(data)] = data
        return len(data)

    def _read_at(self, length: int, start: int) -> bytes:
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

    def close(self) -> None:
        self._file.close()


def open_sequential(path: str, start: int, end: int, range_bytes: int = RANGE_BYTES, *, checked: bool = True) -> File:
    """Open ``[start, end)`` of an object to be read sequentially. An object of an output is compared with its manifest entry:
    ETag and size on opening, the content hash if it is read completely.

    :param checked: ``False`` to read back an object of this run, whose manifest is not written yet
    :raises StorageError: the object cannot be opened
    """
    sources = shared() if checked else None
    file = ReadAhead(ObjectFile(path, sources), start, end, range_bytes)
    return file if sources is None or start else _HashChecked(file, path, end, sources)


class _HashChecked(File):
    """Compares an object that is read sequentially, from its first byte to its last, with its manifest entry."""

    def __init__(self, file: File, path: str, end: int, sources: Manifests) -> None:
        self._file, self._path, self._end, self._sources = file, path, end, sources
        self._hash = xxhash.xxh3_128()
        self._hashed = 0

    def size(self) -> int:
        return self._file.size()

    def pread(self, view: memoryview, position: int) -> int:
        """:raises CorruptLogError: the object differs from its manifest entry"""
        count = self._file.pread(view, position)
        if position <= self._hashed < position + count:
            self._hash.update(view[self._hashed - position : count])
            self._hashed = position + count
            if self._hashed == self._end == self._file.size():
                self._sources.check(self._path, self._end, xxh3_128=self._hash.hexdigest())
        return count

    def close(self) -> None:
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
