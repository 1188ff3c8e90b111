"""Writes text into byte arrays: labels, decimal numbers, and bytes as Java prints them.

The callers make sure that ``out`` has enough space: ``line_state.LINE_ROOM``, and ``TEXT_GROWTH`` times the bytes of texts.
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling.jit import inner

#: a malformed byte becomes U+FFFD, three bytes
TEXT_GROWTH = 3

_TEXTS = (
    "baseOffset: ", " lastOffset: ", " count: ", " baseSequence: ", " lastSequence: ", " producerId: ", " producerEpoch: ",
    " partitionLeaderEpoch: ", " isTransactional: ", " isControl: ", " deleteHorizonMs: ", "OptionalLong.empty",
    "OptionalLong[", "]", " position: ", " CreateTime: ", " LogAppendTime: ", " NoTimestampType: ", " size: ", " magic: ",
    " compresscodec: ",
    "none", "gzip", "snappy", "lz4", "zstd", " crc: ", " isvalid: ", "true", "false", "offset: ", "| ", " keySize: ",
    " valueSize: ", " sequence: ", " headerKeys: [", ",", " isValid: ", " endTxnMarker: ABORT", " endTxnMarker: COMMIT",
    " coordinatorEpoch: ", " ", "key: ", "payload: ", "\n",
)  # fmt: skip
(
    BASE_OFFSET, LAST_OFFSET, COUNT, BASE_SEQUENCE, LAST_SEQUENCE, PRODUCER_ID, PRODUCER_EPOCH,
    LEADER_EPOCH, IS_TRANSACTIONAL, IS_CONTROL, DELETE_HORIZON, NO_LONG, SOME_LONG,
    BRACKET, POSITION, CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE, SIZE, MAGIC, CODEC,
    NONE, GZIP, SNAPPY, LZ4, ZSTD, CRC, IS_VALID, TRUE, FALSE, OFFSET, INDENT, KEY_SIZE,
    VALUE_SIZE, SEQUENCE, HEADER_KEYS, COMMA, RECORD_IS_VALID, ABORT_MARKER, COMMIT_MARKER,
    COORDINATOR_EPOCH, SPACE, KEY, PAYLOAD, LINE_END,
) = range(len(_TEXTS))  # fmt: skip

_BYTES = np.frombuffer("".join(_TEXTS).encode(), np.uint8)
_STARTS = np.cumsum([0, *map(len, _TEXTS)]).astype(np.int64)


@inner
def put_label(out, w, label):
    """Write a label (its index in ``_TEXTS``) at ``out[w:]`` and return the position after it."""
    for i in range(_STARTS[label], _STARTS[label + 1]):
        out[w] = _BYTES[i]
        w += 1
    return w


@inner
def put_bool(out, w, value):
    """Write ``true`` or ``false``."""
    return put_label(out, w, TRUE if value else FALSE)


@inner
def put_long(out, w, value):
    """Write an int64 in decimal at ``out[w:]`` and return the position after it."""
    left = np.uint64(value)
    if value < 0:
        out[w] = 45
        w += 1
        left = np.uint64(-(value + 1)) + np.uint64(1)
    digits = 1
    bound = np.uint64(10)
    while digits < 19 and left >= bound:
        digits += 1
        bound *= np.uint64(10)
    for i in range(digits):
        rest = left // np.uint64(10)
        out[w + digits - 1 - i] = np.uint8(48 + np.int64(left - rest * np.uint64(10)))
        left = rest
    return w + digits


@inner
def put_number(out, w, label, value):
    """Write a label and an int64."""
    return put_long(out, put_label(out, w, label), value)


@inner
def _sequence(data, at, end):
    """``(length, whether valid)`` of the multi-byte UTF-8 sequence at ``data[at]``, as in Java's decoder."""
    first = data[at]
    if first < 0xC2 or first > 0xF4:
        return 1, False
    length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    low, high = 0x80, 0xBF
    if first == 0xE0:
        low = 0xA0
    elif first == 0xF0:
        low = 0x90
    elif first == 0xF4:
        high = 0x8F
    for i in range(1, length):
        if at + i >= end or data[at + i] < low or data[at + i] > high:
            return i, False
        low, high = 0x80, 0xBF
    # Java decodes an encoded surrogate as one malformed character, not as three malformed bytes
    return length, not (first == 0xED and data[at + 1] >= 0xA0)


@inner
def put_text(out, w, data, start, stop):
    """Write ``data[start:stop]`` as ``new String(bytes, UTF_8)`` prints it (malformed bytes become U+FFFD); return the position
    after it."""
    at = start
    while at < stop:
        if data[at] < 0x80:
            out[w] = data[at]
            at += 1
            w += 1
            continue
        length, good = _sequence(data, at, stop)
        if good:
            for i in range(length):
                out[w + i] = data[at + i]
            w += length
        else:
            out[w], out[w + 1], out[w + 2] = 0xEF, 0xBF, 0xBD
            w += 3
        at += length
    return w
