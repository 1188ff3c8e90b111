"""Reads back what tasks have written, from the device, before anything depends on it.

Of every output file the writer knows size and content hash (XXH3-128, which no accident repeats; nobody forges what this run
writes). A segment's log is held against them, and besides against its own checksums and offsets, so that a fault in the memory
that the hash was taken from is found too. An output that is not what it should be fails its log; the sources are untouched
then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from compaction.errors import StorageError
from compaction.names import LOG
from compaction.storage.blocks import Block, SegmentReader
from compaction.storage.durable import DISTRUST
from compaction.storage.filesystem import Extent, Files, FileSystem

_READ_BYTES = 4 << 20


class Written(NamedTuple):
    """What a file, or a part of a joined one, must hold: ``digest`` is the XXH3-128 of its ``size`` bytes, hexadecimal.

    ``kind`` is the file's suffix (``.log``, ``.index``, …).
    """

    kind: str
    size: int
    digest: str


def verify_segment(files: Files, log: str, parts: Sequence[Written], batches: int) -> Written:
    """Hold a log file against its parts, in order, and against its own checksums and offsets; the whole file's hash.

    :param batches: how many there must be
    :raises StorageError: the device gives other bytes than were written
    :raises CorruptLogError: what was written is no sound run of batches
    """
    size = sum(part.size for part in parts)
    hashes = _PartHashes(log, parts)
    found, floor = 0, -1
    with SegmentReader(files, log, 0, size, fresh=True) as reader:
        if reader.size() != size:
            raise _differs(log, f"{reader.size()} bytes, {size} were written")
        for block in reader.blocks(check_crc=True):
            floor = _require_ascending(block, floor, log)
            found += len(block.rows)
            hashes.update(block.raw)
    hashes.end()
    if found != batches:
        raise _differs(log, f"{found} batches, {batches} were written")
    return Written(LOG, size, hashes.digest())


def verify_file(files: Files, path: str, written: Written, *, fresh: bool = True) -> None:
    """Hold a file against its hash.

    :param fresh: the device is read; else what the system remembers may do
    :raises StorageError: there are other bytes
    """
    if (problem := difference(files, path, written, fresh=fresh)) is not None:
        raise _differs(path, problem)


def difference(files: Files, path: str, written: Written, *, fresh: bool) -> str | None:
    """In which way a file is not what was written, if it is not.

    :raises StorageError: it cannot be read
    """
    content, at = xxhash.xxh3_128(), 0
    buffer = memoryview(bytearray(min(written.size, _READ_BYTES)))
    source = files.reader(path, 0, written.size, fresh=fresh)
    try:
        if (size := source.size()) != written.size:
            return f"{size} bytes, {written.size} were written"
        while at < written.size and (n := source.read_into(buffer[: written.size - at], at, at)):
            content.update(buffer[:n])
            at += n
    finally:
        source.close()
    return None if content.hexdigest() == written.digest else "other bytes than were written"


def copy_verified(source: Files, target: FileSystem, extent: Extent, path: str, valid_bytes: int = 0) -> None:
    """Copy a byte range into a new file, safe on return, and hold what the device has against what the source gives.

    :param valid_bytes: so many bytes at its start are batches, whose checksums must hold
    :raises CorruptLogError: a batch is damaged
    :raises StorageError: one of the file systems refused, or gives other bytes than before
    """
    target.copy(extent.path, path, extent.start, extent.size)
    target.fsync(path)
    content = xxhash.xxh3_128()
    if valid_bytes:
        with SegmentReader(source, extent.path, extent.start, extent.start + valid_bytes) as reader:
            for block in reader.blocks(check_crc=True):
                content.update(block.raw)
    for data in blocks_of(source, Extent(extent.path, extent.start + valid_bytes, extent.size - valid_bytes)):
        content.update(data)
    verify_file(target, path, Written("", extent.size, content.hexdigest()))


def blocks_of(files: Files, extent: Extent) -> Iterator[memoryview]:
    """The bytes of a byte range, a block at a time, each valid until the next.

    :raises StorageError: the file is shorter
    """
    at, end = extent.start, extent.start + extent.size
    buffer = memoryview(bytearray(min(extent.size, _READ_BYTES)))
    source = files.reader(extent.path, at, end)
    try:
        while at < end:
            n = source.read_into(buffer[: end - at], at, at)
            if not n:
                hint = "make sure that nothing else works on this directory, and run again"
                raise StorageError("file has become shorter while it was read", path=extent.path, position=at, hint=hint)
            yield buffer[:n]
            at += n
    finally:
        source.close()


class _PartHashes:
    """The hashes of a file and of its parts, as its bytes come."""

    def __init__(self, path: str, parts: Sequence[Written]) -> None:
        self._path, self._parts = path, parts
        self._whole = xxhash.xxh3_128()
        self._part, self._number, self._left = xxhash.xxh3_128(), 0, parts[0].size

    def update(self, data: np.ndarray) -> None:
        """Take the next bytes."""
        if len(self._parts) == 1:
            self._whole.update(data)
            return
        self._whole.update(data)
        at = 0
        while at < len(data):
            self._turn()
            n = min(self._left, len(data) - at)
            self._part.update(data[at : at + n])
            at, self._left = at + n, self._left - n

    def _turn(self) -> None:
        """Go on to the part that the next byte belongs to."""
        while not self._left and self._number + 1 < len(self._parts):
            self._compare(self._part.hexdigest())
            self._number += 1
            self._part, self._left = xxhash.xxh3_128(), self._parts[self._number].size

    def end(self) -> None:
        """:raises StorageError: the last part, or a joined file's only one, has other bytes"""
        if len(self._parts) > 1:
            self._turn()
        self._compare(self._part.hexdigest() if len(self._parts) > 1 else self._whole.hexdigest())

    def digest(self) -> str:
        """Of the whole file."""
        return self._whole.hexdigest()

    def _compare(self, digest: str) -> None:
        if digest != self._parts[self._number].digest:
            raise _differs(self._path, "other bytes than were written")


def _require_ascending(block: Block, floor: int, path: str) -> int:
    """The last offset of ``block``, whose batches must begin past the ones before."""
    rows = block.rows
    floors = np.concatenate([[floor], rows["last_offset"][:-1]])
    if (rows["base_offset"] <= floors).any() or (rows["last_offset"] < rows["base_offset"]).any():
        raise _differs(path, "offsets run backwards")
    return int(rows["last_offset"][-1])


def _differs(path: str, problem: str) -> StorageError:
    return StorageError(f"output is read back otherwise than it was written: {problem}", path=path, hint=DISTRUST)
