"""Where index entries fall: Kafka's ``LogSegment.append`` over the batches of an output segment (4.3.0).

Before a batch, when more than the interval was appended since the last entry, its last offset and position go to the offset
index, and the largest timestamp so far, if it grew, to the time index with the last offset of the first batch that had it.
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling.jit import kernel

#: columns of the state that is carried from call to call
POSITION, SINCE_ENTRY, MAX_TIMESTAMP, MAX_TIMESTAMP_OFFSET, LAST_TIME_ENTRY = range(5)


def new_state(base_offset: int) -> np.ndarray:
    """int64[5]: the state before the first batch of a segment."""
    return np.array([0, 0, -1, base_offset, -1], np.int64)


@kernel
def index_entries(out_rows, interval_bytes, state, offsets, times):
    """Entries for ``out_rows`` (``OUT_ROW[n]``), which follow those of earlier calls: ``(offset entries, time entries)``.

    :param state: int64[5], carried and changed
    :param offsets: ``formats.indexes.OFFSET_ROW[n]`` to fill, ``times`` ``TIME_ROW[n]`` likewise
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
