"""Record batches (v2): the field table of the header, attribute bits, records and control records as Python values.

A batch is a header of 61 bytes and its records, which are compressed together. A record is a varint length, then attributes
(one byte, unused), varlong timestamp delta, varint offset delta, key, value (varint length, -1 for null, and bytes), a varint
header count and the headers (key and value, the key never null). The kernels read the same bytes in bulk.

Mirrors ``DefaultRecordBatch``, ``DefaultRecord``, ``RecordBatch``, ``ControlRecordType`` and ``EndTransactionMarker``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from compaction.formats.codecs import Codec, decompress
from compaction.formats.primitives import (
    Buffer,
    FieldTable,
    FormatError,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt32,
    crc32c,
    decode_varint,
    encode_varint,
)

MAGIC = 2
#: bytes of the offset and length fields, not included in the length
LOG_OVERHEAD_BYTES = 12

# attribute bits; 7 to 15 are unused
CODEC = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

# types of control records that end a transaction
ABORT = 0
COMMIT = 1

NO_TIMESTAMP = -1
NO_SEQUENCE = -1
#: larger batches are refused, also if they are decompressed: no broker accepts them, and memory must be bounded
MAX_BATCH_BYTES = 256 << 20
MAX_PLAIN_BYTES = 256 << 20
#: the most bytes that Java can decompress into one buffer
DEFAULT_LIMIT_BYTES = 2**31 - 1

_CONTROL_KEY = struct.Struct(">hh")
#: upper bound of the records of a marker
_MOST_MARKER_BYTES = 1 << 20
_END_TXN_VALUE = struct.Struct(">hi")
_INT_MAX = 2**31 - 1
_NULL = encode_varint(-1)
_UTF8_ERRORS = "surrogateescape"


class BatchHeader(NamedTuple):
    """The fields before the records, in file order."""

    base_offset: Int64  # first offset of the batch as it was produced; cleaning keeps it
    length: Int32  # bytes after this field
    leader_epoch: Int32  # epoch of the leader that appended it; not covered by the CRC
    magic: Int8  # 2
    crc: UInt32  # CRC-32C of everything after this field
    attributes: Int16  # codec and flags
    last_offset_delta: Int32  # last offset less base offset; also the last sequence's delta
    base_timestamp: Int64  # base of the timestamp deltas; the delete horizon if its flag is set
    max_timestamp: Int64  # largest timestamp, or the append time
    producer_id: Int64  # -1 without an idempotent producer
    producer_epoch: Int16  # -1 without an idempotent producer
    base_sequence: Int32  # sequence number of the base offset, -1 for none
    record_count: Int32  # records in the batch; 0 if cleaning removed all


HEADER = FieldTable(BatchHeader)
HEADER_SIZE = HEADER.size
# byte positions of the fields, for kernels
(
    BASE_OFFSET_AT, LENGTH_AT, LEADER_EPOCH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT, BASE_TIMESTAMP_AT,
    MAX_TIMESTAMP_AT, PRODUCER_ID_AT, PRODUCER_EPOCH_AT, BASE_SEQUENCE_AT, RECORD_COUNT_AT,
) = map(HEADER.offset, BatchHeader._fields)  # fmt: skip
#: position in a batch from which the CRC covers it
CRC_START = ATTRIBUTES_AT


class EntryHeader(NamedTuple):
    """The fields common to v0 and v1 (``message_set``), before the key."""

    offset: Int64  # offset; of a wrapper, its last inner message's
    size: Int32  # bytes after this field
    crc: UInt32  # CRC-32 of everything after this field
    magic: Int8  # 0 or 1
    attributes: Int8  # bits 0-2 codec, bit 3 log append time (magic 1)


@dataclass(frozen=True)
class StoredBatch:
    """A batch of any magic in a buffer: ``position`` is its byte position there, ``data`` its bytes with the header."""

    position: int
    data: memoryview
    header: BatchHeader | EntryHeader

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def magic(self) -> int:
        return self.header.magic

    @property
    def codec(self) -> Codec:
        """Compression; ``CodecError`` for an unknown codec."""
        return Codec.of(self.header.attributes)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker's append time (v2: ``max_timestamp``) is the timestamp of every record."""
        return self.magic > 0 and bool(self.header.attributes & LOG_APPEND_TIME)

    def ensure_valid(self) -> None:
        """``FormatError`` when the stored CRC is not that of the bytes after it: CRC-32C in v2, CRC-32 before."""
        is_batch, stored = self.magic == MAGIC, self.header.crc
        computed = crc32c(self.data[CRC_START:]) if is_batch else crc32(self.data[MAGIC_AT:])
        if stored != computed:
            kind = "batch" if is_batch else "message"
            raise FormatError(f"{kind} fails its CRC (stored {stored:#x}, computed {computed:#x})", self.position)


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
    body += encode_varint(record.timestamp - base.timestamp, 64)
    body += encode_varint(record.offset - base.offset)
    body += _encode_bytes(record.key)
    body += _encode_bytes(record.value)
    body += encode_varint(len(record.headers))
    for key, value in record.headers:
        body += _encode_bytes(key.encode("utf-8", _UTF8_ERRORS))
        body += _encode_bytes(value)
    return encode_varint(len(body)) + bytes(body)


def encode_records(records: Iterable[Record], base: RecordBase) -> bytes:
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
    start = pos
    length, pos = decode_varint(buf, pos)
    end = pos + length
    if length < 0 or end > len(buf):
        raise FormatError(f"record of {length} bytes, {len(buf) - pos} left", start)
    timestamp_delta, pos = decode_varint(buf, pos + 1, 64)
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


@dataclass(frozen=True)
class RecordBatch(StoredBatch):
    header: BatchHeader

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def is_control(self) -> bool:
        return bool(self.header.attributes & CONTROL)

    def records(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[Record]:
        """The records, decoded one by one. Decompresses at most ``limit_bytes``; positions in errors count from the records."""
        count = self.header.record_count
        if count < 0:
            raise FormatError(f"batch with {count} records", self.position)
        if count == 0:
            return iter(())
        log_append_time = self.header.max_timestamp if self.is_log_append_time else None
        base = RecordBase(self.base_offset, self.header.base_timestamp, self.header.base_sequence, log_append_time)
        return decode_records(decompress(self.codec, self.data[HEADER.size :], limit_bytes=limit_bytes), count, base)


def parse_batch(buf: Buffer, pos: int = 0) -> RecordBatch:
    """The v2 batch at ``pos``; checks neither CRC nor records.

    :raises FormatError: another magic, a length below the header's, or one that exceeds the buffer
    """
    header = HEADER.unpack(buf, pos)
    if header.magic != MAGIC:
        raise FormatError(f"magic {header.magic}, {MAGIC} expected", pos + HEADER.offset("magic"))
    size = LOG_OVERHEAD_BYTES + header.length
    if size < HEADER.size or size > len(buf) - pos:
        raise FormatError(f"batch length {header.length} does not fit, {len(buf) - pos} bytes left", pos)
    return RecordBatch(pos, memoryview(buf)[pos : pos + size], header)


class EndTxnMarker(NamedTuple):
    """A commit or abort marker (Kafka: ``EndTransactionMarker``); the epoch is -1 in other control records."""

    coordinator_epoch: int
    timestamp_ms: int


def read_end_txn_marker(batch: bytes | memoryview) -> EndTxnMarker:
    """The marker in a control batch: its first record. Control batches are not compressed.

    :raises FormatError: the record is missing or malformed, its key or value is too short, or its version negative
    """
    record = next(parse_batch(batch).records(_MOST_MARKER_BYTES), None)
    if record is None:
        raise FormatError("control batch without a record")
    try:
        version, kind = _CONTROL_KEY.unpack_from(record.key or b"")
        epoch = _END_TXN_VALUE.unpack_from(record.value or b"")[1] if kind in (ABORT, COMMIT) else -1
    except struct.error:
        raise FormatError(f"control record at offset {record.offset} is too short") from None
    if version < 0:
        raise FormatError(f"control record at offset {record.offset} has version {version}")
    return EndTxnMarker(epoch, record.timestamp)
