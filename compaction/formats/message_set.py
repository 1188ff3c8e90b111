"""Message sets (v0 and v1): plain messages and compressed wrappers, read and written.

An entry is an offset, a size and a message: CRC-32 over all that follows it, magic, attributes, timestamp (magic 1 only),
key and value (int32 length, -1 for null, and bytes). A wrapper is a message whose value is a compressed run of entries; it
has the offset of its last inner message. Inner offsets are absolute in a v0 wrapper. In a v1 wrapper they are relative: the
last inner message has the wrapper's offset. (With a wrapper offset of 0 they are absolute; some librdkafka versions wrote
that.) Inner messages may have another magic than their wrapper. With log append time, all inner v1 messages have the wrapper's
timestamp.

Mirrors ``LegacyRecord`` and ``AbstractLegacyRecordBatch``, which do not check the CRCs of inner messages and stop
at an incomplete one without an error; a wrapper inside a wrapper is an error. ``wrap`` mirrors
``MemoryRecordsBuilder.writeLegacyCompressedWrapperHeader`` (Kafka 3.9.2): the wrapper's offset is that of its last message, its
timestamp the largest of its messages, or under log append time that of all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from compaction.formats.codecs import Codec, compress, decompress
from compaction.formats.primitives import Buffer, FieldTable, FormatError, Int8, Int32, Int64, UInt32
from compaction.formats.record_batch import (
    CODEC,
    DEFAULT_LIMIT_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    EntryHeader,
    Record,
    StoredBatch,
)


class EntryHeaderV1(NamedTuple):
    offset: Int64
    size: Int32
    crc: UInt32
    magic: Int8
    attributes: Int8
    timestamp: Int64  # ms, -1 for none


HEADER_V0 = FieldTable(EntryHeader)
HEADER_V1 = FieldTable(EntryHeaderV1)
# byte positions of fields, for kernels
MESSAGE_CRC_AT, CRC_START, MESSAGE_ATTRIBUTES_AT = map(HEADER_V0.offset, ("crc", "magic", "attributes"))
TIMESTAMP_AT = HEADER_V1.offset("timestamp")
_INT_BYTES = 4
#: bytes of a message without key and value
LEAST_BYTES_V0, LEAST_BYTES_V1 = (header.size + 2 * _INT_BYTES for header in (HEADER_V0, HEADER_V1))
_INT = struct.Struct(">i")
#: wrappers of more messages are refused to bound memory; no broker accepts such a wrapper
_MAX_MESSAGES = 1 << 20

Longs = npt.NDArray[np.int64]

_HEADERS = (HEADER_V0, HEADER_V1)


@dataclass(frozen=True)
class MessageColumns:
    """The records of one entry as arrays of shape (n,): starts are positions in ``data``, a length of -1 means null."""

    data: memoryview
    offset: Longs
    timestamp: Longs
    key_start: Longs
    key_length: Longs
    value_start: Longs
    value_length: Longs

    def __len__(self) -> int:
        return len(self.offset)

    def records(self) -> Iterator[Record]:
        spans = (self.key_start, self.key_length, self.value_start, self.value_length)
        for offset, timestamp, *span in zip(*(a.tolist() for a in (self.offset, self.timestamp, *spans)), strict=True):
            yield Record(offset, timestamp, self._field(span[0], span[1]), self._field(span[2], span[3]))

    def _field(self, start: int, length: int) -> bytes | None:
        return None if length < 0 else bytes(self.data[start : start + length])


@dataclass(frozen=True)
class MessageEntry(StoredBatch):
    """One entry of a message set, a plain message or a wrapper; ``timestamp`` is the message's own, -1 in v0.

    Any codec but ``NONE`` makes the entry a wrapper.
    """

    header: EntryHeader
    timestamp: int

    @property
    def last_offset(self) -> int:
        """The first one is known only after decoding the records."""
        return self.header.offset

    def columns(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> MessageColumns:
        """The records as arrays. Decompresses at most ``limit_bytes``; positions in errors count from the payload.

        :raises FormatError: an empty, null, nested or malformed wrapper, or a field that exceeds its message
        """
        if self.codec is Codec.NONE:
            row = (self.last_offset, self.timestamp, *self._spans())
            return MessageColumns(self.data, *np.array(row, np.int64).reshape(-1, 1))
        return self._inner(self.payload(limit_bytes))

    def payload(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> memoryview:
        """The messages of a wrapper, decompressed to at most ``limit_bytes``.

        :raises FormatError: a null value, or one that cannot be decompressed
        """
        codec = self.codec
        if codec is Codec.ZSTD:
            raise FormatError(f"a wrapper of magic {self.magic} cannot use zstd", self.position)
        _, _, start, length = self._spans()
        if length < 0:
            raise FormatError("compressed wrapper with a null value", self.position)
        return decompress(codec, self.data[start : start + length], limit_bytes=limit_bytes, magic=self.magic)

    def _spans(self) -> tuple[int, int, int, int]:
        """Start and length of key and value in ``data``; a length of -1 means null."""
        key_start = _HEADERS[self.magic].size + _INT_BYTES
        key_length = max(_INT.unpack_from(self.data, key_start - _INT_BYTES)[0], -1)
        value_start = key_start + max(key_length, 0) + _INT_BYTES
        if value_start > self.size:
            raise FormatError("message whose key runs past its end", self.position)
        value_length = max(_INT.unpack_from(self.data, value_start - _INT_BYTES)[0], -1)
        if value_start + value_length > self.size:
            raise FormatError("message whose value runs past its end", self.position)
        return key_start, key_length, value_start, value_length

    def records(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[Record]:
        return self.columns(limit_bytes).records()

    def require_convertible(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        """Check that the records can be those of a v2 batch.

        :raises FormatError: as ``columns``; also if offsets do not increase within the range of a batch, or a timestamp is
            below -1
        """
        columns = self.columns(limit_bytes)
        offset = columns.offset
        if np.any(np.diff(offset) <= 0) or offset[-1] - offset[0] > np.iinfo(np.int32).max:
            raise FormatError("offsets of messages do not increase within a batch's range", self.position)
        if np.any(columns.timestamp < NO_TIMESTAMP):
            raise FormatError("negative timestamp", self.position)

    def _inner(self, payload: memoryview) -> MessageColumns:
        starts = _entry_starts(payload)
        if not len(starts):
            raise FormatError("compressed wrapper without messages", self.position)
        inner = _columns(payload, starts)
        raw = np.frombuffer(payload, np.uint8)
        nested = raw[starts + MESSAGE_ATTRIBUTES_AT] & CODEC != 0
        if nested.any():
            raise FormatError("compressed message inside a wrapper", int(starts[np.argmax(nested)]))
        if self.is_log_append_time:
            inner.timestamp[raw[starts + HEADER_V0.offset("magic")] > 0] = self.timestamp
        if self.magic > 0 and self.last_offset != 0:
            if self.last_offset < inner.offset[-1]:
                raise FormatError(f"wrapper at offset {self.last_offset} below its last relative offset {inner.offset[-1]}")
            inner.offset[:] += self.last_offset - inner.offset[-1]
        return inner


def parse_message_entry(buf: Buffer, pos: int = 0) -> MessageEntry:
    """The v0/v1 entry at ``pos``; checks neither CRC nor inner messages.

    :raises FormatError: another magic, a size too small for the fields, or one that exceeds the buffer
    """
    header = HEADER_V0.unpack(buf, pos)
    if header.magic not in (0, 1):
        raise FormatError(f"magic {header.magic}, 0 or 1 expected", pos + HEADER_V0.offset("magic"))
    size = LOG_OVERHEAD_BYTES + header.size
    if size < (LEAST_BYTES_V1 if header.magic else LEAST_BYTES_V0) or size > len(buf) - pos:
        raise FormatError(f"message size {header.size} does not fit, {len(buf) - pos} bytes left", pos)
    timestamp = HEADER_V1.get(buf, "timestamp", pos) if header.magic else NO_TIMESTAMP
    return MessageEntry(pos, memoryview(buf)[pos : pos + size], header, timestamp)


def _entry_starts(payload: memoryview) -> Longs:
    starts: list[int] = []
    pos, end = 0, len(payload)
    size_at, smallest = HEADER_V0.offset("size"), LEAST_BYTES_V0 - LOG_OVERHEAD_BYTES
    while end - pos >= LOG_OVERHEAD_BYTES:
        (size,) = _INT.unpack_from(payload, pos + size_at)
        if size < smallest:
            raise FormatError(f"message of {size} bytes", pos)
        if size > end - pos - LOG_OVERHEAD_BYTES:
            break
        if len(starts) == _MAX_MESSAGES:
            raise FormatError(f"wrapper of more than {_MAX_MESSAGES} messages", pos)
        starts.append(pos)
        pos += LOG_OVERHEAD_BYTES + size
    return np.array(starts, np.int64)


def _columns(data: memoryview, starts: Longs) -> MessageColumns:
    """One row per entry at ``starts``, with offsets and timestamps as stored."""
    raw = np.frombuffer(data, np.uint8)
    ends = starts + LOG_OVERHEAD_BYTES + _gather(raw, starts + HEADER_V0.offset("size"), 4)
    magic = raw[starts + HEADER_V0.offset("magic")]
    _refuse(magic > 1, starts, "message of unknown magic")
    v1 = magic > 0
    header_bytes = np.where(v1, HEADER_V1.size, HEADER_V0.size)
    _refuse(starts + header_bytes + 2 * _INT_BYTES > ends, starts, "message too short for its fields")
    timestamp = np.full(len(starts), NO_TIMESTAMP, np.int64)
    timestamp[v1] = _gather(raw, starts[v1] + HEADER_V1.offset("timestamp"), 8)
    key_start = starts + header_bytes + _INT_BYTES
    key_length = np.maximum(_gather(raw, key_start - _INT_BYTES, 4), -1)
    value_start = key_start + np.maximum(key_length, 0) + _INT_BYTES
    _refuse(value_start > ends, starts, "message whose key runs past its end")
    value_length = np.maximum(_gather(raw, value_start - _INT_BYTES, 4), -1)
    _refuse(value_start + value_length > ends, starts, "message whose value runs past its end")
    return MessageColumns(data, _gather(raw, starts, 8), timestamp, key_start, key_length, value_start, value_length)


def _gather(raw: npt.NDArray[np.uint8], positions: Longs, width: int) -> Longs:
    chunks = np.ascontiguousarray(raw[positions[:, None] + np.arange(width)])
    return chunks.view(f">i{width}")[:, 0].astype(np.int64)


def _refuse(bad: npt.NDArray[np.bool_], starts: Longs, message: str) -> None:
    if bad.any():
        raise FormatError(message, int(starts[np.argmax(bad)]))


def wrap(magic: int, codec: Codec, last_offset: int, timestamp: int, messages: Buffer, *, append_time: bool) -> bytes:
    """The wrapper of ``messages``, which have their offsets and sizes; with magic 0 the timestamp is not written."""
    attributes, payload = codec | (LOG_APPEND_TIME if append_time else 0), compress(codec, messages, magic=magic)
    # a null key, and the length of the value
    fields = _INT.pack(-1) + _INT.pack(len(payload))
    size = _HEADERS[magic].size + len(fields) + len(payload) - LOG_OVERHEAD_BYTES
    head = EntryHeader(last_offset, size, 0, magic, attributes)
    data = bytearray(HEADER_V1.pack(EntryHeaderV1(*head, timestamp)) if magic else HEADER_V0.pack(head)) + fields + payload
    HEADER_V0.put(data, "crc", crc32(memoryview(data)[CRC_START:]))
    return bytes(data)
