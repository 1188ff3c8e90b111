"""Segments of random logs as arguments of kernels: raw bytes, batch tables and decompressed records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.batches import scan_batches
from compaction.kernels.tables import BATCH_ROW
from tests.oracle import compression
from tests.oracle.random_logs import Flavour, random_log
from tests.oracle.records import HEADER, NaiveBatch
from tests.oracle.segments import NaiveSegment
from tests.oracle.tables import batch_table

Rows = NDArray[np.void]
Bytes = NDArray[np.uint8]

V2_LOG = Flavour(batches=40, odd=0.4, codecs=(0, 0, 0, 2))


class Blocks(NamedTuple):
    """Some batches with their decompressed records; ``spans`` int64[r, 3] as for the kernels."""

    batches: tuple[NaiveBatch, ...]
    raw: Bytes
    scratch: Bytes
    rows: Rows
    spans: NDArray[np.int64]


def random_segment(seed: int, flavour: Flavour = V2_LOG) -> NaiveSegment:
    """The largest inactive segment of a random log."""
    return max(random_log(seed, flavour).segments, key=lambda segment: len(segment.log))


def as_array(data: bytes) -> Bytes:
    """Writable uint8, like the job's buffers."""
    return np.frombuffer(bytearray(data), np.uint8)


def scanned(log: bytes) -> Blocks:
    """All batches of a log of magic 2 without compression, whatever their checksums."""
    raw = np.frombuffer(log, np.uint8)
    rows = scan_batches(raw, 0, check_crc=False).rows
    spans = np.zeros((len(rows), 3), np.int64)
    spans[:, 0], spans[:, 1] = rows["position"] + HEADER.size, rows["position"] + rows["size"]
    return Blocks((), raw, np.empty(0, np.uint8), rows, spans)


def blocks_of(segment: NaiveSegment) -> Blocks:
    """All batches of a segment of magic 2."""
    rows = batch_table(segment) if segment.batches else np.empty(0, BATCH_ROW)
    spans, scratch = np.zeros((len(rows), 3), np.int64), b""
    for row, batch in enumerate(segment.batches):
        start = batch.position + HEADER.size
        spans[row] = start, batch.position + len(batch.raw), 0
        if batch.codec and batch.count:
            plain = compression.decompress(batch.codec, batch.raw[HEADER.size :])
            spans[row] = len(scratch), len(scratch) + len(plain), 1
            scratch += plain
    return Blocks(segment.batches, as_array(segment.log), as_array(scratch), rows, spans)
