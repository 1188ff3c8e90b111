"""Segments as arguments of kernels: raw bytes, batch tables and decompressed records."""

from __future__ import annotations

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
