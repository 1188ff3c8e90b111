"""Temporary files with the segments of a backup set as record batches.

The size of a segment as batches is not known until it is converted, and its one compressed stream cannot be entered in the
middle. So each segment is converted once, a few megabytes at a time, into a file of the run's spool directory, which the
processes of a run share. The bytes depend on the segment only: a process on another machine converts it again to the same
file. The process that chose the directory removes it; where it cannot, the next run does (``spool_directory``).
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
from compaction.exports.backup.set_objects import HINT, Stored, check_header, damaged
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
from compaction.storage.contents import read_range
from compaction.storage.filesystem import FileRange, ReadableFileSystem, storage_errors
from compaction.storage.local import free_space
from compaction.storage.spool_directory import use

#: uncompressed bytes of a batch that is converted
BATCH_BYTES = 64 * 1024
_STEP_BYTES = 4 << 20
#: bounds memory: no broker accepts a larger record
_MAX_RECORD_BYTES = 256 << 20
#: one part in so many of the file system is left free, or less of a large one
_RESERVE = 100
_MAX_RESERVE_BYTES = 1 << 30
#: an lz4 segment is in memory as a whole, compressed and not: so many of them at a time
_IN_MEMORY = threading.BoundedSemaphore(2)
_OTHER_DIRECTORY = "free some space, or name another directory by ?spool=DIR in the address"


class SegmentSpool:
    """Converted segments in a directory.

    :param directory: created with the first segment, readable by its owner only
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def path_of(self, stored: Stored) -> str:
        """The file of a segment."""
        return f"{self._directory}/{hashlib.sha256(stored.path.encode()).hexdigest()[:32]}.log"

    def converted(self, files: ReadableFileSystem, stored: Stored) -> str:
        """The file of a segment, which is converted if no process has done so.

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
                if (found := attempt.stat().st_size) != size:
                    what = f"temporary file has {found} bytes, {size} were written"
                    raise StorageError(what, path=path, hint=_OTHER_DIRECTORY)
                attempt.rename(path)
        finally:
            attempt.unlink(missing_ok=True)
        return path

    def _write(self, attempt: Path, blocks: Iterator[memoryview], of: str) -> int:
        """Write a new file; returns the number of bytes. Unlike a raw file's, a buffered one's ``write`` writes all of them."""
        size = 0
        with attempt.open("xb") as file:
            for block in blocks:
                self._require_more(len(block), of)
                size += file.write(block)
        return size

    def _require_more(self, size: int, path: str) -> None:
        """:raises StorageError: a write of this size would leave less free than the reserve"""
        found = free_space(self._directory)
        if found.free_bytes - size < min(found.total_bytes // _RESERVE, _MAX_RESERVE_BYTES):
            what = f"its records would fill {self._directory}, which has {found.free_bytes} bytes free"
            raise StorageError(what, path=path, hint=_OTHER_DIRECTORY)

    def require_space(self, plain_bytes: int, path: str) -> None:
        """:raises StorageError: the file system of the directory has less free space"""
        free = free_space(self._directory).free_bytes
        if free < plain_bytes:
            what = f"its records take about {plain_bytes} bytes in {self._directory}, which has {free} free"
            raise StorageError(what, path=path, hint=_OTHER_DIRECTORY)


def convert(files: ReadableFileSystem, stored: Stored) -> Iterator[memoryview]:
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
            # bytes that differ from those that were written explain any other error
            stream.check_end()
            raise
        digest = stream.check_end()
    except FormatError as error:
        raise damaged(stored, error) from error
    if stored.sha256 and stored.sha256 != digest:
        what = f"segment has SHA-256 {digest}, {stored.sha256} in the manifest"
        raise CorruptLogError(what, path=stored.path, hint=HINT)


def _limited(blocks: Iterator[memoryview], plain_bytes: int) -> Iterator[memoryview]:
    """The blocks; 0 bytes: any number of them.

    :raises FormatError: there are more bytes
    """
    size = 0
    for block in blocks:
        size += len(block)
        if size > plain_bytes > 0:
            raise FormatError(f"segment has more than the {plain_bytes} plain bytes of the manifest")
        yield block


class _Conversion:
    """Backup records, as they arrive, into batches."""

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
        left = self._end - int(state[POSITION])
        if left + len(plain) > _MAX_RECORD_BYTES:
            raise FormatError(f"record of more than {_MAX_RECORD_BYTES} bytes", self._position)
        rest = self._data[int(state[POSITION]) : self._end]
        if left + len(plain) > len(self._data):
            self._data = np.empty(2 * (left + len(plain)), np.uint8)
        self._data[:left] = rest.copy()
        self._data[left : left + len(plain)] = np.frombuffer(plain, np.uint8)
        self._position += int(state[POSITION])
        state[POSITION], self._end = 0, left + len(plain)
        while True:
            outcome = batches_of_backup(self._data, self._end, BATCH_BYTES, self._out, state)
            yield memoryview(self._out[: int(state[USED])])
            if outcome == COMPLETE:
                return
            if outcome != NO_SPACE:
                what = f"{BACKUP_ERRORS[outcome]}, after {state[COUNT]} records"
                raise FormatError(what, self._position + int(state[POSITION]))
            if not state[USED]:
                self._out = np.empty(2 * len(self._out), np.uint8)

    def end(self, record_count: int, end_offset: int) -> None:
        """:raises FormatError: not all bytes were records, or these are not those of the header"""
        left = self._end - int(self._state[POSITION])
        if left:
            raise FormatError(f"{left} bytes left after {self._state[COUNT]} records")
        if self._state[COUNT] != record_count or self._state[FLOOR] != end_offset + 1:
            found = f"{self._state[COUNT]} records up to offset {self._state[FLOOR] - 1}"
            raise FormatError(f"segment has {found}, {record_count} up to {end_offset} in its header")
