"""Reads single batches of a segment by position, through a window of the file, and their records.

Mirrors ``FileLogInputStream.nextBatch`` and the batches' iterators (Kafka 4.3.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.files.contents import view
from compaction.files.filesystem import FileSystem
from compaction.formats import message_set
from compaction.formats.codecs import Codec, decompress
from compaction.formats.message_set import HEADER_V0, HEADER_V1, LEAST_BYTES_V0, parse_message_entry
from compaction.formats.primitives import FormatError, crc32c
from compaction.formats.record_batch import (
    CRC_START,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_BATCH_BYTES,
    MAX_PLAIN_BYTES,
    BatchHeader,
)
from compaction.kernels.records import COLUMNS, TIMESTAMP, locate_fields

WINDOW_BYTES = 4 << 20
_UP_TO_MAGIC = HEADER.offset("magic") + 1
_SMALLEST_SIZE = LEAST_BYTES_V0 - LOG_OVERHEAD_BYTES
#: rows of a table of records
TABLE_RECORDS = 1 << 12
NOT_WELL_FORMED = "record is not well-formed"
RESTORE_HINT = "if a broker is running, it may be writing to it: run again; else restore this segment"
_INT_BYTES = 4

Longs = NDArray[np.int64]


class LocatedBatch(NamedTuple):
    """A batch: its position, its size in bytes with the header, and its header; a message (v0, v1) as a batch of one record."""

    position: int
    size: int
    header: BatchHeader

    @property
    def magic(self) -> int:
        return self.header.magic

    @property
    def last_offset(self) -> int:
        """Last offset, inclusive; an overflow wraps around as in Java."""
        return java_number(self.header.base_offset + self.header.last_offset_delta)

    @property
    def append_time(self) -> int | None:
        """The timestamp of all records, if it is the broker's append time."""
        return self.header.max_timestamp if self.magic and self.header.attributes & LOG_APPEND_TIME else None

    @property
    def end(self) -> int:
        return self.position + self.size


class Message(NamedTuple):
    """A v0 or v1 message: its bytes with offset and size, its absolute offset and its timestamp."""

    data: memoryview
    offset: int
    timestamp: int

    @property
    def crcs(self) -> tuple[int, int]:
        """The stored and the computed checksum."""
        return HEADER_V0.get(self.data, "crc"), crc32(self.data[message_set.CRC_START :])

    @property
    def fields(self) -> tuple[int, int, int, int]:
        """Start and size of the key and of the value; a negative size means null.

        :raises FormatError: the message ends before one of them
        """
        found, position = list[int](), (HEADER_V1 if HEADER_V0.get(self.data, "magic") else HEADER_V0).size
        for _ in range(2):
            start = position + _INT_BYTES
            if start > len(self.data):
                raise FormatError(NOT_WELL_FORMED)
            size = int.from_bytes(self.data[position:start], "big", signed=True)
            found += start, size
            position = start + max(size, 0)
        key_at, key_size, value_at, value_size = found
        return key_at, key_size, value_at, value_size

    @property
    def contents(self) -> tuple[bytes | None, bytes | None]:
        """The key and the value.

        :raises FormatError: the message ends before or within one of them
        """
        key_at, key_size, value_at, value_size = self.fields
        if value_at + max(value_size, 0) > len(self.data):
            raise FormatError(NOT_WELL_FORMED)
        return field_bytes(self.data, key_at, key_size), field_bytes(self.data, value_at, value_size)


class BatchReader:
    """Reads batches of the segment at ``path``; errors are ``CorruptLogError`` with path and position."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs, self._path = fs, path
        status = fs.stat(path)
        if status is None:
            raise CorruptLogError("the segment's log is missing", path=path, hint="put the log next to its indexes")
        self.size = status.size
        self._window = b""
        self._window_at = 0

    def _bytes(self, position: int, size: int) -> memoryview:
        """``size`` bytes at ``position``, or fewer at the end of the file."""
        size = min(size, self.size - position)
        start = position - self._window_at
        if start < 0 or start + size > len(self._window):
            self._window = self._fs.read_bytes(self._path, position, max(size, WINDOW_BYTES))
            self._window_at, start = position, 0
            if len(self._window) < size:
                raise self.error("file was truncated while it was read", position, "run again when nothing writes to it")
        return memoryview(self._window)[start : start + size]

    def batch_at(self, position: int, end: int) -> LocatedBatch | None:
        """The batch at ``position``; ``None`` if it is not complete before ``end``, or only (preallocated) zeros follow.

        :raises CorruptLogError: its size is impossible, or the file ends inside its header
        """
        if position >= end - _UP_TO_MAGIC:
            return None
        head = self._bytes(position, HEADER.size)
        offset, size, crc, magic, attributes = HEADER_V0.unpack(head)
        if size < _SMALLEST_SIZE:
            if not any(head) and not view(self._fs, self._path)[position:].any():
                return None
            raise self.error(f"batch has an impossible size of {size} bytes", position)
        if position > end - LOG_OVERHEAD_BYTES - size:
            return None
        if magic >= MAGIC:
            if len(head) < HEADER.size:
                raise self.error("file ends within a batch header", position)
            return LocatedBatch(position, LOG_OVERHEAD_BYTES + size, HEADER.unpack(head))
        time = HEADER_V1.get(head, "timestamp") if magic else -1
        header = BatchHeader(offset, size, -1, magic, crc, attributes, 0, time, time, -1, -1, -1, 1)
        return LocatedBatch(position, LOG_OVERHEAD_BYTES + size, header)

    def batches(self, position: int, end: int) -> Iterator[LocatedBatch]:
        """The batches from ``position`` on that are complete before ``end``."""
        while (batch := self.batch_at(position, end)) is not None:
            yield batch
            position = batch.end

    def data(self, batch: LocatedBatch) -> memoryview:
        """The bytes of a batch, with the header.

        :raises UnsupportedLogError: it is too large to be read; a damaged length field may be up to 2 GiB
        """
        if batch.size > MAX_BATCH_BYTES:
            message = f"batch of {batch.size} bytes, more than {MAX_BATCH_BYTES} are not supported"
            raise UnsupportedLogError(message, path=self._path, position=batch.position, hint=RESTORE_HINT)
        return self._bytes(batch.position, batch.size)

    def largest_timestamp(self, batch: LocatedBatch) -> int:
        """The largest timestamp of a batch's records, -1 without records.

        :raises CorruptLogError: the records cannot be read
        :raises UnsupportedLogError: the batch is too large
        """
        data, header = self.data(batch), batch.header
        largest = -1
        try:
            if batch.magic < MAGIC:
                # messages of magic 0 have none, also if the wrapper has an append time
                return max(-1, int(parse_message_entry(data).columns(MAX_PLAIN_BYTES).timestamp.max()))
            if batch.append_time is not None and header.record_count > 0:
                return max(-1, batch.append_time)
            for table in record_tables(plain_records(batch, data), header):
                largest = max(largest, int(table[:, TIMESTAMP].max()))
        except FormatError as error:
            raise self.error(error.message, batch.position) from None
        return largest

    def error(self, message: str, position: int, hint: str = RESTORE_HINT) -> CorruptLogError:
        return CorruptLogError(message, path=self._path, position=position, hint=hint)


def field_bytes(data: bytes | memoryview, start: int, size: int) -> bytes | None:
    """A key or a value; a negative size means null."""
    return None if size < 0 else bytes(data[start : start + size])


def is_valid(batch: LocatedBatch, data: memoryview) -> bool:
    """Whether the stored checksum of a batch with the bytes ``data`` is right."""
    if batch.magic >= MAGIC:
        return len(data) >= HEADER.size and crc32c(data[CRC_START:]) == batch.header.crc
    return crc32(data[message_set.CRC_START :]) == batch.header.crc


def plain_records(batch: LocatedBatch, data: memoryview) -> bytes:
    """The decompressed records of a v2 batch with the bytes ``data``; empty if it has none.

    :raises FormatError: they cannot be decompressed
    """
    if batch.size < HEADER.size:
        raise FormatError("batch has a size below the minimum")
    if batch.header.record_count < 0:
        raise FormatError("batch has a negative record count")
    if not batch.header.record_count:
        return b""
    return bytes(decompress(Codec.of(batch.header.attributes), data[HEADER.size :], limit_bytes=MAX_PLAIN_BYTES))


def record_tables(records: bytes, header: BatchHeader) -> Iterator[Longs]:
    """The fields of the decompressed records of a batch, as tables of ``locate_fields``. Each is valid until the
    next one.

    :raises FormatError: after the last table, a record is malformed; or before the last record, bytes follow it
    """
    data = np.frombuffer(records, np.uint8)
    position, count = 0, header.record_count
    table = np.empty((min(count, TABLE_RECORDS), COLUMNS), np.int64)
    while count:
        count_read, position = locate_fields(data, position, count, header.base_offset, header.base_timestamp, table)
        count -= count_read
        remaining = not count and position != len(data)
        if count_read - remaining:
            yield table[: count_read - remaining]
        if remaining:
            raise FormatError("batch holds more bytes than its declared number of records")
        if position < 0:
            raise FormatError(NOT_WELL_FORMED)


def messages(batch: LocatedBatch, data: memoryview) -> Iterator[Message]:
    """The message of a batch of magic 0 or 1 with the bytes ``data``, or the messages in a wrapper.

    :raises FormatError: the wrapper cannot be decompressed, has no messages or one of an impossible size or offset; or after
        the messages before it, a wrapper in the wrapper
    """
    if Codec.of(batch.header.attributes) is Codec.NONE:
        yield Message(data, batch.header.base_offset, batch.header.base_timestamp)
        return
    inner, base_offset = _unwrap(data)
    for entry in _entries(inner):
        header, time = HEADER_V0.unpack(entry), -1
        if Codec.of(header.attributes) is not Codec.NONE:
            raise FormatError("compressed message inside a compressed message")
        if header.magic == 1 and batch.append_time is not None:
            time = batch.append_time
        elif header.magic and len(entry) >= HEADER_V1.size + _INT_BYTES:
            time = HEADER_V1.get(entry, "timestamp")
        yield Message(entry, java_number(base_offset + header.offset), time)


def _unwrap(data: memoryview) -> tuple[memoryview, int]:
    """The messages in a wrapper, and the base of their offsets."""
    wrapper = parse_message_entry(data)
    inner = wrapper.payload(MAX_PLAIN_BYTES)
    last = None
    for entry in _entries(inner):
        last = HEADER_V0.get(entry, "offset")
    if last is None:
        raise FormatError("compressed wrapper without messages")
    if wrapper.magic == 0 or wrapper.last_offset == 0:
        return inner, 0
    if wrapper.last_offset < last:
        raise FormatError(f"wrapper at offset {wrapper.last_offset} below its last relative offset {last}")
    return inner, wrapper.last_offset - last


def _entries(data: memoryview) -> Iterator[memoryview]:
    """The messages of a decompressed wrapper, with offset and size; ignores an incomplete one at the end."""
    while len(data) >= LOG_OVERHEAD_BYTES:
        size = HEADER_V0.get(data, "size")
        if size < _SMALLEST_SIZE:
            raise FormatError("message of an impossible size")
        if size > len(data) - LOG_OVERHEAD_BYTES:
            return
        yield data[: LOG_OVERHEAD_BYTES + size]
        data = data[LOG_OVERHEAD_BYTES + size :]


def java_number(value: int, bits: int = 64) -> int:
    """The low bits of a number as a signed ``long`` or ``int``."""
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
