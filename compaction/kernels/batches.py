"""Finds the record batches in a byte range of a segment: boundaries, checksums and header fields, one row per batch.
Also writes headers.

``walk_headers`` reads only the headers, each by ``pread`` in native code, so that several threads read concurrently. A bad
sector or a truncated file is an error code; with a memory map it would be a signal that kills the process.

Mirrors ``ByteBufferLogInputStream.nextBatch``, ``DefaultRecordBatch.ensureValid`` and
``AbstractLegacyRecordBatch.ensureValid``. A batch that continues after the range is left to the next call.
"""

from __future__ import annotations

from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.formats import message_set, record_batch
from compaction.kernels.bytes import be16, varint, varlong
from compaction.kernels.compiling import (
    crc32c,
    inner,
    kernel,
    load64,
    load_be16,
    load_be32,
    load_be64,
    pread,
    store16,
    store32,
    store64,
)
from compaction.kernels.tables import BATCH_ROW, EMPTY_CONTROL, NOT_CONTROL

#: largest batch, including the 12 bytes of offset and length, that fits a row's ``size`` and Kafka's int arithmetic
LARGEST_SIZE = 0x7FFFFFFF
#: the control record's key is malformed: the batch is corrupt
BAD_CONTROL_TYPE = -3
#: replaces negative types, which are unknown to Kafka too
_UNKNOWN_CONTROL = 0x7FFF

OK, BAD_LENGTH, BAD_MAGIC, BAD_CRC, BAD_OFFSETS, BAD_COUNT, BAD_CONTROL_RECORD, PARTIAL, OTHER_MAGIC = range(9)
BATCH_ERRORS = {
    BAD_LENGTH: "batch has an impossible length",
    BAD_MAGIC: "batch has an unknown magic",
    BAD_CRC: "batch fails its CRC",
    BAD_OFFSETS: "batch has impossible offsets",
    BAD_COUNT: "batch has an impossible record count",
    BAD_CONTROL_RECORD: "control batch has no readable control record",
}
#: bytes read of each batch: a v2 header and the key of a control record
HEADER_BYTES = 128
#: ``pread`` failed; a control record's key is not within ``HEADER_BYTES``
IO_ERROR, LONG_CONTROL = 100, 101


class BatchScan(NamedTuple):
    """Result of ``scan_batches``.

    ``rows``: the complete batches (``BATCH_ROW``); ``consumed``: their total size in bytes; ``error``: the fault of the
    batch at ``error_position`` (in the segment), if any; ``need``: the size of the batch at ``consumed`` if its length field
    was read and it continues after the buffer, else 0.
    """

    rows: NDArray[np.void]
    consumed: int
    error: str | None
    error_position: int
    need: int


def _crc32_table() -> NDArray[np.uint32]:
    """``table[k, b]``, uint32[8, 256], for CRC-32 (IEEE) of eight bytes at a time."""
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
def crc32(data, start, end):
    """CRC-32 (IEEE, as in zlib and ``java.util.zip.CRC32``) of ``data[start:end]``, uint32. Magic 0 and 1 use it."""
    crc = np.uint32(0xFFFFFFFF)
    pos = start
    while pos + 8 <= end:
        mixed = np.uint32(0)
        for k in range(4):
            byte = np.uint32(data[pos + k]) ^ ((crc >> np.uint32(8 * k)) & np.uint32(0xFF))
            mixed ^= _CRC32[7 - k, byte]
        for k in range(4, 8):
            mixed ^= _CRC32[7 - k, data[pos + k]]
        crc = mixed
        pos += 8
    while pos < end:
        crc = (crc >> np.uint32(8)) ^ _CRC32[0, (crc ^ np.uint32(data[pos])) & np.uint32(0xFF)]
        pos += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@inner
def control_type(data, pos, end, count):
    """The type in the first record's key of the control batch at ``data[pos:end]``: int16, or ``EMPTY_CONTROL``,
    ``BAD_CONTROL_TYPE`` or ``_UNKNOWN_CONTROL``."""
    if count == 0:
        return EMPTY_CONTROL
    length, p = varint(data, pos + record_batch.HEADER_SIZE, end)
    if p < 0 or length < 1 or p + length > end:
        return BAD_CONTROL_TYPE
    end = p + length
    _, p = varlong(data, p + 1, end)
    if p < 0:
        return BAD_CONTROL_TYPE
    _, p = varint(data, p, end)
    if p < 0:
        return BAD_CONTROL_TYPE
    key_length, p = varint(data, p, end)
    if p < 0 or key_length < 4 or p + key_length > end:
        return BAD_CONTROL_TYPE
    if be16(data, p) < 0:
        return BAD_CONTROL_TYPE
    kind = be16(data, p + 2)
    return kind if kind >= 0 else _UNKNOWN_CONTROL


@inner
def _has_valid_crc(address, size):
    """Whether the stored CRC of the v2 batch at ``address`` is that of its ``size`` bytes."""
    stored = np.uint32(load_be32(np.uintp(address + record_batch.CRC_AT)))
    return crc32c(np.uintp(address + record_batch.ATTRIBUTES_AT), np.uintp(size - record_batch.ATTRIBUTES_AT)) == stored


@inner
def read_v2(address, size, check_crc, row):
    """Fill ``row``, except its control type, from the ``size`` bytes of a v2 batch at ``address``. Returns an error code."""
    if size < record_batch.HEADER_SIZE:
        return BAD_LENGTH
    if check_crc and not _has_valid_crc(address, size):
        return BAD_CRC
    delta = load_be32(np.uintp(address + record_batch.LAST_OFFSET_DELTA_AT))
    base = load_be64(np.uintp(address))
    count = load_be32(np.uintp(address + record_batch.RECORD_COUNT_AT))
    if base < 0 or delta < 0 or base > np.int64(0x7FFFFFFFFFFFFFFF) - max(delta, count):
        return BAD_OFFSETS
    attributes = load_be16(np.uintp(address + record_batch.ATTRIBUTES_AT))
    if count < 0 or (attributes & record_batch.CODEC == 0 and count > (size - record_batch.HEADER_SIZE) // 6):
        return BAD_COUNT
    row.base_offset, row.last_offset = base, base + delta
    row.leader_epoch = load_be32(np.uintp(address + record_batch.LEADER_EPOCH_AT))
    row.attributes = attributes
    row.base_timestamp = load_be64(np.uintp(address + record_batch.BASE_TIMESTAMP_AT))
    row.max_timestamp = load_be64(np.uintp(address + record_batch.MAX_TIMESTAMP_AT))
    row.producer_id = load_be64(np.uintp(address + record_batch.PRODUCER_ID_AT))
    row.producer_epoch = load_be16(np.uintp(address + record_batch.PRODUCER_EPOCH_AT))
    row.base_sequence, row.count = load_be32(np.uintp(address + record_batch.BASE_SEQUENCE_AT)), count
    return OK


@inner
def write_header(out, pos, size, row, base_offset, last_offset, attributes, base_ts, max_ts, count):
    """Write the 61 bytes of a v2 header at ``out[pos:]``, without the CRC (see ``seal``).

    :param row: has leader epoch, producer and base sequence
    """
    if pos < 0 or pos + record_batch.HEADER_SIZE > len(out):
        raise IndexError("batch header is out of the array's bounds")
    address = out.ctypes.data + pos
    store64(np.uintp(address), np.int64(base_offset))
    store32(np.uintp(address + record_batch.LENGTH_AT), np.int64(size - record_batch.LOG_OVERHEAD_BYTES))
    store32(np.uintp(address + record_batch.LEADER_EPOCH_AT), np.int64(row.leader_epoch))
    out[pos + record_batch.MAGIC_AT] = record_batch.MAGIC
    store16(np.uintp(address + record_batch.ATTRIBUTES_AT), np.int64(attributes))
    store32(np.uintp(address + record_batch.LAST_OFFSET_DELTA_AT), np.int64(last_offset - base_offset))
    store64(np.uintp(address + record_batch.BASE_TIMESTAMP_AT), np.int64(base_ts))
    store64(np.uintp(address + record_batch.MAX_TIMESTAMP_AT), np.int64(max_ts))
    store64(np.uintp(address + record_batch.PRODUCER_ID_AT), np.int64(row.producer_id))
    store16(np.uintp(address + record_batch.PRODUCER_EPOCH_AT), np.int64(row.producer_epoch))
    store32(np.uintp(address + record_batch.BASE_SEQUENCE_AT), np.int64(row.base_sequence))
    store32(np.uintp(address + record_batch.RECORD_COUNT_AT), np.int64(count))


@inner
def seal(out, pos, size):
    """Write the CRC of the complete batch ``out[pos:pos+size]``."""
    address = out.ctypes.data + pos
    store32(
        np.uintp(address + record_batch.CRC_AT),
        np.int64(crc32c(np.uintp(address + record_batch.ATTRIBUTES_AT), np.uintp(size - record_batch.ATTRIBUTES_AT))),
    )


@inner
def _read_message(data, pos, size, magic, check_crc, row):
    """Fill ``row`` from the message of magic 0 or 1 at ``data[pos:pos+size]``. Returns an error code."""
    if size < (message_set.LEAST_BYTES_V1 if magic == 1 else message_set.LEAST_BYTES_V0):
        return BAD_LENGTH
    address = data.ctypes.data + pos
    if check_crc and crc32(data, pos + record_batch.MAGIC_AT, pos + size) != np.uint32(
        load_be32(np.uintp(address + message_set.MESSAGE_CRC_AT))
    ):
        return BAD_CRC
    offset = load_be64(np.uintp(address))
    if offset < 0:
        return BAD_OFFSETS
    row.base_offset, row.last_offset = offset, offset
    row.leader_epoch, row.attributes = -1, np.int16(data[pos + message_set.MESSAGE_ATTRIBUTES_AT])
    row.base_timestamp, row.max_timestamp = (
        -1,
        load_be64(np.uintp(address + message_set.TIMESTAMP_AT)) if magic == 1 else np.int64(-1),
    )
    row.producer_id, row.producer_epoch = -1, -1
    row.base_sequence, row.count = -1, -1
    return OK


@inner
def next_batch(data, pos, available, position, v0_v1, row):
    """``(size, code)`` of the batch at ``data[pos:]``, of which ``available`` bytes can be read; fills the fields of ``row``
    that all magics have. ``code`` is ``PARTIAL`` if the batch is incomplete; ``size`` is then 0 if its length field is
    incomplete too.
    """
    if available < record_batch.LOG_OVERHEAD_BYTES + 5:
        return np.int64(0), PARTIAL
    size = load_be32(np.uintp(data.ctypes.data + pos + record_batch.LENGTH_AT)) + record_batch.LOG_OVERHEAD_BYTES
    magic = np.int8(data[pos + record_batch.MAGIC_AT])
    if size < message_set.LEAST_BYTES_V0:
        return size, BAD_LENGTH
    if magic < 0 or magic > 2:
        return size, BAD_MAGIC
    if size > available:
        return size, PARTIAL
    if size > LARGEST_SIZE:
        return size, BAD_LENGTH
    row.position, row["size"], row.magic, row.control_type = position, size, magic, NOT_CONTROL
    return size, OK if (magic < 2) == v0_v1 else OTHER_MAGIC


# the kernels for rare batches are separate, so that most runs do not compile them


@kernel
def scan_v2(data, base_position, check_crc, rows, n, pos):
    """Fill ``rows[n:]`` from the v2 batches at ``data[pos:]``: ``(n, pos, code, size)``, the first unused row and the position,
    status and size of the batch that ended the scan. ``OTHER_MAGIC``: continue with ``scan_messages``."""
    while n < len(rows):
        size, code = next_batch(data, pos, len(data) - pos, base_position + pos, False, rows[n])
        if code == OK:
            code = read_v2(data.ctypes.data + pos, size, check_crc, rows[n])
        if code != OK:
            return n, pos, code, size
        n, pos = n + 1, pos + size
    return n, pos, OK, np.int64(0)


@kernel
def scan_messages(data, base_position, check_crc, rows, n, pos):
    """As ``scan_v2``, for messages of magic 0 and 1."""
    while n < len(rows):
        size, code = next_batch(data, pos, len(data) - pos, base_position + pos, True, rows[n])
        if code == OK:
            code = _read_message(data, pos, size, rows[n].magic, check_crc, rows[n])
        if code != OK:
            return n, pos, code, size
        n, pos = n + 1, pos + size
    return n, pos, OK, np.int64(0)


@kernel
def read_control_types(data, base_position, rows):
    """Set ``control_type`` of the control batches among ``rows``, whose bytes are in ``data``. Returns the first row with a
    malformed control record, or the number of rows."""
    for i in range(len(rows)):
        row = rows[i]
        if row.attributes & record_batch.CONTROL and row.magic == 2:
            pos = row.position - base_position
            row.control_type = control_type(data, pos, pos + row["size"], row.count)
            if row.control_type == BAD_CONTROL_TYPE:
                return i
    return len(rows)


@kernel
def fold_heads(data, base_position, rows, state):
    """Hash the first 21 bytes of each of ``rows`` (``BATCH_ROW[r]``, whose bytes are in ``data``) into ``state`` (uint64[2]),
    in order: offset, size, magic, checksum, and the leader epoch of magic 2."""
    for i in range(len(rows)):
        address = data.ctypes.data + (rows[i].position - base_position)
        for pos in (0, 8, 13):
            word = load64(np.uintp(address + pos))
            low, high = state[0] ^ word, state[1] ^ word
            low ^= low << np.uint64(13)
            low ^= low >> np.uint64(7)
            high ^= high << np.uint64(25)
            high ^= high >> np.uint64(27)
            state[0], state[1] = low ^ low << np.uint64(17), high ^ high << np.uint64(12)


@kernel
def first_bad_crc(data, base_position, rows, selected):
    """The first of the ``selected`` (bool[r]) ``rows`` (``BATCH_ROW[r]`` of magic 2, whose bytes are in ``data``) that fails
    its CRC, or the number of rows."""
    for i in range(len(rows)):
        if selected[i] and not _has_valid_crc(data.ctypes.data + (rows[i].position - base_position), rows[i]["size"]):
            return i
    return len(rows)


def last_record_offsets(rows: NDArray[np.void]) -> NDArray[np.int64]:
    """The highest offset that a record of each batch of a ``BATCH_ROW`` table (n,) may have, int64[n].

    It is the batch's last offset, except for batches of old clients that wrote a last offset delta of 0 for any number of
    records: Kafka's readers (``DefaultRecordBatch``) do not compare the two.
    """
    offsets: NDArray[np.int64] = np.maximum(rows["last_offset"], rows["base_offset"] + rows["count"] - 1)
    return offsets


def scan_batches(
    data: NDArray[np.uint8], base_position: int, *, check_crc: bool, rows: NDArray[np.void] | None = None
) -> BatchScan:
    """The complete batches at the start of ``data``, bytes of a segment from ``base_position`` on.

    Stops at the end of ``data``, at the first incomplete or corrupt batch, or when ``rows`` is full.

    :param data: uint8[n], contiguous
    :param check_crc: verify checksums too
    :param rows: ``BATCH_ROW`` array to fill (the result's ``rows`` is a view of it); allocated by default
    """
    if rows is None:
        rows = np.empty(max(16, len(data) // message_set.LEAST_BYTES_V0 + 1), BATCH_ROW)
    n, pos = 0, 0
    for scan in cycle((scan_v2, scan_messages)):
        n, pos, code, size = scan(data, base_position, check_crc, rows, n, pos)
        if code != OTHER_MAGIC:
            break
    if (rows["attributes"][:n] & record_batch.CONTROL).any():
        valid = read_control_types(data, base_position, rows[:n])
        if valid < n:
            n, pos, code = valid, int(rows["position"][valid]) - base_position, BAD_CONTROL_RECORD
    return BatchScan(rows[:n], pos, BATCH_ERRORS.get(code), base_position + pos, size if code == PARTIAL else 0)


@kernel
def walk_headers(descriptor, position, end, buffer, rows):
    """Fill ``rows`` (``BATCH_ROW[r]``) from the v2 batches in ``[position, end)`` of a file: ``(rows filled, position after
    them, code)``.

    ``OTHER_MAGIC`` and ``LONG_CONTROL``: continue with ``scan_batches``. ``PARTIAL``: the next batch continues after ``end``,
    or there is none.

    :param buffer: uint8[``HEADER_BYTES``], scratch space
    """
    n = 0
    address = buffer.ctypes.data
    while n < len(rows):
        remaining = end - position
        needed = min(np.int64(HEADER_BYTES), remaining)
        bytes_read = pread(np.int32(descriptor), np.uintp(address), np.uint64(needed), np.int64(position))
        if bytes_read < needed:
            return n, position, IO_ERROR
        row = rows[n]
        size, code = next_batch(buffer, 0, remaining, position, False, row)
        if code == OK:
            code = read_v2(address, size, False, row)
        if code != OK:
            return n, position, code
        if row.attributes & record_batch.CONTROL:
            row.control_type = control_type(buffer, 0, min(size, bytes_read), row.count)
            if row.control_type == BAD_CONTROL_TYPE:
                return n, position, LONG_CONTROL if bytes_read < size else BAD_CONTROL_RECORD
        n, position = n + 1, position + size
    return n, position, OK


def header_buffer() -> NDArray[np.uint8]:
    """Scratch space of ``walk_headers``."""
    return np.zeros(HEADER_BYTES, np.uint8)
