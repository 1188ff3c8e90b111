"""Re-encodes the messages of a v0/v1 wrapper as v2 records, in bulk.

The cleaner writes an entry of which any record is retained as a v2 batch, as ``MemoryRecords.filterBatch`` and
``buildRetainedRecordsInto`` do (Kafka 4.4.0); this is its uncompressed content before any record is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compaction.formats.primitives.fields import Buffer
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.message_set import Longs, MessageColumns, parse_message_entry
from compaction.formats.record_batch.record import NO_TIMESTAMP

_LIMIT_BYTES = 2**31 - 1
_VARINT_BYTES = 10
_SHIFTS = np.arange(_VARINT_BYTES, dtype=np.uint64) * np.uint64(7)

Bytes = npt.NDArray[np.uint8]


class Transcoded(NamedTuple):
    """The v2 records of an entry, and the fields of a v2 batch header that they determine; ``last_offset`` is inclusive.

    ``other_magic``: see ``MessageColumns``.
    """

    base_offset: int
    last_offset: int
    base_timestamp: int
    record_count: int
    records: bytes
    other_magic: bool = False


def transcode(buf: Buffer, pos: int = 0, *, limit_bytes: int = _LIMIT_BYTES) -> Transcoded:
    """The records of the v0/v1 entry at ``pos``; decompresses at most ``limit_bytes``.

    :raises FormatError: as ``MessageEntry.columns``; also if offsets do not increase within the range of a batch, or a
        timestamp is below -1
    """
    entry = parse_message_entry(buf, pos)
    columns = entry.columns(limit_bytes)
    offset, timestamp = columns.offset, columns.timestamp
    if np.any(np.diff(offset) <= 0) or offset[-1] - offset[0] > np.iinfo(np.int32).max:
        raise FormatError("offsets of messages do not increase within a batch's range", entry.position)
    if np.any(timestamp < NO_TIMESTAMP):
        raise FormatError("negative timestamp", entry.position)
    base_offset, base_timestamp = int(offset[0]), int(timestamp[0])
    records = encode_columns(columns, base_offset, base_timestamp)
    return Transcoded(base_offset, int(offset[-1]), base_timestamp, len(columns), records, columns.other_magic)


def encode_columns(columns: MessageColumns, base_offset: int, base_timestamp: int) -> bytes:
    """The rows as v2 records without headers, concatenated."""
    head = [_varints(columns.timestamp - base_timestamp), _varints(columns.offset - base_offset)]
    key_size, value_size = _varints(columns.key_length), _varints(columns.value_length)
    key_length, value_length = np.maximum(columns.key_length, 0), np.maximum(columns.value_length, 0)
    head_bytes = head[0][1] + head[1][1] + key_size[1]
    # one byte of attributes before these fields, and one after them for the number of headers
    body_bytes = 2 + head_bytes + key_length + value_size[1] + value_length
    length = _varints(body_bytes)
    total = length[1] + body_bytes
    out = np.zeros(int(total.sum()), np.uint8)
    source = columns.data.cast("B")
    pos = np.cumsum(total) - total
    pos = _put_varints(out, pos, length) + 1
    for varints in (*head, key_size):
        pos = _put_varints(out, pos, varints)
    pos = _put_fields(out, pos, source, (columns.key_start, key_length))
    pos = _put_varints(out, pos, value_size)
    _put_fields(out, pos, source, (columns.value_start, value_length))
    return out.tobytes()


def _varints(values: Longs) -> tuple[Bytes, Longs]:
    """Zig-zag varints: bytes of shape (n, 10) and the number of bytes used in each row."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    groups = zigzag[:, None] >> _SHIFTS
    sizes = 1 + np.count_nonzero(groups[:, 1:], axis=1).astype(np.int64)
    more = np.arange(_VARINT_BYTES) < sizes[:, None] - 1
    return ((groups & np.uint64(0x7F)) | (more * np.uint64(0x80))).astype(np.uint8), sizes


def _put_varints(out: Bytes, pos: Longs, varints: tuple[Bytes, Longs]) -> Longs:
    digits, sizes = varints
    columns = np.arange(_VARINT_BYTES)
    used = columns < sizes[:, None]
    out[(pos[:, None] + columns)[used]] = digits[used]
    return pos + sizes


def _put_fields(out: Bytes, pos: Longs, source: memoryview, fields: tuple[Longs, Longs]) -> Longs:
    starts, lengths = fields
    target = out.data
    # one slice per field: fancy indexing per byte is slower for fields of more than a few bytes
    for to, start, length in zip(pos.tolist(), starts.tolist(), lengths.tolist(), strict=True):
        target[to : to + length] = source[start : start + length]
    return pos + lengths
