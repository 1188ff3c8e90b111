"""What Kafka up to 3.9 writes of a message set of magic 0 or 1 that loses messages (``MemoryRecordsBuilder``, 3.6.2)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from tests.oracle import compression
from tests.oracle.records import NaiveBatch, NaiveRecord, check_appends, inner_messages, legacy_message

_APPEND_TIME = 0x08


def has_other_magic(batch: NaiveBatch) -> bool:
    """Whether a wrapper has a message of another magic: Kafka then writes it even if it loses none."""
    return any(raw[16] != batch.magic for raw in _inner(batch))


def encode_message_set(batch: NaiveBatch, retained: Sequence[NaiveRecord]) -> bytes:
    """The wrapper with the ``retained`` messages: inner offsets from the first one with magic 1, absolute with magic 0."""
    check_appends(batch, retained)
    first = retained[0].offset if batch.magic else 0
    append_ms = batch.max_timestamp if batch.log_append_time else None
    flag = 0 if append_ms is None else _APPEND_TIME
    inner = b"".join(
        _message(batch.magic, flag, record.offset - first, record.timestamp if append_ms is None else append_ms, record)
        for record in retained
    )
    largest = max(-1, *(record.timestamp for record in retained)) if append_ms is None else append_ms
    payload = NaiveRecord(0, 0, None, compression.compress(batch.codec, inner, magic=batch.magic))
    return _message(batch.magic, batch.codec | flag, retained[-1].offset, largest, payload)


def _inner(batch: NaiveBatch) -> list[bytes]:
    if not batch.codec:
        return []
    return inner_messages(compression.decompress(batch.codec, legacy_message(batch.raw).value or b"", magic=batch.magic))


def _message(magic: int, attributes: int, offset: int, timestamp: int, record: NaiveRecord) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (record.key, record.value):
        body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body
