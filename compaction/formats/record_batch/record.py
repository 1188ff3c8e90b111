"""v2 records as Python values, for small logs and the dump tool. The kernels read the same bytes in bulk.

A record is a varint length, then attributes (one byte, unused), varlong timestamp delta, varint offset delta, key, value
(varint length, -1 for null, and bytes), a varint header count and the headers (key and value, the key never null). Mirrors
``DefaultRecord`` (Kafka 4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from compaction.formats.primitives.fields import Buffer
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.primitives.varint import decode_varint, decode_varlong, encode_varint, encode_varlong

NO_TIMESTAMP = -1
NO_SEQUENCE = -1
_INT_MAX = 2**31 - 1
_NULL = encode_varint(-1)
_UTF8_ERRORS = "surrogateescape"


class Header(NamedTuple):
    """A record header. Keys are UTF-8; malformed bytes are kept as surrogate escapes and encoded unchanged."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record with absolute offset and timestamp (ms, -1 for none); ``sequence`` is -1 without an idempotent producer."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    sequence: int = NO_SEQUENCE


class RecordBase(NamedTuple):
    """Fields of the batch header that record fields are relative to; ``log_append_time`` overrides all record timestamps."""

    offset: int
    timestamp: int
    sequence: int = NO_SEQUENCE
    log_append_time: int | None = None


def increment_sequence(sequence: int, increment: int) -> int:
    """``sequence`` plus ``increment``; sequence numbers wrap from 2**31 - 1 to 0."""
    return (sequence + increment) % (_INT_MAX + 1)


def encode_record(record: Record, base: RecordBase) -> bytes:
    """The record's bytes, length included."""
    body = bytearray(b"\x00")
    body += encode_varlong(record.timestamp - base.timestamp)
    body += encode_varint(record.offset - base.offset)
    body += _encode_bytes(record.key)
    body += _encode_bytes(record.value)
    body += encode_varint(len(record.headers))
    for key, value in record.headers:
        body += _encode_bytes(key.encode("utf-8", _UTF8_ERRORS))
        body += _encode_bytes(value)
    return encode_varint(len(body)) + bytes(body)


def encode_records(records: Iterable[Record], base: RecordBase) -> bytes:
    """The records, concatenated and uncompressed."""
    return b"".join(encode_record(record, base) for record in records)


def decode_records(buf: Buffer, count: int, base: RecordBase) -> Iterator[Record]:
    """``count`` records that fill ``buf``; ``FormatError`` with a position if they do not."""
    pos = 0
    for _ in range(count):
        record, pos = decode_record(buf, pos, base)
        yield record
    if count and pos != len(buf):
        raise FormatError(f"{len(buf) - pos} bytes left after {count} records", pos)


def decode_record(buf: Buffer, pos: int, base: RecordBase) -> tuple[Record, int]:
    """The record at ``pos`` and the position after it."""
    start = pos
    length, pos = decode_varint(buf, pos)
    end = pos + length
    if length < 0 or end > len(buf):
        raise FormatError(f"record of {length} bytes, {len(buf) - pos} left", start)
    timestamp_delta, pos = decode_varlong(buf, pos + 1)
    offset_delta, pos = decode_varint(buf, pos)
    key, pos = _decode_bytes(buf, pos, end)
    value, pos = _decode_bytes(buf, pos, end)
    headers, pos = _decode_headers(buf, pos, end)
    if pos != end:
        raise FormatError(f"record of {length} bytes whose fields take {pos - end + length}", start)
    timestamp = base.timestamp + timestamp_delta if base.log_append_time is None else base.log_append_time
    sequence = increment_sequence(base.sequence, offset_delta) if base.sequence >= 0 else NO_SEQUENCE
    return Record(base.offset + offset_delta, timestamp, key, value, headers, sequence), end


def _decode_headers(buf: Buffer, pos: int, end: int) -> tuple[tuple[Header, ...], int]:
    start = pos
    count, pos = decode_varint(buf, pos)
    if not 0 <= count <= end - pos:
        raise FormatError(f"record with {count} headers", start)
    headers = []
    for _ in range(count):
        start = pos
        key, pos = _decode_bytes(buf, pos, end)
        if key is None:
            raise FormatError("record header without a key", start)
        value, pos = _decode_bytes(buf, pos, end)
        headers.append(Header(key.decode("utf-8", _UTF8_ERRORS), value))
    return tuple(headers), pos


def _encode_bytes(value: bytes | None) -> bytes:
    return _NULL if value is None else encode_varint(len(value)) + value


def _decode_bytes(buf: Buffer, pos: int, end: int) -> tuple[bytes | None, int]:
    start = pos
    size, pos = decode_varint(buf, pos)
    if size < 0:
        return None, pos
    if size > end - pos:
        raise FormatError(f"field of {size} bytes runs past its record", start)
    return bytes(buf[pos : pos + size]), pos + size
