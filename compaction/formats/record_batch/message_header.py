"""The fixed part of messages of magic 0 and 1, offset and size in front of them included.

Mirrors ``LegacyRecord`` (Kafka 4.3.0).
"""

from __future__ import annotations

from typing import NamedTuple

from compaction.formats.primitives.fields import FieldTable


class EntryHeader(NamedTuple):
    """What magic 0 and 1 have in common before the key."""

    offset: int
    size: int
    crc: int
    magic: int
    attributes: int


class EntryHeaderV1(NamedTuple):
    """Magic 1 adds the timestamp."""

    offset: int
    size: int
    crc: int
    magic: int
    attributes: int
    timestamp: int


_COMMON = [
    ("offset", "i8", "offset; a wrapper has its last message's"),
    ("size", "i4", "bytes after this field"),
    ("crc", "u4", "CRC-32 of everything after this field"),
    ("magic", "i1", "0 or 1"),
    ("attributes", "i1", "bits 0-2 codec, bit 3 log append time (magic 1)"),
]
HEADER_V0 = FieldTable(EntryHeader, _COMMON)
HEADER_V1 = FieldTable(EntryHeaderV1, [*_COMMON, ("timestamp", "i8", "ms, -1 for none")])
#: the CRC covers an entry from here
CRC_START = HEADER_V0.offset("magic")
