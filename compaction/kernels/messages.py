"""Converts messages of magic 0 and 1 to v2 records, so that the other kernels read one format only; also copies some messages
of a wrapper for a new one.

The offset of a message in a wrapper is its stored one plus a *shift*: with magic 1, stored offsets are relative, and the last
message has the wrapper's offset. Under log append time, messages of magic 1 have the wrapper's timestamp. An incomplete message
at the end is ignored. ``compaction.formats.message_set`` does the same for one wrapper, slowly, and names the fault of a
wrapper that is rejected here. Mirrors ``AbstractLegacyRecordBatch.DeepRecordsIterator``; ``filter_messages``
mirrors ``MemoryRecordsBuilder.appendLegacyRecord`` (Kafka 3.9.2).

An uncompressed message is a batch of one record (``AbstractLegacyRecordBatch``, ``LegacyRecord``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compaction.formats.message_set import (
    HEADER_V0,
    HEADER_V1,
    LEAST_BYTES_V0,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    TIMESTAMP_AT,
)
from compaction.formats.record_batch import CODEC, LENGTH_AT, LOG_APPEND_TIME, LOG_OVERHEAD_BYTES, MAGIC_AT
from compaction.kernels.batches import crc32
from compaction.kernels.bytes import be32, be64, put_bytes, put_record_head, varlong_size
from compaction.kernels.compiling import copy_bytes, inner, kernel, store32, store64

#: most bytes by which a record is larger than its message
GROWTH = 16
_HEADER_V0, _HEADER_V1 = HEADER_V0.size, HEADER_V1.size
_MIN_SIZE = LEAST_BYTES_V0 - LOG_OVERHEAD_BYTES
_MAX_MESSAGES = 1 << 20
_INT_MAX = 2**31 - 1
#: ``_message`` returns one of them instead of the next position
_MALFORMED, _INCOMPLETE = -1, -2
#: most bytes by which a message grows: one of magic 0 that is written with magic 1
MESSAGE_GROWTH = 8


@inner
def _put_record(out, w, data, key_at, key_size, value_at, value_size, timestamp_delta, offset_delta):
    """Write a v2 record without headers at ``out[w:]``; sizes of -1 mean null. Returns the position after it."""
    tail_bytes = varlong_size(key_size) + max(key_size, 0) + varlong_size(value_size) + max(value_size, 0) + 1
    w = put_record_head(out, w, timestamp_delta, offset_delta, tail_bytes)
    w = put_bytes(out, w, data, key_at, key_size)
    w = put_bytes(out, w, data, value_at, value_size)
    out[w] = 0
    return w + 1


@kernel
def plain_messages(raw, block_position, rows, first_row, scratch, spans):
    """Write the records of messages ``rows[first_row:]`` into ``scratch``, as many as fit.

    :param rows: ``BATCH_ROW[r]``, all uncompressed and of magic 0 or 1; ``count`` and ``base_timestamp`` are set
    :param spans: int64[r, 3] to fill: start, end, 1
    :returns: ``(next row, ok)``; if not ok, the lengths within that message contradict its size
    """
    w = 0
    for i in range(first_row, len(rows)):
        row = rows[i]
        if w + row["size"] + GROWTH > len(scratch):
            return i, True
        start = row.position - block_position
        end = start + row["size"]
        timestamp = be64(raw, start + TIMESTAMP_AT) if row.magic == 1 else -1
        p = start + (_HEADER_V1 if row.magic == 1 else _HEADER_V0)
        if p + 4 > end:
            return i, False
        key_size = np.int64(be32(raw, p))
        key_at = p + 4
        p = key_at + max(key_size, 0)
        if key_size < -1 or p + 4 > end:
            return i, False
        value_size = np.int64(be32(raw, p))
        value_at = p + 4
        if value_size < -1 or value_at + max(value_size, 0) != end:
            return i, False
        spans[i, 0], spans[i, 2] = w, 1
        w = _put_record(scratch, w, raw, key_at, key_size, value_at, value_size, 0, 0)
        spans[i, 1] = w
        row.count, row.base_timestamp = 1, timestamp
    return len(rows), True


class WrapperFields(NamedTuple):
    """The fields of a wrapper that its messages depend on; with ``append_time``, all messages have its ``timestamp``."""

    magic: int
    last_offset: int
    timestamp: int
    append_time: bool


@inner
def _message(payload, pos):
    """The message at ``payload[pos:]``: ``(next, key_at, key_size, value_at, value_size)``; sizes of -1 mean null."""
    end = np.int64(len(payload))
    size = np.int64(be32(payload, pos + LENGTH_AT))
    if size < _MIN_SIZE:
        return np.int64(_MALFORMED), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if size > end - pos - LOG_OVERHEAD_BYTES:
        return np.int64(_INCOMPLETE), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    stop = pos + LOG_OVERHEAD_BYTES + size
    key_at = pos + 4 + (_HEADER_V1 if payload[pos + MAGIC_AT] else _HEADER_V0)
    if payload[pos + MAGIC_AT] > 1 or payload[pos + MESSAGE_ATTRIBUTES_AT] & CODEC or key_at + 4 > stop:
        return np.int64(_MALFORMED), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    key_size = max(np.int64(be32(payload, key_at - 4)), np.int64(-1))
    value_at = key_at + max(key_size, np.int64(0)) + 4
    if value_at > stop:
        return np.int64(_MALFORMED), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    value_size = max(np.int64(be32(payload, value_at - 4)), np.int64(-1))
    if value_at + value_size > stop:
        return np.int64(_MALFORMED), np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    return stop, key_at, key_size, value_at, value_size


@inner
def _timestamp(payload, pos, wrapper):
    """The timestamp of the message at ``payload[pos:]``, -1 for none."""
    if payload[pos + MAGIC_AT] == 0:
        return np.int64(-1)
    return np.int64(wrapper.timestamp) if wrapper.append_time else be64(payload, pos + TIMESTAMP_AT)


@kernel
def measure_messages(payload, wrapper):
    """Check the messages in ``payload`` (uint8[]) of ``wrapper`` (``WrapperFields``).

    :returns: ``(messages, shift, largest size, other magic)``: sizes are without offset and size; the number is 0 if the
        wrapper is malformed. Other magic: some message has another one than the wrapper
    """
    pos, count, last, largest, other_magic = np.int64(0), 0, np.int64(0), np.int64(0), False
    while len(payload) - pos >= LOG_OVERHEAD_BYTES:
        stop, _, _, _, _ = _message(payload, pos)
        if stop == _INCOMPLETE:
            break
        if stop == _MALFORMED or count == _MAX_MESSAGES:
            return 0, np.int64(0), largest, other_magic
        last = be64(payload, pos)
        other_magic = other_magic or payload[pos + MAGIC_AT] != wrapper.magic
        largest = max(largest, stop - pos - LOG_OVERHEAD_BYTES)
        count += 1
        pos = stop
    shift = np.int64(0)
    if wrapper.magic > 0 and wrapper.last_offset != 0:
        if wrapper.last_offset < last:
            return 0, shift, largest, other_magic
        shift = wrapper.last_offset - last
    return count, shift, largest, other_magic


@kernel
def wrapped_records(payload, count, shift, wrapper, out, pos):
    """Write ``count`` messages as v2 records at ``out[pos:]``, which has room for them and ``GROWTH`` bytes each.

    :returns: ``(position after them, base offset, last offset, base timestamp)``; the position is -1 if offsets do not ascend
        within the range of a batch, or a timestamp is below -1
    """
    p, w = np.int64(0), np.int64(pos)
    base_offset, base_timestamp = be64(payload, 0) + shift, _timestamp(payload, 0, wrapper)
    offset = base_offset - 1
    for _ in range(count):
        stop, key_at, key_size, value_at, value_size = _message(payload, p)
        before, offset, timestamp = offset, be64(payload, p) + shift, _timestamp(payload, p, wrapper)
        delta, timestamp_delta = offset - base_offset, timestamp - base_timestamp
        if offset <= before or delta > _INT_MAX or timestamp < -1:
            return np.int64(-1), base_offset, offset, base_timestamp
        w = _put_record(out, w, payload, key_at, key_size, value_at, value_size, timestamp_delta, delta)
        p = stop
    return w, base_offset, offset, base_timestamp


@kernel
def filter_messages(payload, count, shift, wrapper, retained, out):
    """Write the messages among ``count`` that have the offsets ``retained`` (int64[n], ascending) into ``out``, as they are
    in a wrapper with the fields ``wrapper``. ``out`` has room for ``payload`` and ``MESSAGE_GROWTH`` bytes for each message.

    :returns: ``(bytes written, largest timestamp)``
    """
    p, w, done, largest = np.int64(0), np.int64(0), 0, np.int64(-1)
    base_offset = retained[0] if wrapper.magic else np.int64(0)
    for _ in range(count):
        stop, key_at, key_size, value_at, value_size = _message(payload, p)
        offset, start, p = be64(payload, p) + shift, p, stop
        if done == len(retained) or offset != retained[done]:
            continue
        done += 1
        if w + stop - start + MESSAGE_GROWTH > len(out):
            raise IndexError("messages do not fit the array")
        timestamp = np.int64(wrapper.timestamp) if wrapper.append_time else _timestamp(payload, start, wrapper)
        largest = max(largest, timestamp)
        address = np.uintp(out.ctypes.data + w)
        store64(address, np.int64(offset - base_offset))
        body = w + MAGIC_AT
        out[body] = wrapper.magic
        out[body + 1] = LOG_APPEND_TIME if wrapper.append_time else 0
        end = body + 2
        if wrapper.magic:
            store64(np.uintp(out.ctypes.data + end), timestamp)
            end += 8
        store32(np.uintp(out.ctypes.data + end), key_size)
        end = copy_bytes(out, end + 4, payload, key_at, key_at + max(key_size, np.int64(0)))
        store32(np.uintp(out.ctypes.data + end), value_size)
        end = copy_bytes(out, end + 4, payload, value_at, value_at + max(value_size, np.int64(0)))
        store32(np.uintp(address + np.uintp(LENGTH_AT)), end - w - LOG_OVERHEAD_BYTES)
        store32(np.uintp(address + np.uintp(MESSAGE_CRC_AT)), np.int64(crc32(out, body, end)))
        w = end
    return w, largest
