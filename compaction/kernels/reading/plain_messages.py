"""Converts uncompressed messages of magic 0 and 1 to v2 records, so that the other kernels read one format only.

An uncompressed message is a batch of one record (Kafka 4.4.0: ``AbstractLegacyRecordBatch``, ``LegacyRecord``). Compressed
wrappers are converted by ``compaction.kernels.rewriting.wrapped_messages``.
"""

from __future__ import annotations

from compaction.kernels.compiling.jit import kernel
from compaction.kernels.compiling.native import copy_bytes
from compaction.kernels.reading.bytes import be32, be64, put_varlong, varlong_size

#: most bytes by which a record is larger than its message
GROWTH = 16


@kernel
def plain_messages(raw, block_position, rows, first_row, scratch, spans):
    """Write the records of messages ``rows[first_row:]`` into ``scratch``, as many as fit.

    :param rows: ``BATCH_ROW[r]``, all uncompressed and of magic 0 or 1; ``count`` and ``base_timestamp`` are set
    :param spans: int64[r, 3] to fill: start, end, 1
    :returns: ``(next row, ok)``; if not ok, the lengths within that message contradict its size
    """
    w = 0
    for i in range(first_row, len(rows)):
        row = rows[i]
        if w + row["size"] + GROWTH > len(scratch):
            return i, True
        at = row.position - block_position
        end = at + row["size"]
        timestamp = be64(raw, at + 18) if row.magic == 1 else -1
        p = at + (26 if row.magic == 1 else 18)
        if p + 4 > end:
            return i, False
        key_size = be32(raw, p)
        key_at = p + 4
        p = key_at + max(key_size, 0)
        if key_size < -1 or p + 4 > end:
            return i, False
        value_size = be32(raw, p)
        value_at = p + 4
        if value_size < -1 or value_at + max(value_size, 0) != end:
            return i, False
        spans[i, 0], spans[i, 2] = w, 1
        body = 4 + varlong_size(key_size) + max(key_size, 0) + varlong_size(value_size) + max(value_size, 0)
        w = put_varlong(scratch, w, body)
        scratch[w] = scratch[w + 1] = scratch[w + 2] = 0
        w = put_varlong(scratch, w + 3, key_size)
        w = copy_bytes(scratch, w, raw, key_at, key_at + max(key_size, 0))
        w = put_varlong(scratch, w, value_size)
        w = copy_bytes(scratch, w, raw, value_at, value_at + max(value_size, 0))
        scratch[w] = 0
        w += 1
        spans[i, 1] = w
        row.count, row.base_timestamp = 1, timestamp
    return len(rows), True
