"""A segment file as plain batches, and the indexes that Kafka writes for them; independent of the package under test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct(">qiibIhiqqqhii")
#: of a v2 header: everything but length and CRC, which depend on the compressor
_LENGTH_AT, _CRC_AT = 1, 4
_CODEC_BITS = 7


class RawBatch(NamedTuple):
    """One batch of a file. ``header`` has the fields that do not depend on the compressor: for a message of magic 0 or 1 these
    are offset, magic, attributes and timestamp."""

    position: int
    content: bytes
    magic: int
    last_offset: int
    max_timestamp: int
    codec: int
    header: tuple[int, ...]


def batches_of(segment: bytes) -> list[RawBatch]:
    """The batches of a ``.log`` file's bytes, without a torn one at the end."""
    found, position = [], 0
    while position + 17 <= len(segment):
        size = 12 + struct.unpack_from(">i", segment, position + 8)[0]
        if position + size > len(segment):
            break
        found.append(_batch(position, segment[position : position + size]))
        position += size
    return found


def _batch(position: int, content: bytes) -> RawBatch:
    magic = content[16]
    if magic == 2:
        fields = _HEADER.unpack_from(content)
        header = tuple(field for at, field in enumerate(fields) if at not in (_LENGTH_AT, _CRC_AT))
        return RawBatch(position, content, 2, fields[0] + fields[6], fields[8], fields[5] & _CODEC_BITS, header)
    (offset,) = struct.unpack_from(">q", content)
    timestamp = struct.unpack_from(">q", content, 18)[0] if magic == 1 else -1
    attributes = content[17]
    return RawBatch(
        position, content, magic, offset, timestamp, attributes & _CODEC_BITS, (offset, magic, attributes, timestamp)
    )


def expected_indexes(base_offset: int, batches: Sequence[RawBatch], interval_bytes: int) -> tuple[bytes, bytes]:
    """``.index`` and ``.timeindex`` of an inactive segment with these batches (Kafka: ``LogSegment.append``)."""
    index, times = bytearray(), bytearray()
    since, newest, newest_offset, last_time = 0, -1, -1, -1
    for batch in batches:
        if batch.max_timestamp > newest:
            newest, newest_offset = batch.max_timestamp, batch.last_offset
        if since > interval_bytes:
            index += struct.pack(">ii", batch.last_offset - base_offset, batch.position)
            if newest > last_time:
                times += struct.pack(">qi", newest, newest_offset - base_offset)
                last_time = newest
            since = 0
        since += len(batch.content)
    if newest > last_time:
        times += struct.pack(">qi", newest, newest_offset - base_offset)
    return bytes(index), bytes(times)


def segments_of(partition: Path) -> dict[int, Path]:
    """The ``.log`` files of a partition directory by base offset."""
    return {int(path.stem): path for path in sorted(partition.glob("*.log"))}
