"""Looks up the last record of one key in a range of offsets, for ``verify --why``.

Tested by ``tests/jobs/test_verify.py``.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from compaction.certifier.checks.key_tables import keys_of
from compaction.certifier.checks.offset_ranges import RangeTask
from compaction.certifier.checks.read_chunks import read_chunks
from compaction.certifier.checks.record_checks import RecordKinds, supersedable


def last_of_key(work: RangeTask, key: bytes) -> int:
    """The offset of the last record of the range that has this key and can supersede others, -1 if there is none."""
    last = -1
    for chunk in read_chunks(work.before, work.first_offset, work.end_offset):
        records = chunk.records[supersedable(chunk.records["offset"], RecordKinds.of(chunk, work), work)]
        records = records[records["key_size"] == len(key)]
        equal = pc.equal(keys_of(chunk, records), pa.scalar(key, pa.binary()))
        same = records["offset"][equal.to_numpy(zero_copy_only=False)]
        last = max(last, int(same.max()) if len(same) else -1)
    return last
