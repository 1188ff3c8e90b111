"""Finds the record batches in a stretch of a segment: boundaries, checksums and header fields, one row a batch.

Mirrors ``ByteBufferLogInputStream.nextBatch``, ``DefaultRecordBatch.ensureValid`` and ``AbstractLegacyRecordBatch.ensureValid``
(Kafka 4.3.0). A stretch may end within a batch: that one is left for the next stretch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.bytes import be16, be32, be64, varint, varlong
from compaction.kernels.jit import inner, kernel
from compaction.kernels.native import crc32c
from compaction.kernels.tables import BATCH_ROW, EMPTY_CONTROL, NOT_CONTROL

LOG_OVERHEAD = 12
HEADER_SIZE = 61
_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_LEGACY_HEADER = {0: 14, 1: 22}
_LEGACY_MIN = 14
CONTROL_BIT = 0x20
#: a control type that cannot be read; such a batch is corrupt
_BAD_CONTROL = -3
#: stands for the types below 0, which Kafka does not know either
_UNKNOWN_CONTROL = 0x7FFF

_OK, _BAD_LENGTH, _BAD_MAGIC, _BAD_CRC, _BAD_OFFSETS, _BAD_COUNT, _BAD_CONTROL_RECORD = range(7)
_ERRORS = {
    _BAD_LENGTH: "batch has an impossible length",
    _BAD_MAGIC: "batch has an unknown magic",
    _BAD_CRC: "batch fails its CRC",
    _BAD_OFFSETS: "batch has impossible offsets",
    _BAD_COUNT: "batch has an impossible record count",
    _BAD_CONTROL_RECORD: "control batch has no readable control record",
}


class BatchScan(NamedTuple):
    """What ``scan_batches`` found.

    ``rows`` are the whole batches (``BATCH_ROW``), ``consumed`` the bytes that they take, ``error`` what is wrong with the
    batch at ``error_position`` (a position in the segment), if anything, ``need`` the size of the batch at ``consumed`` when
    its length field could be read and it does not end within the buffer (0 otherwise).
    """

    rows: NDArray[np.void]
    consumed: int
    error: str | None
    error_position: int
    need: int


def _crc32_table() -> NDArray[np.uint32]:
    """``table[k, b]`` for CRC-32 (IEEE) by eight bytes at a time."""
    table = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        word = byte
        for _ in range(8):
            word = (word >> 1) ^ (0xEDB88320 if word & 1 else 0)
        table[0, byte] = word
    for k in range(1, 8):
        table[k] = (table[k - 1] >> 8) ^ table[0][table[k - 1] & 0xFF]
    return table


_CRC32 = _crc32_table()


@inner
def crc32(data, start, end):  # type: ignore[no-untyped-def]
    """CRC-32 (IEEE, as in zlib and ``java.util.zip.CRC32``) of ``data[start:end]``, uint32. Magic 0 and 1 use it."""
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while at + 8 <= end:
        mixed = np.uint32(0)
        for k in range(4):
            byte = np.uint32(data[at + k]) ^ ((crc >> np.uint32(8 * k)) & np.uint32(0xFF))
            mixed ^= _CRC32[7 - k, byte]
        for k in range(4, 8):
            mixed ^= _CRC32[7 - k, data[at + k]]
        crc = mixed
        at += 8
    while at < end:
        crc = (crc >> np.uint32(8)) ^ _CRC32[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@inner
def _control_type(data, at, end, count):  # type: ignore[no-untyped-def]
    """The type in the first record's key of the control batch at ``at``: int16, or one of the special values."""
    if count == 0:
        return EMPTY_CONTROL
    length, p = varint(data, at + HEADER_SIZE, end)
    if p < 0 or length < 1 or p + length > end:
        return _BAD_CONTROL
    end = p + length
    _, p = varlong(data, p + 1, end)
    if p < 0:
        return _BAD_CONTROL
    _, p = varint(data, p, end)
    if p < 0:
        return _BAD_CONTROL
    key_length, p = varint(data, p, end)
    if p < 0 or key_length < 4 or p + key_length > end:
        return _BAD_CONTROL
    if be16(data, p) < 0:
        return _BAD_CONTROL
    kind = be16(data, p + 2)
    return kind if kind >= 0 else _UNKNOWN_CONTROL


@inner
def _read_v2(data, at, size, check_crc, row):  # type: ignore[no-untyped-def]
    """Fill ``row`` from the v2 batch at ``data[at:at+size]``; an error code."""
    if size < HEADER_SIZE:
        return _BAD_LENGTH
    if check_crc:
        stored = np.uint32(be32(data, at + _CRC_AT))
        start = np.uintp(data.ctypes.data + at + _ATTRIBUTES_AT)
        if crc32c(start, np.uintp(size - _ATTRIBUTES_AT)) != stored:
            return _BAD_CRC
    delta = be32(data, at + 23)
    base = be64(data, at)
    count = be32(data, at + 57)
    if base < 0 or delta < 0 or base > np.int64(0x7FFFFFFFFFFFFFFF) - delta:
        return _BAD_OFFSETS
    attributes = be16(data, at + _ATTRIBUTES_AT)
    if count < 0 or (attributes & 7 == 0 and count > (size - HEADER_SIZE) // 6) or count > np.int64(delta) + 1:
        return _BAD_COUNT
    row.base_offset, row.last_offset = base, base + delta
    row.leader_epoch = be32(data, at + LOG_OVERHEAD)
    row.attributes = attributes
    row.base_timestamp, row.max_timestamp = be64(data, at + 27), be64(data, at + 35)
    row.producer_id, row.producer_epoch = be64(data, at + 43), be16(data, at + 51)
    row.base_sequence, row.count = be32(data, at + 53), count
    row.control_type = NOT_CONTROL
    if attributes & CONTROL_BIT:
        row.control_type = _control_type(data, at, at + size, count)
        if row.control_type == _BAD_CONTROL:
            return _BAD_CONTROL_RECORD
    return _OK


@inner
def _read_legacy(data, at, size, magic, check_crc, row):  # type: ignore[no-untyped-def]
    """Fill ``row`` from the message of magic 0 or 1 at ``data[at:at+size]``; an error code."""
    header = 22 if magic == 1 else 14
    if size < LOG_OVERHEAD + header:
        return _BAD_LENGTH
    if check_crc and crc32(data, at + _MAGIC_AT, at + size) != np.uint32(be32(data, at + LOG_OVERHEAD)):
        return _BAD_CRC
    offset = be64(data, at)
    if offset < 0:
        return _BAD_OFFSETS
    row.base_offset, row.last_offset = offset, offset
    row.leader_epoch, row.attributes = -1, np.int16(data[at + 17])
    row.base_timestamp, row.max_timestamp = -1, be64(data, at + 18) if magic == 1 else np.int64(-1)
    row.producer_id, row.producer_epoch = -1, -1
    row.base_sequence, row.count, row.control_type = -1, -1, NOT_CONTROL
    return _OK


@kernel
def _scan(data, base_position, check_crc, rows):  # type: ignore[no-untyped-def]
    """Fill ``rows`` from the start of ``data``: ``(rows filled, bytes consumed, error code, need)``."""
    at, n, limit = np.int64(0), 0, len(data)
    while n < len(rows) and limit - at >= LOG_OVERHEAD + 5:
        size = np.int64(be32(data, at + 8)) + LOG_OVERHEAD
        if size < LOG_OVERHEAD + _LEGACY_MIN:
            return n, at, _BAD_LENGTH, 0
        magic = np.int8(data[at + _MAGIC_AT])
        if magic < 0 or magic > 2:
            return n, at, _BAD_MAGIC, 0
        if at + size > limit:
            return n, at, _OK, size
        row = rows[n]
        if magic == 2:
            error = _read_v2(data, at, size, check_crc, row)
        else:
            error = _read_legacy(data, at, size, magic, check_crc, row)
        if error != _OK:
            return n, at, error, 0
        row.position, row["size"], row.magic = base_position + at, size, magic
        n += 1
        at += size
    return n, at, _OK, 0


def scan_batches(
    data: NDArray[np.uint8], base_position: int, *, check_crc: bool, rows: NDArray[np.void] | None = None
) -> BatchScan:
    """The whole batches at the start of ``data``, a stretch of a segment that begins at ``base_position``.

    Stops at the end of ``data``, at the first batch that is not wholly in it, at a corrupt one, or when ``rows`` is full.

    :param data: uint8[n], contiguous
    :param check_crc: compare checksums too; else headers are believed
    :param rows: ``BATCH_ROW`` array to fill (the result's ``rows`` is a view of it); made when not given
    """
    if rows is None:
        rows = np.empty(max(16, len(data) // 26 + 1), BATCH_ROW)
    n, consumed, code, need = _scan(data, base_position, check_crc, rows)
    return BatchScan(rows[:n], consumed, _ERRORS.get(code), base_position + consumed, need)
