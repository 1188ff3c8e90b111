"""An object whose chunks are compressed, encrypted or both: decoded chunk by chunk, from ranged reads of the object.

A chunk is zstd of the log's bytes, then a 12-byte IV and AES-256-GCM of that with a 16-byte tag. A process keeps a few decoded
chunks; their number does not depend on the objects.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from threading import Lock
from typing import NamedTuple

import zstandard

from compaction.errors import CorruptLogError
from compaction.exports.aiven.manifest import Chunk, ChunkIndex
from compaction.storage.filesystem import File, FileStat, ReadableFileSystem, read_full
from compaction.storage.layouts.data_keys import require_cryptography

IV_BYTES, TAG_BYTES = 12, 16
_HINT = "restore the object and its manifest from another copy"
#: decoded chunks that a process keeps for random access, at least one
_KEPT_BYTES = 64 << 20
#: larger chunks are decoded for random access one at a time
_LARGE_BYTES = 8 << 20


class KeptChunks:
    """The chunks used last, by object (path and time) and number; for several threads."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self._chunks.values()))

    def get(self, key: tuple[str, int, int]) -> bytes | None:
        with self._lock:
            data = self._chunks.get(key)
            if data is not None:
                self._chunks.move_to_end(key)
            return data

    def put(self, key: tuple[str, int, int], data: bytes) -> None:
        with self._lock:
            self._chunks[key] = data
            while len(self._chunks) > 1 and self.size_bytes > _KEPT_BYTES:
                self._chunks.popitem(last=False)


#: the chunks of this process
KEPT = KeptChunks()
_LARGE = Lock()


class ChunkCoding(NamedTuple):
    """The encoding of chunks: whether they are compressed, and ``key`` and ``aad`` if they are encrypted."""

    compressed: bool
    key: bytes | None = None
    aad: bytes = b""


def decrypted(data: bytes | memoryview, coding: ChunkCoding, path: str, start: int, description: str) -> bytes:
    """The bytes before encryption.

    :param path: the object, which has ``data`` at byte ``start``
    :param description: names the data in errors
    :raises CorruptLogError: the data was not encrypted with this key, or has changed
    """
    if coding.key is None:
        return bytes(data)
    require_cryptography("encrypted segments")
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(data) >= IV_BYTES + TAG_BYTES:
        with suppress(InvalidTag):
            plain: bytes = AESGCM(coding.key).decrypt(data[:IV_BYTES], data[IV_BYTES:], coding.aad)
            return plain
    problem = f"{description}, {_bytes(start, start + len(data))}: the authentication tag does not match"
    raise CorruptLogError(problem, path=path, position=start, hint=_HINT)


def encrypted(data: bytes, coding: ChunkCoding) -> bytes:
    """The inverse of ``decrypted``, with a random IV."""
    if coding.key is None:
        return data
    require_cryptography("encrypted segments")
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    iv = secrets.token_bytes(IV_BYTES)
    sealed: bytes = AESGCM(coding.key).encrypt(iv, data, coding.aad)
    return iv + sealed


def encoded(data: bytes, coding: ChunkCoding) -> bytes:
    """A chunk as it is stored."""
    return encrypted(zstandard.ZstdCompressor().compress(data) if coding.compressed else data, coding)


class Scratch:
    """Memory for the stored bytes of a chunk, reused for the next one."""

    def __init__(self) -> None:
        self._data = bytearray()

    def view(self, size_bytes: int) -> memoryview:
        """Memory of a size, valid until the next call."""
        if len(self._data) < size_bytes:
            self._data = bytearray(size_bytes)
        return memoryview(self._data)[:size_bytes]


class ChunkedObject:
    """A decoded object; ``size`` is the number of decoded bytes.

    :raises CorruptLogError: the object's size differs from its manifest
    """

    def __init__(self, files: ReadableFileSystem, path: str, stat: FileStat, index: ChunkIndex, coding: ChunkCoding) -> None:
        self._files, self._path, self._index, self._coding = files, path, index, coding
        self.size, self.mtime_ns = index.size, stat.mtime_ns
        require_size(path, stat, index.stored_size)

    def read(self, start: int, length: int) -> bytes:
        end = min(self.size, start + length)
        return b"".join(self._parts(start, end)) if end > start else b""

    def _parts(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            chunk = self._index.at(start)
            yield self._chunk(chunk)[start - chunk.start : end - chunk.start]
            start = chunk.end

    def _chunk(self, chunk: Chunk) -> bytes:
        """A decoded chunk, kept."""
        key = self._path, self.mtime_ns, chunk.number
        with _LARGE if chunk.end - chunk.start > _LARGE_BYTES else nullcontext():
            data = KEPT.get(key)
            if data is None:
                with closing(self._files.open(self._path, chunk.stored_start, chunk.stored_end)) as source:
                    data = self._decoded(chunk, source, Scratch())
                KEPT.put(key, data)
        return data

    def reader(self, start: int, end: int) -> File:
        if start >= end:
            return _ChunkReader(self.size, self._index, lambda chunk: b"", lambda: None)
        first, last = self._index.at(start), self._index.at(min(end, self.size) - 1)
        source, scratch = self._files.open(self._path, first.stored_start, last.stored_end), Scratch()
        return _ChunkReader(self.size, self._index, lambda chunk: self._decoded(chunk, source, scratch), source.close)

    def _decoded(self, chunk: Chunk, source: File, scratch: Scratch) -> bytes:
        stored = self._stored(chunk, source, scratch)
        name = f"chunk {chunk.number}"
        data: bytes | memoryview = stored
        if self._coding.key is not None:
            data = decrypted(stored, self._coding, self._path, chunk.stored_start, name)
        expected = chunk.end - chunk.start
        place = f"{name}, {_bytes(chunk.stored_start, chunk.stored_end)}"
        if self._coding.compressed:
            data = self._decompressed(data, expected, place, chunk)
        if len(data) != expected:
            problem = f"{place}: has {len(data)} bytes of the log, the manifest says {expected}"
            raise CorruptLogError(problem, path=self._path, position=chunk.stored_start, hint=_HINT)
        return bytes(data)

    def _stored(self, chunk: Chunk, source: File, scratch: Scratch) -> memoryview:
        view = scratch.view(chunk.stored_end - chunk.stored_start)
        end = chunk.stored_start + read_full(source, view, chunk.stored_start)
        if end < chunk.stored_end:
            problem = f"chunk {chunk.number}, {_bytes(chunk.stored_start, chunk.stored_end)}: the object ends at byte {end}"
            raise CorruptLogError(problem, path=self._path, position=end, hint=_HINT)
        return view

    def _decompressed(self, data: bytes | memoryview, expected: int, place: str, chunk: Chunk) -> bytes:
        """The bytes before compression; a frame with another content size is not decompressed."""
        try:
            size = zstandard.frame_content_size(data)
            if size in (-1, expected):
                return zstandard.ZstdDecompressor().decompress(data, max_output_size=max(1, expected))
            problem = f"has {size} bytes of the log, the manifest says {expected}"
        except zstandard.ZstdError as error:
            problem = f"cannot be decompressed ({error})"
        raise CorruptLogError(f"{place}: {problem}", path=self._path, position=chunk.stored_start, hint=_HINT)


class _ChunkReader(File):
    """Reads sequentially; holds one decoded chunk."""

    def __init__(self, size: int, index: ChunkIndex, decode: Callable[[Chunk], bytes], close: Callable[[], None]) -> None:
        self._size, self._index, self._decode, self._close = size, index, decode, close
        self._chunk: Chunk | None = None
        self._data = memoryview(b"")

    def size(self) -> int:
        return self._size

    def pread(self, view: memoryview, position: int) -> int:
        if position >= self._size:
            return 0
        chunk = self._chunk
        if chunk is None or not chunk.start <= position < chunk.end:
            chunk = self._chunk = self._index.at(position)
            self._data = memoryview(self._decode(chunk))
        part = self._data[position - chunk.start :][: len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._close()


def require_size(path: str, stat: FileStat, expected: int) -> None:
    """:raises CorruptLogError: the object's size differs from its manifest"""
    if stat.size != expected:
        problem = f"has {stat.size} bytes, its manifest lists {expected}"
        raise CorruptLogError(problem, path=path, position=min(stat.size, expected), hint=_HINT)


def _bytes(start: int, end: int) -> str:
    return f"bytes {start} to {end - 1}"
