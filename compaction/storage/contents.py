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
from compaction.storage.filesystem import Extent, Files

#: a multiple of what devices read at once
READ_BYTES = 2 << 20


class Written(NamedTuple):
    """What a file, or a part of a joined one, must hold: ``digest`` is the XXH3-128 of its ``size`` bytes, hexadecimal.

    ``kind`` is the file's suffix (``.log``, ``.index``, …), ``mtime_ns`` its time of last modification once a swap has begun.
    """

    kind: str
    size: int
    digest: str
    mtime_ns: int = 0


def written_of(data: bytes) -> Written:
    """What a file must hold that ``data`` was written to."""
    return Written("", len(data), xxhash.xxh3_128_hexdigest(data))


def verify_file(files: Files, path: str, written: Written, *, fresh: bool = True) -> None:
    """Hold a file against its hash.

    :param fresh: the device is read; else what the system remembers may do
    :raises StorageError: there are other bytes
    """
    if (problem := difference(files, path, written, fresh=fresh)) is not None:
        raise differs(path, problem)


def difference(files: Files, path: str, written: Written, *, fresh: bool = True) -> str | None:
    """In which way a file is not what was written, if it is not.

    :raises StorageError: it cannot be read
    """
    content, size = xxhash.xxh3_128(), 0
    for data in device_blocks(files, path, fresh=fresh):
        content.update(data)
        size += len(data)
        if size > written.size:
            break
    if size != written.size:
        return f"{size} bytes, {written.size} were written" if size < written.size else f"more than {written.size} bytes"
    return None if content.hexdigest() == written.digest else "other bytes than were written"


def differs(path: str, problem: str) -> StorageError:
    """An output is not what was written."""
    hint = "the log was left as it was; check the disk, its controller and the memory before anything else"
    return StorageError(f"output is read back otherwise than it was written: {problem}", path=path, hint=hint)


def device_blocks(files: Files, path: str, *, fresh: bool = True) -> Iterator[NDArray[np.uint8]]:
    """All bytes that a file has when it is opened, uint8, a block at a time, each valid until the next.

    :raises StorageError: it cannot be read
    """
    source = files.reader(path, 0, 2**63 - 1, fresh=fresh)
    try:
        size, at = source.size(), 0
        buffer = aligned_buffer(min(READ_BYTES, max(1, size)))
        while at < size and (n := source.read_into(memoryview(buffer), at, at)):
            yield buffer[:n]
            at += n
    finally:
        source.close()


def bytes_of(files: Files, extent: Extent, block_bytes: int = READ_BYTES) -> Iterator[memoryview]:
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


def aligned_buffer(size: int) -> NDArray[np.uint8]:
    """uint8 of at least ``size`` bytes that begins at a page, for devices to read into."""
    return np.frombuffer(mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE), np.uint8)
