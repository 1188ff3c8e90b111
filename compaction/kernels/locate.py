"""Locates the fields of records for the certifier, one row per record, without copying keys and values.

Shares no code with the kernels of compaction, so that the certifier does not repeat their bugs. Positions are checked before
they are read.
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling import inner, kernel
from compaction.kernels.tables import row_type

#: One row per record. ``timestamp``: the batch's max timestamp with LogAppendTime, -1 for magic 0. ``key_at``, ``value_at``:
#: positions of the bytes; a size of -1 means null. ``headers_at``, ``end``: byte range of the headers and their count, empty
#: for magic 0 and 1. ``batch``: the row of its batch.
RECORD_ROW = row_type(int64="offset timestamp key_at value_at headers_at end batch", int32="key_size value_size")

_LOG_APPEND_TIME = 0x08
_MESSAGE_HEADER = 18
#: bits of the ``differences`` of ``compare_records``
TIMESTAMP, KEY, VALUE, HEADERS = 1, 2, 4, 8


@inner
def _zigzag(data, pos, end, max_bytes):
    """The zig-zag varint of at most ``max_bytes`` at ``data[pos:end]`` and the position after it, -1 if it is malformed."""
    word, shift = np.uint64(0), np.uint64(0)
    for i in range(pos, min(end, pos + max_bytes)):
        byte = np.uint64(data[i])
        word |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(word >> np.uint64(1)) ^ -np.int64(word & np.uint64(1)), i + 1
        shift += np.uint64(7)
    return np.int64(0), -1


@inner
def _bytes(data, pos, end):
    """``(start, size, end)`` of a length-prefixed field; ``end`` is -1 if it is malformed. Every negative size means null, as
    in Kafka, and is returned as -1."""
    size, start = _zigzag(data, pos, end, 5)
    if start < 0 or size > end - start:
        return start, size, -1
    return start, max(size, np.int64(-1)), start + max(size, np.int64(0))


@kernel
def locate_records(data, rows, starts, ends, records):
    """Fill ``records`` with the records of v2 batches.

    :param data: uint8[n]; ``rows``: ``BATCH_ROW[b]``
    :param starts, ends: int64[b], byte ranges of each batch's decompressed records in ``data``; batches with ``end < start``
        are skipped
    :param records: ``RECORD_ROW[m]``, ``m`` the sum of these batches' counts
    :returns: ``(records, corrupt batch)``, the latter -1 if all are well-formed
    """
    n = 0
    for i in range(len(rows)):
        row = rows[i]
        pos, end = starts[i], ends[i]
        if end < pos:
            continue
        for _ in range(row.count):
            size, body = _zigzag(data, pos, end, 5)
            if body < 0 or size < 1 or size > end - body:
                return n, i
            stop = body + size
            time, pos = _zigzag(data, body + 1, stop, 10)
            if pos < 0:
                return n, i
            delta, pos = _zigzag(data, pos, stop, 5)
            if pos < 0:
                return n, i
            key_at, key_size, pos = _bytes(data, pos, stop)
            if pos < 0:
                return n, i
            value_at, value_size, pos = _bytes(data, pos, stop)
            if pos < 0:
                return n, i
            record = records[n]
            record.offset = row.base_offset + delta
            record.timestamp = row.max_timestamp if row.attributes & _LOG_APPEND_TIME else row.base_timestamp + time
            record.key_at, record.key_size, record.value_at, record.value_size = key_at, key_size, value_at, value_size
            record.headers_at, record.end, record.batch = pos, stop, i
            n, pos = n + 1, stop
        if pos != end:
            return n, i
    return n, -1


@inner
def _int32(data, pos):
    """The big-endian int32 at ``data[pos:]``."""
    word = np.int64(0)
    for i in range(4):
        word = (word << 8) | np.int64(data[pos + i])
    return word - (np.int64(1) << 32) if word >> 31 else word


@kernel
def locate_messages(data, rows, starts, ends, records):
    """As ``locate_records``, for complete uncompressed messages of magic 0 and 1: one record each."""
    n = 0
    for i in range(len(rows)):
        row = rows[i]
        pos, end = starts[i], ends[i]
        if end < pos:
            continue
        key_at = pos + _MESSAGE_HEADER + 4 + (8 if row.magic else 0)
        if key_at > end:
            return n, i
        key_size = _int32(data, key_at - 4)
        value_at = key_at + max(key_size, 0) + 4
        if value_at > end:
            return n, i
        value_size = _int32(data, value_at - 4)
        if value_at + max(value_size, 0) > end:
            return n, i
        record = records[n]
        record.offset, record.timestamp, record.batch = row.last_offset, row.max_timestamp, i
        record.key_at, record.key_size = key_at, max(key_size, -1)
        record.value_at, record.value_size = value_at, max(value_size, -1)
        record.headers_at = record.end = end
        n += 1
    return n, -1


@inner
def _same_field(data, pos, size, other, other_pos, other_size):
    """Whether two fields are both null or equal in every byte."""
    if size != other_size:
        return False
    for i in range(size):
        if data[pos + i] != other[other_pos + i]:
            return False
    return True


@kernel
def compare_records(after, after_data, before, before_data, counterparts, differences):
    """Compare records of the cleaned log byte by byte with their originals.

    :param after, before: ``RECORD_ROW[m]``, ``RECORD_ROW[n]`` with their ``uint8`` data
    :param counterparts: int64[m], the row in ``before``, below 0 for none
    :param differences: uint8[m] to fill with ``TIMESTAMP | KEY | VALUE | HEADERS``. Headers are compared as encoded
    """
    for i in range(len(after)):
        differences[i] = 0
        if counterparts[i] < 0:
            continue
        a, b = after[i], before[counterparts[i]]
        if a.timestamp != b.timestamp:
            differences[i] |= TIMESTAMP
        if not _same_field(after_data, a.key_at, a.key_size, before_data, b.key_at, b.key_size):
            differences[i] |= KEY
        if not _same_field(after_data, a.value_at, a.value_size, before_data, b.value_at, b.value_size):
            differences[i] |= VALUE
        size, other = a.end - a.headers_at, b.end - b.headers_at
        no_headers = size == 1 and after_data[a.headers_at] == 0 and other == 0
        if not no_headers and not _same_field(after_data, a.headers_at, size, before_data, b.headers_at, other):
            differences[i] |= HEADERS


@kernel
def gather_keys(data, records, offsets, keys):
    """Concatenate keys.

    :param records: ``RECORD_ROW[n]`` with keys
    :param offsets: int32[n + 1] to fill with the start of each key in ``keys``, uint8[] to fill
    """
    used = 0
    offsets[0] = 0
    for i in range(len(records)):
        pos = records[i].key_at
        for k in range(records[i].key_size):
            keys[used + k] = data[pos + k]
        used += records[i].key_size
        offsets[i + 1] = used


@kernel
def assign_parts(offsets, keys, seed, parts, part_of):
    """Partition keys by a hash that only distributes the work: equal keys get the same part; callers compare the keys.

    :param offsets: int32[n + 1], the start of each key in ``keys``, uint8[]
    :param seed: 32 bits, drawn for the run
    :param part_of: int32[n] to fill, each below ``parts``
    """
    for i in range(len(part_of)):
        # 32-bit FNV-1a, in 64 bits without overflow
        mixed = np.int64(seed)
        for k in range(offsets[i], offsets[i + 1]):
            mixed = ((mixed ^ np.int64(keys[k])) * np.int64(16777619)) & np.int64(0xFFFFFFFF)
        part_of[i] = np.int32((mixed ^ (mixed >> np.int64(15))) % np.int64(parts))
