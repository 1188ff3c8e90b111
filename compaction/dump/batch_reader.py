"""Reads single batches of a segment by position, through a window of the file.

Mirrors ``FileLogInputStream.nextBatch`` and the batches' iterators (Kafka 4.3.0).

Tested by ``tests/dump/test_index_lookup.py`` and ``tests/jobs/test_dump_log.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.formats.compression.codecs import Codec, decompress
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.batch_header import HEADER, LOG_OVERHEAD_BYTES
from compaction.formats.record_batch.message_header import HEADER_V0
from compaction.formats.record_batch.message_set import parse_message_entry
from compaction.fs.filesystem import FileSystem
from compaction.kernels.lines.line_state import DONE, DUMP_ERRORS
from compaction.kernels.lines.record_lines import largest_timestamp
from compaction.logdir.blocks import MAX_BATCH_BYTES

WINDOW_BYTES = 1 << 20
_UP_TO_MAGIC = HEADER.offset("magic") + 1
_SMALLEST_SIZE = 14
_APPEND_TIME_BIT = 8
#: limit of a decompressed batch, as in the cleaner
MAX_PLAIN_BYTES = 256 << 20
_V2 = 2


class BatchAt(NamedTuple):
    """A batch: its position, its size in bytes with the header, its magic and last offset."""

    position: int
    size: int
    magic: int
    last_offset: int

    @property
    def end(self) -> int:
        """The position after it."""
        return self.position + self.size


def check_size(size: int, path: str, position: int) -> None:
    """:raises UnsupportedLogError: the batch is too large to be read; a damaged length field may be up to 2 GiB"""
    if size > MAX_BATCH_BYTES:
        what = f"batch of {size} bytes, more than {MAX_BATCH_BYTES} are not supported"
        raise UnsupportedLogError(what, path=path, position=position, hint="restore this segment")


class BatchReader:
    """Reads batches of the segment at ``path``; errors are ``CorruptLogError`` with path and position."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs, self._path = fs, path
        found = fs.stat(path)
        if found is None:
            raise CorruptLogError("the segment's log is missing", path=path, hint="put the log next to its indexes")
        self.size = found.size
        self._window = b""
        self._window_at = 0

    def _bytes(self, position: int, size: int) -> memoryview:
        """``size`` bytes at ``position``, or fewer at the end of the file."""
        start = position - self._window_at
        if start < 0 or start + size > len(self._window):
            self._window = self._fs.read_bytes(self._path, position, max(size, WINDOW_BYTES))
            self._window_at, start = position, 0
        return memoryview(self._window)[start : start + size]

    def batch_at(self, position: int, end: int) -> BatchAt | None:
        """The batch at ``position``; ``None`` if it is not complete before ``end``.

        :raises CorruptLogError: its size is impossible, or the file ends inside its header
        """
        if position >= end - _UP_TO_MAGIC:
            return None
        head = self._bytes(position, HEADER.size)
        size = HEADER_V0.get(head, "size")
        if size < _SMALLEST_SIZE:
            raise self._error(f"batch has an impossible size of {size} bytes", position)
        if position > end - LOG_OVERHEAD_BYTES - size:
            return None
        magic = HEADER_V0.get(head, "magic")
        last_offset = HEADER_V0.get(head, "offset")
        if magic >= _V2:
            if len(head) < HEADER.size:
                raise self._error("file ends within a batch header", position)
            last_offset += HEADER.get(head, "last_offset_delta")
        return BatchAt(position, LOG_OVERHEAD_BYTES + size, magic, last_offset)

    def largest_timestamp(self, batch: BatchAt) -> int:
        """The largest timestamp of a batch's records, -1 without records.

        :raises CorruptLogError: the records cannot be read
        :raises UnsupportedLogError: the batch is too large
        """
        check_size(batch.size, self._path, batch.position)
        data = self._bytes(batch.position, batch.size)
        try:
            if batch.magic < _V2:
                return max(-1, int(parse_message_entry(data).columns(MAX_PLAIN_BYTES).timestamp.max()))
            return self._largest_of_records(data)
        except FormatError as error:
            raise self._error(error.what, batch.position) from None

    def _error(self, what: str, position: int) -> CorruptLogError:
        return CorruptLogError(what, path=self._path, position=position, hint="restore this segment")

    @staticmethod
    def _largest_of_records(data: memoryview) -> int:
        header = HEADER.unpack(data)
        if header.record_count < 0:
            raise FormatError(f"batch with {header.record_count} records")
        if header.attributes & _APPEND_TIME_BIT and header.record_count:
            return max(-1, header.max_timestamp)
        if header.record_count == 0:
            return -1
        payload = decompress(Codec.of(header.attributes), data[HEADER.size :], limit_bytes=MAX_PLAIN_BYTES)
        records = np.frombuffer(payload, np.uint8)
        records.flags.writeable = False
        found, status = largest_timestamp(records, 0, len(records), header.record_count, header.base_timestamp)
        if status != DONE:
            raise FormatError(DUMP_ERRORS[status])
        return int(found)
