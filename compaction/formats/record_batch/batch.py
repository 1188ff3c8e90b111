"""Record batches of magic 2: header, CRC, control records; reading, building and walking a buffer of batches.

Mirrors ``DefaultRecordBatch``, ``MemoryRecordsBuilder``, ``ControlRecordType`` and ``EndTransactionMarker`` (Kafka 4.3.0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from compaction.formats.compression.codecs import Codec, compress, decompress
from compaction.formats.primitives.checksums import crc32c
from compaction.formats.primitives.fields import Buffer
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.batch_header import (
    ABORT,
    COMMIT,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
)
from compaction.formats.record_batch.message_header import HEADER_V0
from compaction.formats.record_batch.message_set import MessageEntry, parse_message_entry
from compaction.formats.record_batch.record import (
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Record,
    RecordBase,
    decode_records,
    encode_records,
    increment_sequence,
)

DEFAULT_LIMIT_BYTES = 2**31 - 1

_CONTROL_KEY = struct.Struct(">hh")
_END_TXN_VALUE = struct.Struct(">hi")


class ControlRecord(NamedTuple):
    """A control record's key, and the coordinator epoch where it is an end-of-transaction marker."""

    type: int
    version: int
    coordinator_epoch: int | None


@dataclass(frozen=True)
class RecordBatch:
    """One batch of magic 2 in a buffer: ``position`` is its byte position there, ``data`` the whole batch."""

    position: int
    header: BatchHeader
    data: memoryview

    @property
    def size(self) -> int:
        """Whole size in bytes."""
        return len(self.data)

    @property
    def magic(self) -> int:
        """Always 2."""
        return self.header.magic

    @property
    def base_offset(self) -> int:
        """First offset."""
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        """Last offset, inclusive."""
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def codec(self) -> Codec:
        """Compression; ``CodecError`` for bits that name none."""
        return Codec.of(self.header.attributes)

    @property
    def is_log_append_time(self) -> bool:
        """Do all records carry the broker's append time (``max_timestamp``)?"""
        return bool(self.header.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Does it belong to a transaction?"""
        return bool(self.header.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Does it hold control records?"""
        return bool(self.header.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When its tombstones or its marker may go, or ``None`` where no round has set that."""
        return self.header.base_timestamp if self.header.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last offset, -1 for none."""
        base = self.header.base_sequence
        return base if base == NO_SEQUENCE else increment_sequence(base, self.header.last_offset_delta)

    @property
    def computed_crc(self) -> int:
        """CRC-32C of the bytes that it covers."""
        return crc32c(self.data[CRC_START:])

    def ensure_valid(self) -> None:
        """``FormatError`` when the stored CRC is not the computed one."""
        if self.header.crc != self.computed_crc:
            stored, computed = self.header.crc, self.computed_crc
            raise FormatError(f"batch fails its CRC (stored {stored:#x}, computed {computed:#x})", self.position)

    def records(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[Record]:
        """The records, decoded one by one; at most ``limit_bytes`` are decompressed. Positions in errors are the records'."""
        count = self.header.record_count
        if count < 0:
            raise FormatError(f"batch with {count} records", self.position)
        if count == 0:
            return iter(())
        log_append_time = self.header.max_timestamp if self.is_log_append_time else None
        base = RecordBase(self.base_offset, self.header.base_timestamp, self.header.base_sequence, log_append_time)
        return decode_records(decompress(self.codec, self.data[HEADER.size :], limit_bytes=limit_bytes), count, base)


@dataclass(frozen=True)
class BatchSpec:
    """What a batch is built from besides its records.

    ``last_offset`` defaults to the last record's. ``log_append_time_ms`` and ``delete_horizon_ms`` set their flags.
    ``max_timestamp_ms`` is for a batch without records, which keeps the one it had (there it is needed, as is ``last_offset``).
    """

    base_offset: int = 0
    last_offset: int | None = None
    codec: Codec = Codec.NONE
    leader_epoch: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    transactional: bool = False
    control: bool = False
    log_append_time_ms: int | None = None
    delete_horizon_ms: int | None = None
    max_timestamp_ms: int = NO_TIMESTAMP

    @classmethod
    def of(cls, batch: RecordBatch) -> BatchSpec:
        """The spec that rebuilds a batch around other records of it."""
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
        bits |= LOG_APPEND_TIME if self.log_append_time_ms is not None else 0
        bits |= TRANSACTIONAL if self.transactional else 0
        bits |= CONTROL if self.control else 0
        return bits | (DELETE_HORIZON if self.delete_horizon_ms is not None else 0)


def encode_batch(records: Sequence[Record], spec: BatchSpec | None = None) -> bytes:
    """A batch as ``MemoryRecordsBuilder`` writes it; without records, as ``DefaultRecordBatch.writeEmptyHeader`` does.

    The base timestamp is the delete horizon where one is set, else the first record's. The max timestamp is the append time,
    else the largest of the records. A batch without records is uncompressed, has no horizon and base timestamp -1.

    :raises FormatError: for offsets that do not increase, or values that their fields cannot hold
    """
    spec = BatchSpec() if spec is None else spec
    if not records:
        return _encode_empty(spec)
    if any(after.offset <= before.offset for before, after in zip(records, records[1:], strict=False)):
        raise FormatError("offsets of records must increase")
    horizon, append_time = spec.delete_horizon_ms, spec.log_append_time_ms
    base_timestamp = records[0].timestamp if horizon is None else horizon
    payload = compress(spec.codec, encode_records(records, RecordBase(spec.base_offset, base_timestamp)))
    last_offset = records[-1].offset if spec.last_offset is None else spec.last_offset
    max_timestamp = max(record.timestamp for record in records) if append_time is None else append_time
    return seal_batch(_header(spec, last_offset, (base_timestamp, max_timestamp), len(records)), payload)


def end_txn_marker(spec: BatchSpec, timestamp_ms: int, *, commit: bool, coordinator_epoch: int = 0) -> bytes:
    """A batch with one commit or abort marker; offset, producer and leader epoch come from ``spec``."""
    marker = Record(
        spec.base_offset,
        timestamp_ms,
        _CONTROL_KEY.pack(0, COMMIT if commit else ABORT),
        _END_TXN_VALUE.pack(0, coordinator_epoch),
    )
    return encode_batch([marker], replace(spec, transactional=True, control=True))


def parse_control_record(record: Record) -> ControlRecord:
    """The meaning of a control record; ``FormatError`` for a key or value that is too short, or a negative version."""
    try:
        version, kind = _CONTROL_KEY.unpack_from(record.key or b"")
        is_marker = kind in (ABORT, COMMIT)
        epoch = _END_TXN_VALUE.unpack_from(record.value or b"")[1] if is_marker else None
    except struct.error:
        raise FormatError(f"control record at offset {record.offset} is too short") from None
    if version < 0:
        raise FormatError(f"control record at offset {record.offset} has version {version}")
    return ControlRecord(kind, version, epoch)


def parse_batch(buf: Buffer, pos: int = 0) -> RecordBatch:
    """The batch of magic 2 at ``pos``; its CRC and records are not looked at.

    :raises FormatError: for another magic, a length below the header's, or one that runs past the buffer
    """
    header = HEADER.unpack(buf, pos)
    if header.magic != MAGIC:
        raise FormatError(f"magic {header.magic}, {MAGIC} expected", pos + HEADER.offset("magic"))
    size = LOG_OVERHEAD_BYTES + header.length
    if size < HEADER.size or size > len(buf) - pos:
        raise FormatError(f"batch length {header.length} does not fit, {len(buf) - pos} bytes left", pos)
    return RecordBatch(pos, header, memoryview(buf)[pos : pos + size])


def iter_batches(buf: Buffer, pos: int = 0, *, torn_tail: bool = False) -> Iterator[RecordBatch | MessageEntry]:
    """The batches of any magic from ``pos`` to the end of the buffer; CRCs and records are not looked at.

    :param torn_tail: end without an error where the buffer does, inside a batch
    :raises FormatError: with the position, for an unknown magic or a length that cannot be
    """
    while pos < len(buf):
        left = len(buf) - pos
        if torn_tail and (left < HEADER_V0.size or HEADER_V0.get(buf, "size", pos) > left - LOG_OVERHEAD_BYTES):
            return
        magic = HEADER_V0.get(buf, "magic", pos)
        if not 0 <= magic <= MAGIC:
            raise FormatError(f"unknown magic {magic}", pos)
        batch = parse_batch(buf, pos) if magic == MAGIC else parse_message_entry(buf, pos)
        yield batch
        pos += batch.size


def _encode_empty(spec: BatchSpec) -> bytes:
    if spec.last_offset is None:
        raise FormatError("a batch without records needs its last offset")
    append_time = spec.log_append_time_ms
    empty = replace(spec, codec=Codec.NONE, delete_horizon_ms=None)
    max_timestamp = spec.max_timestamp_ms if append_time is None else append_time
    return seal_batch(_header(empty, spec.last_offset, (NO_TIMESTAMP, max_timestamp), 0), b"")


def _header(spec: BatchSpec, last_offset: int, timestamps: tuple[int, int], count: int) -> BatchHeader:
    """The header with length and CRC still open; ``timestamps`` are base and max."""
    return BatchHeader(
        base_offset=spec.base_offset,
        length=0,
        leader_epoch=spec.leader_epoch,
        magic=MAGIC,
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


def seal_batch(header: BatchHeader, payload: Buffer) -> bytes:
    """Header and (compressed) records as a batch, length and CRC filled in."""
    out = bytearray(HEADER.pack(header._replace(length=HEADER.size + len(payload) - LOG_OVERHEAD_BYTES)))
    out += payload
    HEADER.put(out, "crc", crc32c(memoryview(out)[CRC_START:]))
    return bytes(out)
