"""Counts the records of batches by where in the log they lie and by how old they are: all of them, or those that a round drops.

What a round drops of a batch is asked of the kernel that rewrites it, so that the counts are those of the output.
"""

from __future__ import annotations

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.reading.batches import CONTROL_BIT, LOG_APPEND_TIME_BIT
from compaction.kernels.reading.records import BAD_RECORD, OK, read_record
from compaction.kernels.reading.tables import COPY, DISCARD, REWRITE
from compaction.kernels.rewriting.batch_retention import HORIZON_BIT
from compaction.kernels.rewriting.survivors import stays

#: what is counted: records (transaction markers included), their bytes when uncompressed, tombstones, data without a key
RECORDS, BYTES, TOMBSTONES, KEYLESS = range(4)
COLUMNS = 4


@inner
def age_bucket(timestamp, now_ms, bounds):
    """0 for a time after now, ``i + 1`` for an age from ``bounds[i]`` (int64[b], ms, ascending from 0) up to the next bound,
    ``b + 1`` for a record without a time."""
    if timestamp < 0:
        return len(bounds) + 1
    age = now_ms - timestamp
    bucket = 0
    while bucket < len(bounds) and age >= bounds[bucket]:
        bucket += 1
    return bucket


@inner
def _count(row, offset, timestamp, size, key_size, value_size, frame, bounds, positions, ages):
    """Count one record."""
    share = (offset - frame[0]) / (frame[1] - frame[0])
    place = max(0, min(len(positions) - 1, int(share * len(positions))))
    age = age_bucket(timestamp, frame[2], bounds)
    positions[place, RECORDS] += 1
    positions[place, BYTES] += size
    ages[age, RECORDS] += 1
    ages[age, BYTES] += size
    if row.attributes & CONTROL_BIT and row.magic == 2:
        return
    if value_size < 0:
        positions[place, TOMBSTONES] += 1
        ages[age, TOMBSTONES] += 1
    if key_size < 0:
        positions[place, KEYLESS] += 1
        ages[age, KEYLESS] += 1


@inner
def _goes(row, verdict, offset, keyless, tombstone, marks, mark_at, limits):
    """``(whether a record of a batch that is rewritten goes, next index into marks)``; see ``rewrite``."""
    first_dirty, latest_offset, now_ms, retain_legacy = limits
    if verdict & DISCARD != 0:
        return True, mark_at
    if row.magic == 2 and row.attributes & CONTROL_BIT != 0:
        return False, mark_at
    if row.magic == 2:
        tombstones_go = row.attributes & HORIZON_BIT != 0 and now_ms >= row.base_timestamp
    else:
        tombstones_go = retain_legacy == 0
    remains, _, mark_at = stays(offset, keyless, tombstone, marks, mark_at, first_dirty, latest_offset, tombstones_go)
    return not remains, mark_at


@kernel
def tally(raw, scratch, rows, spans, actions, verdicts, marks, limits, frame, bounds, positions, ages):
    """Count the records that go; ``(batch at fault, error)``, the number of batches without one.

    :param raw, scratch, rows, spans: as for ``scan_records``; spans are read for all rows but ``COPY`` ones
    :param actions: uint8[r] from ``decide``: of ``REWRITE`` batches the records that do not survive count, of ``COPY`` ones
        none, of all others every record; ``verdicts``, ``marks``, ``limits`` as given to ``rewrite``
    :param frame: int64[3]: first offset and end offset of the log, now (ms)
    :param bounds: int64[b], ages in ms, see ``age_bucket``
    :param positions: int64[p, 4], added to: by offset from the log's first to its end, in ``p`` equal parts
    :param ages: int64[b + 2, 4], added to, by ``age_bucket``
    """
    mark_at = 0
    for i in range(len(rows)):
        row = rows[i]
        if actions[i] == COPY:
            continue
        data = scratch if spans[i, 2] else raw
        append_time = row.attributes & LOG_APPEND_TIME_BIT != 0
        at, end = spans[i, 0], spans[i, 1]
        for _ in range(row.count):
            begin = at
            at, timestamp_delta, offset_delta, _, key_size, value_size = read_record(data, at, end)
            if at < 0:
                return i, BAD_RECORD
            offset = row.base_offset + offset_delta
            if actions[i] == REWRITE:
                goes, mark_at = _goes(row, verdicts[i], offset, key_size < 0, value_size < 0, marks, mark_at, limits)
                if not goes:
                    continue
            timestamp = row.max_timestamp if append_time else row.base_timestamp + timestamp_delta
            _count(row, offset, timestamp, at - begin, key_size, value_size, frame, bounds, positions, ages)
    return len(rows), OK
