"""Big-endian integers, zig-zag varints, fields of records and UTF-8 in byte arrays, for other kernels to inline.

Callers check positions, except where a function takes an ``end``.
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling import copy_bytes, inner

#: the position that the varint readers return for a varint that is too long or continues after ``end``
BAD_VARINT = -1


@inner
def be16(data, pos):
    """int16 at ``data[pos:pos+2]``."""
    return np.int16((np.uint16(data[pos]) << np.uint16(8)) | np.uint16(data[pos + 1]))


@inner
def be32(data, pos):
    """int32 at ``data[pos:pos+4]``."""
    word = np.uint32(0)
    for i in range(4):
        word = (word << np.uint32(8)) | np.uint32(data[pos + i])
    return np.int32(word)


@inner
def be64(data, pos):
    """int64 at ``data[pos:pos+8]``."""
    word = np.uint64(0)
    for i in range(8):
        word = (word << np.uint64(8)) | np.uint64(data[pos + i])
    return np.int64(word)


@inner
def varint(data, pos, end):
    """The zig-zag varint at ``data[pos:]`` and the position after it: ``(value int64, next)``.

    At most 5 bytes (``ByteUtils.readVarint``); ``next`` is ``BAD_VARINT`` if it is longer or continues after ``end``.
    """
    if pos < end and data[pos] < 0x80:
        one = np.int64(data[pos])
        return (one >> 1) ^ -(one & 1), pos + 1
    word = np.uint64(0)
    for i in range(5):
        if pos + i >= end:
            return np.int64(0), BAD_VARINT
        byte = np.uint64(data[pos + i])
        word |= (byte & np.uint64(0x7F)) << np.uint64(7 * i)
        if byte < np.uint64(0x80):
            low = np.int64(word & np.uint64(0xFFFFFFFF))
            return (low >> 1) ^ -(low & 1), pos + i + 1
    return np.int64(0), BAD_VARINT


@inner
def varlong(data, pos, end):
    """As ``varint``, for 64 bits: at most 10 bytes (``ByteUtils.readVarlong``)."""
    if pos < end and data[pos] < 0x80:
        one = np.int64(data[pos])
        return (one >> 1) ^ -(one & 1), pos + 1
    word = np.uint64(0)
    for i in range(10):
        if pos + i >= end:
            return np.int64(0), BAD_VARINT
        byte = np.uint64(data[pos + i])
        word |= (byte & np.uint64(0x7F)) << np.uint64(7 * i)
        if byte < np.uint64(0x80):
            return np.int64(word >> np.uint64(1)) ^ -np.int64(word & np.uint64(1)), pos + i + 1
    return np.int64(0), BAD_VARINT


@inner
def short_varint(word):
    """The zig-zag varint at the start of ``word`` (uint64, little-endian): ``(value int64, size)``.

    ``size`` is 0 for a varint of more than three bytes or of more bytes than necessary.
    """
    value = word & np.uint64(0x7F)
    size = 1
    if word & np.uint64(0x80):
        second = word >> np.uint64(8) & np.uint64(0x7F)
        value |= second << np.uint64(7)
        size = 2 if second else 0
        if word & np.uint64(0x8000):
            third = word >> np.uint64(16) & np.uint64(0x7F)
            value |= third << np.uint64(14)
            size = 3 if third and word & np.uint64(0x800000) == 0 else 0
    signed = np.int64(value)
    return (signed >> 1) ^ -(signed & 1), size


@inner
def varlong_size(value):
    """Size in bytes of ``value`` as a zig-zag varint or varlong."""
    value = np.int64(value)
    word = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)
    size = 1
    while word >= np.uint64(0x80):
        word >>= np.uint64(7)
        size += 1
    return size


@inner
def put_varlong(data, pos, value):
    """Write ``value`` as a zig-zag varint or varlong at ``data[pos:]`` and return the position after it."""
    value = np.int64(value)
    word = (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> 63)
    while word >= np.uint64(0x80):
        data[pos] = np.uint8((word & np.uint64(0x7F)) | np.uint64(0x80))
        word >>= np.uint64(7)
        pos += 1
    data[pos] = np.uint8(word)
    return pos + 1


@inner
def put_bytes(out, w, data, pos, size):
    """Write a varint ``size``, -1 for null, and as many bytes of ``data[pos:]`` at ``out[w:]``. Returns the next position."""
    w = put_varlong(out, w, size)
    return copy_bytes(out, w, data, pos, pos + size) if size > 0 else w


@inner
def put_record_head(out, w, timestamp_delta, offset_delta, tail_bytes):
    """Write the fields of a v2 record before its key's length, with attributes of 0, at ``out[w:]``. Returns the position after
    them.

    :param tail_bytes: size of the fields that follow
    """
    w = put_varlong(out, w, 1 + varlong_size(timestamp_delta) + varlong_size(offset_delta) + tail_bytes)
    out[w] = 0
    w = put_varlong(out, w + 1, timestamp_delta)
    return put_varlong(out, w, offset_delta)


@inner
def is_utf8(data, pos, end):
    """Whether ``data[pos:end]`` is well-formed UTF-8: shortest forms only, no surrogates, nothing above U+10FFFF."""
    while pos < end:
        first = data[pos]
        pos += 1
        if first < 0x80:
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 + (first >= 0xE0) + (first >= 0xF0)
        if pos + more > end:
            return False
        low, high = 0x80, 0xBF
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
        elif first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
        for k in range(more):
            if data[pos + k] < low or data[pos + k] > high:
                return False
            low, high = 0x80, 0xBF
        pos += more
    return True
