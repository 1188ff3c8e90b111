"""Walks the batches of a segment, read a window at a time; large batches by their headers alone, unless checksums are checked.

Also tells a torn tail from damage. A tail is torn when the last batch runs past the end of the file, or when nothing but
zeros follow the last whole batch (a preallocated or never flushed end), and no sound batch comes after that place. Anything
else is damage.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from compaction.fs.filesystem import ByteSource
from compaction.fs.ranges import View
from compaction.kernels.reading.batches import (
    BATCH_ERRORS,
    HEADER_SIZE,
    LOG_OVERHEAD,
    OTHER_MAGIC,
    PARTIAL,
    BatchScan,
    scan_batches,
)
from compaction.kernels.reading.headers import IO_ERROR, LONG_CONTROL, header_buffer, walk_headers
from compaction.kernels.reading.tables import BATCH_ROW
from compaction.logdir.blocks import MAX_BATCH_BYTES

Rows = NDArray[np.void]
Bytes = NDArray[np.uint8]

_ROWS = 1 << 14
#: how far a torn tail is searched for sound batches
_RESYNC_BYTES = 64 * 1024 * 1024
#: how much of it at a time, and how many bytes are held against their checksums on the way
_WINDOW_BYTES = 1024 * 1024
_CHECKED_BYTES = 1024 * 1024 * 1024
_MAGIC_AT = 16
_MAX_OFFSET_STEP = 2**31
#: how much is read at a time: at first, and at most unless a batch is larger
_FIRST_WINDOW_BYTES = 64 * 1024
_LARGEST_WINDOW_BYTES = 4 * 1024 * 1024
#: from this size on it is faster to read the headers of batches alone
_LARGE_BATCH_BYTES = 4096


class SegmentScan:
    """Iterates over the batches of ``data[start:]`` as ``BATCH_ROW`` tables of a bounded size.

    When iteration ends, ``start`` is where it began, ``position`` is the end of the last whole batch, ``error`` what is wrong
    with the batch there, if anything, and ``next_offset`` the offset after the last batch seen (``None`` without one).
    """

    def __init__(self, data: View, start: int = 0, *, check_crc: bool = False) -> None:
        self.data = data
        self.start = self.position = start
        self.error: str | None = None
        self.next_offset: int | None = None
        self.last_position = start
        self._check_crc = check_crc
        self._goes_back = False
        self._window_bytes = _FIRST_WINDOW_BYTES
        self._small_batches = False
        self._header = header_buffer()

    def __iter__(self) -> Iterator[Rows]:
        source = None if self._check_crc else self.data.opened()
        try:
            yield from self._tables(source)
        finally:
            if source is not None:
                source.close()

    def _tables(self, source: ByteSource | None) -> Iterator[Rows]:
        while True:
            table = np.empty(_ROWS, BATCH_ROW)
            found = (None if source is None else self._walk(source, table)) or self._scan(table)
            self.error = found.error
            rows = self._in_order(found.rows)
            if len(rows):
                self.last_position = int(rows["position"][-1])
                self.position = self.last_position + int(rows["size"][-1])
                self.next_offset = int(rows["last_offset"][-1]) + 1
                yield rows
            if self.error is not None or not len(rows):
                return

    def _walk(self, source: ByteSource, table: Rows) -> BatchScan | None:
        """The next batches by their headers alone; ``None`` if they are too small for that to pay, or need a longer look."""
        if self._small_batches:
            return None
        start, end = self.data.bounds
        descriptor = getattr(source, "descriptor", -1)
        n, position, code = walk_headers(descriptor, start + self.position, end, self._header, table)
        if n == 0 and code in (IO_ERROR, OTHER_MAGIC, LONG_CONTROL, PARTIAL):
            # what the system refuses is told by who reads in earnest
            return None
        rows = table[:n]
        rows["position"] -= start
        consumed = position - start - self.position
        self._small_batches = consumed < _LARGE_BATCH_BYTES * n
        error = BATCH_ERRORS.get(code) if code not in (IO_ERROR, OTHER_MAGIC, LONG_CONTROL, PARTIAL) else None
        return BatchScan(rows, consumed, error, position - start, 0)

    def _scan(self, table: Rows) -> BatchScan:
        """The next batches at ``position``, at least one if there is one."""
        while True:
            end = self.position + self._window_bytes
            window = self.data[self.position : end].fetch()
            found = scan_batches(window, self.position, check_crc=self._check_crc, rows=table)
            self._window_bytes = max(min(2 * self._window_bytes, _LARGEST_WINDOW_BYTES), found.need)
            if len(found.rows) or found.error is not None or self.position + max(found.need, len(window) + 1) > len(self.data):
                return found
            if found.need > MAX_BATCH_BYTES:
                what = f"batch of {found.need} bytes, more than {MAX_BATCH_BYTES} are not supported"
                return found._replace(error=what, error_position=self.position)

    def _in_order(self, rows: Rows) -> Rows:
        """The batches up to the first one whose offsets go back, which is an error: no checksum covers a base offset."""
        floors = np.append(self.next_offset or 0, rows["last_offset"][:-1] + 1)
        backwards = np.flatnonzero((rows["base_offset"] < floors[: len(rows)]) | (floors[: len(rows)] < 0))
        if not len(backwards):
            return rows
        first, self._goes_back = int(backwards[0]), True
        self.error = f"batch begins at offset {rows['base_offset'][first]}, expected {floors[first]} or more"
        return rows[:first]

    def finish(self) -> SegmentScan:
        """Walk to the end."""
        for _ in self:
            pass
        return self

    @property
    def complete(self) -> bool:
        """Whether the batches fill the file to its last byte."""
        return self.error is None and self.position == len(self.data)

    def damage(self) -> str | None:
        """What is wrong with the bytes from ``position`` on, if they are neither nothing nor a torn tail."""
        if self.complete or not self.data[self.position :].any():
            return None
        if self.error is not None and (self._goes_back or not self._ends_in_zeros()):
            return self.error
        if self._resumes():
            return self.error or "batch runs into the batches after it"
        return None

    def _ends_in_zeros(self) -> bool:
        """Whether the bad batch is one whose end was never flushed."""
        tail = self.data[max(self.position + HEADER_SIZE, len(self.data) - 8) :]
        return len(tail) > 0 and not tail.any()

    def _resumes(self) -> bool:
        """Whether a sound v2 batch begins somewhere after ``position``, as far as a bounded search can tell: more likely places
        than it can check are damage too."""
        data = self.data[self.position + 1 : self.position + 1 + _RESYNC_BYTES].fetch()
        checked = 0
        for window in range(0, len(data) - HEADER_SIZE + 1, _WINDOW_BYTES):
            for start, size in self._likely_batches(data, window):
                if len(scan_batches(data[start : start + size], 0, check_crc=True).rows):
                    return True
                checked += size
                if checked > _CHECKED_BYTES:
                    return True
        return False

    def _likely_batches(self, data: Bytes, window: int) -> list[tuple[int, int]]:
        """Start and size of what look like v2 headers that begin in ``data[window : window + _WINDOW_BYTES]``."""
        end = min(window + _WINDOW_BYTES, len(data) - HEADER_SIZE + 1)
        at = window + np.flatnonzero(data[window + _MAGIC_AT : end + _MAGIC_AT] == 2)
        offsets, sizes = _field(data, at, 0, 8), _field(data, at, 8, 4) + LOG_OVERHEAD
        expected = self.next_offset or 0
        likely = (offsets >= expected) & (offsets - expected < _MAX_OFFSET_STEP)
        likely &= (sizes >= HEADER_SIZE) & (sizes <= len(data) - at)
        return list(zip(at[likely].tolist(), sizes[likely].tolist(), strict=True))


def first_batch(data: View, position: int) -> Rows:
    """The batch at the start of ``data``, which lies at ``position`` of its segment: ``BATCH_ROW``, (1,), or (0,) for none."""
    size = _FIRST_WINDOW_BYTES
    while True:
        found = scan_batches(data[:size].fetch(), position, check_crc=False, rows=np.empty(1, BATCH_ROW))
        if len(found.rows) or size >= len(data) or not size < found.need <= min(len(data), MAX_BATCH_BYTES):
            return found.rows
        size = found.need


def _field(data: Bytes, at: NDArray[np.int64], offset: int, width: int) -> NDArray[np.int64]:
    """Big-endian unsigned integers of ``width`` bytes at ``at + offset``, as int64 (wrapping)."""
    value = np.zeros(len(at), np.int64)
    for byte in range(width):
        value = (value << 8) | data[at + offset + byte].astype(np.int64)
    return value
