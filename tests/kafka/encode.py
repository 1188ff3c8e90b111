"""Record batches as bytes, encoded by Kafka's format and independent of the package under test.

Kafka itself validates them: every batch is appended to a real log. Encoding here and appending complete batches makes random
logs cheap: a call into the JVM costs as much as encoding dozens of records.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import google_crc32c
import pyarrow
import xxhash

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ABORT, COMMIT = 0, 1

_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _HAS_HORIZON = 8, 16, 32, 64
_LZ4_MAGIC = struct.pack("<I", 0x184D2204)
_LZ4_DESCRIPTOR = bytes((0x60, 0x40))  # version 1, independent blocks, no checksums; blocks of 64 KiB
_LZ4_BLOCK_BYTES = 65_536
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32_768


class Record(NamedTuple):
    """One record. ``offset`` is absolute."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


class Encodable(Protocol):
    """A ``Record``, or a record that the package has read."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[bytes | str, bytes | None]]: ...


@dataclass(frozen=True)
class Batch:
    """A v2 batch. ``base_offset`` and ``last_offset`` default to those of its records, ``max_timestamp`` to their highest.

    ``delete_horizon`` sets attribute bit 6 and goes into the base timestamp; ``log_append_time`` sets bit 3.
    """

    records: Sequence[Encodable]
    codec: str = "none"
    base_offset: int | None = None
    last_offset: int | None = None
    leader_epoch: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False
    log_append_time: int | None = None
    delete_horizon: int | None = None
    max_timestamp: int | None = None

    def encode(self, packed: Packed | None = None) -> bytes:
        """The batch's bytes, CRC included; compressed by ``packed`` in place of ``compress``."""
        records = self.records
        base = records[0].offset if self.base_offset is None else self.base_offset
        last = (records[-1].offset if records else base) if self.last_offset is None else self.last_offset
        first_time = records[0].timestamp if records else -1
        base_time = first_time if self.delete_horizon is None else self.delete_horizon
        body = (packed or compress)(self.codec, b"".join(_record(record, base, base_time) for record in records), magic=2)
        counted = struct.pack(
            ">hiqqqhii",
            self._attributes(),
            last - base,
            base_time,
            self._max_timestamp(),
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            len(records),
        )
        counted += body
        head = struct.pack(">qiib", base, 9 + len(counted), self.leader_epoch, 2)
        return head + struct.pack(">I", google_crc32c.value(counted)) + counted

    def _attributes(self) -> int:
        flags = CODECS.index(self.codec)
        flags |= _LOG_APPEND_TIME if self.log_append_time is not None else 0
        flags |= _TRANSACTIONAL if self.transactional else 0
        flags |= _CONTROL if self.control else 0
        return flags | (_HAS_HORIZON if self.delete_horizon is not None else 0)

    def _max_timestamp(self) -> int:
        if self.log_append_time is not None:
            return self.log_append_time
        if self.max_timestamp is not None:
            return self.max_timestamp
        return max((record.timestamp for record in self.records), default=-1)


class Producer(NamedTuple):
    """A producer's id and epoch."""

    id: int
    epoch: int = 0


def marker(offset: int, timestamp: int, producer: Producer, kind: int, coordinator_epoch: int = 0, **fields: Any) -> bytes:
    """The control batch that ends a transaction; ``kind`` is ``ABORT`` or ``COMMIT``, ``fields`` are more of a ``Batch``."""
    record = Record(offset, timestamp, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch))
    fields |= {"producer_id": producer.id, "producer_epoch": producer.epoch, "transactional": True, "control": True}
    return Batch((record,), **fields).encode()


@dataclass(frozen=True)
class Legacy:
    """A message set of magic 0 or 1: messages one after another, or one wrapper around all of them when compressed.

    A wrapper carries the last inner offset; inner offsets are absolute in v0 and relative to the first in v1. ``inner_magic``:
    the wrapped messages have another one. ``restamps``: these have the append time, too, which a broker writes to the wrapper.
    """

    records: Sequence[Encodable]
    magic: int
    codec: str = "none"
    log_append_time: int | None = None
    inner_magic: int | None = None
    restamps: bool = True

    def encode(self, packed: Packed | None = None) -> bytes:
        """The bytes of the set; ``packed`` as for a ``Batch``."""
        if self.codec == "none":
            return b"".join(
                self._message(record, record.offset, 0, self.magic, self.log_append_time) for record in self.records
            )
        first = self.records[0].offset if self.magic == 1 else 0
        magic = self.magic if self.inner_magic is None else self.inner_magic
        stamp = self.log_append_time if self.restamps else None
        inner = b"".join(self._message(record, record.offset - first, 0, magic, stamp) for record in self.records)
        newest = max(record.timestamp for record in self.records)
        value = (packed or compress)(self.codec, inner, magic=self.magic)
        wrapper = Record(self.records[-1].offset, newest, None, value)
        return self._message(wrapper, wrapper.offset, CODECS.index(self.codec), self.magic, self.log_append_time)

    def _message(self, record: Encodable, offset: int, codec: int, magic: int, append_time: int | None) -> bytes:
        flags = codec | (_LOG_APPEND_TIME if append_time is not None and magic == 1 else 0)
        body = struct.pack(">bb", magic, flags)
        if magic == 1:
            body += struct.pack(">q", record.timestamp if append_time is None else append_time)
        body += _sized(record.key) + _sized(record.value)
        return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


#: compresses by the name of a codec, for a magic
Packed = Callable[..., bytes]


def compress(codec: str, data: bytes, *, magic: int = 2) -> bytes:
    """``data`` in one of ``CODECS``; magic 0 wants the lz4 header checksum that early clients wrote."""
    if codec == "gzip":
        return gzip.compress(data, mtime=0)
    if codec == "snappy":
        return _xerial(data)
    if codec == "lz4":
        return _lz4_frame(data, broken_header=magic == 0)
    if codec == "zstd":
        return bytes(pyarrow.Codec("zstd").compress(data, asbytes=True))
    return data


def _xerial(data: bytes) -> bytes:
    snappy = pyarrow.Codec("snappy")
    out = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = snappy.compress(data[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        out += [struct.pack(">i", len(block)), block]
    return b"".join(out)


def _lz4_frame(data: bytes, *, broken_header: bool) -> bytes:
    lz4 = pyarrow.Codec("lz4_raw")
    summed = _LZ4_MAGIC + _LZ4_DESCRIPTOR if broken_header else _LZ4_DESCRIPTOR
    out = [_LZ4_MAGIC, _LZ4_DESCRIPTOR, bytes(((xxhash.xxh32_intdigest(summed) >> 8) & 0xFF,))]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = lz4.compress(plain, asbytes=True)
        if len(block) < len(plain):
            out += [struct.pack("<I", len(block)), block]
        else:
            out += [struct.pack("<I", len(plain) | 0x80000000), plain]
    return b"".join([*out, bytes(4)])


def _record(record: Encodable, base_offset: int, base_time: int) -> bytes:
    body = b"\0" + varint(signed64(record.timestamp - base_time)) + varint(record.offset - base_offset, 32)
    body += _varbytes(record.key) + _varbytes(record.value) + varint(len(record.headers), 32)
    for name, value in record.headers:
        body += _varbytes(name.encode(errors="surrogateescape") if isinstance(name, str) else name) + _varbytes(value)
    return varint(len(body), 32) + body


def signed64(value: int) -> int:
    """Its value as Java's ``long``."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def varint(value: int, bits: int = 64) -> bytes:
    """Zig-zag, shortest form."""
    left = ((value << 1) ^ (value >> 63)) & ((1 << bits) - 1)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _varbytes(data: bytes | None) -> bytes:
    return varint(-1, 32) if data is None else varint(len(data), 32) + data


def _sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
