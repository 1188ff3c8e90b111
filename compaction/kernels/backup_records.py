"""Converts records between backup sets of kafka-backup and v2 batches, many at a time.

A backup record is, little-endian: the length of the rest (uint32), timestamp in ms and offset (int64), key and value (int32
length, -1 for null, and bytes), a count of headers (uint16) and the headers (uint16 length and UTF-8 name, int32 length and
value).
Mirrors ``BinaryRecord`` of kafka-backup-core 0.25.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compaction.formats.record_batch import HEADER_SIZE
from compaction.kernels.batches import seal, write_header
from compaction.kernels.bytes import put_bytes, put_record_head, put_varlong, varlong_size
from compaction.kernels.compiling import copy_bytes, inner, kernel, load8, load32, load64
from compaction.kernels.tables import MAX_OFFSET

COMPLETE, NO_SPACE, BAD_FIELDS, BAD_TIME, BAD_ORDER, BAD_HEADERS = range(6)
BACKUP_ERRORS = {
    BAD_FIELDS: "record's lengths contradict its size",
    BAD_TIME: "record has a negative timestamp",
    BAD_ORDER: "record offsets do not ascend",
    BAD_HEADERS: "record has more than 65535 headers, or a header name of more than 65535 bytes",
}

#: bytes of a record without key, value and headers, and of a header without name and value
RECORD_BYTES, HEADER_BYTES = 30, 6
_LENGTH_BYTES = 4
_MAX_UINT16 = 65_535
_INT_MAX = 2**31 - 1
#: indexes of ``state``
POSITION, USED, COUNT, FLOOR = range(4)


class _Producer(NamedTuple):
    """The fields of a batch header that backup sets lack."""

    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


_NO_PRODUCER = _Producer()


@inner
def _int32(data, pos):
    """The little-endian int32 at ``data[pos:pos+4]``."""
    return np.int64(np.int32(np.uint32(load32(np.uintp(data.ctypes.data + pos)))))


@inner
def _int64(data, pos):
    """The little-endian int64 at ``data[pos:pos+8]``."""
    return np.int64(load64(np.uintp(data.ctypes.data + pos)))


@inner
def _uint16(data, pos):
    """The little-endian uint16 at ``data[pos:pos+2]``."""
    address = data.ctypes.data + pos
    return np.int64(load8(np.uintp(address))) | np.int64(load8(np.uintp(address + 1))) << 8


@inner
def _tail_size(data, pos, stop):
    """Size of key, value and headers, ``data[pos:stop]`` of a backup record, in a v2 record; -1 if they are malformed."""
    size = np.int64(0)
    for _ in range(2):
        if pos + 4 > stop:
            return np.int64(-1)
        length = _int32(data, pos)
        pos += 4 + max(length, 0)
        if length < -1 or pos > stop:
            return np.int64(-1)
        size += varlong_size(length) + max(length, 0)
    if pos + 2 > stop:
        return np.int64(-1)
    headers = _uint16(data, pos)
    pos += 2
    size += varlong_size(headers)
    for _ in range(headers):
        if pos + 2 > stop:
            return np.int64(-1)
        length = _uint16(data, pos)
        pos += 2 + length
        if pos + 4 > stop:
            return np.int64(-1)
        size += varlong_size(length) + length
        length = _int32(data, pos)
        pos += 4 + max(length, 0)
        if length < -1 or pos > stop:
            return np.int64(-1)
        size += varlong_size(length) + max(length, 0)
    return size if pos == stop else np.int64(-1)


@inner
def _put_tail(out, w, data, pos):
    """Write key, value and headers of the backup record, at ``data[pos:]``, at ``out[w:]``. Returns the position after them."""
    for _ in range(2):
        length = _int32(data, pos)
        w = put_bytes(out, w, data, pos + 4, length)
        pos += 4 + max(length, 0)
    headers = _uint16(data, pos)
    w = put_varlong(out, w, headers)
    pos += 2
    for _ in range(headers):
        length = _uint16(data, pos)
        w = put_bytes(out, w, data, pos + 2, length)
        pos += 2 + length
        length = _int32(data, pos)
        w = put_bytes(out, w, data, pos + 4, length)
        pos += 4 + max(length, 0)
    return w


@kernel
def batches_of_backup(data, end, batch_bytes, out, state):
    """Turn complete backup records of ``data[state[POSITION]:end]`` into uncompressed v2 batches, as many as fit ``out``.

    :param data: uint8[]; ``out``: uint8[] to fill
    :param batch_bytes: a batch ends with the record that reaches this size
    :param state: int64[4]. ``POSITION`` is advanced to the first record that was not converted, ``USED`` is set to the bytes of
        ``out`` used, ``COUNT`` is increased by the records, ``FLOOR`` is the lowest offset that the next record may have
    :returns: ``COMPLETE``: no complete record remains; ``NO_SPACE``: ``out`` is full, or, if ``USED`` is 0, too small for a
        record; else a key of ``BACKUP_ERRORS``, of the record at ``POSITION``
    """
    pos, w, floor = state[POSITION], np.int64(0), state[FLOOR]
    outcome = COMPLETE
    full = False
    while outcome == COMPLETE and not full:
        start, count = w, np.int64(0)
        base_offset = base_time = max_time = last_offset = np.int64(0)
        w += HEADER_SIZE
        while count == 0 or w - start < batch_bytes:
            if pos + _LENGTH_BYTES > end:
                full = True
                break
            length = np.int64(np.uint32(_int32(data, pos)))
            stop = pos + _LENGTH_BYTES + length
            if length < RECORD_BYTES - _LENGTH_BYTES:
                outcome = BAD_FIELDS
                break
            if stop > end:
                full = True
                break
            time, offset = _int64(data, pos + 4), _int64(data, pos + 12)
            tail = _tail_size(data, pos + 20, stop)
            if tail < 0:
                outcome = BAD_FIELDS
            elif time < -1:
                outcome = BAD_TIME
            elif offset < floor or offset >= MAX_OFFSET:
                outcome = BAD_ORDER
            if outcome != COMPLETE:
                break
            if count == 0:
                base_offset, base_time, max_time = offset, time, time
            elif offset - base_offset > _INT_MAX:
                break
            body = 1 + varlong_size(time - base_time) + varlong_size(offset - base_offset) + tail
            if w + varlong_size(body) + body > len(out):
                outcome = NO_SPACE
                break
            w = put_record_head(out, w, time - base_time, offset - base_offset, tail)
            w = _put_tail(out, w, data, pos + 20)
            max_time, last_offset, floor = max(max_time, time), offset, offset + 1
            count += 1
            pos = stop
        if count == 0:
            w = start
            break
        write_header(out, start, w - start, _NO_PRODUCER, base_offset, last_offset, 0, base_time, max_time, count)
        seal(out, start, w - start)
        state[COUNT] += count
        if w + HEADER_SIZE > len(out) and not full and outcome == COMPLETE:
            outcome = NO_SPACE
    state[POSITION], state[USED], state[FLOOR] = pos, w, floor
    return outcome


@inner
def _put_le(out, w, value, size):
    """Write the ``size`` low bytes of ``value``, little-endian, at ``out[w:]``. Returns the position after them."""
    word = np.uint64(np.int64(value))
    for _ in range(size):
        out[w] = np.uint8(word & np.uint64(0xFF))
        word >>= np.uint64(8)
        w += 1
    return w


@inner
def _put_cell(out, w, column, row, width):
    """Write a length of ``width`` bytes, -1 for null, and the bytes of a cell at ``out[w:]``. Returns the position after
    them."""
    if column.valid[row >> 3] >> np.uint8(row & 7) & np.uint8(1) == 0:
        return _put_le(out, w, np.int64(-1), width)
    start, end = np.int64(column.offsets[row]), np.int64(column.offsets[row + 1])
    w = _put_le(out, w, end - start, width)
    return copy_bytes(out, w, column.data, start, end) if end > start else w


@inner
def _record_size(columns, row):
    """Size of a record as a backup record, -1 if it cannot be one."""
    keys, values, names, contents = columns.keys, columns.values, columns.header_keys, columns.header_values
    size = RECORD_BYTES + np.int64(keys.offsets[row + 1]) - keys.offsets[row]
    size += np.int64(values.offsets[row + 1]) - values.offsets[row]
    first, last = columns.header_starts[row], columns.header_starts[row + 1]
    if last - first > _MAX_UINT16:
        return np.int64(-1)
    for header in range(first, last):
        name = np.int64(names.offsets[header + 1]) - names.offsets[header]
        if name > _MAX_UINT16:
            return np.int64(-1)
        size += HEADER_BYTES + name + np.int64(contents.offsets[header + 1]) - contents.offsets[header]
    return size


@kernel
def put_backup_records(columns, first, out):
    """Write records ``first`` and following as backup records, as many as fit ``out``.

    :param columns: ``kernels.columns.Columns`` with keys, values and headers
    :param out: uint8[] to fill
    :returns: ``(next record, bytes of out used, COMPLETE | NO_SPACE | BAD_HEADERS)``
    """
    w = np.int64(0)
    for row in range(first, len(columns.offset)):
        size = _record_size(columns, row)
        if size < 0:
            return row, w, BAD_HEADERS
        if w + size > len(out):
            return row, w, NO_SPACE
        w = _put_le(out, w, size - _LENGTH_BYTES, 4)
        w = _put_le(out, w, columns.timestamp_ms[row], 8)
        w = _put_le(out, w, columns.offset[row], 8)
        w = _put_cell(out, w, columns.keys, row, 4)
        w = _put_cell(out, w, columns.values, row, 4)
        header, last = columns.header_starts[row], columns.header_starts[row + 1]
        w = _put_le(out, w, last - header, 2)
        for i in range(header, last):
            w = _put_cell(out, w, columns.header_keys, i, 2)
            w = _put_cell(out, w, columns.header_values, i, 4)
    return len(columns.offset), w, COMPLETE
