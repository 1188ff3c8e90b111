"""Messages of magic 0 and 1 turned into record batches of magic 2, in bulk: an entry with any record kept is written so.

Mirrors ``MemoryRecords.filterBatch`` and ``buildRetainedRecordsInto`` (Kafka 4.3.0): the base offset is the first kept
record's, codec and timestamp type are the entry's (create time for magic 0), the append time is the entry's timestamp, and
there is neither a producer nor a leader epoch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compaction.formats.compression.codecs import Codec, compress
from compaction.formats.primitives.fields import Buffer
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.batch import seal_batch
from compaction.formats.record_batch.batch_header import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    BatchHeader,
)
from compaction.formats.record_batch.message_set import Longs, MessageColumns, MessageEntry, parse_message_entry
from compaction.formats.record_batch.record import NO_SEQUENCE, NO_TIMESTAMP, RecordBase, encode_record

_LIMIT_BYTES = 2**31 - 1
_VARINT_BYTES = 10
_SHIFTS = np.arange(_VARINT_BYTES, dtype=np.uint64) * np.uint64(7)

Bytes = npt.NDArray[np.uint8]


class Transcoded(NamedTuple):
    """A batch of magic 2 before compression: ``header`` still lacks length and CRC, and names the codec to be used."""

    header: BatchHeader
    records: bytes

    def seal(self) -> bytes:
        """The whole batch."""
        return seal_batch(self.header, compress(Codec.of(self.header.attributes), self.records))


def transcode(buf: Buffer, pos: int = 0, *, limit_bytes: int = _LIMIT_BYTES) -> Transcoded:
    """The entry of magic 0 or 1 at ``pos`` with all of its records; errors as for ``MessageEntry.columns``."""
    batch = parse_message_entry(buf, pos)
    if batch.codec is Codec.NONE:
        return transcode_plain(batch)
    return transcode_columns(batch, batch.columns(limit_bytes))


def transcode_columns(batch: MessageEntry, kept: MessageColumns, delete_horizon_ms: int | None = None) -> Transcoded:
    """The kept records of an entry, at least one.

    :param delete_horizon_ms: when its tombstones may go; Kafka sets it where one is among the kept
    :raises FormatError: for offsets that do not increase within the range of a batch, or timestamps below -1
    """
    if np.any(np.diff(kept.offset) <= 0) or kept.offset[-1] - kept.offset[0] > np.iinfo(np.int32).max:
        raise FormatError("offsets of messages do not increase within a batch's range", batch.position)
    if np.any(kept.timestamp < NO_TIMESTAMP):
        raise FormatError("negative timestamp", batch.position)
    span = (int(kept.offset[0]), int(kept.offset[-1]))
    header = _header(batch, span, (int(kept.timestamp[0]), int(kept.timestamp.max())), len(kept), delete_horizon_ms)
    return Transcoded(header, encode_columns(kept, header.base_offset, header.base_timestamp))


def transcode_plain(batch: MessageEntry, delete_horizon_ms: int | None = None) -> Transcoded:
    """A message that is no wrapper; the same as ``transcode_columns``, without arrays."""
    record = batch.own_record()
    if record.timestamp < NO_TIMESTAMP:
        raise FormatError("negative timestamp", batch.position)
    stamps = (record.timestamp, record.timestamp)
    header = _header(batch, (record.offset, record.offset), stamps, 1, delete_horizon_ms)
    return Transcoded(header, encode_record(record, RecordBase(header.base_offset, header.base_timestamp)))


def _header(
    batch: MessageEntry, offsets: tuple[int, int], timestamps: tuple[int, int], count: int, delete_horizon_ms: int | None
) -> BatchHeader:
    """``offsets`` are the first and the last, ``timestamps`` the first and the largest of the kept records."""
    flags = LOG_APPEND_TIME if batch.is_log_append_time else 0
    flags |= 0 if delete_horizon_ms is None else DELETE_HORIZON
    return BatchHeader(
        base_offset=offsets[0],
        length=0,
        leader_epoch=NO_LEADER_EPOCH,
        magic=MAGIC,
        crc=0,
        attributes=batch.codec | flags,
        last_offset_delta=offsets[1] - offsets[0],
        base_timestamp=timestamps[0] if delete_horizon_ms is None else delete_horizon_ms,
        max_timestamp=batch.timestamp if batch.is_log_append_time else timestamps[1],
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )


def encode_columns(columns: MessageColumns, base_offset: int, base_timestamp: int) -> bytes:
    """The rows as records of magic 2, back to back, without headers."""
    head = [_varints(columns.timestamp - base_timestamp), _varints(columns.offset - base_offset)]
    key_size, value_size = _varints(columns.key_length), _varints(columns.value_length)
    key_length, value_length = np.maximum(columns.key_length, 0), np.maximum(columns.value_length, 0)
    head_bytes = head[0][1] + head[1][1] + key_size[1]
    # one byte of attributes in front, one for the number of headers behind
    body_bytes = 2 + head_bytes + key_length + value_size[1] + value_length
    length = _varints(body_bytes)
    total = length[1] + body_bytes
    out = np.zeros(int(total.sum()), np.uint8)
    source = columns.data.cast("B")
    pos = np.cumsum(total) - total
    pos = _put_varints(out, pos, length) + 1
    for varints in (*head, key_size):
        pos = _put_varints(out, pos, varints)
    pos = _put_spans(out, pos, source, (columns.key_start, key_length))
    pos = _put_varints(out, pos, value_size)
    _put_spans(out, pos, source, (columns.value_start, value_length))
    return out.tobytes()


def _varints(values: Longs) -> tuple[Bytes, Longs]:
    """Zig-zag varints: bytes of shape (n, 10), of which the first ``sizes`` of a row count, and those sizes."""
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


def _put_spans(out: Bytes, pos: Longs, source: memoryview, spans: tuple[Longs, Longs]) -> Longs:
    starts, lengths = spans
    target = out.data
    # a slice at a time: an index per byte costs more from a few bytes on
    for to, start, length in zip(pos.tolist(), starts.tolist(), lengths.tolist(), strict=True):
        target[to : to + length] = source[start : start + length]
    return pos + lengths
