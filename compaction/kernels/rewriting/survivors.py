"""Decides which records of a batch are retained, and whether they can be copied or must be re-encoded.

Mirrors ``Cleaner.shouldRetainRecord``, ``MemoryRecords.filterTo`` (which records it keeps) and ``DefaultRecord.readFrom``.
"""

from __future__ import annotations

import numpy as np

from compaction.formats.record_batch import CONTROL
from compaction.kernels.compiling.jit import inner
from compaction.kernels.reading.bytes import is_utf8, varint, varlong, varlong_size
from compaction.kernels.reading.records import BAD_RECORD, OK, quick_bounds, quick_record, read_record
from compaction.kernels.reading.tables import DISCARD, DROPPED, OFFSET_SHIFT
from compaction.kernels.rewriting.batch_retention import tombstones_expired

#: the batch has a header name with malformed UTF-8, whose bytes Kafka replaces (see ``repair_header_names``)
BAD_NAMES = 19
#: encodings of a record: ``CANONICAL`` is the one that Kafka writes, ``LOOSE`` is another valid one. ``ERASED``: only the key
#: is written, as a tombstone without headers
LOOSE, CANONICAL, ERASED = 0, 1, 2


@inner
def _tail_form(data, pos, stop, key_size, value_size):
    """The encoding of a record from the key's length on: ``CANONICAL``, ``LOOSE``, or ``BAD_NAMES`` for a header name with
    malformed UTF-8."""
    _, p = varint(data, pos, stop)
    canonical = p - pos == varlong_size(key_size) and key_size >= -1
    p += max(key_size, 0)
    _, q = varint(data, p, stop)
    canonical &= q - p == varlong_size(value_size) and value_size >= -1
    p = q + max(value_size, 0)
    count, q = varint(data, p, stop)
    canonical &= q - p == varlong_size(count)
    p = q
    for k in range(2 * count):
        size, q = varint(data, p, stop)
        canonical &= q - p == varlong_size(size) and size >= -1
        p = q + max(size, 0)
        if k & 1 == 0 and not is_utf8(data, q, p):
            return BAD_NAMES
    return CANONICAL if canonical else LOOSE


@inner
def _form(data, pos, stop, timestamp_delta, offset_delta, key_size, value_size):
    """The position of the key's length in the record ``data[pos:stop]``, and the encoding of the record."""
    _, body = varint(data, pos, stop)
    _, q = varlong(data, body + 1, stop)
    _, tail = varint(data, q, stop)
    canonical = tail == q + varlong_size(offset_delta) and q - body - 1 == varlong_size(timestamp_delta)
    canonical &= body - pos == varlong_size(stop - body) and data[body] == 0
    form = _tail_form(data, tail, stop, key_size, value_size)
    return tail, LOOSE if form == CANONICAL and not canonical else form


@inner
def skip_below(survivors, cursor, offset):
    """The first index ``>= cursor`` of a survivor entry with an offset ``>= offset``: a linear search, as records ascend."""
    bound = np.uint64(offset + 1) << np.uint64(OFFSET_SHIFT)
    while cursor < len(survivors) and survivors[cursor] < bound:
        cursor += 1
    return cursor


@inner
def should_retain(offset, keyless, tombstone, survivors, cursor, first_dirty, latest_offset, expire_tombstones):
    """``(retained, expired, next index into survivors)`` of the data record at ``offset``; ``expired``: it is a tombstone past
    its retention."""
    cursor = skip_below(survivors, cursor, offset)
    listed = cursor < len(survivors) and survivors[cursor] >> np.uint64(OFFSET_SHIFT) == np.uint64(offset + 1)
    if offset > latest_offset:
        return True, False, cursor
    if keyless:
        return False, False, cursor
    if offset < first_dirty:
        latest = not (listed and survivors[cursor] & np.uint64(DROPPED) != 0)
    else:
        latest = listed
    if latest and tombstone and expire_tombstones:
        return False, True, cursor
    return latest, False, cursor


@inner
def _peek(data, pos, end):
    """``(next, offset delta)`` of the record at ``data[pos:end]``, without its key and value; ``next`` is -1 if it is
    truncated."""
    length, p = varint(data, pos, end)
    if p < 0 or length < 1 or length > end - p:
        return -1, np.int64(0)
    stop = p + length
    p += 1
    while p < stop and data[p] >= 0x80:
        p += 1
    delta, p = varint(data, p + 1, stop)
    if p < 0:
        return -1, delta
    return stop, delta


@inner
def filter_records(data, start, end, row, verdict, survivors, cursor, limits, kept):
    """Fill ``kept`` int64[count, 6] with the retained records of one batch: start, stop, tail position, timestamp delta, offset
    delta, and ``CANONICAL``, or another encoding.

    ``(number kept, number of expired tombstones, is a kept record a tombstone, has a kept record a header name with malformed
    UTF-8, next index into survivors, error)``."""
    first_dirty, latest_offset = limits.first_dirty_offset, limits.latest_offset
    control = row.magic == 2 and row.attributes & CONTROL != 0
    expire_tombstones = tombstones_expired(row, limits)
    n, expired_total, tombstone_kept, bad_names = 0, 0, False, False
    address = data.ctypes.data
    p = start
    for _ in range(row.count):
        pos = p
        if not control:
            p, offset_delta = quick_bounds(address, pos, end)
            if p == 0:
                p, offset_delta = _peek(data, pos, end)
            if p < 0:
                return n, expired_total, tombstone_kept, bad_names, cursor, BAD_RECORD
            offset = row.base_offset + offset_delta
            if first_dirty <= offset <= latest_offset:
                cursor = skip_below(survivors, cursor, offset)
                if cursor == len(survivors) or survivors[cursor] >> np.uint64(OFFSET_SHIFT) != np.uint64(offset + 1):
                    continue
        p, timestamp_delta, offset_delta, tail, _, key_size, value_size = quick_record(address, pos, end)
        quick = p > 0
        if not quick:
            p, timestamp_delta, offset_delta, _, key_size, value_size = read_record(data, pos, end)
        if p < 0:
            return n, expired_total, tombstone_kept, bad_names, cursor, BAD_RECORD
        retained, erased = control, False
        if not control:
            offset = row.base_offset + offset_delta
            keyless = key_size < 0 and not limits.erases
            retained, expired, cursor = should_retain(
                offset, keyless, value_size < 0, survivors, cursor, first_dirty, latest_offset, expire_tombstones
            )
            expired_total += expired
            erased = limits.erases_values and not retained
            retained |= erased
        if retained and verdict & DISCARD == 0:
            tombstone_kept |= value_size < 0
            form = CANONICAL
            if not quick:
                tail, form = _form(data, pos, p, timestamp_delta, offset_delta, key_size, value_size)
                bad_names |= form == BAD_NAMES
            kept[n, 0], kept[n, 1], kept[n, 2], kept[n, 3], kept[n, 4] = pos, p, tail, timestamp_delta, offset_delta
            kept[n, 5] = ERASED if erased else form == CANONICAL
            n += 1
    return n, expired_total, tombstone_kept, bad_names, cursor, OK
