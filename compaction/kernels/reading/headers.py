"""Reads only the headers of a segment's batches.

Each header is read by ``pread`` in native code, so that several threads read concurrently. A bad sector or a truncated file is
an error code; with a memory map it would be a signal that kills the process.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import kernel
from compaction.kernels.compiling.native import pread
from compaction.kernels.reading.batches import (
    BAD_CONTROL_RECORD,
    BAD_CONTROL_TYPE,
    CONTROL_BIT,
    OK,
    control_type,
    next_batch,
    read_v2,
)

#: bytes read of each batch: a v2 header and the key of a control record
HEADER_BYTES = 128
#: ``pread`` failed; a control record's key is not within ``HEADER_BYTES``
IO_ERROR, LONG_CONTROL = 100, 101


@kernel
def walk_headers(descriptor, position, end, buffer, rows):
    """Fill ``rows`` (``BATCH_ROW[r]``) from the v2 batches in ``[position, end)`` of a file: ``(rows filled, position after
    them, code)``.

    ``OTHER_MAGIC`` and ``LONG_CONTROL``: continue with ``scan_batches``. ``PARTIAL``: the next batch continues after ``end``,
    or there is none.

    :param buffer: uint8[``HEADER_BYTES``], scratch space
    """
    n = 0
    address = buffer.ctypes.data
    while n < len(rows):
        left = end - position
        wanted = min(np.int64(HEADER_BYTES), left)
        got = pread(np.int32(descriptor), np.uintp(address), np.uint64(wanted), np.int64(position))
        if got < wanted:
            return n, position, IO_ERROR
        row = rows[n]
        size, code = next_batch(buffer, 0, left, position, False, row)
        if code == OK:
            code = read_v2(address, size, False, row)
        if code != OK:
            return n, position, code
        if row.attributes & CONTROL_BIT:
            row.control_type = control_type(buffer, 0, min(size, got), row.count)
            if row.control_type == BAD_CONTROL_TYPE:
                return n, position, LONG_CONTROL if got < size else BAD_CONTROL_RECORD
        n, position = n + 1, position + size
    return n, position, OK


def header_buffer() -> NDArray[np.uint8]:
    """Scratch space of ``walk_headers``."""
    return np.zeros(HEADER_BYTES, np.uint8)
