"""Decides which batches and records are retained, and whether they can be copied or must be re-encoded; counts dropped ones.

Mirrors ``MemoryRecords.filterTo`` and ``Cleaner.shouldRetainRecord``, and ``DefaultRecord.readFrom``.

``decide`` knows each batch's header, its verdict and the survivor entries, and reads no records: the survivor entries within
the offsets of a v2 batch in one section, clean or dirty, give the number of its retained records and tombstones. The records of
other batches have to be read (``REWRITE``), by ``filter_records`` for the output, and by ``tally`` for a dry run, which counts
records by position in the log and by age: the same rules decide, so that the counts agree with the output.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compaction.formats.record_batch import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME
from compaction.kernels import tables
from compaction.kernels.bytes import is_utf8, varint, varlong, varlong_size
from compaction.kernels.compiling import inner, kernel
from compaction.kernels.records import BAD_RECORD, OK, quick_bounds, quick_record, read_record


class Limits(NamedTuple):
    """The bounds that the rules compare the batches of one segment with.

    ``latest_offset`` is the map's last offset: later records are retained. ``retain_by_mtime``: the segment is younger than the
    delete horizon by mtime. ``mtime_only``: the mtime applies to all tombstones and markers, not only to those of magic 0 and
    1; batches have no delete horizon. ``keep_magic``: batches of magic 0 and 1 do not become v2.

    ``erases``: the only rule is that records listed as ``DROPPED`` are dropped; all are below ``first_dirty_offset``.
    ``erases_values``: those records are retained as tombstones without headers.
    """

    first_dirty_offset: int
    latest_offset: int
    now_ms: int
    retain_by_mtime: bool
    mtime_only: bool = False
    keep_magic: bool = False
    erases: bool = False
    erases_values: bool = False


@inner
def tombstones_expired(row, limits):
    """Whether the batch's tombstones are dropped: its delete horizon has passed, or, without one, its segment is too old. An
    erasure drops no tombstone.

    :param limits: ``Limits``
    """
    if limits.erases:
        return False
    if row.magic == 2 and not limits.mtime_only:
        return row.attributes & DELETE_HORIZON != 0 and limits.now_ms >= row.base_timestamp
    return not limits.retain_by_mtime


@inner
def _first_at_least(survivors, offset, start):
    """The first index ``>= start`` of a survivor entry with an offset ``>= offset``; a galloping search."""
    bound = np.uint64(offset + 1) << np.uint64(tables.OFFSET_SHIFT)
    step = 1
    low, high = start, start
    while high < len(survivors) and survivors[high] < bound:
        low = high + 1
        high += step
        step *= 2
    high = min(high, len(survivors))
    while low < high:
        middle = (low + high) >> 1
        if survivors[middle] < bound:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _kept(row, survivors, low, high, dirty, expired):
    """``(kept records, kept tombstones, expired tombstones)`` of a batch in one section, from its entries
    ``survivors[low:high]``."""
    listed, dropped, tombstones = high - low, 0, 0
    for k in range(low, high):
        if not dirty and survivors[k] & np.uint64(tables.DROPPED):
            dropped += 1
        elif survivors[k] & np.uint64(tables.TOMBSTONE):
            tombstones += 1
    kept = listed if dirty else row.count - dropped
    if expired:
        return kept - tombstones, 0, tombstones
    return kept, tombstones, 0


@kernel
def decide(rows, verdicts, survivors, limits, actions):
    """Fill ``actions`` (uint8[r]) with ``DROP``, ``COPY``, ``EMPTY`` or ``REWRITE`` for ``rows`` (``BATCH_ROW[r]``). Returns
    the number of expired tombstones in batches that lose all records; ``rewrite`` counts those of the others.

    :param verdicts: uint8[r], bits ``DISCARD``, ``RETAIN_EMPTY``, ``MARKER_OF_EMPTY_TXN``
    :param survivors: uint64[m], survivor entries, ascending: of the dirty section (offset >= first dirty offset) the records
        that the map holds; of the clean section those to be dropped (``DROPPED``) and the tombstones that are not superseded
    :param limits: ``Limits`` of the batches' segment
    """
    first_dirty, latest_offset = limits.first_dirty_offset, limits.latest_offset
    cursor, expired_total = 0, 0
    for i in range(len(rows)):
        row = rows[i]
        verdict = verdicts[i]
        # gets no new delete horizon
        final = limits.mtime_only or (row.attributes & DELETE_HORIZON) != 0
        tombstones, expired = 0, 0
        if verdict & tables.DISCARD:
            kept = 0
        elif limits.erases and row.magic == 2 and row.count == 0:
            actions[i] = tables.COPY
            continue
        elif row.attributes & CONTROL and row.magic == 2:
            kept = row.count
        elif (
            row.magic < 2
            or row.last_offset > latest_offset
            or row.base_offset < first_dirty <= row.last_offset
            # records past its last offset: see ``last_record_offsets``
            or row.count > row.last_offset - row.base_offset + 1
        ):
            actions[i] = tables.REWRITE
            continue
        else:
            low = _first_at_least(survivors, row.base_offset, cursor)
            high = _first_at_least(survivors, row.last_offset + 1, low)
            cursor = high
            dirty, expire = row.base_offset >= first_dirty, tombstones_expired(row, limits)
            kept, tombstones, expired = _kept(row, survivors, low, high, dirty, expire)
            if limits.erases_values and kept < row.count:
                actions[i] = tables.REWRITE
                continue
        if kept == 0:
            expired_total += expired
            actions[i] = tables.EMPTY if verdict & tables.RETAIN_EMPTY else tables.DROP
        elif kept < row.count or ((tombstones or verdict & tables.MARKER_OF_EMPTY_TXN) and not final):
            actions[i] = tables.REWRITE
        else:
            actions[i] = tables.COPY
    return expired_total


#: the batch has a header name with malformed UTF-8, whose bytes Kafka replaces (see ``repair_header_names``)
BAD_NAMES = 19
#: encodings of a record: ``CANONICAL`` is the one that Kafka writes, ``LOOSE`` is another valid one. ``ERASED``: only the key
#: is written, as a tombstone without headers
LOOSE, CANONICAL, ERASED = 0, 1, 2


@inner
def _tail_form(data, pos, stop, key_size, value_size):
    """The encoding of a record from the key's length on: ``CANONICAL``, ``LOOSE``, or ``BAD_NAMES`` for a header name with
    malformed UTF-8."""
    _, p = varint(data, pos, stop)
    canonical = p - pos == varlong_size(key_size) and key_size >= -1
    p += max(key_size, 0)
    _, q = varint(data, p, stop)
    canonical &= q - p == varlong_size(value_size) and value_size >= -1
    p = q + max(value_size, 0)
    count, q = varint(data, p, stop)
    canonical &= q - p == varlong_size(count)
    p = q
    for k in range(2 * count):
        size, q = varint(data, p, stop)
        canonical &= q - p == varlong_size(size) and size >= -1
        p = q + max(size, 0)
        if k & 1 == 0 and not is_utf8(data, q, p):
            return BAD_NAMES
    return CANONICAL if canonical else LOOSE


@inner
def _form(data, pos, stop, timestamp_delta, offset_delta, key_size, value_size):
    """The position of the key's length in the record ``data[pos:stop]``, and the encoding of the record."""
    _, body = varint(data, pos, stop)
    _, q = varlong(data, body + 1, stop)
    _, tail = varint(data, q, stop)
    canonical = tail == q + varlong_size(offset_delta) and q - body - 1 == varlong_size(timestamp_delta)
    canonical &= body - pos == varlong_size(stop - body) and data[body] == 0
    form = _tail_form(data, tail, stop, key_size, value_size)
    return tail, LOOSE if form == CANONICAL and not canonical else form


@inner
def skip_below(survivors, cursor, offset):
    """The first index ``>= cursor`` of a survivor entry with an offset ``>= offset``: a linear search, as records ascend."""
    bound = np.uint64(offset + 1) << np.uint64(tables.OFFSET_SHIFT)
    while cursor < len(survivors) and survivors[cursor] < bound:
        cursor += 1
    return cursor


@inner
def should_retain(offset, keyless, tombstone, survivors, cursor, first_dirty, latest_offset, expire_tombstones):
    """``(retained, expired, next index into survivors)`` of the data record at ``offset``; ``expired``: it is a tombstone past
    its retention."""
    cursor = skip_below(survivors, cursor, offset)
    listed = cursor < len(survivors) and survivors[cursor] >> np.uint64(tables.OFFSET_SHIFT) == np.uint64(offset + 1)
    if offset > latest_offset:
        return True, False, cursor
    if keyless:
        return False, False, cursor
    if offset < first_dirty:
        latest = not (listed and survivors[cursor] & np.uint64(tables.DROPPED) != 0)
    else:
        latest = listed
    if latest and tombstone and expire_tombstones:
        return False, True, cursor
    return latest, False, cursor


@inner
def filter_records(data, start, end, row, verdict, survivors, cursor, limits, kept):
    """Fill ``kept`` int64[count, 6] with the retained records of one batch: start, stop, tail position, timestamp delta, offset
    delta, and ``CANONICAL``, or another encoding.

    ``(number kept, number of expired tombstones, is a kept record a tombstone, has a kept record a header name with malformed
    UTF-8, next index into survivors, error)``."""
    first_dirty, latest_offset = limits.first_dirty_offset, limits.latest_offset
    control = row.magic == 2 and row.attributes & CONTROL != 0
    expire_tombstones = tombstones_expired(row, limits)
    n, expired_total, tombstone_kept, bad_names = 0, 0, False, False
    address = data.ctypes.data
    p = start
    for _ in range(row.count):
        pos = p
        if not control:
            p, offset_delta = quick_bounds(address, pos, end)
            offset = row.base_offset + offset_delta
            if p > 0 and first_dirty <= offset <= latest_offset:
                cursor = skip_below(survivors, cursor, offset)
                if cursor == len(survivors) or survivors[cursor] >> np.uint64(tables.OFFSET_SHIFT) != np.uint64(offset + 1):
                    continue
        p, timestamp_delta, offset_delta, tail, _, key_size, value_size = quick_record(address, pos, end)
        quick = p > 0
        if not quick:
            p, timestamp_delta, offset_delta, _, key_size, value_size = read_record(data, pos, end)
        if p < 0:
            return n, expired_total, tombstone_kept, bad_names, cursor, BAD_RECORD
        retained, erased = control, False
        if not control:
            offset = row.base_offset + offset_delta
            keyless = key_size < 0 and not limits.erases
            retained, expired, cursor = should_retain(
                offset, keyless, value_size < 0, survivors, cursor, first_dirty, latest_offset, expire_tombstones
            )
            expired_total += expired
            erased = limits.erases_values and not retained
            retained |= erased
        if retained and verdict & tables.DISCARD == 0:
            tombstone_kept |= value_size < 0
            form = CANONICAL
            if not quick:
                tail, form = _form(data, pos, p, timestamp_delta, offset_delta, key_size, value_size)
                bad_names |= form == BAD_NAMES
            kept[n, 0], kept[n, 1], kept[n, 2], kept[n, 3], kept[n, 4] = pos, p, tail, timestamp_delta, offset_delta
            kept[n, 5] = ERASED if erased else form == CANONICAL
            n += 1
    return n, expired_total, tombstone_kept, bad_names, cursor, OK


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
        if actions[i] == tables.COPY:
            continue
        data = scratch if spans[i, 2] else raw
        append_time = row.attributes & LOG_APPEND_TIME != 0
        control = row.magic == 2 and row.attributes & CONTROL != 0
        filtered = actions[i] == tables.REWRITE and verdicts[i] & tables.DISCARD == 0
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
