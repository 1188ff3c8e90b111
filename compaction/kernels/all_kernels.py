"""Compiles all kernels before their first use. A kernel is compiled, or loaded from the cache, on its first call: here it is
called with empty arrays.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compaction.formats.indexes import OFFSET_ROW, TIME_ROW
from compaction.kernels import backup_records, batches, columns, keys, locate, messages, records, retention, rewrite, slot_table
from compaction.kernels.cache import note_all_compiled
from compaction.kernels.tables import BATCH_ROW, ENTRY_WORDS, OUT_ROW


def _empty(kind: Any, *shape: int) -> NDArray[Any]:
    return np.zeros(shape or 0, kind)


def _rows() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.void], NDArray[np.int64]]:
    return _empty(np.uint8), _empty(np.uint8), _empty(BATCH_ROW), _empty(np.int64, 0, 3)


def scan() -> None:
    """Finding v2 batches, for planning and all readers."""
    batches.scan_batches(_empty(np.uint8), 0, check_crc=True)
    batches.fold_heads(_empty(np.uint8), 0, _empty(BATCH_ROW), _empty(np.uint64, 2))
    batches.walk_headers(-1, 0, 0, batches.header_buffer(), _empty(BATCH_ROW))


def first_pass() -> None:
    entries, secret = _empty(np.uint64, 0, ENTRY_WORDS), keys.HashSecret(0, 0).state()
    counters = _empty(np.int64, len(records.RECORD_ERRORS))
    records.scan_records(*_rows(), _empty(np.uint8), 0, 0, entries, entries, _empty(np.int32), counters, secret)
    offset_map = slot_table.SlotTable(slot_table.OFFSETS, 0, 1.0, 0)
    offset_map.put(entries)
    offset_map.superseded(entries)


def matches() -> None:
    located, chosen, secret = _empty(np.uint64, 0, ENTRY_WORDS), _empty(np.bool_), keys.HashSecret(0, 0)
    counters = _empty(np.int64, len(records.RECORD_ERRORS))
    records.locate_keys(*_rows(), chosen, 0, located, _empty(np.int32), counters)
    keys.KeySet.of(_empty(np.int64, 1), _empty(np.uint8), secret).match(located, secret, chosen)
    keys.unmatch_tombstones(located, chosen)
    keys.copy_keys(located, chosen, _empty(np.int32, 1), _empty(np.uint8))


def large_logs() -> None:
    """Both passes over large logs: maps with several shards, groups with several output parts, filters of lookups."""
    entries, survivors = _empty(np.uint64, 0, ENTRY_WORDS), _empty(np.uint64)
    slot_table.by_shard(entries, 2)
    slot_table.SlotTable(slot_table.OFFSETS, 0, 1.0, 0).update(entries)
    filtered = keys.KeyFilter.sized(0, 0)
    filtered.add(entries)
    filtered.prune(entries, 0)
    slot_table.by_bound(survivors, survivors, _empty(np.int64, 2))


def second_pass() -> None:
    block, scratch, rows, spans = _rows()
    survivors, limits, numbers = _empty(np.uint64), retention.Limits(0, 0, 0, False), _empty(np.uint8)
    retention.decide(rows, numbers, survivors, limits, numbers)
    batches.first_bad_crc(block, 0, rows, numbers != 0)
    out, kept, counters = _empty(OUT_ROW), _empty(np.int64, 0, 6), _empty(np.int64, rewrite.COUNTERS)
    rewrite.rewrite(block, scratch, rows, spans, numbers, numbers, survivors, limits, 0, 0, 0, block, out, kept, counters)
    rewrite.index_entries(out, 0, rewrite.new_state(0), _empty(OFFSET_ROW), _empty(TIME_ROW))


def markers() -> None:
    batches.read_control_types(_empty(np.uint8), 0, _empty(BATCH_ROW))


def v0_v1() -> None:
    """Reading messages of magic 0 and 1."""
    block, scratch, rows, spans = _rows()
    batches.scan_messages(block, 0, True, rows, 0, 0)
    messages.plain_messages(block, 0, rows, 0, scratch, spans)
    payload, fields = _empty(np.uint8, 34), messages.WrapperFields(1, 0, 0, False)
    messages.measure_messages(payload, fields)
    messages.wrapped_records(payload, 0, 0, fields, scratch, 0)
    messages.filter_messages(payload, 0, 0, fields, _empty(np.int64, 1), scratch)


def record_sizes() -> None:
    _, scratch, rows, spans = _rows()
    records.first_larger(scratch, rows, spans, _empty(np.bool_), 0)


def comparison() -> None:
    counted, ages = _empty(np.int64, 1, retention.COLUMNS), _empty(np.int64, 2, retention.COLUMNS)
    limits, frame, numbers = retention.Limits(0, 0, 0, False), retention.LogRange(0, 1, 0), _empty(np.uint8)
    retention.tally(*_rows(), numbers, numbers, _empty(np.uint64), limits, frame, _empty(np.int64), counted, ages)


def source() -> None:
    fields, bounds, sizes = columns.KEYS | columns.VALUES | columns.HEADERS, _empty(np.int64, 4), _empty(np.int64, 6)
    columns.measure_records(*_rows(), bounds, fields, _empty(np.int32), sizes)
    columns.fill_columns(*_rows(), bounds, fields, columns.new_columns(sizes, fields))


def backup_sets() -> None:
    data, fields = _empty(np.uint8), columns.KEYS | columns.VALUES | columns.HEADERS
    backup_records.batches_of_backup(data, 0, 0, data, _empty(np.int64, 4))
    backup_records.put_backup_records(columns.new_columns(_empty(np.int64, 6), fields), 0, data)


def certifier() -> None:
    data, rows, numbers, records = _empty(np.uint8), _empty(BATCH_ROW), _empty(np.int64), _empty(locate.RECORD_ROW)
    locate.locate_records(data, rows, numbers, numbers, records)
    locate.locate_messages(data, rows, numbers, numbers, records)
    locate.compare_records(records, data, records, data, numbers, data)
    locate.gather_keys(data, records, _empty(np.int32, 1), data)
    locate.assign_parts(_empty(np.int32, 1), data, 0, 1, _empty(np.int32))


def dumping() -> None:
    records.locate_fields(np.frombuffer(b"", np.uint8), 0, 0, 0, 0, _empty(np.int64, 0, records.COLUMNS))


_WORK = (
    scan, first_pass, second_pass, matches, large_logs, markers, v0_v1, record_sizes, comparison, source,
    backup_sets, certifier, dumping,
)  # fmt: skip


def compile_all() -> None:
    """Compile the kernels that are not cached, in a process of its own. The compiler's objects live until its end, and garbage
    collection would take a tenth of the time, so it is disabled."""
    gc.disable()
    for call_kernels in _WORK:
        call_kernels()
    note_all_compiled()
