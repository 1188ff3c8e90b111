"""What a file must hold, and whether the device gives it back.

Of every file that a run writes it knows size and content hash (XXH3-128, which no accident repeats; nobody forges what this run
writes).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from compaction.errors import StorageError
from compaction.fs.filesystem import FileRange, ReadableFileSystem

#: a multiple of what devices read at once, and of every device's block
READ_BYTES = 2 << 20
_MOST_SPARE = 16


class FileDigest(NamedTuple):
    """What a file, or a part of a joined one, must hold: ``digest`` is the XXH3-128 of its ``size`` bytes, hexadecimal.

    ``kind`` is the file's suffix (``.log``, ``.index``, …), ``mtime_ns`` its time of last modification when it was read back:
    who writes to it changes that.
    """

    kind: str
    size: int
    digest: str
    mtime_ns: int = 0


def digest_of(data: bytes) -> FileDigest:
    """What a file must hold that ``data`` was written to."""
    return FileDigest("", len(data), xxhash.xxh3_128_hexdigest(data))


def verify_file(files: ReadableFileSystem, path: str, written: FileDigest) -> None:
    """Hold a file against its hash.

    :raises StorageError: the device gives other bytes
    """
    if (problem := find_mismatch(files, path, written)) is not None:
        raise read_back_error(path, problem)


def find_mismatch(files: ReadableFileSystem, path: str, written: FileDigest) -> str | None:
    """In which way a file, as the device gives it, is not what was written, if it is not.

    :raises StorageError: it cannot be read
    """
    content, size = xxhash.xxh3_128(), 0
    for data in read_device_blocks(files, path):
        content.update(data)
        size += len(data)
        if size > written.size:
            break
    if size != written.size:
        return f"{size} bytes, {written.size} were written" if size < written.size else f"more than {written.size} bytes"
    return None if content.hexdigest() == written.digest else "other bytes than were written"


def read_back_error(path: str, problem: str) -> StorageError:
    """An output is not what was written."""
    hint = "the log was left as it was; check the disk, its controller and the memory before anything else"
    return StorageError(f"output is read back otherwise than it was written: {problem}", path=path, hint=hint)


def read_device_blocks(files: ReadableFileSystem, path: str) -> Iterator[NDArray[np.uint8]]:
    """All bytes that a file has when it is opened, uint8, a block at a time, each valid until the next.

    :raises StorageError: it cannot be read
    """
    source = files.reader(path, 0, 2**63 - 1, uncached=True)
    buffer = borrow_buffer()
    try:
        size, at = source.size(), 0
        view = memoryview(buffer)[: -(-size // mmap.PAGESIZE) * mmap.PAGESIZE]
        while at < size and (n := source.read_into(view, at, at)):
            yield buffer[:n]
            at += n
    finally:
        return_buffer(buffer)
        source.close()


def read_range(files: ReadableFileSystem, extent: FileRange, block_bytes: int = READ_BYTES) -> Iterator[memoryview]:
    """The bytes of a byte range, in blocks of this size but for the last, each valid until the next.

    :raises StorageError: the file is shorter
    """
    end, at = extent.start + extent.size, extent.start
    buffer = memoryview(bytearray(min(extent.size, block_bytes)))
    source = files.reader(extent.path, at, end)
    try:
        while at < end:
            want, got = min(len(buffer), end - at), 0
            while got < want:
                n = source.read_into(buffer[got:want], at + got, at + got)
                if not n:
                    hint = "make sure that nothing else works on this directory, and run again"
                    what = "file has become shorter while it was read"
                    raise StorageError(what, path=extent.path, position=at + got, hint=hint)
                got += n
            yield buffer[:want]
            at += want
    finally:
        source.close()


def borrow_buffer() -> NDArray[np.uint8]:
    """A buffer of ``READ_BYTES``, uint8, that begins at a page, as devices want it: one that was given back, or a new one,
    which takes as long to make as a small file to read."""
    try:
        return _spare.pop()
    except IndexError:
        return np.frombuffer(mmap.mmap(-1, READ_BYTES), np.uint8)


def return_buffer(buffer: NDArray[np.uint8]) -> None:
    """Nobody looks at the buffer any more."""
    if len(_spare) < _MOST_SPARE:
        _spare.append(buffer)


_spare: list[NDArray[np.uint8]] = []
