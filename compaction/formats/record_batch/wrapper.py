"""Writes a wrapper of magic 0 or 1 around messages, as brokers up to Kafka 3.9 do.

The wrapper's offset is that of its last message. Its timestamp is the largest of its messages, or under log append time that of
all of them.

Mirrors ``MemoryRecordsBuilder.writeLegacyCompressedWrapperHeader`` (Kafka 3.9.2).
"""

from __future__ import annotations

import struct
from zlib import crc32

from compaction.formats.compression.codecs import Codec, compress
from compaction.formats.primitives.fields import Buffer
from compaction.formats.record_batch.batch_header import LOG_APPEND_TIME, LOG_OVERHEAD_BYTES
from compaction.formats.record_batch.message_header import CRC_START

_ENTRY = struct.Struct(">qiI")
_BODY = struct.Struct(">bb"), struct.Struct(">bbq")
#: a null key, and the length of the value
_FIELDS = struct.Struct(">ii")


def wrap(magic: int, codec: Codec, last_offset: int, timestamp: int, messages: Buffer, *, append_time: bool) -> bytes:
    """The wrapper of ``messages``, which have their offsets and sizes; with magic 0 the timestamp is not written."""
    attributes = codec | (LOG_APPEND_TIME if append_time else 0)
    payload = compress(codec, messages, magic=magic)
    head = _BODY[0].pack(0, attributes) if magic == 0 else _BODY[1].pack(1, attributes, timestamp)
    head += _FIELDS.pack(-1, len(payload))
    size = CRC_START - LOG_OVERHEAD_BYTES + len(head) + len(payload)
    return _ENTRY.pack(last_offset, size, crc32(payload, crc32(head))) + head + payload
