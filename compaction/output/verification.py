"""Compares written or copied segments with the bytes that the device returns, before anything depends on them.

A segment's log is checked against its size and hash, and against its own checksums and offsets: these also find a fault in the
memory from which the hash was computed. An output that differs fails its log; the sources are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from compaction.errors import CorruptLogError
from compaction.kernels.batches import scan_batches
from compaction.kernels.tables import BATCH_ROW
from compaction.names import LOG
from compaction.storage.contents import FileDigest, find_mismatch, read_back_error, read_range, verify_file
from compaction.storage.filesystem import FileRange, FileSystem, ReadableFileSystem
from compaction.storage.segment_file import SegmentFile

_ROWS = 1 << 14
_BATCH_END_BYTES = 128 << 10


class SegmentCheck:
    """Checks a log file block by block: checksums, offsets, and the hashes of its parts.

    :param path: for errors
    :param parts: of a joined file; the caller may append a part until its first byte is fed
    """

    def __init__(self, path: str, parts: Sequence[FileDigest] = ()) -> None:
        self._path, self._parts = path, parts
        self._hash, self._part, self._part_bytes, self._number = xxhash.xxh3_128(), xxhash.xxh3_128(), 0, 0
        self._rest = np.empty(0, np.uint8)
        self._rows = np.empty(_ROWS, BATCH_ROW)
        self._last_offset = -1
        self.size, self.batches = 0, 0

    def feed(self, data: NDArray[np.uint8]) -> None:
        """Check the next bytes, uint8[n].

        :raises StorageError: they differ from what was written
        """
        self._hash.update(data)
        if self._parts:
            self._feed_parts(data)
        start, rest = self.size, len(self._rest)
        self.size += len(data)
        if rest:
            # most batches end within this many bytes: the rest need not be copied
            taken = self._scan(np.concatenate([self._rest, data[:_BATCH_END_BYTES]]), start - rest)
            data = data[taken - rest :] if taken > rest else np.concatenate([self._rest, data])
        taken = self._scan(data, self.size - len(data))
        self._rest = data[taken:].copy()

    def _scan(self, data: NDArray[np.uint8], position: int) -> int:
        """Check the complete batches of ``data``, which starts at a byte position of the file; returns their bytes."""
        taken = 0
        while taken < len(data):
            scan = scan_batches(data[taken:], position + taken, check_crc=True, rows=self._rows)
            if len(scan.rows):
                self._check_offsets(scan.rows)
            if scan.error is not None:
                raise read_back_error(self._path, f"{scan.error} at byte {scan.error_position}")
            taken += scan.consumed
            if not len(scan.rows):
                break
        return taken

    def _check_offsets(self, rows: NDArray[np.void]) -> None:
        floors = np.concatenate([[self._last_offset], rows["last_offset"][:-1]])
        if (rows["base_offset"] <= floors).any() or (rows["last_offset"] < rows["base_offset"]).any():
            raise read_back_error(self._path, "offsets run backwards")
        self._last_offset = int(rows["last_offset"][-1])
        self.batches += len(rows)

    def _feed_parts(self, data: NDArray[np.uint8]) -> None:
        position = 0
        while position < len(data) and self._number < len(self._parts):
            remaining = self._parts[self._number].size - self._part_bytes
            taken = data[position : position + remaining]
            self._part.update(taken)
            self._part_bytes, position = self._part_bytes + len(taken), position + len(taken)
            self._end_parts()

    def _end_parts(self) -> None:
        while self._number < len(self._parts) and self._part_bytes == self._parts[self._number].size:
            if self._part.hexdigest() != self._parts[self._number].digest:
                raise read_back_error(self._path, "other bytes than were written")
            self._part, self._part_bytes, self._number = xxhash.xxh3_128(), 0, self._number + 1

    def end(self, size: int, batches: int, digest: str | None) -> FileDigest:
        """Check the file as a whole; returns its size and hash.

        :param digest: of the whole file, ``None`` for a joined one
        :raises StorageError: it differs from what was written
        """
        self._end_parts()
        if self.size != size or len(self._rest) or self._number < len(self._parts):
            raise read_back_error(self._path, f"{self.size} bytes, {size} were written")
        if self.batches != batches:
            raise read_back_error(self._path, f"{self.batches} batches, {batches} were written")
        hashed = self._hash.hexdigest()
        if digest is not None and digest != hashed:
            raise read_back_error(self._path, "other bytes than were written")
        return FileDigest(LOG, size, hashed)


def copy_verified(source: ReadableFileSystem, target: FileSystem, extent: FileRange, path: str, valid_bytes: int = 0) -> str:
    """Copy a byte range into a new file, durable on return, and compare what the device returns with the source; its hash.

    :param valid_bytes: the first bytes of the range that are batches, whose checksums must match
    :raises CorruptLogError: a batch is damaged
    :raises StorageError: one of the file systems refused, or returns other bytes than before
    """
    target.copy(extent.path, path, extent.start, extent.size)
    target.fsync(path)
    content = xxhash.xxh3_128()
    if valid_bytes:
        with SegmentFile(source, extent.path).reader(extent.start, extent.start + valid_bytes) as reader:
            for block in reader.blocks(check_crc=True):
                content.update(block.raw)
    for data in read_range(source, FileRange(extent.path, extent.start + valid_bytes, extent.size - valid_bytes)):
        content.update(data)
    verify_file(target, path, FileDigest("", extent.size, content.hexdigest()))
    return content.hexdigest()


def copy_recorded(target: FileSystem, source: FileRange, path: str, digest: str) -> None:
    """Copy a file of an earlier output into a new file, durable on return. If its bytes are moved, the device must return the
    recorded content.

    :param digest: its recorded content hash
    :raises CorruptLogError: it has other content
    :raises StorageError: one of the file systems refused
    """
    if target.copy_inside(source.path, path):
        return
    target.copy(source.path, path)
    target.fsync(path)
    problem = find_mismatch(target, path, FileDigest("", source.size, digest))
    if problem is not None:
        hint = "check the disk; the source is unchanged"
        raise CorruptLogError(f"copy of this file is not what its run recorded: {problem}", path=source.path, hint=hint)
