"""Makes an entry of each record that says where in its log the record is, and how large: see ``ENDS`` of
``compaction.kernels.keys.slot_table``."""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling.jit import kernel
from compaction.kernels.reading.records import (
    BAD_RECORD,
    LOOKUPS_ONLY,
    OK,
    RECORDS_MISSING,
    RECORDS_REMAINING,
    SKIP,
    quick_record,
    read_record,
)
from compaction.kernels.reading.siphash import hash_keys


@kernel
def place_records(raw, scratch, rows, spans, actions, places, first_row, entries, plain, removed, secret):
    """Make entries of the records of ``rows[first_row:]``, as many batches as fit.

    :param raw, scratch, rows, spans, first_row, secret: as for ``scan_records``
    :param actions: uint8[r]. ``MAP``: records with a key become entries; ``LOOKUPS_ONLY``: none does; ``SKIP``: the batch is
        not read
    :param places: int64[r], the place of each batch
    :param entries: uint64[c, 4] to fill
    :param plain: int64[r] to fill: uncompressed bytes of the records, with their lengths
    :param removed: int64[r, 2] to fill: records that do not become entries, and their bytes
    :returns: ``(next row, number of entries, error)``, as ``scan_records``
    """
    address_of_raw, address_of_scratch = raw.ctypes.data, scratch.ctypes.data
    n, next_row = 0, len(rows)
    for i in range(first_row, len(rows)):
        if actions[i] == SKIP:
            continue
        row = rows[i]
        if n + row.count > len(entries):
            next_row = i
            break
        data = scratch if spans[i, 2] else raw
        address = address_of_scratch if spans[i, 2] else address_of_raw
        pos, end = spans[i, 0], spans[i, 1]
        place = np.uint64(places[i]) << np.uint64(32) | np.uint64(places[i])
        plain[i], removed[i, 0], removed[i, 1] = end - pos, 0, 0
        for _ in range(row.count):
            if pos >= end:
                return i, n, RECORDS_MISSING
            stop, _, _, _, key_at, key_size, value_size = quick_record(address, pos, end)
            if stop == 0:
                stop, _, _, key_at, key_size, value_size = read_record(data, pos, end)
                if stop < 0:
                    return i, n, BAD_RECORD
            if key_size < 0 or actions[i] == LOOKUPS_ONLY:
                removed[i, 0] += 1
                removed[i, 1] += stop - pos
            else:
                entries[n, 0], entries[n, 1], entries[n, 2] = address + key_at, key_size, place
                entries[n, 3] = np.uint64(stop - pos) << np.uint64(2) | np.uint64(3 if value_size < 0 else 0)
                n += 1
            pos = stop
        if pos != end:
            return i, n, RECORDS_REMAINING
    hash_keys(entries, n, secret)
    return next_row, n, OK
