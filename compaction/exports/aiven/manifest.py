"""The manifest of a segment in Aiven's layout: JSON of version 1, with the index of the chunks of the ``.log`` object.

Mirrors ``SegmentManifestV1``, ``FixedSizeChunkIndex``, ``VariableSizeChunkIndex`` and ``ChunkSizesBinaryCodec``. The sizes of
variable chunks are base64 of zstd of: count (int32); for two or more, base (int32), width (int8), and for each but the last its
size less the base, ``width`` bytes; then the last size (int32). All numbers are big-endian.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.formats.checkpoints import EpochEntry

_HINT = "restore the manifest from another copy"
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
        self._fixed = stored if isinstance(stored, tuple) else None
        self._ends = None if isinstance(stored, tuple) else np.cumsum(stored)

    @property
    def stored_size(self) -> int:
        """The size of the object, in bytes."""
        return self._stored_end(self.count - 1) if self.count else 0

    def at(self, position: int) -> Chunk:
        """The chunk that has a byte of the log."""
        return self.chunk(position // self.chunk_bytes)

    def chunk(self, number: int) -> Chunk:
        """The chunk of a number from 0."""
        start = number * self.chunk_bytes
        end = min(self.size, start + self.chunk_bytes)
        return Chunk(number, start, end, self._stored_end(number - 1), self._stored_end(number))

    def _stored_end(self, number: int) -> int:
        if number < 0:
            return 0
        if self._ends is not None:
            return int(self._ends[number])
        full_chunk, last = self._fixed or (0, 0)
        return number * full_chunk + (last if number == self.count - 1 else full_chunk)


class Encryption(NamedTuple):
    """The wrapped data key, ``<key id>:<base64>``, and the additional authenticated data of every chunk."""

    data_key: str
    aad: bytes


class Section(NamedTuple):
    """A section of the ``.indexes`` object, in bytes."""

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
        raise CorruptLogError(f"is not a manifest in JSON: {error}", path=path, hint=_HINT) from None
    root = _Fields(document, "", path)
    if root.get("version", str) != "1":
        raise root.error("version", "'1'")
    return _read(root)


def _read(root: _Fields) -> AivenManifest:
    indexes, segment = root.below("segmentIndexes"), root.below("remoteLogSegmentMetadata")
    sections = {name: _section(indexes.below(name)) for name in SECTIONS if indexes.has(name)}
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
        name=f"{_directory(segment)}/{start:020d}-{segment.below('remoteLogSegmentId').get('id', str)}",
        chunks=_chunks(root.below("chunkIndex")),
        sections=sections,
        compressed=root.get("compression", bool),
        encryption=encryption,
        start_offset=start,
        end_offset=end,
        written_ms=segment.number("eventTimestampMs", _LONG_MAX),
        epochs=_epochs(segment.below("segmentLeaderEpochs"), start),
    )


def _directory(segment: _Fields) -> str:
    """The directory of a partition's objects."""
    partition = segment.below("remoteLogSegmentId").below("topicIdPartition")
    topic = partition.below("topicPartition")
    return f"{topic.get('topic', str)}-{partition.get('topicId', str)}/{topic.number('partition', _INT_MAX)}"


def _section(fields: _Fields) -> Section:
    return Section(fields.number("position", _INT_MAX), fields.number("size", _INT_MAX))


def _epochs(fields: _Fields, start_offset: int) -> tuple[EpochEntry, ...]:
    try:
        entries = sorted((int(epoch), max(fields.number(epoch, _LONG_MAX), start_offset)) for epoch in fields.names)
    except ValueError:
        raise fields.error(fields.names[0], "an offset by leader epoch") from None
    return tuple(EpochEntry(epoch, offset) for epoch, offset in entries)


def _chunks(fields: _Fields) -> ChunkIndex:
    index = _chunk_index(fields)
    if min(index.size, index.chunk_bytes) > MAX_CHUNK_BYTES:
        problem = f"has chunks of {index.chunk_bytes} bytes, at most {MAX_CHUNK_BYTES} are supported"
        raise UnsupportedLogError(problem, path=fields.path, hint="upload the segments with a smaller chunk.size")
    return index


def _chunk_index(fields: _Fields) -> ChunkIndex:
    size, chunk_bytes = fields.number("originalFileSize", _INT_MAX), fields.number("originalChunkSize", _INT_MAX, least=1)
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
    """The list of sizes, int64[count].

    :raises ValueError: it is malformed
    """
    count = int.from_bytes(data[:4], "big")
    if count < 2:
        expected = 4 + 4 * count
        values = np.frombuffer(data[4:], ">i4").astype(np.int64) if len(data) == expected else None
    else:
        width = data[8] if len(data) > 8 else 0
        expected = 9 + (count - 1) * width + 4
        values = _wide(data, count, width) if 1 <= width <= 4 and len(data) == expected else None
    if values is None or (values < 0).any():
        raise ValueError(f"{len(data)} bytes for {count} sizes")
    return values


def _wide(data: bytes, count: int, width: int) -> NDArray[np.int64]:
    base = int.from_bytes(data[4:8], "big", signed=True)
    digits = np.frombuffer(data[9:-4], np.uint8).reshape(count - 1, width).astype(np.int64)
    values = np.zeros(count, np.int64)
    for column in range(width):
        values[:-1] = values[:-1] << 8 | digits[:, column]
    values[:-1] += base
    values[-1] = int.from_bytes(data[-4:], "big", signed=True)
    return values


class _Fields:
    """An object in the manifest, with checked access to its fields."""

    def __init__(self, value: Any, name: str, path: str) -> None:
        self._name, self.path = name, path
        if not isinstance(value, dict):
            raise CorruptLogError(f"{name or 'the manifest'} is not an object", path=path, hint=_HINT)
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
        return CorruptLogError(problem, path=self.path, hint=_HINT)
