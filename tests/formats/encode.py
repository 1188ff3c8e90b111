"""Encodes batches and message sets as Kafka's clients, brokers and cleaner do.

Mirrors ``MemoryRecordsBuilder``, ``DefaultRecordBatch.writeEmptyHeader`` and ``EndTransactionMarker`` (Kafka 4.4.0). The tests
in ``tests/formats`` compare the output with bytes that these classes wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import xxhash

from compaction.formats import codecs
from compaction.formats import message_set as v0v1
from compaction.formats import record_batch as v2
from compaction.formats.codecs import Codec
from compaction.formats.primitives import Buffer, FormatError, crc32, crc32c
from compaction.formats.record_batch import NO_SEQUENCE, NO_TIMESTAMP, Record, RecordBase, RecordBatch, encode_records

_SIZE = struct.Struct(">i")
_CONTROL_KEY = struct.Struct(">hh")
_END_TXN_VALUE = struct.Struct(">hi")
_LZ4_CHECKSUM_AT = 6


@dataclass(frozen=True)
class BatchSpec:
    """The header fields of a batch.

    ``last_offset`` defaults to the last record's. ``log_append_time_ms`` and ``delete_horizon_ms`` set their flags.
    ``max_timestamp_ms`` is used only without records; such a batch also needs ``last_offset``.
    """

    base_offset: int = 0
    last_offset: int | None = None
    codec: Codec = Codec.NONE
    leader_epoch: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = NO_SEQUENCE
    transactional: bool = False
    control: bool = False
    log_append_time_ms: int | None = None
    delete_horizon_ms: int | None = None
    max_timestamp_ms: int = NO_TIMESTAMP

    @classmethod
    def of(cls, batch: RecordBatch) -> BatchSpec:
        """The fields of an existing batch, to encode it with other records."""
        header = batch.header
        return cls(
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            codec=batch.codec,
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=batch.is_transactional,
            control=batch.is_control,
            log_append_time_ms=header.max_timestamp if batch.is_log_append_time else None,
            delete_horizon_ms=batch.delete_horizon_ms,
            max_timestamp_ms=header.max_timestamp,
        )

    @property
    def attributes(self) -> int:
        """The attribute bits."""
        bits = int(self.codec)
        bits |= v2.LOG_APPEND_TIME if self.log_append_time_ms is not None else 0
        bits |= v2.TRANSACTIONAL if self.transactional else 0
        bits |= v2.CONTROL if self.control else 0
        return bits | (v2.DELETE_HORIZON if self.delete_horizon_ms is not None else 0)


def encode_batch(records: Sequence[Record], spec: BatchSpec | None = None) -> bytes:
    """A v2 batch.

    The base timestamp is the delete horizon if there is one, else the first record's. The max timestamp is the append time,
    else the largest of the records. A batch without records is uncompressed, has no horizon and base timestamp -1.

    :raises FormatError: offsets do not increase, or a value does not fit its field
    """
    spec = BatchSpec() if spec is None else spec
    if not records:
        return _encode_empty(spec)
    if any(after.offset <= before.offset for before, after in zip(records, records[1:], strict=False)):
        raise FormatError("offsets of records must increase")
    horizon, append_time = spec.delete_horizon_ms, spec.log_append_time_ms
    base_timestamp = records[0].timestamp if horizon is None else horizon
    payload = codecs.compress(spec.codec, encode_records(records, RecordBase(spec.base_offset, base_timestamp)))
    last_offset = records[-1].offset if spec.last_offset is None else spec.last_offset
    max_timestamp = max(record.timestamp for record in records) if append_time is None else append_time
    return seal_batch(batch_header(spec, last_offset, (base_timestamp, max_timestamp), len(records)), payload)


def end_txn_marker(spec: BatchSpec, timestamp_ms: int, *, commit: bool, coordinator_epoch: int = 0) -> bytes:
    """A batch with one commit or abort marker; offset, producer and leader epoch come from ``spec``."""
    marker = Record(
        spec.base_offset,
        timestamp_ms,
        _CONTROL_KEY.pack(0, v2.COMMIT if commit else v2.ABORT),
        _END_TXN_VALUE.pack(0, coordinator_epoch),
    )
    return encode_batch([marker], replace(spec, transactional=True, control=True))


def batch_header(spec: BatchSpec, last_offset: int, timestamps: tuple[int, int], count: int) -> v2.BatchHeader:
    """The header without length and CRC; ``timestamps`` are base and max."""
    return v2.BatchHeader(
        base_offset=spec.base_offset,
        length=0,
        leader_epoch=spec.leader_epoch,
        magic=v2.MAGIC,
        crc=0,
        attributes=spec.attributes,
        last_offset_delta=last_offset - spec.base_offset,
        base_timestamp=timestamps[0],
        max_timestamp=timestamps[1],
        producer_id=spec.producer_id,
        producer_epoch=spec.producer_epoch,
        base_sequence=spec.base_sequence,
        record_count=count,
    )


def seal_batch(header: v2.BatchHeader, payload: Buffer) -> bytes:
    """Header and (compressed) records as a batch, with length and CRC."""
    out = bytearray(v2.HEADER.pack(header._replace(length=v2.HEADER.size + len(payload) - v2.LOG_OVERHEAD_BYTES)))
    out += payload
    v2.HEADER.put(out, "crc", crc32c(memoryview(out)[v2.CRC_START :]))
    return bytes(out)


def _encode_empty(spec: BatchSpec) -> bytes:
    if spec.last_offset is None:
        raise FormatError("a batch without records needs its last offset")
    append_time = spec.log_append_time_ms
    empty = replace(spec, codec=Codec.NONE, delete_horizon_ms=None)
    max_timestamp = spec.max_timestamp_ms if append_time is None else append_time
    return seal_batch(batch_header(empty, spec.last_offset, (NO_TIMESTAMP, max_timestamp), 0), b"")


def compress(codec: Codec, data: Buffer, *, magic: int = 2) -> bytes:
    """The payload of a batch or wrapper of ``magic``.

    In v0 wrappers, old clients computed the header checksum of lz4 frames over the magic number too (KAFKA-3160).
    """
    payload = codecs.compress(codec, data)
    if codec is not Codec.LZ4 or magic > 0:
        return payload
    checksum = xxhash.xxh32_intdigest(payload[:_LZ4_CHECKSUM_AT]) >> 8 & 0xFF
    return payload[:_LZ4_CHECKSUM_AT] + bytes([checksum]) + payload[_LZ4_CHECKSUM_AT + 1 :]


@dataclass(frozen=True)
class MessageSetSpec:
    """How to encode messages: one entry each, or with a codec all in one wrapper.

    ``inner_magic`` defaults to ``magic``; relative offsets count from ``base_offset``, by default the first record's.
    """

    magic: int = 1
    codec: Codec = Codec.NONE
    log_append_time_ms: int | None = None
    inner_magic: int | None = None
    base_offset: int | None = None


def encode_message_set(records: Sequence[Record], spec: MessageSetSpec | None = None) -> bytes:
    """A message set of magic 0 or 1; headers and sequences of records are not written."""
    spec = MessageSetSpec() if spec is None else spec
    inner_magic = spec.magic if spec.inner_magic is None else spec.inner_magic
    append_time = spec.log_append_time_ms
    relative = spec.magic > 0 and spec.codec is not Codec.NONE
    base = (records[0].offset if spec.base_offset is None else spec.base_offset) if relative else 0
    stamped = [r if append_time is None else r._replace(timestamp=append_time) for r in records]
    flags = v2.LOG_APPEND_TIME if append_time is not None else 0
    entries = b"".join(_encode_entry(r._replace(offset=r.offset - base), inner_magic, flags) for r in stamped)
    if spec.codec is Codec.NONE:
        return entries
    largest = max(record.timestamp for record in stamped)
    wrapper = Record(records[-1].offset, largest, None, compress(spec.codec, entries, magic=spec.magic))
    return _encode_entry(wrapper, spec.magic, flags | spec.codec)


def _encode_entry(record: Record, magic: int, attributes: int) -> bytes:
    fields = b"".join(_SIZE.pack(-1 if field is None else len(field)) + (field or b"") for field in (record.key, record.value))
    table = v0v1.HEADER_V1 if magic > 0 else v0v1.HEADER_V0
    size = table.size + len(fields) - v2.LOG_OVERHEAD_BYTES
    if magic > 0:
        head = v0v1.HEADER_V1.pack(v0v1.EntryHeaderV1(record.offset, size, 0, magic, attributes, record.timestamp))
    else:
        head = v0v1.HEADER_V0.pack(v0v1.EntryHeader(record.offset, size, 0, magic, attributes & ~v2.LOG_APPEND_TIME))
    out = bytearray(head + fields)
    v0v1.HEADER_V0.put(out, "crc", crc32(memoryview(out)[v0v1.CRC_START :]))
    return bytes(out)
