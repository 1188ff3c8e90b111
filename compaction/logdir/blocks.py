"""Reads a byte range of a segment in blocks of complete batches, into one reused buffer."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.kernels.reading.batches import LOG_OVERHEAD, fold_heads, scan_batches
from compaction.kernels.reading.tables import BATCH_ROW
from compaction.logdir import read_counter
from compaction.storage.filesystem import ReadableFileSystem

#: makes the cost of the loop over blocks small, and stays in the caches
BLOCK_BYTES = 4 << 20
_ROWS_PER_BLOCK = 1 << 15
#: larger batches are refused: no broker accepts them, and memory must be bounded
MAX_BATCH_BYTES = 256 << 20


class Block(NamedTuple):
    """Consecutive complete batches of the file ``path``: ``raw`` (uint8[n], valid until the next block) from ``position`` on,
    and one ``BATCH_ROW`` per batch."""

    position: int
    raw: NDArray[np.uint8]
    rows: NDArray[np.void]
    path: str


class SegmentReader:
    """Reads the batches in ``[start, end)`` of one segment file; a context manager.

    :raises StorageError: the file cannot be opened or read
    :raises CorruptLogError: a batch violates the format, or extends past ``end``
    :raises UnsupportedLogError: a batch is larger than ``MAX_BATCH_BYTES``
    """

    def __init__(self, files: ReadableFileSystem, path: str, start: int, end: int, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._path, self._start, self._end = path, start, end
        self._buffer = np.empty(max(1, min(block_bytes, end - start)), np.uint8)
        self._rows = np.empty(min(_ROWS_PER_BLOCK, block_bytes // LOG_OVERHEAD + 1), BATCH_ROW)
        self._source = files.reader(path, start, end)
        self._seen = np.zeros(2, np.uint64)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._source.close()

    def fingerprint(self) -> str:
        """A hash of the batches read so far: offsets, sizes, leader epochs and stored checksums."""
        return self._seen.tobytes().hex()

    def _fill(self, position: int) -> NDArray[np.uint8]:
        """Fill the buffer from ``position``, at most to the end of the range."""
        want = min(len(self._buffer), self._end - position)
        view = memoryview(self._buffer)[:want]
        got = 0
        while got < want:
            n = self._source.read_into(view[got:], position + got, position)
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
        """The blocks of the range. The buffer grows to the largest batch."""
        position = self._start
        while position < self._end:
            data = self._fill(position)
            scan = scan_batches(data, position, check_crc=check_crc, rows=self._rows)
            if len(scan.rows):
                fold_heads(data, position, scan.rows, self._seen)
                read_counter.count(scan.consumed)
                yield Block(position, data[: scan.consumed], scan.rows, self._path)
                position += scan.consumed
                if scan.error is None:
                    continue
            if scan.error is not None:
                position = scan.error_position
                raise CorruptLogError(scan.error, path=self._path, position=position, hint="restore this segment")
            if position + max(scan.need, LOG_OVERHEAD + 5) > self._end:
                left = self._end - position
                cut = f"batch of {scan.need} bytes extends past the last {left} bytes"
                what = cut if scan.need else f"{left} bytes are not a batch"
                raise CorruptLogError(what, path=self._path, position=position, hint="restore this segment")
            if scan.need > MAX_BATCH_BYTES:
                what = f"batch of {scan.need} bytes, more than {MAX_BATCH_BYTES} are not supported"
                raise UnsupportedLogError(what, path=self._path, position=position)
            self._buffer = np.empty(scan.need, np.uint8)
