"""Reads the records of a stretch of a log as columns, the way a consumer would see them.

Mirrors ``CompletedFetch.nextFetchedRecord`` (Kafka 4.3.0): control records are never handed out (unless asked for); with
``read_committed`` neither is the data of an aborted transaction, nor anything past the last stable offset, which is for whoever
sets the bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.txn_tables import AbortedRanges
from compaction.errors import CorruptLogError
from compaction.fs.filesystem import Files
from compaction.kernels.reading.batches import CONTROL_BIT
from compaction.kernels.reading.columns import Columns, fill_columns, measure_records, new_columns
from compaction.kernels.reading.records import OK, RECORD_ERRORS
from compaction.logdir.blocks import Block, SegmentReader
from compaction.passes.decoder import V2_MAGIC, Decoded, Decoder
from compaction.stores.mixed import MixedFileSystem

TRANSACTIONAL_BIT = 0x10
MIN_LONG, MAX_LONG = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Bounds:
    """Which records are wanted; all four are inclusive, times in ms."""

    first_offset: int = 0
    last_offset: int = MAX_LONG
    first_timestamp_ms: int = MIN_LONG
    last_timestamp_ms: int = MAX_LONG

    @property
    def empty(self) -> bool:
        """Whether no record can be within."""
        return self.first_offset > self.last_offset or self.first_timestamp_ms > self.last_timestamp_ms

    def within(self, other: Bounds) -> Bounds:
        """What is within both."""
        return Bounds(
            max(self.first_offset, other.first_offset),
            min(self.last_offset, other.last_offset),
            max(self.first_timestamp_ms, other.first_timestamp_ms),
            min(self.last_timestamp_ms, other.last_timestamp_ms),
        )

    def as_array(self) -> NDArray[np.int64]:
        """int64[4] for the kernels."""
        each = (self.first_offset, self.last_offset, self.first_timestamp_ms, self.last_timestamp_ms)
        return np.array([min(max(bound, MIN_LONG), MAX_LONG) for bound in each], np.int64)


@dataclass(frozen=True)
class ReadSpec:
    """How a log is read.

    ``wanted``: the columns of variable size (``kernels.columns``); ``aborted``: spans of data that is left out; ``control``:
    whether control records are handed out; ``check_crcs``: whether each batch's checksum is held against its bytes;
    ``files``: how the segments are reached.
    """

    bounds: Bounds
    wanted: int
    aborted: AbortedRanges | None = None
    control: bool = False
    check_crcs: bool = True
    files: Files = field(default_factory=MixedFileSystem)


class Records(NamedTuple):
    """Records of some batches: ``rows`` (``BATCH_ROW[r]``), ``counts`` (int32[r], records of each), and their ``columns``."""

    rows: NDArray[np.void]
    counts: NDArray[np.int32]
    columns: Columns


def read_columns(path: str, start: int, end: int, reading: ReadSpec) -> Iterator[Records]:
    """The wanted records in bytes ``[start, end)`` of a segment file, a few megabytes at a time.

    :raises CorruptLogError: a batch or record is not what the format says
    """
    decoder = Decoder(path)
    with SegmentReader(reading.files, path, start, end) as reader:
        for block in reader.blocks(check_crc=reading.check_crcs):
            for part in decoder.modern(block):
                wanted = _wanted(part.rows, reading)
                if wanted.any():
                    for decoded in decoder.decode(part, wanted):
                        yield from _columns(part, decoded, wanted, reading, path)


def _wanted(rows: NDArray[np.void], reading: ReadSpec) -> NDArray[np.bool_]:
    """Which batches may hold wanted records, by their headers."""
    bounds = reading.bounds
    modern = rows["magic"] >= V2_MAGIC
    wanted = (rows["base_offset"] <= bounds.last_offset) & (rows["last_offset"] >= bounds.first_offset)
    wanted &= ~modern | (rows["max_timestamp"] >= bounds.first_timestamp_ms)
    if not reading.control:
        wanted &= ~(modern & ((rows["attributes"] & CONTROL_BIT) != 0))
    if reading.aborted is not None and len(reading.aborted):
        data = modern & ((rows["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT)) == TRANSACTIONAL_BIT)
        wanted &= ~(data & reading.aborted.contains(rows["producer_id"], rows["last_offset"]))
    found: NDArray[np.bool_] = wanted
    return found


def _columns(block: Block, decoded: Decoded, wanted: NDArray[np.bool_], reading: ReadSpec, path: str) -> Iterator[Records]:
    rows, first = decoded.rows, decoded.first_row
    spans = decoded.spans.copy()
    spans[~wanted[first : first + len(rows)]] = 0, -1, 0
    bounds = reading.bounds.as_array()
    counts, sizes = np.empty(len(rows), np.int32), np.zeros(6, np.int64)
    at, error = measure_records(block.raw, decoded.scratch, rows, spans, bounds, reading.wanted, counts, sizes)
    if error != OK:
        position = int(rows[at]["position"])
        raise CorruptLogError(RECORD_ERRORS[error], path=path, position=position, hint="restore this segment")
    if counts.any():
        columns = new_columns(sizes, reading.wanted)
        fill_columns(block.raw, decoded.scratch, rows, spans, bounds, reading.wanted, columns)
        # the reader reuses its rows for the next block
        yield Records(rows.copy(), counts, columns)
