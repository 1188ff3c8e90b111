"""Turns the records of v2 batches into columns: offsets, timestamps, keys, values and headers.

Columns of variable-size values have Arrow's layout: n + 1 int32 offsets into one byte array, and a validity bit per row (least
significant first). ``measure_records`` selects records and computes the columns' sizes, ``fill_columns`` fills them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.formats.record_batch import LOG_APPEND_TIME
from compaction.kernels.bytes import varint
from compaction.kernels.compiling import copy_bytes, inner, kernel
from compaction.kernels.records import BAD_RECORD, OK, RECORDS_MISSING, RECORDS_REMAINING, read_record

#: bits of the variable-size columns to fill
KEYS, VALUES, HEADERS = 1, 2, 4

#: size of the headers of a record that has none: their count, 0
NO_HEADERS = 1

#: indexes of ``sizes``
RECORDS, KEY_BYTES, VALUE_BYTES, HEADER_COUNT, HEADER_KEY_BYTES, HEADER_VALUE_BYTES = range(6)


class Bytes(NamedTuple):
    """A column of byte strings: ``offsets`` int32[n + 1], ``data`` uint8[], ``valid`` uint8[⌈n / 8⌉] (one bit per row)."""

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    valid: NDArray[np.uint8]


class Columns(NamedTuple):
    """Columns of ``n`` records. Columns that were not requested have no rows.

    ``offset``, ``timestamp_ms``: int64[n]. ``record_size``: int32[n], of the record as v2 with its length. ``value_size``:
    int32[n], -1 for null, whether or not values were requested.
    ``header_starts``: int32[n + 1], the first row of each record's headers in
    ``header_keys`` (never null) and ``header_values``.
    """

    offset: NDArray[np.int64]
    timestamp_ms: NDArray[np.int64]
    record_size: NDArray[np.int32]
    value_size: NDArray[np.int32]
    keys: Bytes
    values: Bytes
    header_starts: NDArray[np.int32]
    header_keys: Bytes
    header_values: Bytes


def new_columns(sizes: NDArray[np.int64], requested: int) -> Columns:
    """Unfilled columns of the ``sizes`` that ``measure_records`` computed."""
    n = int(sizes[RECORDS])
    headers = int(sizes[HEADER_COUNT])
    return Columns(
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int32),
        np.empty(n, np.int32),
        _new_bytes(n, int(sizes[KEY_BYTES])) if requested & KEYS else _new_bytes(0, 0),
        _new_bytes(n, int(sizes[VALUE_BYTES])) if requested & VALUES else _new_bytes(0, 0),
        np.zeros(n + 1 if requested & HEADERS else 1, np.int32),
        _new_bytes(headers, int(sizes[HEADER_KEY_BYTES])),
        _new_bytes(headers, int(sizes[HEADER_VALUE_BYTES])),
    )


def _new_bytes(rows: int, size: int) -> Bytes:
    return Bytes(np.zeros(rows + 1, np.int32), np.empty(size, np.uint8), np.zeros((rows + 7) // 8, np.uint8))


@inner
def _timestamp(row, timestamp_delta):
    """The record's timestamp: with LogAppendTime, the batch's max timestamp."""
    if row.attributes & LOG_APPEND_TIME:
        return row.max_timestamp
    return row.base_timestamp + timestamp_delta


@inner
def _measure_headers(data, pos, stop, sizes):
    """Add the sizes of the headers at ``data[pos:stop]``, which ``read_record`` has checked, to ``sizes``."""
    count, pos = varint(data, pos, stop)
    sizes[HEADER_COUNT] += count
    for _ in range(count):
        size, pos = varint(data, pos, stop)
        sizes[HEADER_KEY_BYTES] += size
        pos += size
        size, pos = varint(data, pos, stop)
        if size > 0:
            sizes[HEADER_VALUE_BYTES] += size
            pos += size


@kernel
def measure_records(raw, scratch, rows, spans, bounds, requested, selected, sizes):
    """Check the records of ``rows`` and compute the sizes of the columns of those within ``bounds``.

    :param raw: uint8[], the block of the segment; ``scratch`` uint8[], decompressed records
    :param rows: ``BATCH_ROW[r]``, all of magic 2 or converted to it
    :param spans: int64[r, 3]: start, end, and 1 for ``scratch``, 0 for ``raw``; batches with ``end < start`` are skipped
    :param bounds: int64[4]: first offset, last offset, first timestamp, last timestamp, all inclusive
    :param requested: ``KEYS | VALUES | HEADERS``
    :param selected: int32[r] to fill: number of records of each batch within ``bounds``
    :param sizes: int64[6], zeros, to fill: see ``RECORDS`` …
    :returns: ``(corrupt batch, error)``; the error is ``OK`` or one of ``RECORD_ERRORS``
    """
    for i in range(len(rows)):
        row = rows[i]
        pos, end = spans[i, 0], spans[i, 1]
        selected[i] = 0
        if end < pos:
            continue
        data = scratch if spans[i, 2] else raw
        for _ in range(row.count):
            if pos >= end:
                return i, RECORDS_MISSING
            stop, timestamp_delta, offset_delta, key_at, key_size, value_size = read_record(data, pos, end)
            if stop < 0:
                return i, BAD_RECORD
            offset, time = row.base_offset + offset_delta, _timestamp(row, timestamp_delta)
            if bounds[0] <= offset <= bounds[1] and bounds[2] <= time <= bounds[3]:
                selected[i] += 1
                sizes[KEY_BYTES] += max(key_size, 0)
                sizes[VALUE_BYTES] += max(value_size, 0)
                if requested & HEADERS:
                    _, value_at = varint(data, key_at + max(key_size, 0), stop)
                    headers_at = value_at + max(value_size, 0)
                    if stop - headers_at > NO_HEADERS:
                        _measure_headers(data, headers_at, stop, sizes)
            pos = stop
        if pos != end:
            return i, RECORDS_REMAINING
        sizes[RECORDS] += selected[i]
    return len(rows), OK


@inner
def _put(offsets, bytes_, valid, n, used, data, pos, size):
    """Fill row ``n`` of a column: null if ``size`` is below 0, else ``data[pos:pos+size]`` at ``used``. Returns the new
    ``used``."""
    if size >= 0:
        valid[n >> 3] |= np.uint8(1 << (n & 7))
        if size > 0:
            used = copy_bytes(bytes_, used, data, pos, pos + size)
    offsets[n + 1] = used
    return used


@inner
def _put_headers(names, values, h, name_used, value_used, data, pos, stop):
    """Fill rows from ``h`` on with the headers of one record: ``(next row, bytes of names used, bytes of values used)``."""
    count, pos = varint(data, pos, stop)
    for _ in range(count):
        size, pos = varint(data, pos, stop)
        name_used = _put(names.offsets, names.data, names.valid, h, name_used, data, pos, size)
        pos += size
        size, pos = varint(data, pos, stop)
        value_used = _put(values.offsets, values.data, values.valid, h, value_used, data, pos, size)
        pos += max(size, 0)
        h += 1
    return h, name_used, value_used


@kernel
def fill_columns(raw, scratch, rows, spans, bounds, requested, columns):
    """Fill ``columns`` (``new_columns``) with the records that ``measure_records`` selected by the same arguments. Returns
    their number."""
    # local names: numba would count references to arrays that are looked up in the loop, once per record
    offsets, times, header_starts = columns.offset, columns.timestamp_ms, columns.header_starts
    record_sizes, value_sizes = columns.record_size, columns.value_size
    key_offsets, key_data, key_valid = columns.keys.offsets, columns.keys.data, columns.keys.valid
    value_offsets, value_data, value_valid = columns.values.offsets, columns.values.data, columns.values.valid
    names, values = columns.header_keys, columns.header_values
    n, h = 0, 0
    key_used, value_used, name_used, header_value_used = 0, 0, 0, 0
    for i in range(len(rows)):
        row = rows[i]
        pos, end = spans[i, 0], spans[i, 1]
        if end < pos:
            continue
        data = scratch if spans[i, 2] else raw
        for _ in range(row.count):
            stop, timestamp_delta, offset_delta, key_at, key_size, value_size = read_record(data, pos, end)
            size, pos = stop - pos, stop
            offset, time = row.base_offset + offset_delta, _timestamp(row, timestamp_delta)
            if not (bounds[0] <= offset <= bounds[1] and bounds[2] <= time <= bounds[3]):
                continue
            offsets[n], times[n], record_sizes[n], value_sizes[n] = offset, time, size, max(value_size, -1)
            if requested & KEYS:
                key_used = _put(key_offsets, key_data, key_valid, n, key_used, data, key_at, key_size)
            if requested & (VALUES | HEADERS):
                _, value_at = varint(data, key_at + max(key_size, 0), stop)
                if requested & VALUES:
                    value_used = _put(value_offsets, value_data, value_valid, n, value_used, data, value_at, value_size)
                if requested & HEADERS:
                    headers_at = value_at + max(value_size, 0)
                    if stop - headers_at > NO_HEADERS:
                        h, name_used, header_value_used = _put_headers(
                            names, values, h, name_used, header_value_used, data, headers_at, stop
                        )
                    header_starts[n + 1] = h
            n += 1
    return n
