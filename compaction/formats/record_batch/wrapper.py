"""Writes a wrapper of magic 0 or 1 with some of the messages of another one, as brokers up to Kafka 3.9 do.

Magic, codec and timestamp type are preserved. The wrapper's offset is that of its last message. Inner offsets are absolute with
magic 0; with magic 1 they are relative to the first message. Under log append time, the wrapper's timestamp is the old one and
that of all messages; else it is the largest of the messages. Inner messages of another magic get the wrapper's.

Mirrors ``MemoryRecords.filterTo``, ``MemoryRecordsBuilder.appendLegacyRecord`` and ``writeLegacyCompressedWrapperHeader`` of
Kafka 3.6.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from zlib import crc32

import numpy as np

from compaction.formats.compression.codecs import compress
from compaction.formats.primitives.fields import Buffer
from compaction.formats.record_batch.batch_header import LOG_APPEND_TIME, LOG_OVERHEAD_BYTES
from compaction.formats.record_batch.message_header import CRC_START
from compaction.formats.record_batch.message_set import Longs, MessageColumns, MessageEntry, parse_message_entry
from compaction.formats.record_batch.record import NO_TIMESTAMP

_ENTRY = struct.Struct(">qiI")
_BODY = struct.Struct(">bb"), struct.Struct(">bbq")
_LENGTH = struct.Struct(">i")


def filter_wrapper(buf: Buffer, pos: int, retained: Longs, *, limit_bytes: int) -> bytes:
    """The wrapper at ``pos`` with the messages that have the offsets ``retained``, of which there is at least one.

    :raises FormatError: as ``MessageEntry.columns``
    """
    entry = parse_message_entry(buf, pos)
    columns = entry.columns(limit_bytes)
    rows = np.flatnonzero(np.isin(columns.offset, retained))
    append_time = entry.is_log_append_time
    largest = entry.timestamp if append_time else max(NO_TIMESTAMP, int(columns.timestamp[rows].max()))
    inner = b"".join(_messages(entry, columns, rows, largest if append_time else None))
    payload = compress(entry.codec, inner, magic=entry.magic)
    flag = LOG_APPEND_TIME if append_time else 0
    return _message(entry.magic, int(columns.offset[rows[-1]]), entry.codec | flag, largest, (None, payload))


def _messages(entry: MessageEntry, columns: MessageColumns, rows: Longs, append_time_ms: int | None) -> Iterator[bytes]:
    """The inner messages, with the append time instead of their own timestamps if there is one."""
    base_offset = int(columns.offset[rows[0]]) if entry.magic else 0
    flag = 0 if append_time_ms is None else LOG_APPEND_TIME
    spans = (columns.key_start, columns.key_length, columns.value_start, columns.value_length)
    fields = zip(*(each[rows].tolist() for each in (columns.offset, columns.timestamp, *spans)), strict=True)
    for offset, own_ms, key_at, key_length, value_at, value_length in fields:
        timestamp = own_ms if append_time_ms is None else append_time_ms
        pair = _field(columns.data, key_at, key_length), _field(columns.data, value_at, value_length)
        yield _message(entry.magic, offset - base_offset, flag, timestamp, pair)


def _message(
    magic: int, offset: int, attributes: int, timestamp: int, pair: tuple[Buffer | None, Buffer | None]
) -> bytes:
    """One message with its offset and size; ``pair`` is its key and value."""
    body = bytearray(_BODY[0].pack(0, attributes) if magic == 0 else _BODY[1].pack(1, attributes, timestamp))
    for part in pair:
        body += _LENGTH.pack(-1 if part is None else len(part))
        body += b"" if part is None else part
    return _ENTRY.pack(offset, CRC_START - LOG_OVERHEAD_BYTES + len(body), crc32(body)) + body


def _field(data: memoryview, start: int, length: int) -> memoryview | None:
    return None if length < 0 else data[start : start + length]
