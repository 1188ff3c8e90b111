"""The fixed fields of v0 and v1 messages, with the offset and size that precede each.

Mirrors ``LegacyRecord`` (Kafka 4.4.0).
"""

from __future__ import annotations

from typing import NamedTuple

from compaction.formats.primitives.fields import FieldTable, Int8, Int32, Int64, UInt32


class EntryHeader(NamedTuple):
    """The fields common to v0 and v1, before the key."""

    offset: Int64  # offset; of a wrapper, its last inner message's
    size: Int32  # bytes after this field
    crc: UInt32  # CRC-32 of everything after this field
    magic: Int8  # 0 or 1
    attributes: Int8  # bits 0-2 codec, bit 3 log append time (magic 1)


class EntryHeaderV1(NamedTuple):
    """v1 adds the timestamp."""

    offset: Int64
    size: Int32
    crc: UInt32
    magic: Int8
    attributes: Int8
    timestamp: Int64  # ms, -1 for none


HEADER_V0 = FieldTable(EntryHeader)
HEADER_V1 = FieldTable(EntryHeaderV1)
#: position in an entry from which the CRC covers it
CRC_START = HEADER_V0.offset("magic")
