"""Computes the index entries of an output segment, as Kafka's ``LogSegment.append`` does.

If more than the interval was appended since the last entry, the next batch gets an offset index entry with its last offset and
position, and, if the largest timestamp has grown, a time index entry with the last offset of the first batch that has it.
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling.jit import kernel

#: indexes of the state between calls
POSITION, SINCE_ENTRY, MAX_TIMESTAMP, MAX_TIMESTAMP_OFFSET, LAST_TIME_ENTRY = range(5)


def new_state(base_offset: int) -> np.ndarray:
    """int64[5]: the state before the first batch of a segment."""
    return np.array([0, 0, -1, base_offset, -1], np.int64)


@kernel
def index_entries(out_rows, interval_bytes, state, offsets, times):
    """Compute the entries of ``out_rows`` (``OUT_ROW[n]``), the segment's next batches: ``(offset entries, time entries)``.

    :param state: int64[5] from ``new_state``, updated
    :param offsets: ``formats.indexes.OFFSET_ROW[n]`` to fill; ``times``: ``TIME_ROW[n]`` to fill
    """
    n, m = 0, 0
    for i in range(len(out_rows)):
        row = out_rows[i]
        if row.max_timestamp > state[MAX_TIMESTAMP]:
            state[MAX_TIMESTAMP], state[MAX_TIMESTAMP_OFFSET] = row.max_timestamp, row.last_offset
        if state[SINCE_ENTRY] > interval_bytes:
            offsets[n].offset, offsets[n].position = row.last_offset, state[POSITION]
            n += 1
            if state[MAX_TIMESTAMP] > state[LAST_TIME_ENTRY]:
                times[m].timestamp, times[m].offset = state[MAX_TIMESTAMP], state[MAX_TIMESTAMP_OFFSET]
                state[LAST_TIME_ENTRY] = state[MAX_TIMESTAMP]
                m += 1
            state[SINCE_ENTRY] = 0
        state[POSITION] += row["size"]
        state[SINCE_ENTRY] += row["size"]
    return n, m
