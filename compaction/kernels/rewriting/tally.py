"""Counts records by position in the log and by age: all records of a log, or those that cleaning drops.

The same rules as in ``rewrite`` decide which records are dropped, so that the counts agree with the output.
"""

from __future__ import annotations

from typing import NamedTuple

from compaction.formats.record_batch import CONTROL, LOG_APPEND_TIME
from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.reading.records import BAD_RECORD, OK, read_record
from compaction.kernels.reading.tables import COPY, DISCARD, REWRITE
from compaction.kernels.rewriting.batch_retention import tombstones_expired
from compaction.kernels.rewriting.survivors import should_retain

#: columns of the counts: records (including transaction markers), their uncompressed bytes, tombstones, data without a key
RECORDS, BYTES, TOMBSTONES, KEYLESS = range(4)
COLUMNS = 4


class LogRange(NamedTuple):
    """The offset range of a log and the present: positions and ages of records are relative to them."""

    first_offset: int
    end_offset: int
    now_ms: int


@inner
def age_bucket(timestamp, now_ms, bounds):
    """The bucket of a record's age: 0 for a timestamp after now, ``i + 1`` for an age from ``bounds[i]`` (int64[b], ms,
    ascending from 0) up to the next bound, ``b + 1`` for no timestamp."""
    if timestamp < 0:
        return len(bounds) + 1
    age = now_ms - timestamp
    bucket = 0
    while bucket < len(bounds) and age >= bounds[bucket]:
        bucket += 1
    return bucket


@inner
def _count(control, offset, timestamp, size, key_size, value_size, log_range, bounds, positions, ages):
    fraction = (offset - log_range.first_offset) / (log_range.end_offset - log_range.first_offset)
    position = max(0, min(len(positions) - 1, int(fraction * len(positions))))
    age = age_bucket(timestamp, log_range.now_ms, bounds)
    positions[position, RECORDS] += 1
    positions[position, BYTES] += size
    ages[age, RECORDS] += 1
    ages[age, BYTES] += size
    if control:
        return
    if value_size < 0:
        positions[position, TOMBSTONES] += 1
        ages[age, TOMBSTONES] += 1
    if key_size < 0:
        positions[position, KEYLESS] += 1
        ages[age, KEYLESS] += 1


@kernel
def tally(raw, scratch, rows, spans, actions, verdicts, survivors, limits, log_range, bounds, positions, ages):
    """Count the dropped records: ``(corrupt batch, error)``, or the number of batches and ``OK``.

    :param raw, scratch, rows, spans: as for ``scan_records``; spans of ``COPY`` rows are not read
    :param actions: uint8[r] from ``decide``. Counts no records of ``COPY`` batches, the dropped records of ``REWRITE``
        batches, and all records of others; ``verdicts``, ``survivors``, ``limits`` as for ``rewrite``
    :param log_range: ``LogRange`` of the log
    :param bounds: int64[b], ages in ms, see ``age_bucket``
    :param positions: int64[p, 4], added to: by offset, in ``p`` equal parts of the log's offset range
    :param ages: int64[b + 2, 4], added to, by ``age_bucket``
    """
    first_dirty, latest_offset = limits.first_dirty_offset, limits.latest_offset
    cursor = 0
    for i in range(len(rows)):
        row = rows[i]
        if actions[i] == COPY:
            continue
        data = scratch if spans[i, 2] else raw
        append_time = row.attributes & LOG_APPEND_TIME != 0
        control = row.magic == 2 and row.attributes & CONTROL != 0
        filtered = actions[i] == REWRITE and verdicts[i] & DISCARD == 0
        expired = tombstones_expired(row, limits)
        pos, end = spans[i, 0], spans[i, 1]
        for _ in range(row.count):
            begin = pos
            pos, timestamp_delta, offset_delta, _, key_size, value_size = read_record(data, pos, end)
            if pos < 0:
                return i, BAD_RECORD
            offset = row.base_offset + offset_delta
            if filtered:
                retained = control
                if not control:
                    retained, _, cursor = should_retain(
                        offset, key_size < 0, value_size < 0, survivors, cursor, first_dirty, latest_offset, expired
                    )
                if retained:
                    continue
            timestamp = row.max_timestamp if append_time else row.base_timestamp + timestamp_delta
            _count(control, offset, timestamp, pos - begin, key_size, value_size, log_range, bounds, positions, ages)
    return len(rows), OK
