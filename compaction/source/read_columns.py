"""Reads the records of a byte range of a segment as columns, as a consumer sees them.

Mirrors ``CompletedFetch.nextFetchedRecord``: control records are skipped (unless requested), and with
``read_committed`` aborted data too. The bounds of the read exclude records past the last stable offset.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError
from compaction.files.filesystem import ReadableFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.segment_file import SegmentFile
from compaction.formats.record_batch import CONTROL, MAGIC, TRANSACTIONAL
from compaction.kernels.batches import last_record_offsets
from compaction.kernels.columns import Columns, fill_columns, measure_records, new_columns
from compaction.kernels.records import OK, RECORD_ERRORS
from compaction.passes.decoder import Decoded, Decoder
from compaction.rules.transactions import AbortedRanges

#: isolation levels
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
MIN_LONG, MAX_LONG = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Bounds:
    """The offsets and timestamps to read; all four bounds are inclusive."""

    first_offset: int = 0
    last_offset: int = MAX_LONG
    first_timestamp_ms: int = MIN_LONG
    last_timestamp_ms: int = MAX_LONG

    @property
    def empty(self) -> bool:
        """Whether no record can be within the bounds."""
        return self.first_offset > self.last_offset or self.first_timestamp_ms > self.last_timestamp_ms

    def within(self, other: Bounds) -> Bounds:
        return Bounds(
            max(self.first_offset, other.first_offset),
            min(self.last_offset, other.last_offset),
            max(self.first_timestamp_ms, other.first_timestamp_ms),
            min(self.last_timestamp_ms, other.last_timestamp_ms),
        )

    def as_array(self) -> NDArray[np.int64]:
        """int64[4] for the kernels."""
        bounds = (self.first_offset, self.last_offset, self.first_timestamp_ms, self.last_timestamp_ms)
        return np.array([min(max(bound, MIN_LONG), MAX_LONG) for bound in bounds], np.int64)


@dataclass(frozen=True)
class ReadSpec:
    """How a log is read.

    ``requested``: the columns of variable size, as bits of ``kernels.columns``. ``aborted``: data to skip. ``control``:
    whether control records are read. ``survivors``: int64[], ascending; batches without one of these offsets are not read.
    """

    bounds: Bounds
    requested: int
    aborted: AbortedRanges | None = None
    control: bool = False
    check_crcs: bool = True
    survivors: NDArray[np.int64] | None = None
    files: ReadableFileSystem = field(default_factory=MixedFileSystem)


class Records(NamedTuple):
    """Records of some batches: ``rows`` (``BATCH_ROW[r]``), ``counts`` (int32[r], records of each), and their ``columns``."""

    rows: NDArray[np.void]
    counts: NDArray[np.int32]
    columns: Columns


def read_columns(path: str, start: int, end: int, spec: ReadSpec) -> Generator[Records, None, str]:
    """The records in bytes ``[start, end)`` of a segment file, a few megabytes at a time; returns the batches' fingerprint.

    :raises CorruptLogError: a batch or record is malformed
    """
    decoder = Decoder()
    with SegmentFile(spec.files, path).reader(start, end) as reader:
        for block in reader.blocks(check_crc=spec.check_crcs):
            for part in decoder.as_v2(block):
                selected = _selected(part.rows, spec)
                if selected.any():
                    for decoded in decoder.decode(part, selected):
                        yield from _columns(decoded, selected, spec)
        return reader.fingerprint()


def _selected(rows: NDArray[np.void], spec: ReadSpec) -> NDArray[np.bool_]:
    """Whether each batch may contain records to read, by its header: bool[b]."""
    bounds = spec.bounds
    v2 = rows["magic"] >= MAGIC
    lasts = last_record_offsets(rows)
    selected = (rows["base_offset"] <= bounds.last_offset) & (lasts >= bounds.first_offset)
    selected &= ~v2 | (rows["max_timestamp"] >= bounds.first_timestamp_ms)
    if not spec.control:
        selected &= ~(v2 & ((rows["attributes"] & CONTROL) != 0))
    if spec.aborted is not None and len(spec.aborted):
        data = v2 & ((rows["attributes"] & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL)
        selected &= ~(data & spec.aborted.contains(rows["producer_id"], rows["last_offset"]))
    if spec.survivors is not None:
        first = np.searchsorted(spec.survivors, rows["base_offset"])
        selected &= np.searchsorted(spec.survivors, lasts, "right") > first
    result: NDArray[np.bool_] = selected
    return result


def _columns(decoded: Decoded, selected: NDArray[np.bool_], spec: ReadSpec) -> Iterator[Records]:
    block, rows, first = decoded.block, decoded.rows, decoded.first_row
    spans = decoded.spans.copy()
    spans[~selected[first : first + len(rows)]] = 0, -1, 0
    bounds = spec.bounds.as_array()
    counts, sizes = np.empty(len(rows), np.int32), np.zeros(6, np.int64)
    row, error = measure_records(block.raw, decoded.scratch, rows, spans, bounds, spec.requested, counts, sizes)
    if error != OK:
        position = int(rows[row]["position"])
        raise CorruptLogError(RECORD_ERRORS[error], path=block.path, position=position, hint="restore this segment")
    if counts.any():
        columns = new_columns(sizes, spec.requested)
        fill_columns(block.raw, decoded.scratch, rows, spans, bounds, spec.requested, columns)
        # SegmentReader reuses its rows for the next block
        yield Records(rows.copy(), counts, columns)
