"""Reads a stretch of a segment block by block: whole batches only, one reused buffer, checked boundaries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, StorageError, UnsupportedLogError
from compaction.kernels.batches import LOG_OVERHEAD, scan_batches
from compaction.kernels.tables import BATCH_ROW
from compaction.storage.places import is_remote

#: small enough for a core's cache, large enough that the loop over blocks costs nothing
BLOCK_BYTES = 2 << 20
_ROWS_PER_BLOCK = 1 << 15
#: a larger batch is refused: no broker accepts its like, and memory must stay bounded
MAX_BATCH_BYTES = 256 << 20


class Block(NamedTuple):
    """A run of whole batches: ``raw`` (uint8[n], valid until the next block) and one ``BATCH_ROW`` a batch."""

    position: int
    raw: NDArray[np.uint8]
    rows: NDArray[np.void]


#: fills a buffer from a position of a file: bytes read, 0 at its end. Third: before it nothing is asked for again
Read = Callable[[memoryview, int, int], int]


def _local(path: str) -> tuple[Read, Callable[[], None]]:
    """Reads a file of this machine, and lets go of it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        hint = "check that it exists and may be read"
        raise StorageError(f"cannot open ({error.strerror})", path=path, hint=hint) from error
    return lambda view, position, _: os.preadv(descriptor, [view], position), partial(os.close, descriptor)


def _remote(path: str, start: int, end: int) -> tuple[Read, Callable[[], None]]:
    """Reads a stretch of a remote file, and lets go of it."""
    from compaction.storage.streams import RangeReader

    reader = RangeReader(path, start, end)
    return reader.read_into, reader.close


class SegmentReader:
    """Reads the batches in ``[start, end)`` of one segment file; a context manager.

    :raises StorageError: the file cannot be opened or read
    :raises CorruptLogError: a batch is not what the format says, or runs past ``end``
    :raises UnsupportedLogError: a batch is larger than ``MAX_BATCH_BYTES``
    """

    def __init__(self, path: str, start: int, end: int, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._path, self._start, self._end = path, start, end
        self._buffer = np.empty(block_bytes, np.uint8)
        self._rows = np.empty(min(_ROWS_PER_BLOCK, block_bytes // LOG_OVERHEAD + 1), BATCH_ROW)
        self._read, self._close = _remote(path, start, end) if is_remote(path) else _local(path)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def _fill(self, position: int) -> NDArray[np.uint8]:
        """The bytes at ``position``, as many as the buffer takes and the stretch has."""
        want = min(len(self._buffer), self._end - position)
        view = memoryview(self._buffer)[:want]
        got = 0
        while got < want:
            try:
                n = self._read(view[got:], position + got, position)
            except OSError as error:
                raise StorageError(f"cannot read ({error.strerror})", path=self._path, position=position + got) from error
            if n == 0:
                raise CorruptLogError(
                    f"file ends here, {self._end - position - got} bytes earlier than when the run began",
                    path=self._path,
                    position=position + got,
                    hint="the log changed while it was read: run again when nothing writes to it",
                )
            got += n
        return self._buffer[:want]

    def blocks(self, *, check_crc: bool) -> Iterator[Block]:
        """The stretch, block after block. A batch larger than the buffer makes the buffer grow to it."""
        position = self._start
        while position < self._end:
            data = self._fill(position)
            scan = scan_batches(data, position, check_crc=check_crc, rows=self._rows)
            if len(scan.rows):
                yield Block(position, data[: scan.consumed], scan.rows)
                position += scan.consumed
                if scan.error is None:
                    continue
            if scan.error is not None:
                position = scan.error_position
                raise CorruptLogError(scan.error, path=self._path, position=position, hint="restore this segment")
            if position + max(scan.need, LOG_OVERHEAD + 5) > self._end:
                left = self._end - position
                cut = f"batch of {scan.need} bytes runs past the last {left} bytes"
                what = cut if scan.need else f"{left} bytes are no batch"
                raise CorruptLogError(what, path=self._path, position=position, hint="restore this segment")
            if scan.need > MAX_BATCH_BYTES:
                what = f"batch of {scan.need} bytes, more than {MAX_BATCH_BYTES} are not supported"
                raise UnsupportedLogError(what, path=self._path, position=position)
            self._buffer = np.empty(scan.need, np.uint8)
