"""Arguments of kernels: segments as raw bytes, batch tables and decompressed records; memory that ends where data does."""

from __future__ import annotations

import ctypes
import mmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.batches import scan_batches
from tests.oracle import compression
from tests.oracle.random_logs import Flavour, random_log
from tests.oracle.records import HEADER
from tests.oracle.segments import NaiveSegment

Bytes = NDArray[np.uint8]


class Blocks(NamedTuple):
    """Some batches with their decompressed records; ``spans`` int64[r, 3] as for the kernels."""

    raw: Bytes
    scratch: Bytes
    rows: NDArray[np.void]
    spans: NDArray[np.int64]


def random_segment(seed: int, flavour: Flavour | None = None) -> NaiveSegment:
    """The largest inactive segment of a random log, by default of magic 2."""
    log = random_log(seed, flavour or Flavour(batches=40, odd=0.4, codecs=(0, 0, 0, 2)))
    return max(log.segments, key=lambda segment: len(segment.log))


def as_array(data: bytes) -> Bytes:
    """Writable uint8, like the job's buffers."""
    return np.frombuffer(bytearray(data), np.uint8)


def scanned(log: bytes) -> Blocks:
    """All batches of a log of magic 2, whatever their checksums."""
    raw = as_array(log)
    rows, scratch = scan_batches(raw, 0, check_crc=False).rows, b""
    spans = np.zeros((len(rows), 3), np.int64)
    spans[:, 0], spans[:, 1] = rows["position"] + HEADER.size, rows["position"] + rows["size"]
    for row in np.flatnonzero(((rows["attributes"] & 7) > 0) & (rows["count"] > 0)).tolist():
        start, end, _ = spans[row].tolist()
        plain = compression.decompress(int(rows["attributes"][row]) & 7, log[start:end])
        spans[row] = len(scratch), len(scratch) + len(plain), 1
        scratch += plain
    return Blocks(raw, as_array(scratch), rows, spans)


class Fenced:
    """One page between two that cannot be touched; data lies at its very start or its very end."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._map = mmap.mmap(-1, 3 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for address in (start, start + 2 * page):
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(page), 0) == 0
        self.page = np.frombuffer(self._map, np.uint8)[page : 2 * page]

    def place(self, data: bytes, *, last: bool) -> Bytes:
        """``data`` at one end of the page."""
        room = self.page[len(self.page) - len(data) :] if last else self.page[: len(data)]
        room[:] = np.frombuffer(data, np.uint8)
        return room
