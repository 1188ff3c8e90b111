"""Batches and records as Kafka's cleaner sees them, and the batches that it writes.

Mirrors ``DefaultRecordBatch``, ``DefaultRecord``, ``AbstractLegacyRecordBatch``, ``LegacyRecord`` and, for writing,
``MemoryRecordsBuilder`` (Kafka 4.4.0).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tests.kafka.encode import CODECS, Batch, signed64
from tests.oracle import compression

NO_TIMESTAMP = -1
HEADER = struct.Struct(">qiibIhiqqqhii")
LOG_OVERHEAD = 12
#: a test decodes the same batches after each of its runs
_REMEMBERED = lru_cache(1 << 13)


class KafkaRefuses(Exception):
    """Kafka's cleaner throws here: the round ends and the log is unchanged."""


@dataclass(frozen=True)
class NaiveRecord:
    """One record; ``timestamp`` is the log append time if the batch has one."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class NaiveBatch:
    """One batch of magic 2, or one message or wrapper of v0/v1; ``attributes`` is the low byte."""

    raw: bytes = field(repr=False)
    position: int
    magic: int
    base_offset: int
    last_offset: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = -1

    @property
    def codec(self) -> int:
        return self.attributes & 0x07

    @property
    def log_append_time(self) -> bool:
        return self.magic > 0 and self.attributes & 0x08 != 0

    @property
    def transactional(self) -> bool:
        return self.magic == 2 and self.attributes & 0x10 != 0

    @property
    def control(self) -> bool:
        return self.magic == 2 and self.attributes & 0x20 != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.magic == 2 and self.attributes & 0x40 else None

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > -1

    def records(self) -> list[NaiveRecord]:
        """All records in order."""
        return list(_records(self))

    def control_type(self) -> int | None:
        """The type of the first control record, None for a control batch without records."""
        first = next(iter(self.records()), None)
        if first is None:
            return None
        return int(struct.unpack_from(">h", first.key or b"", 2)[0])


def decode(log: bytes) -> Iterator[NaiveBatch]:
    """The batches of a segment; bytes after the last complete batch are ignored."""
    position = 0
    while len(log) - position >= 17:
        size = LOG_OVERHEAD + int(struct.unpack_from(">i", log, position + 8)[0])
        if len(log) - position < size:
            return
        yield _decode_one(log[position : position + size], position)
        position += size


def encode(
    original: NaiveBatch,
    records: Sequence[NaiveRecord],
    delete_horizon_ms: int = NO_TIMESTAMP,
    *,
    names_as_text: bool = True,
    last_offset: int | None = None,
) -> bytes:
    """The batch of magic 2 that retains these records of ``original`` (``MemoryRecords.buildRetainedRecordsInto``), up to
    ``last_offset`` if given.

    Kafka decodes header names as text: bytes that are not UTF-8 become U+FFFD.
    """
    if names_as_text:
        records = [replace(record, headers=tuple((_text(name), value) for name, value in record.headers)) for record in records]
    check_appends(original, records)
    first, last = original.base_offset, original.last_offset
    if original.magic < 2:
        first, last = records[0].offset, records[-1].offset
    batch = Batch(records, CODECS[original.codec], first, last if last_offset is None else last_offset)
    horizon = delete_horizon_ms if delete_horizon_ms >= 0 else None
    return _like(original, replace(batch, delete_horizon=horizon))


def encode_empty(original: NaiveBatch) -> bytes:
    """The header of an emptied batch (``DefaultRecordBatch.writeEmptyHeader``)."""
    first, last = original.base_offset, original.last_offset
    return _like(original, Batch((), base_offset=first, last_offset=last, max_timestamp=original.max_timestamp))


def _like(original: NaiveBatch, batch: Batch) -> bytes:
    """With the kind, producer and leader of ``original``, and the append time that it may have."""
    return replace(
        batch,
        leader_epoch=original.leader_epoch,
        producer_id=original.producer_id,
        producer_epoch=original.producer_epoch,
        base_sequence=original.base_sequence,
        transactional=original.transactional,
        control=original.control,
        log_append_time=original.max_timestamp if original.log_append_time else None,
    ).encode(compression.named)


class Reader:
    """Reads a record's fields in order."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return signed64((value >> 1) ^ -(value & 1))

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]


@_REMEMBERED
def _decode_one(raw: bytes, position: int) -> NaiveBatch:
    offset, magic = struct.unpack_from(">q", raw)[0], raw[16]
    if magic < 2:
        timestamp = struct.unpack_from(">q", raw, 18)[0] if magic else NO_TIMESTAMP
        return NaiveBatch(raw, position, magic, offset, offset, raw[17], NO_TIMESTAMP, timestamp)
    _, _, epoch, _, _, attributes, delta, base_time, max_time, pid, pid_epoch, sequence, count = HEADER.unpack_from(raw)
    low = attributes & 0xFF
    return NaiveBatch(
        raw, position, magic, offset, offset + delta, low, base_time, max_time, epoch, pid, pid_epoch, sequence, count
    )


@_REMEMBERED
def _records(batch: NaiveBatch) -> tuple[NaiveRecord, ...]:
    return tuple(_modern_records(batch) if batch.magic == 2 else _legacy_records(batch))


def _modern_records(batch: NaiveBatch) -> Iterator[NaiveRecord]:
    if not batch.count:
        return
    body = Reader(compression.decompress(batch.codec, batch.raw[HEADER.size :], magic=2))
    for _ in range(batch.count):
        body.varint()
        body.take(1)
        timestamp = signed64(batch.base_timestamp + body.varint())
        offset = batch.base_offset + body.varint()
        key, value = body.sized(), body.sized()
        headers = tuple((body.sized() or b"", body.sized()) for _ in range(body.varint()))
        yield NaiveRecord(offset, batch.max_timestamp if batch.log_append_time else timestamp, key, value, headers)


def _legacy_records(batch: NaiveBatch) -> Iterator[NaiveRecord]:
    outer = legacy_message(batch.raw)
    if not batch.codec:
        yield outer
        return
    inner = inner_messages(compression.decompress(batch.codec, outer.value or b"", magic=batch.magic))
    shift = 0
    if batch.magic == 1 and batch.last_offset != 0:
        shift = batch.last_offset - legacy_message(inner[-1]).offset
    for raw in inner:
        message = legacy_message(raw)
        timestamp = batch.max_timestamp if raw[16] == 1 and batch.log_append_time else message.timestamp
        yield NaiveRecord(message.offset + shift, timestamp, message.key, message.value)


def inner_messages(data: bytes) -> list[bytes]:
    messages, at = [], 0
    while len(data) - at >= LOG_OVERHEAD:
        end = at + LOG_OVERHEAD + int(struct.unpack_from(">i", data, at + 8)[0])
        if end > len(data):
            break
        messages.append(data[at:end])
        at = end
    return messages


def legacy_message(raw: bytes) -> NaiveRecord:
    magic, at = raw[16], 18
    timestamp = NO_TIMESTAMP
    if magic:
        timestamp, at = struct.unpack_from(">q", raw, at)[0], at + 8
    parts: list[bytes | None] = []
    for _ in ("key", "value"):
        size, at = struct.unpack_from(">i", raw, at)[0], at + 4
        parts.append(None if size < 0 else raw[at : at + size])
        at += max(size, 0)
    return NaiveRecord(struct.unpack_from(">q", raw)[0], timestamp, parts[0], parts[1])


def _text(name: bytes) -> bytes:
    """As Java decodes it: one replacement for a complete or truncated surrogate, for which Python has one for each byte."""
    whole = re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]?", b"\xef\xbf\xbd", name)
    return whole.decode("utf-8", "replace").encode()


def check_appends(original: NaiveBatch, records: Sequence[NaiveRecord]) -> None:
    """Raises if ``MemoryRecordsBuilder`` refuses to append or to close."""
    for before, after in zip(records, records[1:], strict=False):
        if after.offset <= before.offset:
            raise KafkaRefuses(f"offset {after.offset} after {before.offset}")
    if any(record.timestamp < NO_TIMESTAMP for record in records):
        raise KafkaRefuses("negative timestamp")
    if original.transactional and not original.has_producer_id:
        raise KafkaRefuses("transactional without a producer id")
    if original.has_producer_id and (original.producer_epoch < 0 or (original.base_sequence < 0 and not original.control)):
        raise KafkaRefuses("producer without an epoch or sequence")
