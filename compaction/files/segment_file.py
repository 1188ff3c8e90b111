"""The log file of a segment on any storage: the only reader of its batches.

``SegmentFile`` reads a byte range in blocks of complete batches, into one reused buffer (``SegmentReader``), or scans the
headers window by window (``SegmentScan``): of large batches only the headers are read, unless checksums are verified.

A scan also distinguishes a torn tail from damage. A tail is torn if the last batch extends past the end of the file, or if only
zeros follow the last complete batch (a preallocated or never flushed end), and no valid batch follows. After an unclean
shutdown it may have any bytes, if no valid batch follows. Anything else is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.files import read_counter
from compaction.files.contents import View, view
from compaction.files.filesystem import File, ReadableFileSystem, join, read_full
from compaction.formats.checkpoints import EpochRange
from compaction.formats.message_set import LEAST_BYTES_V0
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
    MAX_BATCH_BYTES,
    EndTxnMarker,
    read_end_txn_marker,
)
from compaction.kernels.batches import (
    BATCH_ERRORS,
    IO_ERROR,
    LONG_CONTROL,
    OTHER_MAGIC,
    PARTIAL,
    BatchScan,
    fold_heads,
    header_buffer,
    last_record_offsets,
    scan_batches,
    walk_headers,
)
from compaction.kernels.tables import BATCH_ROW
from compaction.names import LOG, segment_file

if TYPE_CHECKING:
    from compaction.rules.log_view import Segment

#: large enough to amortize the loop over blocks, small enough for the CPU's caches
BLOCK_BYTES = 4 << 20
_ROWS_PER_BLOCK = 1 << 15
#: rows of a table of a scan
_ROWS = 1 << 14
#: how far a torn tail is searched for valid batches
_RESYNC_BYTES = 64 * 1024 * 1024
#: the window of that search, and the limit of bytes whose checksums it computes
_WINDOW_BYTES = 1024 * 1024
_CHECKED_BYTES = 1024 * 1024 * 1024
_MAX_OFFSET_STEP = 2**31
#: the first and the largest read, unless a batch is larger
_FIRST_WINDOW_BYTES = 64 * 1024
_LARGEST_WINDOW_BYTES = 4 * 1024 * 1024
#: from this mean size on, reading only the headers is faster
_LARGE_BATCH_BYTES = 4096


Rows = NDArray[np.void]
Bytes = NDArray[np.uint8]


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
        self._rows = np.empty(min(_ROWS_PER_BLOCK, block_bytes // LOG_OVERHEAD_BYTES + 1), BATCH_ROW)
        self._source = files.open(path, start, end)
        self._hash_state = np.zeros(2, np.uint64)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def fingerprint(self) -> str:
        """A hash of the batches read so far: offsets, sizes, leader epochs and stored checksums."""
        return self._hash_state.tobytes().hex()

    def _fill(self, position: int) -> NDArray[np.uint8]:
        """Fill the buffer from ``position``, at most to the end of the range."""
        expected = min(len(self._buffer), self._end - position)
        filled = read_full(self._source, memoryview(self._buffer)[:expected], position)
        if filled < expected:
            raise CorruptLogError(
                f"file ends here, {self._end - position - filled} bytes earlier than when the run began",
                path=self._path,
                position=position + filled,
                hint="the log changed while it was read: run again when nothing writes to it",
            )
        return self._buffer[:expected]

    def blocks(self, *, check_crc: bool) -> Iterator[Block]:
        """The blocks of the range. The buffer grows to the largest batch."""
        position = self._start
        while position < self._end:
            data = self._fill(position)
            scan = scan_batches(data, position, check_crc=check_crc, rows=self._rows)
            if len(scan.rows):
                fold_heads(data, position, scan.rows, self._hash_state)
                read_counter.count(scan.consumed)
                yield Block(position, data[: scan.consumed], scan.rows, self._path)
                position += scan.consumed
                if scan.error is None:
                    continue
            if scan.error is not None:
                raise CorruptLogError(scan.error, path=self._path, position=position, hint="restore this segment")
            if position + max(scan.need, LOG_OVERHEAD_BYTES + 5) > self._end:
                remaining = self._end - position
                truncated = f"batch of {scan.need} bytes extends past the last {remaining} bytes"
                message = truncated if scan.need else f"{remaining} bytes are not a batch"
                raise CorruptLogError(message, path=self._path, position=position, hint="restore this segment")
            if scan.need > MAX_BATCH_BYTES:
                message = f"batch of {scan.need} bytes, more than {MAX_BATCH_BYTES} are not supported"
                raise UnsupportedLogError(message, path=self._path, position=position)
            self._buffer = np.empty(scan.need, np.uint8)


class SegmentScan:
    """Iterates over the batches of ``data[start:]`` as ``BATCH_ROW`` tables of a bounded size.

    After the iteration, ``position`` is the end of the last complete batch, ``error`` the error of the batch there, if any, and
    ``next_offset`` the offset after the last batch (``None`` without batches).
    """

    def __init__(self, data: View, start: int = 0, *, check_crc: bool = False) -> None:
        self.data = data
        self.start = self.position = start
        self.error: str | None = None
        self.next_offset: int | None = None
        self.last_position = start
        self._check_crc = check_crc
        self._offsets_decrease = False
        self._window_bytes = _FIRST_WINDOW_BYTES
        self._small_batches = False
        self._header = header_buffer()

    def __iter__(self) -> Iterator[Rows]:
        if self.position >= len(self.data):
            return
        # the first window has all of a short range: most segments of small logs, and the ends of others
        short = len(self.data) - self.position <= _FIRST_WINDOW_BYTES
        source = None if self._check_crc or short else self.data.opened()
        try:
            yield from self._tables(source)
        finally:
            if source is not None:
                source.close()

    def _tables(self, source: File | None) -> Iterator[Rows]:
        while True:
            table = np.empty(min(_ROWS, (len(self.data) - self.position) // LEAST_BYTES_V0 + 1), BATCH_ROW)
            result = (None if source is None else self._walk(source, table)) or self._scan(table)
            self.error = result.error
            rows = self._in_order(result.rows)
            if len(rows):
                self.last_position = int(rows["position"][-1])
                self.position = self.last_position + int(rows["size"][-1])
                self.next_offset = int(last_record_offsets(rows[-1:])[0]) + 1
                yield rows
            if self.error is not None or not len(rows) or self.position >= len(self.data):
                return

    def _walk(self, source: File, table: Rows) -> BatchScan | None:
        """The next batches by their headers; ``None`` if they are too small to save time, or must be read completely."""
        if self._small_batches:
            return None
        start, end = self.data.bounds
        n, position, code = walk_headers(source.descriptor, start + self.position, end, self._header, table)
        if n == 0 and code in (IO_ERROR, OTHER_MAGIC, LONG_CONTROL, PARTIAL):
            # an I/O error is raised by the complete read
            return None
        rows = table[:n]
        rows["position"] -= start
        consumed = position - start - self.position
        self._small_batches = consumed < _LARGE_BATCH_BYTES * n
        error = BATCH_ERRORS.get(code) if code not in (IO_ERROR, OTHER_MAGIC, LONG_CONTROL, PARTIAL) else None
        return BatchScan(rows, consumed, error, 0)

    def _scan(self, table: Rows) -> BatchScan:
        """The next batches at ``position``, at least one if any."""
        while True:
            end = self.position + self._window_bytes
            window = self.data[self.position : end].fetch()
            result = scan_batches(window, self.position, check_crc=self._check_crc, rows=table)
            self._window_bytes = max(min(2 * self._window_bytes, _LARGEST_WINDOW_BYTES), result.need)
            next_size = max(result.need, len(window) + 1)
            if len(result.rows) or result.error is not None or self.position + next_size > len(self.data):
                return result
            if result.need > MAX_BATCH_BYTES:
                message = f"batch of {result.need} bytes, more than {MAX_BATCH_BYTES} are not supported"
                return result._replace(error=message)

    def _in_order(self, rows: Rows) -> Rows:
        """The batches before the first one whose offsets decrease, which is an error: no checksum covers a base offset."""
        if not len(rows):
            return rows
        floors = np.empty(len(rows), np.int64)
        floors[0], floors[1:] = self.next_offset or 0, last_record_offsets(rows[:-1])
        floors[1:] += 1
        backwards = (rows["base_offset"] < floors) | (floors < 0)
        if not backwards.any():
            return rows
        first, self._offsets_decrease = int(backwards.argmax()), True
        self.error = f"batch begins at offset {rows['base_offset'][first]}, expected {floors[first]} or more"
        return rows[:first]

    def finish(self) -> SegmentScan:
        for _ in self:
            pass
        return self

    @property
    def complete(self) -> bool:
        """Whether the batches fill the file."""
        return self.error is None and self.position == len(self.data)

    def damage(self, *, unclean: bool = False) -> str | None:
        """The error of the bytes from ``position`` on; ``None`` if there are none or they are a torn tail.

        :param unclean: the end of an active segment that a broker would truncate at its first invalid batch
        """
        if self.complete or not self.data[self.position :].any():
            return None
        if self.error is not None and (self._offsets_decrease or not (unclean or self._ends_in_zeros())):
            return self.error
        if self._resumes():
            return self.error or "batch runs into the batches after it"
        return None

    def _ends_in_zeros(self) -> bool:
        """Whether the end of the invalid batch was never flushed."""
        tail = self.data[max(self.position + HEADER_SIZE, len(self.data) - 8) :]
        return len(tail) > 0 and not tail.any()

    def _resumes(self) -> bool:
        """Whether a valid v2 batch begins after ``position``, by a bounded search: more candidates than it can check count as
        damage too."""
        data = self.data[self.position + 1 : self.position + 1 + _RESYNC_BYTES].fetch()
        checked = 0
        for window in range(0, len(data) - HEADER_SIZE + 1, _WINDOW_BYTES):
            for start, size in self._candidates(data, window):
                if len(scan_batches(data[start : start + size], 0, check_crc=True).rows):
                    return True
                checked += size
                if checked > _CHECKED_BYTES:
                    return True
        return False

    def _candidates(self, data: Bytes, window: int) -> list[tuple[int, int]]:
        """Start and size of possible v2 headers in ``data[window : window + _WINDOW_BYTES]``."""
        end = min(window + _WINDOW_BYTES, len(data) - HEADER_SIZE + 1)
        positions = window + np.flatnonzero(data[window + MAGIC_AT : end + MAGIC_AT] == 2)
        offsets, sizes = _field(data, positions, 0, 8), _field(data, positions, 8, 4) + LOG_OVERHEAD_BYTES
        expected = self.next_offset or 0
        likely = (offsets >= expected) & (offsets - expected < _MAX_OFFSET_STEP)
        likely &= (sizes >= HEADER_SIZE) & (sizes <= len(data) - positions)
        return list(zip(positions[likely].tolist(), sizes[likely].tolist(), strict=True))


def _field(data: Bytes, positions: NDArray[np.int64], offset: int, width: int) -> NDArray[np.int64]:
    """Big-endian unsigned integers of ``width`` bytes at ``positions + offset``, as int64 (wrapping)."""
    fields = np.lib.stride_tricks.sliding_window_view(data, width)[positions + offset]
    return fields.view(f">u{width}")[:, 0].astype(np.int64)


def epoch_ranges(rows: Rows) -> list[EpochRange]:
    """The leader epochs of adjacent batches, ``BATCH_ROW``; those of v0/v1 have none."""
    rows = rows[(rows["magic"] == MAGIC) & (rows["leader_epoch"] >= 0)]
    if not len(rows):
        return []
    starts = np.flatnonzero(np.diff(rows["leader_epoch"], prepend=-1))
    ends = np.append(starts[1:], len(rows)) - 1
    columns = rows["leader_epoch"][starts], rows["base_offset"][starts], rows["last_offset"][ends]
    return [EpochRange(*fields) for fields in zip(*(column.tolist() for column in columns), strict=True)]


class SegmentFile:
    """The log file of a segment, on a disk, in a store, in another layout or in an overlay.

    :param size_bytes: the size of its valid batches; by default that of the file
    """

    def __init__(self, files: ReadableFileSystem, path: str, size_bytes: int | None = None) -> None:
        self._files, self.path, self._size_bytes = files, path, size_bytes
        self._data: View | None = None

    @classmethod
    def of(cls, files: ReadableFileSystem, log_path: str, segment: Segment) -> SegmentFile:
        return cls(files, join(log_path, segment_file(segment.base_offset, LOG)), segment.size_bytes)

    @property
    def data(self) -> View:
        """The bytes of its batches; ``StorageError`` if the file is missing."""
        # not a cached_property: up to Python 3.11 it holds a lock of the class meanwhile, and threads read logs in parallel
        if self._data is None:
            complete = view(self._files, self.path)
            self._data = complete if self._size_bytes is None else complete[: self._size_bytes]
        return self._data

    def reader(self, start: int, end: int) -> SegmentReader:
        return SegmentReader(self._files, self.path, start, end)

    def scan(self, start: int = 0, *, check_crc: bool = False) -> SegmentScan:
        return SegmentScan(self.data, start, check_crc=check_crc)

    def batch_at(self, position: int, *, check_crc: bool = False) -> Rows:
        """The batch at ``position``: ``BATCH_ROW``, (1,), or (0,) for none."""
        data, size = self.data[position:], _FIRST_WINDOW_BYTES
        while True:
            result = scan_batches(data[:size].fetch(), position, check_crc=check_crc, rows=np.empty(1, BATCH_ROW))
            if len(result.rows) or size >= len(data) or not size < result.need <= min(len(data), MAX_BATCH_BYTES):
                return result.rows
            size = result.need

    def ends_with(self, position: int, last_offset: int) -> bool:
        """Whether the batch at ``position`` ends with ``last_offset``, as an index entry says."""
        row = self.batch_at(position)
        return len(row) > 0 and int(row["last_offset"][0]) == last_offset

    def marker_at(self, position: int) -> EndTxnMarker:
        """The end-of-transaction marker in the control batch at ``position``.

        :raises CorruptLogError: it is malformed
        """
        try:
            size = HEADER.get(self.data[position : position + HEADER_SIZE].tobytes(), "length") + LOG_OVERHEAD_BYTES
            return read_end_txn_marker(memoryview(self.data[position : position + size].fetch()))
        except FormatError as error:
            raise CorruptLogError(error.message, path=self.path, position=position) from None
