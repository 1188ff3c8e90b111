"""Reads and checks the records of v2 batches and makes a 24-byte map entry or lookup of each, or an entry that says where in
its log the record is, and how large (``ENDS`` of ``compaction.kernels.slot_table``).

Mirrors ``DefaultRecord.readFrom`` (which records are well-formed) and ``Cleaner.buildOffsetMapForSegment`` (which records enter
the map).
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.bytes import short_varint, varint, varlong
from compaction.kernels.compiling import inner, kernel, load8, load64
from compaction.kernels.keys import NO_KEY, hash_keys
from compaction.kernels.tables import LOOKUP, OFFSET_SHIFT, TOMBSTONE

OK, BAD_RECORD, RECORDS_MISSING, RECORDS_REMAINING, OFFSET_ORDER = range(5)
RECORD_ERRORS = {
    BAD_RECORD: "record is not well-formed",
    RECORDS_MISSING: "batch ends before its declared number of records",
    RECORDS_REMAINING: "batch holds more bytes than its declared number of records",
    OFFSET_ORDER: "record offsets do not ascend within the batch",
}

#: the actions of ``scan_records`` for a batch
MAP, LOOKUPS_ONLY, SKIP = 0, 1, 2
#: columns of its ``counters``
MESSAGES, KEYLESS = range(2)
#: body of a record with null key and null value
_MIN_BODY = 6
#: bytes within which a record's length, deltas and key length, of at most three bytes each, can be loaded eight bytes at a time
_FRONT = 18
#: columns of a table: positions count from the start of the data, a size of -1 means null
OFFSET, TIMESTAMP, KEY_AT, KEY_SIZE, VALUE_AT, VALUE_SIZE, HEADERS_AT, END, COLUMNS = range(9)


@inner
def skip_headers(data, pos, end, count):
    """The position after ``count`` record headers at ``data[pos:end]``, or -1 if they are malformed."""
    for _ in range(count):
        size, pos = varint(data, pos, end)
        if pos < 0 or size < 0 or size > end - pos:
            return -1
        pos += size
        size, pos = varint(data, pos, end)
        if pos < 0 or size > end - pos:
            return -1
        if size > 0:
            pos += size
    return pos


@inner
def read_record(data, pos, end):
    """The fields of the v2 record at ``data[pos:end]``.

    ``(next, timestamp_delta, offset_delta, key_at, key_size, value_size)``: ``next`` is the position after the record, or -1 if
    it is malformed; a size below 0 means null.
    """
    length, p = varint(data, pos, end)
    if p < 0 or length < 1 or length > end - p:
        return -1, 0, 0, 0, 0, 0
    stop = p + length
    timestamp_delta, p = varlong(data, p + 1, stop)
    if p < 0:
        return -1, 0, 0, 0, 0, 0
    offset_delta, p = varint(data, p, stop)
    if p < 0:
        return -1, 0, 0, 0, 0, 0
    key_size, p = varint(data, p, stop)
    if p < 0 or key_size > stop - p:
        return -1, 0, 0, 0, 0, 0
    key_at = p
    if key_size > 0:
        p += key_size
    value_size, p = varint(data, p, stop)
    if p < 0 or value_size > stop - p:
        return -1, 0, 0, 0, 0, 0
    if value_size > 0:
        p += value_size
    headers, p = varint(data, p, stop)
    if p < 0 or headers < 0:
        return -1, 0, 0, 0, 0, 0
    if headers > 0:
        p = skip_headers(data, p, stop, headers)
    if p != stop:
        return -1, 0, 0, 0, 0, 0
    return stop, timestamp_delta, offset_delta, key_at, key_size, value_size


@inner
def quick_bounds(address, pos, end):
    """As ``quick_record``, but reads and checks only the record's front: ``(next, offset_delta)``."""
    if end - pos < _FRONT:
        return 0, 0
    length, taken = short_varint(load64(np.uintp(address + pos)))
    body = pos + taken
    if taken == 0 or length < _MIN_BODY or length > end - body:
        return 0, 0
    _, skipped = short_varint(load64(np.uintp(address + body + 1)))
    offset_delta, delta_size = short_varint(load64(np.uintp(address + body + 1 + skipped)))
    if skipped == 0 or delta_size == 0:
        return 0, 0
    return body + length, offset_delta


@inner
def quick_record(address, pos, end):
    """The fields of the v2 record at ``data[pos:end]`` if it has the common form: no headers, no attributes, and canonical
    varints of at most three bytes. ``address`` is that of ``data[0]``; no byte outside of ``data[pos:end]`` is read.

    ``(next, timestamp_delta, offset_delta, tail, key_at, key_size, value_size)``: ``next`` is the position after the record, or
    0 if the record has another form or is malformed (see ``read_record``); ``tail`` is the position of the key's length.
    """
    if end - pos < _FRONT:
        return 0, 0, 0, 0, 0, 0, 0
    length, taken = short_varint(load64(np.uintp(address + pos)))
    body = pos + taken
    stop = body + length
    timestamp_delta, timestamp_size = short_varint(load64(np.uintp(address + body + 1)))
    p = body + 1 + timestamp_size
    offset_delta, offset_size = short_varint(load64(np.uintp(address + p)))
    tail = p + offset_size
    key_size, size = short_varint(load64(np.uintp(address + tail)))
    key_at = tail + size
    if taken == 0 or timestamp_size == 0 or offset_size == 0 or size == 0 or key_size < -1:
        return 0, 0, 0, 0, 0, 0, 0
    p = key_at + max(key_size, 0)
    if length < _MIN_BODY or stop > end or p + 8 > end:
        return 0, 0, 0, 0, 0, 0, 0
    value_size, size = short_varint(load64(np.uintp(address + p)))
    p += size + max(value_size, 0)
    if size == 0 or value_size < -1 or p != stop - 1 or load8(np.uintp(address + p)) or load8(np.uintp(address + body)):
        return 0, 0, 0, 0, 0, 0, 0
    return stop, timestamp_delta, offset_delta, tail, key_at, key_size, value_size


@inner
def _scan_batch(data, start, end, row, first_dirty, lookup_all, entries, n, lookups, m, counters):
    """One batch of ``scan_records``: ``(n, m, error)``. Stores addresses and sizes of keys, which ``hash_keys`` replaces."""
    address = data.ctypes.data
    pos = start
    last_delta = np.int64(-1)
    # see ``last_record_offsets``
    largest_delta = max(row.last_offset - row.base_offset, np.int64(row.count) - 1)
    for _ in range(row.count):
        if pos >= end:
            return n, m, RECORDS_MISSING
        stop, _, delta, _, key_at, key_size, value_size = quick_record(address, pos, end)
        if stop == 0:
            stop, _, delta, key_at, key_size, value_size = read_record(data, pos, end)
        pos = stop
        if pos < 0:
            return n, m, BAD_RECORD
        if delta <= last_delta or delta > largest_delta:
            return n, m, OFFSET_ORDER
        last_delta = delta
        offset = row.base_offset + delta
        clean = offset < first_dirty
        offset_word = np.uint64(offset + 1) << np.uint64(OFFSET_SHIFT)
        if value_size < 0:
            offset_word |= np.uint64(TOMBSTONE)
        if key_size < 0:
            counters[KEYLESS] += 1
            if clean:
                lookups[m, 0], lookups[m, 1], lookups[m, 2] = 0, NO_KEY, offset_word | np.uint64(LOOKUP)
                m += 1
            continue
        if clean or lookup_all:
            lookups[m, 0], lookups[m, 1], lookups[m, 2] = address + key_at, key_size, offset_word | np.uint64(LOOKUP)
            m += 1
        else:
            entries[n, 0], entries[n, 1], entries[n, 2] = address + key_at, key_size, offset_word
            n += 1
    counters[MESSAGES] += row.count
    if pos != end:
        return n, m, RECORDS_REMAINING
    return n, m, OK


@kernel
def scan_records(raw, scratch, rows, spans, actions, first_dirty, first_row, entries, lookups, keyless, counters, secret):
    """Make map entries and lookups of the records of ``rows[first_row:]``, as many batches as fit.

    :param raw: uint8[], the block of the segment; ``scratch`` uint8[], decompressed records
    :param rows: ``BATCH_ROW[r]``, all of magic 2
    :param spans: int64[r, 3], the records' bytes by batch: start, end, and 1 for ``scratch``, 0 for ``raw``
    :param actions: uint8[r]. ``MAP``: dirty records (offset >= ``first_dirty``) become entries, others lookups;
        ``LOOKUPS_ONLY``: all records become lookups; ``SKIP``: the batch is not read
    :param entries: uint64[c, 3] to fill; ``lookups`` uint64[c, 3] to fill, with ``LOOKUP`` set. The lookup of a record without
        a key has hash 0, 0; a dirty record without a key yields neither
    :param keyless: int32[r] to fill: records without a key by batch
    :param counters: int64[2], added to: ``MESSAGES``, ``KEYLESS``
    :param secret: from ``HashSecret.state``; with ``UNHASHED`` keys remain addresses, valid as long as ``raw`` and ``scratch``,
        and sizes
    :returns: ``(next row, number of entries, number of lookups, error)``. After an error, ``next row`` is the corrupt batch,
        and entries and lookups are not valid. If ``next row`` is ``first_row`` without an error, ``c`` is below that batch's
        count
    """
    n, m = 0, 0
    capacity = len(entries)
    next_row = len(rows)
    for i in range(first_row, len(rows)):
        if actions[i] == SKIP:
            continue
        row = rows[i]
        if max(n, m) + row.count > capacity:
            next_row = i
            break
        data = scratch if spans[i, 2] else raw
        keyless_before = counters[KEYLESS]
        n, m, error = _scan_batch(
            data, spans[i, 0], spans[i, 1], row, first_dirty, actions[i] == LOOKUPS_ONLY, entries, n, lookups, m, counters
        )
        keyless[i] = counters[KEYLESS] - keyless_before
        if error != OK:
            return i, n, m, error
    if len(secret):
        hash_keys(entries, n, secret)
        hash_keys(lookups, m, secret)
    return next_row, n, m, OK


@kernel
def place_records(raw, scratch, rows, spans, actions, places, first_row, entries, plain, removed, secret):
    """Make entries of the records of ``rows[first_row:]``, as many batches as fit.

    :param raw, scratch, rows, spans, first_row, secret: as for ``scan_records``
    :param actions: uint8[r]. ``MAP``: records with a key become entries; ``LOOKUPS_ONLY``: none does; ``SKIP``: the batch is
        not read
    :param places: int64[r], the place of each batch
    :param entries: uint64[c, 4] to fill
    :param plain: int64[r] to fill: uncompressed bytes of the records, with their lengths
    :param removed: int64[r, 2] to fill: records that do not become entries, and their bytes
    :returns: ``(next row, number of entries, error)``, as ``scan_records``
    """
    address_of_raw, address_of_scratch = raw.ctypes.data, scratch.ctypes.data
    n, next_row = 0, len(rows)
    for i in range(first_row, len(rows)):
        if actions[i] == SKIP:
            continue
        row = rows[i]
        if n + row.count > len(entries):
            next_row = i
            break
        data = scratch if spans[i, 2] else raw
        address = address_of_scratch if spans[i, 2] else address_of_raw
        pos, end = spans[i, 0], spans[i, 1]
        place = np.uint64(places[i]) << np.uint64(32) | np.uint64(places[i])
        plain[i], removed[i, 0], removed[i, 1] = end - pos, 0, 0
        for _ in range(row.count):
            if pos >= end:
                return i, n, RECORDS_MISSING
            stop, _, _, _, key_at, key_size, value_size = quick_record(address, pos, end)
            if stop == 0:
                stop, _, _, key_at, key_size, value_size = read_record(data, pos, end)
                if stop < 0:
                    return i, n, BAD_RECORD
            if key_size < 0 or actions[i] == LOOKUPS_ONLY:
                removed[i, 0] += 1
                removed[i, 1] += stop - pos
            else:
                entries[n, 0], entries[n, 1], entries[n, 2] = address + key_at, key_size, place
                entries[n, 3] = np.uint64(stop - pos) << np.uint64(2) | np.uint64(3 if value_size < 0 else 0)
                n += 1
            pos = stop
        if pos != end:
            return i, n, RECORDS_REMAINING
    hash_keys(entries, n, secret)
    return next_row, n, OK


@kernel
def first_larger(scratch, rows, spans, selected, limit):
    """The first record larger than ``limit`` bytes, without its length: ``(row, size)``, or the number of rows and 0.

    :param scratch, spans: as for ``scan_records``
    :param selected: bool[r], the batches to check
    """
    for i in range(len(rows)):
        if selected[i]:
            p, end = spans[i, 0], spans[i, 1]
            for _ in range(rows[i]["count"]):
                size, p = varint(scratch, p, end)
                if p < 0 or size < 0 or size > end - p:
                    break
                if size > limit:
                    return i, size
                p += size
    return len(rows), np.int64(0)


@kernel
def locate_fields(data, pos, count, base_offset, base_timestamp, table):
    """Fill ``table`` (int64[n, COLUMNS]) with up to ``count`` records of ``data[pos:]`` (uint8[]). Overflows wrap around.

    :returns: ``(number of records, position after them)``; the position is -1 if a malformed record follows
    """
    end = len(data)
    filled = min(count, len(table))
    for i in range(filled):
        stop, timestamp_delta, offset_delta, key_at, key_size, value_size = read_record(data, pos, end)
        if stop < 0:
            return i, np.int64(-1)
        _, value_at = varint(data, key_at + max(key_size, 0), stop)
        table[i, OFFSET], table[i, TIMESTAMP] = base_offset + offset_delta, base_timestamp + timestamp_delta
        table[i, KEY_AT], table[i, KEY_SIZE] = key_at, max(key_size, -1)
        table[i, VALUE_AT], table[i, VALUE_SIZE] = value_at, max(value_size, -1)
        table[i, HEADERS_AT], table[i, END] = value_at + max(value_size, 0), stop
        pos = stop
    return filled, np.int64(pos)
