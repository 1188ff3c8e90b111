"""Locates the fields of the records of one v2 batch, one row per record, for the dump tool.

Mirrors ``DefaultRecord.readFrom`` (Kafka 4.4.0).
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling.jit import kernel
from compaction.kernels.reading.bytes import varint
from compaction.kernels.reading.records import read_record

#: columns of a table: positions count from the start of the data, a size of -1 means null
OFFSET, TIMESTAMP, KEY_AT, KEY_SIZE, VALUE_AT, VALUE_SIZE, HEADERS_AT, END, COLUMNS = range(9)


@kernel
def locate_fields(data, at, count, base_offset, base_timestamp, table):
    """Fill ``table`` (int64[n, COLUMNS]) with up to ``count`` records of ``data[at:]`` (uint8[]). Overflows wrap around.

    :returns: ``(number of records, position after them)``; the position is -1 if a malformed record follows
    """
    end = len(data)
    filled = min(count, len(table))
    for i in range(filled):
        stop, timestamp_delta, offset_delta, key_at, key_size, value_size = read_record(data, at, end)
        if stop < 0:
            return i, np.int64(-1)
        _, value_at = varint(data, key_at + max(key_size, 0), stop)
        table[i, OFFSET], table[i, TIMESTAMP] = base_offset + offset_delta, base_timestamp + timestamp_delta
        table[i, KEY_AT], table[i, KEY_SIZE] = key_at, max(key_size, -1)
        table[i, VALUE_AT], table[i, VALUE_SIZE] = value_at, max(value_size, -1)
        table[i, HEADERS_AT], table[i, END] = value_at + max(value_size, 0), stop
        at = stop
    return filled, np.int64(at)
