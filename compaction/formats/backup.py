"""Backup sets of kafka-backup: ``manifest.json`` with the topics, their partitions and the segments of each; segment files.

Fields of the manifest that older versions lack are optional, unknown ones are ignored. Keys of segments begin with the set's
id, which is also the name of its directory.

A segment file has a header, the records, compressed as one stream, and a footer. All fields are little-endian. Header:
``KBAK``, version 1, compression (0 none, 1 zstd, 2 lz4), two unused bytes, record count (uint64), first and last offset
(int64). Footer: CRC-32 of all bytes before it (uint32), ``BKAE``. zstd is one frame, or several; lz4 is one block after its
plain size (uint32).

Mirrors ``manifest.rs``, ``segment/format.rs``, ``segment/reader.rs`` and ``compression.rs`` of kafka-backup-core 0.25.2.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple, TypeGuard

import cramjam
import zstandard

from compaction.formats.primitives import Buffer, CodecError, FormatError, shown
from compaction.names import TopicPartition, parse_partition_dir

MANIFEST = "manifest.json"
READ_COMMITTED = "read_committed"
#: one past the highest offset, so that each end (exclusive) is an int64
_OFFSETS = (1 << 63) - 1
_MAX_PARTITION = (1 << 31) - 1


@dataclass(frozen=True)
class BackupSegment:
    """A segment: ``key`` is its path below the set, offsets and timestamps are those of the first and last record.

    ``covered``: the offsets ``[start, end)`` that it accounts for, as sets of version 0.25 and later record them. ``sha256`` is
    empty, sizes are 0 if they are not known.
    """

    key: str
    start_offset: int
    end_offset: int
    start_timestamp: int
    end_timestamp: int
    record_count: int
    uncompressed_size: int
    compressed_size: int
    sha256: str = ""
    covered: tuple[int, int] | None = None

    @property
    def covered_start(self) -> int:
        return self.start_offset if self.covered is None else self.covered[0]

    @property
    def covered_end(self) -> int:
        return self.end_offset + 1 if self.covered is None else self.covered[1]

    def as_json(self, backup_id: str, uploaded_at: int) -> dict[str, object]:
        fields = {**vars(self), "key": f"{backup_id}/{self.key}", "uploaded_at": uploaded_at}
        del fields["covered"]
        return {**fields, "covered_start_offset": self.covered_start, "covered_end_offset": self.covered_end - 1}


@dataclass(frozen=True)
class BackupPartition:
    """The segments of a partition, ascending. ``absent``: offsets ``[start, end)`` that the set declares missing: the source
    had lost them, or they were pruned. ``covered_through``: the last offset that the set accounts for."""

    segments: tuple[BackupSegment, ...]
    absent: tuple[tuple[int, int], ...] = ()
    covered_through: int | None = None

    @property
    def end_offset(self) -> int:
        """One past the last offset that the set accounts for."""
        through = -1 if self.covered_through is None else self.covered_through
        return max([*(segment.covered_end for segment in self.segments), *(end for _, end in self.absent), through + 1])


@dataclass(frozen=True)
class BackupManifest:
    """A backup set. ``document``: the complete manifest; ``partitions``: the fields that readers need."""

    backup_id: str
    isolation_level: str | None
    partitions: Mapping[TopicPartition, BackupPartition]
    document: Mapping[str, Any]


def parse_manifest(data: bytes) -> BackupManifest:
    """:raises FormatError: it is not JSON, a field is missing or malformed, segments overlap, or two have one key"""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"manifest is not JSON: {error}") from None
    backup_id = _field(document, "backup_id", str, "manifest")
    level = document.get("isolation_level")
    partitions: dict[TopicPartition, BackupPartition] = {}
    owners: dict[str, TopicPartition] = {}
    for topic in _field(document, "topics", list, "manifest"):
        name = _field(topic, "name", str, "topic")
        for entry in _field(topic, "partitions", list, f"topic {shown(name)}"):
            log = TopicPartition(name, _field(entry, "partition_id", int, f"topic {shown(name)}"))
            if not 0 <= log.partition <= _MAX_PARTITION or parse_partition_dir(str(log)) != log:
                problem = f"manifest has partition {log.partition} of topic {shown(name)}, which no broker can have"
                raise FormatError(problem)
            if log in partitions:
                raise FormatError(f"manifest has {log} twice")
            partitions[log] = _partition(entry, log, backup_id)
            for segment in partitions[log].segments:
                if segment.key in owners:
                    raise FormatError(f"segment {shown(segment.key)} is listed by {owners[segment.key]} and {log}")
                owners[segment.key] = log
    return BackupManifest(backup_id, level if isinstance(level, str) else None, partitions, document)


def _partition(entry: Mapping[str, Any], log: TopicPartition, backup_id: str) -> BackupPartition:
    unsorted = [_segment(item, str(log), backup_id) for item in _field(entry, "segments", list, str(log))]
    segments = tuple(sorted(unsorted, key=lambda segment: segment.start_offset))
    for before, after in pairwise(segments):
        if after.covered_start < before.covered_end:
            raise FormatError(f"segments {shown(before.key)} and {shown(after.key)} of {log} have the same offsets")
    through = entry.get("covered_through")
    if through is not None and not -1 <= _field(entry, "covered_through", int, str(log)) < _OFFSETS:
        raise FormatError(f"{log}: covered_through is {through}")
    return BackupPartition(segments, tuple(_absent(entry, log)), through)


def _absent(entry: Mapping[str, Any], log: TopicPartition) -> Iterator[tuple[int, int]]:
    """The ranges of gaps, whose ends are exclusive, and of pruned segments, whose ends are inclusive."""
    for name, more in (("gaps", 0), ("pruned", 1)):
        for item in _field(entry, name, list, str(log)) if name in entry else ():
            start, end = (_field(item, field, int, f"{name} of {log}") for field in ("start_offset", "end_offset"))
            if not 0 <= start <= end + more <= _OFFSETS:
                raise FormatError(f"{name} of {log} have offsets {start} to {end}")
            yield start, end + more


def _segment(entry: Mapping[str, Any], log: str, backup_id: str) -> BackupSegment:
    key = _field(entry, "key", str, log)
    path = key.removeprefix(f"{backup_id}/")
    if path == key or any(part in ("", ".", "..") for part in path.split("/")) or not path.isprintable():
        raise FormatError(f"key {shown(key)} of {log} is not below the set {shown(backup_id)}")
    names = ("start_offset", "end_offset", "start_timestamp", "end_timestamp", "record_count")
    start, end, first_ms, last_ms, count = (_field(entry, name, int, f"segment {shown(path)}") for name in names)
    if not 0 <= start <= end < _OFFSETS or not 0 < count <= end - start + 1:
        raise FormatError(f"segment {shown(path)} has {count} records at offsets {start} to {end}")
    low, high, digest = entry.get("covered_start_offset"), entry.get("covered_end_offset"), entry.get("sha256", "")
    covered = (low, high + 1) if _is_number(low) and _is_number(high) else None
    if covered is not None and not (0 <= covered[0] <= start and end < covered[1] <= _OFFSETS):
        raise FormatError(f"segment {shown(path)} has offsets {start} to {end}, outside of those that it covers")
    plain, stored = (entry.get(name, 0) for name in ("uncompressed_size", "compressed_size"))
    if not all(_is_number(size) and 0 <= size < _OFFSETS for size in (plain, stored)) or not isinstance(digest, str):
        raise FormatError(f"segment {shown(path)} has malformed sizes or digest")
    return BackupSegment(path, start, end, first_ms, last_ms, count, plain, stored, digest, covered)


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _field(entry: Any, name: str, kind: type[Any], owner: str) -> Any:
    """:raises FormatError: ``entry`` is no object, or its field is missing or of another type"""
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise FormatError(f"{owner}: {name} is {'missing' if value is None else 'not of type ' + kind.__name__}")
    return value


def format_manifest(
    backup_id: str,
    logs: Mapping[TopicPartition, BackupPartition],
    now_ms: int,
    base: BackupManifest | None = None,
    compression: str = "zstd",
    empty: Collection[str] = (),
) -> bytes:
    """A manifest of these logs.

    :param base: the set that they were made from; its fields about the source (cluster, settings, gaps) are kept
    :param empty: topics of ``base`` without partitions that are kept
    """
    old = {} if base is None else dict(base.document)
    topics: dict[str, dict[str, Any]] = {}
    for log, partition in sorted(logs.items()):
        topic_fields, partition_fields = _kept_fields(old, log)
        topic = {"name": log.topic, "original_partition_count": None, **topic_fields, "partitions": []}
        topic = topics.setdefault(log.topic, topic)
        segments = [segment.as_json(backup_id, now_ms) for segment in partition.segments]
        covered = {"covered_through": partition.end_offset - 1} if partition.end_offset else {}
        topic["partitions"].append({**partition_fields, "partition_id": log.partition, "segments": segments, **covered})
    for topic in old.get("topics", ()):
        if topic["name"] in empty:
            topics.setdefault(topic["name"], topic)
    document = {
        "source_cluster_id": None,
        "source_brokers": [],
        "isolation_level": READ_COMMITTED,
        **old,
        "backup_id": backup_id,
        "created_at": now_ms,
        "compression": compression,
        "topics": list(topics.values()),
    }
    if base is not None and base.isolation_level is None:
        del document["isolation_level"]
    return json.dumps(document, indent=2).encode()


def _kept_fields(document: Mapping[str, Any], log: TopicPartition) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a log's topic in a manifest, and of its partition: the offsets that are not in the set."""
    for topic in document.get("topics", ()):
        if topic["name"] == log.topic:
            topic_fields = {name: value for name, value in topic.items() if name != "partitions"}
            entries = [entry for entry in topic["partitions"] if entry["partition_id"] == log.partition]
            return topic_fields, {name: entry[name] for entry in entries for name in ("gaps", "pruned") if name in entry}
    return {}, {}


MAGIC, END_MAGIC = b"KBAK", b"BKAE"
VERSION = 1
_HEADER = struct.Struct("<4sBB2xQqq")
_FOOTER = struct.Struct("<I4s")
HEADER_BYTES, FOOTER_BYTES = _HEADER.size, _FOOTER.size
_ZSTD_LEVEL = 3
_PLAIN_SIZE = struct.Struct("<I")
#: bounds memory: an lz4 segment is decompressed as a whole; kafka-backup's default size is 128 MiB
MAX_LZ4_BYTES = 1 << 30
#: lz4 cannot compress further
_LZ4_RATIO = 255


class Compression(IntEnum):
    NONE = 0
    ZSTD = 1
    LZ4 = 2

    @property
    def extension(self) -> str:
        """The suffix after ``.bin`` in names of segments."""
        return {Compression.NONE: "", Compression.ZSTD: ".zst", Compression.LZ4: ".lz4"}[self]


class SegmentHeader(NamedTuple):
    """The header's fields; offsets are those of the first and last record, -1 without records."""

    compression: Compression
    record_count: int
    start_offset: int
    end_offset: int


class SegmentStream:
    """A segment being read, sequentially and once.

    :param blocks: the bytes of the file, in blocks of any size, each valid until the next
    :param size: of the file
    :raises FormatError: the header is malformed
    """

    def __init__(self, blocks: Iterable[Buffer], size: int) -> None:
        if size < HEADER_BYTES + FOOTER_BYTES:
            raise FormatError(f"segment of {size} bytes, at least {HEADER_BYTES + FOOTER_BYTES} expected", 0)
        self._blocks = iter(blocks)
        self._remaining = size - FOOTER_BYTES
        self._buffer = memoryview(b"")
        self._crc, self._sha256 = 0, sha256()
        magic, version, compression, count, start, end = _HEADER.unpack(self.read(HEADER_BYTES))
        if magic != MAGIC:
            raise FormatError(f"segment begins with {magic!r}, {MAGIC!r} expected", 0)
        if version != VERSION:
            raise FormatError(f"unknown segment version {version}, {VERSION} expected", 4)
        if compression not in set(Compression):
            raise FormatError(f"unknown segment compression {compression}", 5)
        self.header = SegmentHeader(Compression(compression), count, start, end)

    def read(self, size: int = -1) -> bytes:
        """The next ``size`` bytes, at most those before the footer; all of them if ``size`` is negative."""
        parts: list[bytes] = []
        remaining = self._remaining if size < 0 else min(size, self._remaining)
        while remaining:
            part = self._take(remaining)
            self._remaining -= len(part)
            remaining -= len(part)
            parts.append(part)
            self._crc = zlib.crc32(part, self._crc)
        return b"".join(parts)

    def _take(self, max_bytes: int) -> bytes:
        while not len(self._buffer):
            block = next(self._blocks, None)
            if block is None:
                raise FormatError("segment is shorter than its listed size")
            self._buffer = memoryview(block)
        part = bytes(self._buffer[:max_bytes])
        self._buffer = self._buffer[max_bytes:]
        self._sha256.update(part)
        return part

    def plain(self, step_bytes: int) -> Iterator[memoryview]:
        """The records' bytes, up to ``step_bytes`` at a time.

        :raises FormatError: they cannot be decompressed, or the checksum is wrong
        """
        if self.header.compression is Compression.NONE:
            while data := self.read(step_bytes):
                yield memoryview(data)
        elif self.header.compression is Compression.ZSTD:
            yield from self._unzstd(step_bytes)
        else:
            plain = _decompress_lz4(self.read())
            for start in range(0, len(plain), step_bytes):
                yield plain[start : start + step_bytes]

    def _unzstd(self, step_bytes: int) -> Iterator[memoryview]:
        with zstandard.ZstdDecompressor().stream_reader(self, read_across_frames=True, closefd=False) as reader:  # type: ignore[arg-type]
            while True:
                try:
                    data = reader.read(step_bytes)
                except zstandard.ZstdError as error:
                    raise CodecError(f"zstd stream cannot be decompressed: {error}") from None
                if not data:
                    return
                yield memoryview(data)

    def check_end(self) -> str:
        """Read the rest and check the footer; returns the SHA-256 of the file, in hex.

        :raises FormatError: the checksum is wrong, or there is no footer
        """
        while self.read(1 << 20):
            pass
        footer = b""
        while len(footer) < FOOTER_BYTES:
            footer += self._take(FOOTER_BYTES - len(footer))
        stored, magic = _FOOTER.unpack(footer)
        if magic != END_MAGIC:
            raise FormatError(f"segment ends with {magic!r}, {END_MAGIC!r} expected: it is incomplete, or no segment")
        if stored != self._crc:
            raise FormatError(f"segment fails its CRC (stored {stored:#x}, computed {self._crc:#x})")
        return self._sha256.hexdigest()


def _decompress_lz4(data: bytes) -> memoryview:
    if len(data) < _PLAIN_SIZE.size:
        raise CodecError(f"lz4 block of {len(data)} bytes has no size")
    (size,) = _PLAIN_SIZE.unpack_from(data)
    if size > MAX_LZ4_BYTES or size > _LZ4_RATIO * len(data):
        raise CodecError(f"lz4 block of {len(data)} bytes declares {size} plain bytes; at most {MAX_LZ4_BYTES} are supported")
    try:
        plain = memoryview(cramjam.lz4.decompress_block(memoryview(data)[_PLAIN_SIZE.size :], output_len=size))
    except cramjam.DecompressionError as error:
        raise CodecError(f"lz4 block cannot be decompressed: {error}") from None
    if len(plain) != size:
        raise CodecError(f"lz4 block has {len(plain)} plain bytes, {size} expected")
    return plain


def encode_segment(plain: Buffer, header: SegmentHeader) -> bytes:
    """A segment file with the records' bytes ``plain``, compressed at kafka-backup's default level."""
    if header.compression is Compression.ZSTD:
        stored = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(plain)
    elif header.compression is Compression.LZ4:
        stored = _PLAIN_SIZE.pack(len(plain)) + bytes(cramjam.lz4.compress_block(plain, store_size=False))
    else:
        stored = bytes(plain)
    head = _HEADER.pack(MAGIC, VERSION, header.compression, *header[1:])
    return b"".join((head, stored, _FOOTER.pack(zlib.crc32(stored, zlib.crc32(head)), END_MAGIC)))
