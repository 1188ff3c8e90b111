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


_BYTES, _BOOLS, _INTS, _LONGS, _WORDS = map(_empty, (np.uint8, np.bool_, np.int32, np.int64, np.uint64))
_ROWS, _OUT, _LOCATED = map(_empty, (BATCH_ROW, OUT_ROW, locate.RECORD_ROW))
_ENTRIES, _COUNTERS, _INT = _empty(np.uint64, 0, ENTRY_WORDS), _empty(np.int64, 8), _empty(np.int32, 1)
_DECODED = _BYTES, _BYTES, _ROWS, _empty(np.int64, 0, 3)
_SECRET, _LIMITS, _KEPT = keys.HashSecret(0, 0), retention.Limits(0, 0, 0, False), _empty(np.int64, 0, 6)
_COUNTS = _empty(np.int64, 2, retention.COLUMNS)
_TABLE, _FILTER = slot_table.SlotTable(slot_table.OFFSETS, 0, 1.0, 0), keys.KeyFilter.sized(0, 0)
_MESSAGES, _FIELDS = _empty(np.uint8, 34), messages.WrapperFields(1, 0, 0, False)
_ALL = columns.KEYS | columns.VALUES | columns.HEADERS
_COLUMNS = columns.new_columns(_empty(np.int64, 6), _ALL)

#: kernels, or functions that call one, each with its arguments
_CALLS: tuple[tuple[Any, ...], ...] = (
    # all readers
    (batches.scan_v2, _BYTES, 0, True, _ROWS, 0, 0),
    (batches.fold_heads, _BYTES, 0, _ROWS, _empty(np.uint64, 2)),
    (batches.walk_headers, -1, 0, 0, batches.header_buffer(), _ROWS),
    (batches.read_control_types, _BYTES, 0, _ROWS),
    # the passes
    (records.scan_records, *_DECODED, _BYTES, 0, 0, _ENTRIES, _ENTRIES, _INTS, _COUNTERS, _SECRET.state()),
    (_TABLE.put, _ENTRIES),
    (_TABLE.superseded, _ENTRIES),
    (retention.decide, _ROWS, _BYTES, _WORDS, _LIMITS, _BYTES),
    (batches.first_bad_crc, _BYTES, 0, _ROWS, _BOOLS),
    (rewrite.rewrite, *_DECODED, _BYTES, _BYTES, _WORDS, _LIMITS, 0, 0, 0, _BYTES, _OUT, _KEPT, _COUNTERS),
    (rewrite.index_entries, _OUT, 0, rewrite.new_state(0), _empty(OFFSET_ROW), _empty(TIME_ROW)),
    (records.first_larger, _BYTES, _ROWS, _DECODED[3], _BOOLS, 0),
    # of large logs: several shards and output parts, filters of lookups
    (slot_table.by_shard, _ENTRIES, 2),
    (_TABLE.update, _ENTRIES),
    (_FILTER.add, _ENTRIES),
    (_FILTER.prune, _ENTRIES, 0),
    (slot_table.by_bound, _WORDS, _WORDS, _empty(np.int64, 2)),
    # messages of magic 0 and 1
    (batches.scan_messages, _BYTES, 0, True, _ROWS, 0, 0),
    (messages.plain_messages, _BYTES, 0, _ROWS, 0, _BYTES, _DECODED[3]),
    (messages.measure_messages, _MESSAGES, _FIELDS),
    (messages.wrapped_records, _MESSAGES, 0, 0, _FIELDS, _BYTES, 0),
    (messages.filter_messages, _MESSAGES, 0, 0, _FIELDS, _empty(np.int64, 1), _BYTES),
    # erasure
    (keys.KeySet.of, _empty(np.int64, 1), _BYTES, _SECRET),
    (keys.KeySet(_INT, _empty(np.int64, 1), _BYTES).match, _ENTRIES, _SECRET, _BOOLS),
    (keys.unmatch_tombstones, _ENTRIES, _BOOLS),
    (keys.copy_keys, _ENTRIES, _BOOLS, _INT, _BYTES),
    # dry runs, the data source, exports, the certifier, dump-log
    (retention.tally, *_DECODED, _BYTES, _BYTES, _WORDS, _LIMITS, retention.LogRange(0, 1, 0), _LONGS, _COUNTS, _COUNTS),
    (columns.measure_records, *_DECODED, _empty(np.int64, 4), _ALL, _INTS, _COUNTERS),
    (columns.fill_columns, *_DECODED, _empty(np.int64, 4), _ALL, _COLUMNS),
    (backup_records.batches_of_backup, _BYTES, 0, 0, _BYTES, _empty(np.int64, 4)),
    (backup_records.put_backup_records, _COLUMNS, 0, _BYTES),
    (locate.locate_records, _BYTES, _ROWS, _LONGS, _LONGS, _LOCATED),
    (locate.locate_messages, _BYTES, _ROWS, _LONGS, _LONGS, _LOCATED),
    (locate.compare_records, _LOCATED, _BYTES, _LOCATED, _BYTES, _LONGS, _BYTES),
    (locate.gather_keys, _BYTES, _LOCATED, _INT, _BYTES),
    (locate.assign_parts, _INT, _BYTES, 0, 1, _INTS),
    (records.locate_fields, np.frombuffer(b"", np.uint8), 0, 0, 0, 0, _empty(np.int64, 0, records.COLUMNS)),
)  # fmt: skip


def compile_all() -> None:
    """Compile the kernels that are not cached, in a process of its own. The compiler's objects live until its end, and garbage
    collection would take a tenth of the time, so it is disabled."""
    gc.disable()
    for call, *arguments in _CALLS:
        call(*arguments)
    note_all_compiled()
