"""The fixed fields of v0 and v1 messages, with the offset and size that precede each.

Mirrors ``LegacyRecord`` (Kafka 4.3.0).

Tested by ``tests/formats/record_batch/test_message_set.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from compaction.formats.primitives.fields import FieldTable


class EntryHeader(NamedTuple):
    """The fields common to v0 and v1, before the key."""

    offset: int
    size: int
    crc: int
    magic: int
    attributes: int


class EntryHeaderV1(NamedTuple):
    """v1 adds the timestamp."""

    offset: int
    size: int
    crc: int
    magic: int
    attributes: int
    timestamp: int


_COMMON = [
    ("offset", "i8", "offset; of a wrapper, its last inner message's"),
    ("size", "i4", "bytes after this field"),
    ("crc", "u4", "CRC-32 of everything after this field"),
    ("magic", "i1", "0 or 1"),
    ("attributes", "i1", "bits 0-2 codec, bit 3 log append time (magic 1)"),
]
HEADER_V0 = FieldTable(EntryHeader, _COMMON)
HEADER_V1 = FieldTable(EntryHeaderV1, [*_COMMON, ("timestamp", "i8", "ms, -1 for none")])
#: position in an entry from which the CRC covers it
CRC_START = HEADER_V0.offset("magic")
