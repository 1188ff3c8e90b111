"""Looks for the last record of one key: what a single question needs, without the keys of all others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.kernels.locate import gather_keys
from compaction.verify.chunks import read_chunks
from compaction.verify.compare import Kinds, candidates
from compaction.verify.model import SliceWork


def last_of_key(work: SliceWork, key: bytes) -> int:
    """The last offset of a range at which a record of this key may supersede others, -1 without one."""
    last = -1
    for chunk in read_chunks(work.before, work.first_offset, work.end_offset):
        records = chunk.records[candidates(chunk.records["offset"], Kinds.of(chunk, work), work)]
        records = records[records["key_size"] == len(key)]
        offsets, keys = np.zeros(len(records) + 1, np.int64), np.empty(len(records) * len(key), np.uint8)
        gather_keys(chunk.data, records, np.uint64(0), 1, offsets, keys, np.empty(len(records), np.int32))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(keys)]
        equal = pc.equal(pa.Array.from_buffers(pa.large_binary(), len(records), buffers), pa.scalar(key, pa.large_binary()))
        same = records["offset"][equal.to_numpy(zero_copy_only=False)]
        last = max(last, int(same.max()) if len(same) else -1)
    return last
