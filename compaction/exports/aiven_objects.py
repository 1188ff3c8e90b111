"""The objects of a segment in Aiven's layout: the manifest, with the index of the chunks of ``.log``, and the chunks.

The manifest is JSON of version 1. Mirrors ``SegmentManifestV1``, ``FixedSizeChunkIndex``, ``VariableSizeChunkIndex`` and
``ChunkSizesBinaryCodec``. The sizes of variable chunks are base64 of zstd of: count (int32); for two or more, base (int32),
width (int8), and for each but the last its size less the base, ``width`` bytes; then the last size (int32). All numbers are
big-endian.

A chunk is zstd of the log's bytes, then a 12-byte IV and AES-256-GCM of that with a 16-byte tag. It is decoded from a ranged
read of the object. A process keeps a few decoded chunks; their number does not depend on the objects.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.exports import DecodedObject
from compaction.files.contents import InMemory
from compaction.files.filesystem import File, FileStat, ReadableFileSystem, read_full
from compaction.formats.checkpoints import EpochEntry

_MANIFEST_HINT = "restore the manifest from another copy"
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
#: bounds memory: a task decodes a complete chunk
MAX_CHUNK_BYTES = 256 << 20
#: the limit of the plugin for the decoded list of chunk sizes
_MAX_SIZES_BYTES = 10 << 20
#: the sections of ``.indexes``, by their names in the manifest, in their order
SECTIONS = ("offset", "timestamp", "producerSnapshot", "leaderEpoch", "transaction")


class Chunk(NamedTuple):
    """Chunk ``number``: the bytes ``[start, end)`` of the log, stored as ``[stored_start, stored_end)`` of the object."""

    number: int
    start: int
    end: int
    stored_start: int
    stored_end: int


class ChunkIndex:
    """The chunks of a log file of ``size`` bytes; all but the last have ``chunk_bytes``.

    :param stored: stored sizes, int64[count]; or the size of each chunk but the last, and that of the last
    """

    def __init__(self, size: int, chunk_bytes: int, stored: NDArray[np.int64] | tuple[int, int]) -> None:
        self.size, self.chunk_bytes = size, chunk_bytes
        self.count = -(-size // chunk_bytes)
        self._stored = stored if isinstance(stored, tuple) else np.cumsum(stored)

    @property
    def stored_size(self) -> int:
        """The size of the object, in bytes."""
        return self._stored_end(self.count - 1)

    def at(self, position: int) -> Chunk:
        """The chunk that has a byte of the log."""
        number = position // self.chunk_bytes
        start = number * self.chunk_bytes
        end = min(self.size, start + self.chunk_bytes)
        return Chunk(number, start, end, self._stored_end(number - 1), self._stored_end(number))

    def _stored_end(self, number: int) -> int:
        if number < 0:
            return 0
        if not isinstance(self._stored, tuple):
            return int(self._stored[number])
        full_chunk, last = self._stored
        return number * full_chunk + (last if number == self.count - 1 else full_chunk)


class Encryption(NamedTuple):
    """The wrapped data key, ``<key id>:<base64>``, and the additional authenticated data of every chunk."""

    data_key: str
    aad: bytes


class Section(NamedTuple):
    """A section of ``.indexes``, in bytes."""

    position: int
    size: int


@dataclass(frozen=True)
class AivenManifest:
    """A segment's manifest; ``end_offset`` is exclusive.

    :param name: ``<topic>-<topicId>/<partition>/<start offset>-<segment id>``, as its objects are named
    """

    name: str
    chunks: ChunkIndex
    sections: Mapping[str, Section]
    compressed: bool
    encryption: Encryption | None
    start_offset: int
    end_offset: int
    written_ms: int
    epochs: tuple[EpochEntry, ...]


def parse_manifest(data: bytes, path: str) -> AivenManifest:
    """The manifest at ``path``.

    :raises CorruptLogError: it is malformed, or of another version
    :raises UnsupportedLogError: its chunks are too large
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptLogError(f"is not a manifest in JSON: {error}", path=path, hint=_MANIFEST_HINT) from None
    root = _Fields(document, "", path)
    if root.get("version", str) != "1":
        raise root.error("version", "'1'")
    indexes, segment = root.below("segmentIndexes"), root.below("remoteLogSegmentMetadata")
    found = {name: indexes.below(name) for name in SECTIONS if indexes.has(name)}
    sections = {name: Section(*(each.number(field, _INT_MAX) for field in Section._fields)) for name, each in found.items()}
    missing = next((name for name in SECTIONS[:-1] if name not in sections), None)
    if missing is not None:
        raise indexes.error(missing, "a section")
    encryption = None
    if root.has("encryption"):
        fields = root.below("encryption")
        encryption = Encryption(fields.get("dataKey", str), fields.binary("aad"))
    start, end = segment.number("startOffset", _LONG_MAX), segment.number("endOffset", _LONG_MAX) + 1
    if end <= start:
        raise segment.error("endOffset", f"at least {start}")
    return AivenManifest(
        name=_name(segment.below("remoteLogSegmentId"), start),
        chunks=_chunks(root.below("chunkIndex")),
        sections=sections,
        compressed=root.get("compression", bool),
        encryption=encryption,
        start_offset=start,
        end_offset=end,
        written_ms=segment.number("eventTimestampMs", _LONG_MAX),
        epochs=_epochs(segment.below("segmentLeaderEpochs"), start),
    )


def _name(segment_id: _Fields, start_offset: int) -> str:
    partition = segment_id.below("topicIdPartition")
    log = partition.below("topicPartition")
    directory = f"{log.get('topic', str)}-{partition.get('topicId', str)}/{log.number('partition', _INT_MAX)}"
    return f"{directory}/{start_offset:020d}-{segment_id.get('id', str)}"


def _epochs(fields: _Fields, start_offset: int) -> tuple[EpochEntry, ...]:
    try:
        entries = sorted((int(epoch), max(fields.number(epoch, _LONG_MAX), start_offset)) for epoch in fields.names)
    except ValueError:
        raise fields.error(fields.names[0], "an offset by leader epoch") from None
    return tuple(EpochEntry(epoch, offset) for epoch, offset in entries)


def _chunks(fields: _Fields) -> ChunkIndex:
    size, chunk_bytes = fields.number("originalFileSize", _INT_MAX), fields.number("originalChunkSize", _INT_MAX, least=1)
    if min(size, chunk_bytes) > MAX_CHUNK_BYTES:
        problem = f"has chunks of {chunk_bytes} bytes, at most {MAX_CHUNK_BYTES} are supported"
        raise UnsupportedLogError(problem, path=fields.path, hint="upload the segments with a smaller chunk.size")
    kind = fields.get("type", str)
    if kind == "fixed":
        full_chunk = fields.number("transformedChunkSize", _INT_MAX)
        return ChunkIndex(size, chunk_bytes, (full_chunk, fields.number("finalTransformedChunkSize", _INT_MAX)))
    if kind != "variable":
        raise fields.error("type", "fixed or variable")
    sizes = _sizes(fields)
    index = ChunkIndex(size, chunk_bytes, sizes)
    if len(sizes) != index.count and (size or len(sizes) > 1):
        problem = f"{index.count} chunks for {size} bytes in chunks of {chunk_bytes}, it lists {len(sizes)}"
        raise fields.error("transformedChunks", problem)
    return index


def _sizes(fields: _Fields) -> NDArray[np.int64]:
    packed = fields.binary("transformedChunks")
    try:
        size = zstandard.frame_content_size(packed)
        if not 0 <= size <= _MAX_SIZES_BYTES:
            raise fields.error("transformedChunks", f"at most {_MAX_SIZES_BYTES} bytes, it has {size}")
        return decode_sizes(zstandard.ZstdDecompressor().decompress(packed, max_output_size=max(1, size)))
    except (zstandard.ZstdError, ValueError) as error:
        raise fields.error("transformedChunks", f"a list of sizes ({error})") from None


def decode_sizes(data: bytes) -> NDArray[np.int64]:
    """The list of sizes, int64[count]; ``ValueError`` if it is malformed."""
    count, width = int.from_bytes(data[:4], "big"), data[8] if len(data) > 8 else 0
    if count < 2:
        values = np.frombuffer(data[4:], ">i4").astype(np.int64) if len(data) == 4 + 4 * count else None
    elif not 1 <= width <= 4 or len(data) != 9 + (count - 1) * width + 4:
        values = None
    else:
        digits = np.zeros((count, 8), np.uint8)
        digits[:-1, 8 - width :] = np.frombuffer(data[9:-4], np.uint8).reshape(count - 1, width)
        values = digits.view(">i8")[:, 0] + int.from_bytes(data[4:8], "big", signed=True)
        values[-1] = int.from_bytes(data[-4:], "big", signed=True)
    if values is None or (values < 0).any():
        raise ValueError(f"{len(data)} bytes for {count} sizes")
    return values


class _Fields:
    """An object in the manifest, with checked access to its fields."""

    def __init__(self, value: Any, name: str, path: str) -> None:
        self._name, self.path = name, path
        if not isinstance(value, dict):
            raise CorruptLogError(f"{name or 'the manifest'} is not an object", path=path, hint=_MANIFEST_HINT)
        self._value: dict[str, Any] = value

    @property
    def names(self) -> list[str]:
        return list(self._value)

    def has(self, name: str) -> bool:
        return self._value.get(name) is not None

    def below(self, name: str) -> _Fields:
        return _Fields(self._value.get(name), f"{self._name}.{name}".lstrip("."), self.path)

    def get(self, name: str, kind: type[Any]) -> Any:
        value = self._value.get(name)
        if type(value) is not kind:
            raise self.error(name, f"of type {kind.__name__}")
        return value

    def number(self, name: str, most: int, least: int = 0) -> int:
        value: int = self.get(name, int)
        if not least <= value <= most:
            raise self.error(name, f"from {least} to {most}")
        return value

    def binary(self, name: str) -> bytes:
        try:
            return base64.b64decode(self.get(name, str), validate=True)
        except ValueError:
            raise self.error(name, "base64") from None

    def error(self, name: str, expected: str) -> CorruptLogError:
        shown = repr(self._value.get(name))
        value = f"{shown[:60]}…" if len(shown) > 60 else shown
        problem = f"{f'{self._name}.{name}'.lstrip('.')} is {value}, expected {expected}"
        return CorruptLogError(problem, path=self.path, hint=_MANIFEST_HINT)


IV_BYTES, TAG_BYTES = 12, 16
#: by which encryption makes data larger
SEAL_BYTES = IV_BYTES + TAG_BYTES
_HINT = "restore the object and its manifest from another copy"
#: larger chunks are decoded for random access one at a time
_LARGE_BYTES = 8 << 20


class KeptBytes:
    """The values used last, up to ``limit_bytes``, at least one; for several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._values: OrderedDict[object, bytes] = OrderedDict()
        self._lock = Lock()

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self._values.values()))

    def get(self, key: object) -> bytes | None:
        with self._lock:
            data = self._values.get(key)
            if data is not None:
                self._values.move_to_end(key)
            return data

    def put(self, key: object, data: bytes) -> None:
        with self._lock:
            self._values[key] = data
            while len(self._values) > 1 and self.size_bytes > self._limit_bytes:
                self._values.popitem(last=False)


#: the decoded chunks of this process for random access, by object (path and time) and number
KEPT = KeptBytes(64 << 20)
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
    # the package is there: it has unwrapped the key
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(data) >= SEAL_BYTES:
        with suppress(InvalidTag):
            plain: bytes = AESGCM(coding.key).decrypt(data[:IV_BYTES], data[IV_BYTES:], coding.aad)
            return plain
    problem = f"{description}, bytes {start} to {start + len(data) - 1}: the authentication tag does not match"
    raise CorruptLogError(problem, path=path, position=start, hint=_HINT)


def encrypted(data: bytes, coding: ChunkCoding) -> bytes:
    """The inverse of ``decrypted``, with a random IV."""
    if coding.key is None:
        return data
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    iv = secrets.token_bytes(IV_BYTES)
    sealed: bytes = AESGCM(coding.key).encrypt(iv, data, coding.aad)
    return iv + sealed


def encoded(data: bytes, coding: ChunkCoding) -> bytes:
    """A chunk as it is stored."""
    return encrypted(zstandard.ZstdCompressor().compress(data) if coding.compressed else data, coding)


class ChunkedObject(DecodedObject):
    """A decoded object; ``size`` is the number of decoded bytes.

    :raises CorruptLogError: the object's size differs from its manifest
    """

    def __init__(self, files: ReadableFileSystem, path: str, stat: FileStat, index: ChunkIndex, coding: ChunkCoding) -> None:
        self._files, self._path, self.index, self._coding = files, path, index, coding
        self.mtime_ns = stat.mtime_ns
        require_size(path, stat, index.stored_size)

    def size(self) -> int:
        return self.index.size

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        end = self.index.size if length is None else min(self.index.size, start + length)
        parts = []
        while start < end:
            chunk = self.index.at(start)
            parts.append(self._chunk(chunk)[start - chunk.start : end - chunk.start])
            start = chunk.end
        return b"".join(parts)

    def _chunk(self, chunk: Chunk) -> bytes:
        """A decoded chunk, kept."""
        key = self._path, self.mtime_ns, chunk.number
        with _LARGE if chunk.end - chunk.start > _LARGE_BYTES else nullcontext():
            data = KEPT.get(key)
            if data is None:
                with closing(self._files.open(self._path, chunk.stored_start, chunk.stored_end)) as source:
                    data = self.decoded(chunk, source)
                KEPT.put(key, data)
        return data

    def sequential(self, start: int, end: int) -> File:
        if start >= end:
            return InMemory(b"")
        first, last = self.index.at(start), self.index.at(min(end, self.index.size) - 1)
        return _ChunkReader(self, self._files.open(self._path, first.stored_start, last.stored_end))

    def decoded(self, chunk: Chunk, source: File) -> bytes:
        """The log's bytes of a chunk; ``source`` reads the object."""
        start, expected = chunk.stored_start, chunk.end - chunk.start
        place = f"chunk {chunk.number}, bytes {start} to {chunk.stored_end - 1}"
        stored = memoryview(np.empty(chunk.stored_end - start, np.uint8))
        end = start + read_full(source, stored, start)
        if end < chunk.stored_end:
            problem = f"{place}: the object ends at byte {end}"
            raise CorruptLogError(problem, path=self._path, position=end, hint=_HINT)
        data = decrypted(stored, self._coding, self._path, start, f"chunk {chunk.number}")
        try:
            # a frame with another content size is not decompressed
            size = zstandard.frame_content_size(data) if self._coding.compressed else len(data)
            if size in (-1, expected) and self._coding.compressed:
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=max(1, expected))
                size = len(data)
            problem = "" if size == expected else f"has {size} bytes of the log, the manifest says {expected}"
        except zstandard.ZstdError as error:
            problem = f"cannot be decompressed ({error})"
        if problem:
            raise CorruptLogError(f"{place}: {problem}", path=self._path, position=start, hint=_HINT)
        return data


class _ChunkReader(File):
    """Reads sequentially; holds one decoded chunk."""

    def __init__(self, content: ChunkedObject, source: File) -> None:
        self._content, self._source = content, source
        self._chunk: Chunk | None = None
        self._data = memoryview(b"")

    def size(self) -> int:
        return self._content.size()

    def pread(self, view: memoryview, position: int) -> int:
        if position >= self.size():
            return 0
        chunk = self._chunk
        if chunk is None or not chunk.start <= position < chunk.end:
            chunk = self._chunk = self._content.index.at(position)
            self._data = memoryview(self._content.decoded(chunk, self._source))
        part = self._data[position - chunk.start :][: len(view)]
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._source.close()


def require_size(path: str, stat: FileStat, expected: int) -> None:
    """:raises CorruptLogError: the object's size differs from its manifest"""
    if stat.size != expected:
        problem = f"has {stat.size} bytes, its manifest lists {expected}"
        raise CorruptLogError(problem, path=path, position=min(stat.size, expected), hint=_HINT)
