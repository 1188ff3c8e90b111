"""Builds the output batches from the retained records of each batch, and the index entries of the output segment.

Mirrors ``MemoryRecords.filterTo``, ``MemoryRecordsBuilder`` and ``DefaultRecord.writeTo``, byte for byte:

- base offset, last offset delta, producer fields, leader epoch, codec and timestamp type are preserved; batches of magic 0 and
  1 become v2 batches from the first to the last kept record's offset, or keep their magic (``Limits.keep_magic``): the caller
  then builds the wrapper;
- the base timestamp is the delete horizon if the batch has or gets one, else the first kept record's timestamp, and deltas
  are relative to it; the timestamp of every record of a LogAppendTime batch is the batch's max timestamp;
- the max timestamp is the largest of the kept records (LogAppendTime: unchanged);
- record attributes are 0 and varints are as short as possible.

A run of unchanged records is copied at once.

Index entries are those of Kafka's ``LogSegment.append``. If more than the interval was appended since the last entry, the next
batch gets an offset index entry with its last offset and position, and, if the largest timestamp has grown, a time index entry
with the last offset of the first batch that has it.
"""

from __future__ import annotations

import numpy as np

from compaction.formats import record_batch
from compaction.kernels import tables
from compaction.kernels.batches import seal, write_header
from compaction.kernels.bytes import put_bytes, put_record_head, put_varlong, varint, varlong_size
from compaction.kernels.compiling import copy_bytes, inner, kernel
from compaction.kernels.records import OK
from compaction.kernels.retention import BAD_NAMES, CANONICAL, ERASED, filter_records

_TYPE_AND_TXN_BITS = 0x38
BAD_TIMESTAMP = 16
EMPTY_OLD_BATCH = 17
BAD_PRODUCER = 18
REWRITE_ERRORS = {
    BAD_TIMESTAMP: "record has a negative timestamp",
    EMPTY_OLD_BATCH: "batch of magic 0 or 1 loses all records but must keep its header, which only magic 2 can",
    BAD_PRODUCER: "batch is transactional without a producer id, or has a producer id without an epoch or sequence",
}

#: most bytes by which a rewritten record is larger: timestamp delta, offset delta, length
RECORD_GROWTH = 20

#: indexes of ``counters``
(
    MESSAGES_READ, BYTES_READ, MESSAGES_KEPT, BYTES_KEPT, TOMBSTONES_REMOVED, ABORTED_RECORDS, MARKERS_REMOVED, READ_DISCARDED,
) = range(8)  # fmt: skip
COUNTERS = 8


@inner
def _put_tail(out, w, data, pos, stop):
    """Write key, value and headers, ``data[pos:stop]``, with canonical varints at ``out[w:]``. Returns the position after
    them."""
    fields, done = 2, 0
    p = pos
    while done < fields:
        size, p = varint(data, p, stop)
        w = put_bytes(out, w, data, p, max(size, -1))
        p += max(size, 0)
        done += 1
        if done == 2 and fields == 2 and p < stop:
            headers, p = varint(data, p, stop)
            w = put_varlong(out, w, headers)
            fields += 2 * headers
    return w


@inner
def _put_tombstone(out, w, data, tail_at, stop, timestamp_delta, offset_delta):
    """Write a record with new deltas and only the key of the tail ``data[tail_at:stop]`` at ``out[w:]``. Returns the position
    after it."""
    size, p = varint(data, tail_at, stop)
    w = put_record_head(out, w, timestamp_delta, offset_delta, varlong_size(size) + size + 2)
    w = put_bytes(out, w, data, p, size)
    w = put_varlong(out, w, np.int64(-1))
    return put_varlong(out, w, np.int64(0))


@inner
def _put_record(out, w, data, tail_at, stop, timestamp_delta, offset_delta, form):
    """Write a record with new deltas and the tail ``data[tail_at:stop]`` at ``out[w:]``. Returns the position after it."""
    if form == ERASED:
        return _put_tombstone(out, w, data, tail_at, stop, timestamp_delta, offset_delta)
    if form == CANONICAL:
        w = put_record_head(out, w, timestamp_delta, offset_delta, stop - tail_at)
        return copy_bytes(out, w, data, tail_at, stop)
    # write the canonical tail once to get its size, which is at most the original one, then again at its position
    tail_bytes = _put_tail(out, w, data, tail_at, stop) - w
    return _put_tail(out, put_record_head(out, w, timestamp_delta, offset_delta, tail_bytes), data, tail_at, stop)


@inner
def _put_records(out, w, data, kept, n, row, base_offset, base_ts, records_ts):
    """Write the first ``n`` of ``kept`` at ``out[w:]``; ``records_ts`` is the old base timestamp (LogAppendTime: of every
    record). ``(position after them, max timestamp, error)``."""
    # conversion has set the append time of messages of magic 1; messages of magic 0 in the same batch have none
    append_time = row.magic == 2 and row.attributes & record_batch.LOG_APPEND_TIME != 0
    max_ts = np.int64(-1)
    offset_shift = row.base_offset - base_offset
    run_start, run_stop = np.int64(0), np.int64(0)
    for i in range(n):
        timestamp = records_ts if append_time else records_ts + kept[i, 3]
        if timestamp < -1:
            return w, max_ts, BAD_TIMESTAMP
        max_ts = max(max_ts, timestamp)
        if kept[i, 5] == CANONICAL and timestamp - base_ts == kept[i, 3] and offset_shift == 0:
            if run_stop == kept[i, 0] and run_stop > run_start:
                run_stop = kept[i, 1]
                continue
            w = copy_bytes(out, w, data, run_start, run_stop)
            run_start, run_stop = kept[i, 0], kept[i, 1]
            continue
        w = copy_bytes(out, w, data, run_start, run_stop)
        run_start = run_stop = np.int64(0)
        delta = timestamp - base_ts
        w = _put_record(out, w, data, kept[i, 2], kept[i, 1], delta, kept[i, 4] + offset_shift, kept[i, 5])
    return copy_bytes(out, w, data, run_start, run_stop), max_ts, OK


@inner
def _rewrite_batch(out, w, data, row, kept, n, horizon_ms, mtime_only, keeps_end, out_row):
    """Write a batch of the ``n`` kept records at ``out[w:]``: ``(position after it, error)``. ``horizon_ms`` is its new delete
    horizon, -1 for none; with ``mtime_only`` it loses the one that it has. A batch of magic 0 or 1 ends at its last record,
    unless it ``keeps_end``. A batch to be compressed has no CRC yet, and its uncompressed size."""
    append_time = row.attributes & record_batch.LOG_APPEND_TIME != 0
    records_ts = row.max_timestamp if append_time and row.magic == 2 else row.base_timestamp
    attributes = row.attributes & (7 | _TYPE_AND_TXN_BITS | record_batch.DELETE_HORIZON)
    base_ts = row.base_timestamp
    if row.magic < 2:
        attributes &= record_batch.CODEC | record_batch.LOG_APPEND_TIME
    elif attributes & record_batch.DELETE_HORIZON and (base_ts < 0 or mtime_only):
        attributes &= ~record_batch.DELETE_HORIZON
    if horizon_ms >= 0:
        attributes |= record_batch.DELETE_HORIZON
        base_ts = horizon_ms
    elif attributes & record_batch.DELETE_HORIZON == 0:
        base_ts = records_ts if append_time and row.magic == 2 else records_ts + kept[0, 3]
    base_offset, last_offset = row.base_offset, row.last_offset
    if row.magic < 2:
        base_offset = row.base_offset + kept[0, 4]
        last_offset = row.last_offset if keeps_end else row.base_offset + kept[n - 1, 4]
    end, max_ts, error = _put_records(out, w + record_batch.HEADER_SIZE, data, kept, n, row, base_offset, base_ts, records_ts)
    if append_time:
        max_ts = row.max_timestamp
    write_header(out, w, end - w, row, base_offset, last_offset, attributes, base_ts, max_ts, n)
    out_row.start, out_row["size"], out_row.last_offset, out_row.max_timestamp = w, end - w, last_offset, max_ts
    if attributes & record_batch.CODEC:
        out_row.source = tables.TO_COMPRESS
    else:
        out_row.source = tables.BUILT
        seal(out, w, end - w)
    if error == OK and _lacks_producer(row):
        error = BAD_PRODUCER
    return end, error


@inner
def _describe_wrapper(row, kept, n, out_row):
    """Refer to a wrapper of the ``n`` kept records, the first ones of ``kept``; the caller builds it."""
    max_ts = row.max_timestamp
    if row.magic == 0:
        max_ts = np.int64(-1)
    elif row.attributes & record_batch.LOG_APPEND_TIME == 0:
        max_ts = np.int64(-1)
        for i in range(n):
            max_ts = max(max_ts, row.base_timestamp + kept[i, 3])
    out_row.start, out_row["size"], out_row.source = n, 0, tables.WRAPPER
    out_row.last_offset, out_row.max_timestamp = row.base_offset + kept[n - 1, 4], max_ts


@inner
def _any_erased(kept, n):
    """Whether one of the first ``n`` of ``kept`` loses its value."""
    for i in range(n):
        if kept[i, 5] == ERASED:
            return True
    return False


@inner
def _lacks_producer(row):
    """Whether ``MemoryRecordsBuilder.validateProducerState`` would reject the batch."""
    if row.magic < 2:
        return False
    if row.producer_id == -1:
        return row.attributes & record_batch.TRANSACTIONAL != 0
    return row.producer_epoch == -1 or (row.base_sequence < 0 and row.attributes & record_batch.CONTROL == 0)


@inner
def _copy(row, block_position, out_row):
    """Refer to the unchanged batch in its block."""
    out_row.start, out_row["size"], out_row.source = row.position - block_position, row["size"], tables.IN_BLOCK
    out_row.last_offset, out_row.max_timestamp = row.last_offset, row.max_timestamp


@inner
def _write_empty(out, w, row, out_row):
    """Write a header without records (``DefaultRecordBatch.writeEmptyHeader``) at ``out[w:]``. Returns the position after
    it."""
    attributes = row.attributes & _TYPE_AND_TXN_BITS
    write_header(out, w, record_batch.HEADER_SIZE, row, row.base_offset, row.last_offset, attributes, -1, row.max_timestamp, 0)
    seal(out, w, record_batch.HEADER_SIZE)
    out_row.start, out_row["size"], out_row.source = w, record_batch.HEADER_SIZE, tables.BUILT
    out_row.last_offset, out_row.max_timestamp = row.last_offset, row.max_timestamp
    return w + record_batch.HEADER_SIZE


@kernel
def rewrite(
    raw, scratch, rows, spans, actions, verdicts, survivors, limits, new_horizon_ms, first_row, block_position,
    out, out_rows, kept, counters,
):  # fmt: skip
    """Turn ``rows[first_row:]`` into output batches, as many as fit ``out`` and ``kept``.

    :param raw, scratch, spans: as for ``scan_records``; only spans of ``REWRITE`` rows are read
    :param actions: uint8[r] from ``decide``; ``verdicts``, ``survivors``, ``limits`` as for ``decide``
    :param new_horizon_ms: the delete horizon of batches that get one; if negative, they are rewritten without
    :param block_position: position of ``raw[0]`` in the segment
    :param out: uint8[], the rewrite buffer; ``out_rows``: ``OUT_ROW[r]`` to fill; ``kept``: int64[c, 6], scratch space
    :param counters: int64[8], added to
    :returns: ``(next row, output batches, bytes of out used, error)``. After an error, ``next row`` is the corrupt or
        unsupported batch; after ``BAD_NAMES``, it can be rewritten once its header names are repaired. If ``next row`` is
        ``first_row`` without an error, ``out`` or ``kept`` is too small for that batch. After a ``WRAPPER``, the last
        output batch then, ``kept`` has its records
    """
    w, n_out, cursor = 0, 0, 0
    for i in range(first_row, len(rows)):
        row = rows[i]
        if actions[i] == tables.EMPTY and len(out) - w < record_batch.HEADER_SIZE:
            return i, n_out, w, OK
        if actions[i] == tables.REWRITE:
            plain_size = spans[i, 1] - spans[i, 0]
            if (
                len(out) - w < record_batch.HEADER_SIZE + plain_size + RECORD_GROWTH * np.int64(row.count)
                or len(kept) < row.count
            ):
                return i, n_out, w, OK
        discarded = verdicts[i] & tables.DISCARD != 0
        n = 0
        if actions[i] == tables.COPY:
            _copy(row, block_position, out_rows[n_out])
            n = row.count
            n_out += 1
        elif actions[i] == tables.EMPTY:
            w = _write_empty(out, w, row, out_rows[n_out])
            n_out += 1
        elif actions[i] != tables.DROP:
            data = scratch if spans[i, 2] else raw
            n, expired, tombstone, bad_names, cursor, error = filter_records(
                data, spans[i, 0], spans[i, 1], row, verdicts[i], survivors, cursor, limits, kept
            )
            keeps_magic = row.magic < 2 and limits.keep_magic
            gets_horizon = not (limits.mtime_only or keeps_magic or limits.erases)
            gets_horizon &= tombstone or verdicts[i] & tables.MARKER_OF_EMPTY_TXN != 0
            gets_horizon &= row.magic < 2 or row.attributes & record_batch.DELETE_HORIZON == 0
            horizon = np.int64(new_horizon_ms) if gets_horizon else np.int64(-1)
            untouched = n == row.count and not gets_horizon and not (limits.erases_values and _any_erased(kept, n))
            if row.magic < 2 and not limits.erases:
                untouched = untouched and keeps_magic and row.attributes & tables.OTHER_MAGIC_BIT == 0
            if error == OK and bad_names and not untouched and not limits.erases:
                error = BAD_NAMES
            if error != OK:
                return i, n_out, w, error
            counters[TOMBSTONES_REMOVED] += expired
            # the last batch of a log whose last record is erased: the log must not end earlier
            keeps_end = limits.erases and verdicts[i] & tables.RETAIN_EMPTY != 0
            if n > 0 and untouched:
                _copy(row, block_position, out_rows[n_out])
                n_out += 1
            elif n > 0 and keeps_magic and not keeps_end:
                _describe_wrapper(row, kept, n, out_rows[n_out])
                n_out += 1
            elif n > 0:
                w, error = _rewrite_batch(out, w, data, row, kept, n, horizon, limits.mtime_only, keeps_end, out_rows[n_out])
                n_out += 1
            elif verdicts[i] & tables.RETAIN_EMPTY:
                if row.magic < 2 and not limits.erases:
                    return i, n_out, w, EMPTY_OLD_BATCH
                w = _write_empty(out, w, row, out_rows[n_out])
                n_out += 1
            if error != OK:
                return i, n_out, w, error
        counters[BYTES_READ] += row["size"]
        counters[MESSAGES_KEPT] += n
        if not (discarded and verdicts[i] & tables.RETAIN_EMPTY == 0):
            counters[MESSAGES_READ] += row.count
        if discarded:
            counters[MARKERS_REMOVED if row.attributes & record_batch.CONTROL else ABORTED_RECORDS] += row.count
            if verdicts[i] & tables.RETAIN_EMPTY:
                counters[READ_DISCARDED] += row.count
        if n_out and out_rows[n_out - 1].source == tables.WRAPPER:
            return i + 1, n_out, w, OK
    return len(rows), n_out, w, OK


#: indexes of the state between calls
POSITION, SINCE_ENTRY, MAX_TIMESTAMP, MAX_TIMESTAMP_OFFSET, LAST_TIME_ENTRY = range(5)


def new_state(base_offset: int) -> np.ndarray:
    """int64[5]: the state before the first batch of a segment."""
    return np.array([0, 0, -1, base_offset, -1], np.int64)


@kernel
def index_entries(out_rows, interval_bytes, state, offsets, times):
    """Compute the entries of ``out_rows`` (``OUT_ROW[n]``), the segment's next batches: ``(offset entries, time entries)``.

    :param state: int64[5] from ``new_state``, updated
    :param offsets: ``formats.indexes.OFFSET_ROW[n]`` to fill; ``times``: ``TIME_ROW[n]`` to fill
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
