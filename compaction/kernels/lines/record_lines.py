"""Formats v2 records as Kafka's dump tool prints them; also validates records and finds their largest timestamp.

Mirrors ``DumpLogSegments.dumpBatchRecords``, ``printRecordMetadata`` and ``printRecordContents``, and ``DefaultRecord`` (Kafka
4.3.0).

Tested by ``tests/dump/test_segment_dump.py``, ``tests/dump/test_index_lookup.py`` and ``tests/conformance/test_dump_log.py``.
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.compiling.native import crc32c
from compaction.kernels.lines import text
from compaction.kernels.lines.line_state import (
    APPEND_TIME_BIT,
    ATTRIBUTES_AT,
    BAD_CONTROL,
    BAD_RECORD,
    BATCH_ATTRIBUTES,
    BATCH_COUNT,
    BATCH_MAX_TIMESTAMP,
    BATCH_OFFSET,
    BATCH_SEQUENCE,
    BATCH_TIMESTAMP,
    BY_CALLER,
    CONTENTS,
    CONTROL_TEXT,
    CRC_AT,
    DONE,
    FIRST_OFFSET,
    FOLLOWS,
    FULL,
    GAPS,
    KEY_AT,
    KEY_BYTES,
    LAST_OFFSET,
    LINE_ROOM,
    MAGIC_AT,
    PREVIOUS,
    PRINT,
    RECORD,
    RECORD_OFFSET,
    RECORDS_REMAIN,
    SKIP_METADATA,
    STEP,
    TEXT,
    V2,
    VALUE_AT,
    VALUE_BYTES,
    WRITTEN,
)
from compaction.kernels.lines.text import put_label, put_number, put_text
from compaction.kernels.reading.batches import CONTROL_BIT, HEADER_SIZE, LOG_OVERHEAD, crc32
from compaction.kernels.reading.bytes import be16, be32, varint
from compaction.kernels.reading.records import read_record

_MARKER_KEY, _MARKER_VALUE = 4, 6


@inner
def last_sequence(base, delta):
    """``DefaultRecordBatch.lastSequence`` and ``incrementSequence``, in Java's int arithmetic."""
    largest = np.int32(0x7FFFFFFF)
    if np.int32(base) > np.int32(np.int64(largest) - np.int64(delta)):
        return np.int64(np.int32(np.int64(delta) - (np.int64(largest) - np.int64(base)) - 1))
    return np.int64(np.int32(np.int64(base) + np.int64(delta)))


@inner
def time_label(magic, attributes):
    if magic == 0:
        return text.NO_TIMESTAMP_TYPE
    return text.LOG_APPEND_TIME if attributes & APPEND_TIME_BIT else text.CREATE_TIME


@inner
def checksum(data, at, size, magic):
    """``(stored checksum, whether it is valid)`` of the batch at ``data[at:at+size]``."""
    if magic >= V2:
        stored = np.uint32(be32(data, at + CRC_AT))
        if size < HEADER_SIZE:
            return np.int64(stored), False
        start = np.uintp(data.ctypes.data + at + ATTRIBUTES_AT)
        return np.int64(stored), crc32c(start, np.uintp(size - ATTRIBUTES_AT)) == stored
    stored = np.uint32(be32(data, at + LOG_OVERHEAD))
    return np.int64(stored), crc32(data, at + MAGIC_AT, at + size) == stored


@inner
def follow(state, gaps):
    """Remember the offset of a record; report a gap before it."""
    offset = state[RECORD_OFFSET]
    previous = state[PREVIOUS]
    if state[FOLLOWS] and offset != previous + 1:
        gaps[state[GAPS], 0], gaps[state[GAPS], 1] = previous, offset
        state[GAPS] += 1
    state[FOLLOWS], state[PREVIOUS] = 1, offset


@inner
def has_room(out, w, gaps, state, needed):
    return len(out) - w >= LINE_ROOM + text.TEXT_GROWTH * needed and state[GAPS] < len(gaps)


@inner
def put_contents(out, w, data, state, options):
    """Key and value of the record in ``state`` as text."""
    prefix = text.INDENT if options[SKIP_METADATA] else text.SPACE
    if state[KEY_BYTES] >= 0:
        w = put_label(out, put_label(out, w, prefix), text.KEY)
        w = put_text(out, w, data, state[KEY_AT], state[KEY_AT] + state[KEY_BYTES])
        prefix = text.SPACE
    if state[VALUE_BYTES] >= 0:
        w = put_label(out, put_label(out, w, prefix), text.PAYLOAD)
        w = put_text(out, w, data, state[VALUE_AT], state[VALUE_AT] + state[VALUE_BYTES])
    return w


@inner
def put_metadata(out, w, state, timestamp, label):
    w = put_number(out, put_label(out, w, text.INDENT), text.OFFSET, state[RECORD_OFFSET])
    w = put_number(out, w, label, timestamp)
    w = put_number(out, w, text.KEY_SIZE, state[KEY_BYTES])
    return put_number(out, w, text.VALUE_SIZE, state[VALUE_BYTES])


@inner
def _put_header_keys(out, w, data, at, end):
    """The keys of the valid headers at ``data[at:end]``."""
    count, at = varint(data, at, end)
    w = put_label(out, w, text.HEADER_KEYS)
    for i in range(count):
        size, at = varint(data, at, end)
        if i:
            w = put_label(out, w, text.COMMA)
        w = put_text(out, w, data, at, at + size)
        size, at = varint(data, at + size, end)
        at += max(size, 0)
    return put_label(out, w, text.BRACKET)


@inner
def _put_marker(out, w, data, state):
    """An end-of-transaction marker: ``(position after it, status)``; ``CONTROL_TEXT`` for other control records."""
    key_at, value_at = state[KEY_AT], state[VALUE_AT]
    if state[KEY_BYTES] < _MARKER_KEY or be16(data, key_at) < 0:
        return w, BAD_CONTROL
    kind = be16(data, key_at + 2)
    if kind < 0 or kind > 1:
        return w, CONTROL_TEXT
    if state[VALUE_BYTES] < _MARKER_VALUE or be16(data, value_at) < 0:
        return w, BAD_CONTROL
    w = put_label(out, w, text.ABORT_MARKER + kind)
    return put_number(out, w, text.COORDINATOR_EPOCH, np.int64(be32(data, value_at + 2))), DONE


@inner
def _next_record(data, end, state):
    """Read the record at ``state[RECORD]`` into ``state``: ``(position after it, timestamp delta, offset delta, position of its
    headers)``; the first is negative if the record is malformed."""
    stop, timestamp_delta, offset_delta, key_at, key_size, value_size = read_record(data, state[RECORD], end)
    if stop < 0:
        return stop, timestamp_delta, offset_delta, stop
    _, value_at = varint(data, key_at + max(key_size, 0), stop)
    state[KEY_AT], state[KEY_BYTES] = key_at, max(key_size, -1)
    state[VALUE_AT], state[VALUE_BYTES] = value_at, max(value_size, -1)
    state[RECORD_OFFSET] = state[BATCH_OFFSET] + offset_delta
    return stop, timestamp_delta, offset_delta, value_at + max(value_size, 0)


@inner
def _put_record(out, w, data, span, delta, state, options):
    """A v2 record: ``(w, status)``. ``span``: start of headers, end of record; ``delta``: timestamp and offset delta."""
    attributes = state[BATCH_ATTRIBUTES]
    control = attributes & CONTROL_BIT != 0
    if not options[SKIP_METADATA]:
        timestamp = state[BATCH_MAX_TIMESTAMP] if attributes & APPEND_TIME_BIT else state[BATCH_TIMESTAMP] + delta[0]
        w = put_metadata(out, w, state, timestamp, time_label(V2, attributes))
        sequence = state[BATCH_SEQUENCE]
        w = put_number(out, w, text.SEQUENCE, last_sequence(sequence, delta[1]) if sequence >= 0 else np.int64(-1))
        w = _put_header_keys(out, w, data, span[0], span[1])
        if control:
            w, status = _put_marker(out, w, data, state)
            if status != DONE:
                return w, status
    if options[PRINT] == BY_CALLER and not control:
        return w, CONTENTS
    if options[PRINT] == TEXT and not control:
        w = put_contents(out, w, data, state, options)
    return put_label(out, w, text.LINE_END), DONE


@kernel
def dump_records(data, end, state, options, out, gaps):
    """Print the records of the current v2 batch in ``data[state[RECORD]:end]``.

    :param data: uint8[], the segment's block or decompressed records
    :param out: uint8[], text, filled up to ``state[WRITTEN]``
    :param gaps: int64[g, 2], non-consecutive offsets, filled up to ``state[GAPS]``
    :returns: a status; ``FULL`` without progress means that ``out`` is too small for one record
    """
    w = state[WRITTEN]
    status = DONE
    while status == DONE and state[STEP] < state[BATCH_COUNT]:
        stop, timestamp_delta, offset_delta, headers_at = _next_record(data, end, state)
        if stop < 0:
            status = BAD_RECORD
            break
        if state[STEP] + 1 == state[BATCH_COUNT] and stop != end:
            status = RECORDS_REMAIN
            break
        contents = max(state[KEY_BYTES], 0) + max(state[VALUE_BYTES], 0) if options[PRINT] == TEXT else 0
        if not has_room(out, w, gaps, state, stop - headers_at + contents):
            status = FULL
            break
        state[STEP] += 1
        state[RECORD] = stop
        if options[FIRST_OFFSET] <= state[RECORD_OFFSET] <= options[LAST_OFFSET]:
            follow(state, gaps)
            w, status = _put_record(out, w, data, (headers_at, stop), (timestamp_delta, offset_delta), state, options)
    state[WRITTEN] = w
    return status


@kernel
def check_records(data, end, count):
    """``DONE`` if ``data[:end]`` consists of ``count`` valid v2 records, else an error status."""
    at = 0
    for _ in range(count):
        at = read_record(data, at, end)[0]
        if at < 0:
            return BAD_RECORD
    return DONE if at == end else RECORDS_REMAIN


@kernel
def largest_timestamp(data, at, end, count, base):
    """``(largest timestamp of the records in data[at:end], status)``, -1 without records; ``base``: the base timestamp."""
    largest = np.int64(-1)
    for _ in range(count):
        at, delta, _, _, _, _ = read_record(data, at, end)
        if at < 0:
            return largest, BAD_RECORD
        largest = max(largest, base + delta)
    return largest, DONE if at == end or count == 0 else RECORDS_REMAIN
