"""Reads v2 record batches: header, CRC, records and control records; iterates over the batches of a buffer, of any magic.

Mirrors ``DefaultRecordBatch``, ``ControlRecordType`` and ``EndTransactionMarker`` (Kafka 4.4.0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from compaction.formats.compression.codecs import decompress
from compaction.formats.primitives.fields import Buffer
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.batch_header import (
    ABORT,
    COMMIT,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    StoredBatch,
)
from compaction.formats.record_batch.message_header import HEADER_V0
from compaction.formats.record_batch.message_set import MessageEntry, parse_message_entry
from compaction.formats.record_batch.record import (
    NO_SEQUENCE,
    Record,
    RecordBase,
    decode_records,
    increment_sequence,
)

DEFAULT_LIMIT_BYTES = 2**31 - 1

_CONTROL_KEY = struct.Struct(">hh")
_END_TXN_VALUE = struct.Struct(">hi")


class ControlRecord(NamedTuple):
    """A control record's key, and the coordinator epoch if it is an end-of-transaction marker."""

    type: int
    version: int
    coordinator_epoch: int | None


@dataclass(frozen=True)
class RecordBatch(StoredBatch):
    """One v2 batch of a buffer."""

    header: BatchHeader

    @property
    def base_offset(self) -> int:
        """First offset."""
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        """Last offset, inclusive."""
        return self.header.base_offset + self.header.last_offset_delta

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker's append time (``max_timestamp``) is the timestamp of every record."""
        return bool(self.header.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return bool(self.header.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it holds control records."""
        return bool(self.header.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When its tombstones or its marker may be dropped; ``None`` if no cleaning has set it."""
        return self.header.base_timestamp if self.header.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last offset, -1 for none."""
        base = self.header.base_sequence
        return base if base == NO_SEQUENCE else increment_sequence(base, self.header.last_offset_delta)

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


def parse_control_record(record: Record) -> ControlRecord:
    """Decodes a control record.

    :raises FormatError: the key or value is too short, or the version negative
    """
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


def iter_batches(buf: Buffer, pos: int = 0, *, torn_tail: bool = False) -> Iterator[RecordBatch | MessageEntry]:
    """The batches of any magic from ``pos`` to the end of the buffer; checks neither CRCs nor records.

    :param torn_tail: accept an incomplete batch at the end of the buffer
    :raises FormatError: unknown magic or impossible length, with the position
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
