"""Index entries against a writer that appends one batch at a time, with any division into calls."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from compaction.formats.indexes import OFFSET_ROW, TIME_ROW
from compaction.kernels.rewrite import LAST_TIME_ENTRY, MAX_TIMESTAMP, MAX_TIMESTAMP_OFFSET, index_entries, new_state
from compaction.kernels.tables import OUT_ROW
from tests.kernels.tables import random_segment
from tests.oracle.random_logs import Flavour
from tests.oracle.segments import write_segment

ALL_MAGICS = Flavour(batches=60, odd=0.3, magics=(0, 1, 2))


@pytest.mark.parametrize("interval", [0, 1, 150, 4096])
@pytest.mark.parametrize("seed", range(25))
def test_index_entries_equal_those_of_single_appends(seed: int, interval: int) -> None:
    rng = random.Random(seed)
    segment = random_segment(seed, ALL_MAGICS)
    rows = np.zeros(len(segment.batches), OUT_ROW)
    rows["last_offset"] = [batch.last_offset for batch in segment.batches]
    rows["max_timestamp"] = [batch.max_timestamp for batch in segment.batches]
    rows["size"] = [len(batch.raw) for batch in segment.batches]
    state, base = new_state(segment.base_offset), segment.base_offset
    index, times, at = b"", b"", 0
    while at < len(rows):
        part = rows[at : at + rng.choice((1, 2, 7, 100))]
        offsets, stamps = np.empty(len(part), OFFSET_ROW), np.empty(len(part), TIME_ROW)
        n, m = index_entries(part, interval, state, offsets, stamps)
        index += b"".join(struct.pack(">ii", offset - base, position) for offset, position in offsets[:n].tolist())
        times += b"".join(struct.pack(">qi", stamp, offset - base) for stamp, offset in stamps[:m].tolist())
        at += len(part)
    if state[MAX_TIMESTAMP] > state[LAST_TIME_ENTRY]:
        times += struct.pack(">qi", state[MAX_TIMESTAMP], state[MAX_TIMESTAMP_OFFSET] - base)
    expected = write_segment(base, [batch.raw for batch in segment.batches], interval, 0)
    assert (index, times) == (expected.index, expected.time_index)
