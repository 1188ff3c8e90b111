"""The oracle's segments as the package's types: segment values and batch tables."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.tables import BATCH_ROW, EMPTY_CONTROL, NOT_CONTROL
from compaction.rules.log_view import Segment
from tests.oracle.segments import NaiveSegment

_LONG_MAX = 2**63 - 1


def as_segment(segment: NaiveSegment) -> Segment:
    """The ``Segment`` value that reading these files results in."""
    times = list(struct.iter_unpack(">qi", segment.time_index))
    return Segment(
        base_offset=segment.base_offset,
        size_bytes=len(segment.log),
        mtime_ns=segment.mtime_ms * 1_000_000,
        index_bytes=len(segment.index),
        time_index_bytes=len(segment.time_index),
        largest_timestamp_ms=times[-1][0] if times and times[-1][0] >= 0 else segment.mtime_ms,
        first_batch_timestamp_ms=segment.batches[0].max_timestamp if segment.batches else _LONG_MAX,
        next_offset=segment.next_offset,
        aborted_txns=segment.aborted_txns,
    )


def batch_table(segment: NaiveSegment) -> NDArray[np.void]:
    """The segment's ``BATCH_ROW`` table."""
    rows = []
    for batch in segment.batches:
        kind = batch.control_type() if batch.control else NOT_CONTROL
        values = {**vars(batch), "size": len(batch.raw), "control_type": EMPTY_CONTROL if kind is None else kind}
        rows.append(tuple(values[name] for name in BATCH_ROW.names or ()))
    return np.array(rows, dtype=BATCH_ROW)
