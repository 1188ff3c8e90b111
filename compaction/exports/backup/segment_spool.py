"""Temporary files with the segments of a backup set as record batches.

The size of a segment as batches is not known before it is converted, and its compressed stream has no entry points. So each
segment is converted once, a few megabytes at a time, into a file of the run's spool directory, which the processes of a run
share. The bytes depend on the segment only: a process on another machine converts it again to the same file. The process that
chose the directory removes it; if it was killed, the next run does (``spool_directory``).
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, StorageError
from compaction.exports.backup.set_objects import HINT, SegmentObject, check_header, damaged
from compaction.formats.backup_segment import Compression, SegmentStream
from compaction.formats.primitives import FormatError
from compaction.kernels.reading.backup_records import (
    BACKUP_ERRORS,
    COMPLETE,
    COUNT,
    FLOOR,
    NO_SPACE,
    POSITION,
    USED,
    batches_of_backup,
)
from compaction.screen.amounts import size as amount
from compaction.storage.contents import read_range
from compaction.storage.filesystem import FileRange, ReadableFileSystem, storage_errors
from compaction.storage.local import free_space
from compaction.storage.spool_directory import use

#: uncompressed bytes of a batch that is converted
BATCH_BYTES = 64 * 1024
_STEP_BYTES = 4 << 20
#: bounds memory: no broker accepts a larger record
_MAX_RECORD_BYTES = 256 << 20
#: the reciprocal of the share of the file system that remains free, at most ``_MAX_RESERVE_BYTES``
_RESERVE = 100
_MAX_RESERVE_BYTES = 1 << 30
#: limits concurrent lz4 segments, each of which is completely in memory, compressed and uncompressed
_IN_MEMORY = threading.BoundedSemaphore(2)
_OTHER_DIRECTORY = "free some space, or name another directory by ?spool=DIR in the address"


class SegmentSpool:
    """Converted segments in a directory.

    :param directory: created with the first segment, readable by its owner only
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def path_of(self, stored: SegmentObject) -> str:
        """The file of a segment."""
        return f"{self._directory}/{hashlib.sha256(stored.path.encode()).hexdigest()[:32]}.log"

    def converted(self, files: ReadableFileSystem, stored: SegmentObject) -> str:
        """The file of a segment; converts it unless another process has done so.

        :raises CorruptLogError: the segment is malformed, or differs from the manifest
        :raises StorageError: it cannot be read, or there is no space for it
        """
        path = self.path_of(stored)
        if Path(path).exists():
            return path
        attempt = Path(f"{path}.{uuid.uuid4().hex}")
        try:
            use(self._directory)
            with storage_errors(path, "write a temporary file"):
                size = self._write(attempt, convert(files, stored), stored.path)
                if (written := attempt.stat().st_size) != size:
                    problem = f"temporary file has {written} bytes, {size} were written"
                    raise StorageError(problem, path=path, hint=_OTHER_DIRECTORY)
                attempt.rename(path)
        finally:
            attempt.unlink(missing_ok=True)
        return path

    def _write(self, attempt: Path, blocks: Iterator[memoryview], source_path: str) -> int:
        """Write a new file, buffered, because a raw file's ``write`` may write fewer bytes; returns their number."""
        size = 0
        with attempt.open("xb") as file:
            for block in blocks:
                self._require_more(len(block), source_path)
                size += file.write(block)
        return size

    def _require_more(self, size: int, path: str) -> None:
        """:raises StorageError: a write of this size would leave less free than the reserve"""
        space = free_space(self._directory)
        if space.free_bytes - size < min(space.total_bytes // _RESERVE, _MAX_RESERVE_BYTES):
            problem = f"its records would fill {self._directory}, which has {amount(space.free_bytes)} free"
            raise StorageError(problem, path=path, hint=_OTHER_DIRECTORY)

    def require_space(self, plain_bytes: int, path: str) -> None:
        """:raises StorageError: the file system of the directory has less free space"""
        free = free_space(self._directory).free_bytes
        if free < plain_bytes:
            problem = f"its records take about {amount(plain_bytes)} in {self._directory}, which has {amount(free)} free"
            raise StorageError(problem, path=path, hint=_OTHER_DIRECTORY)


def convert(files: ReadableFileSystem, stored: SegmentObject) -> Iterator[memoryview]:
    """The batches of a segment.

    :raises CorruptLogError: the segment is malformed, or differs from the manifest
    """
    try:
        blocks = read_range(files, FileRange(stored.path, 0, stored.size))
        stream = SegmentStream(blocks, stored.size)
        check_header(stored, stream.header)
        conversion = _Conversion(stream.header.start_offset)
        try:
            with _IN_MEMORY if stream.header.compression is Compression.LZ4 else nullcontext():
                for plain in _limited(stream.plain(_STEP_BYTES), stored.plain_bytes):
                    yield from conversion.add(plain)
            conversion.end(stream.header.record_count, stream.header.end_offset)
        except FormatError:
            # a wrong checksum explains any other error
            stream.check_end()
            raise
        digest = stream.check_end()
    except FormatError as error:
        raise damaged(stored, error) from error
    if stored.sha256 and stored.sha256 != digest:
        problem = f"segment has SHA-256 {digest}, {stored.sha256} in the manifest"
        raise CorruptLogError(problem, path=stored.path, hint=HINT)


def _limited(blocks: Iterator[memoryview], plain_bytes: int) -> Iterator[memoryview]:
    """The blocks.

    :param plain_bytes: the limit, 0 for none
    :raises FormatError: there are more bytes
    """
    size = 0
    for block in blocks:
        size += len(block)
        if size > plain_bytes > 0:
            raise FormatError(f"segment has more than the {plain_bytes} plain bytes of the manifest")
        yield block


class _Conversion:
    """Converts backup records into batches as they arrive."""

    def __init__(self, start_offset: int) -> None:
        self._data: NDArray[np.uint8] = np.empty(2 * _STEP_BYTES, np.uint8)
        self._out = np.empty(2 * _STEP_BYTES, np.uint8)
        self._end, self._position = 0, 0
        self._state = np.zeros(4, np.int64)
        self._state[FLOOR] = start_offset

    def add(self, plain: memoryview) -> Iterator[memoryview]:
        """The batches of all records that are complete with these bytes.

        :raises FormatError: a record is malformed
        """
        state = self._state
        unread_bytes = self._end - int(state[POSITION])
        if unread_bytes + len(plain) > _MAX_RECORD_BYTES:
            raise FormatError(f"record of more than {_MAX_RECORD_BYTES} bytes", self._position)
        unread = self._data[int(state[POSITION]) : self._end]
        if unread_bytes + len(plain) > len(self._data):
            self._data = np.empty(2 * (unread_bytes + len(plain)), np.uint8)
        self._data[:unread_bytes] = unread.copy()
        self._data[unread_bytes : unread_bytes + len(plain)] = np.frombuffer(plain, np.uint8)
        self._position += int(state[POSITION])
        state[POSITION], self._end = 0, unread_bytes + len(plain)
        while True:
            outcome = batches_of_backup(self._data, self._end, BATCH_BYTES, self._out, state)
            yield memoryview(self._out[: int(state[USED])])
            if outcome == COMPLETE:
                return
            if outcome != NO_SPACE:
                problem = f"{BACKUP_ERRORS[outcome]}, after {state[COUNT]} records"
                raise FormatError(problem, self._position + int(state[POSITION]))
            if not state[USED]:
                self._out = np.empty(2 * len(self._out), np.uint8)

    def end(self, record_count: int, end_offset: int) -> None:
        """:raises FormatError: bytes remain after the last record, or the records differ from the header"""
        unread_bytes = self._end - int(self._state[POSITION])
        if unread_bytes:
            raise FormatError(f"{unread_bytes} bytes left after {self._state[COUNT]} records")
        if self._state[COUNT] != record_count or self._state[FLOOR] != end_offset + 1:
            records = f"{self._state[COUNT]} records up to offset {self._state[FLOOR] - 1}"
            raise FormatError(f"segment has {records}, {record_count} up to {end_offset} in its header")
