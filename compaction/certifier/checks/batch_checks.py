"""Holds the batches of ``after`` against those that they come from.

The rule, ``b`` a batch of ``before``, ``a`` the one of ``after``:

* ``b`` of magic 2: ``a`` has the same first and last offset, leader epoch, producer id and epoch, base sequence, codec (none,
  if no record is left), timestamp type, and transactional and control bits. A delete horizon, once set, stays while there are
  records; a new one is ``now + delete.retention.ms``. The largest timestamp is that of the records that are left, or the same.
* ``b`` of magic 0 or 1: ``a`` is an equal message, or a batch of magic 2 over some of its records with the same codec and
  timestamp type, without producer and leader epoch.

Mirrors ``MemoryRecords.filterTo`` (Kafka 4.3.0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.certifier.checks.log_pair import CleaningRules, Findings, Int64s
from compaction.certifier.checks.read_chunks import CODEC, LOG_APPEND_TIME, Chunk
from compaction.certifier.checks.segment_walk import CONTROL, DELETE_HORIZON, TRANSACTIONAL

_EQUAL = {
    "base_offset": "first offset",
    "leader_epoch": "leader epoch",
    "producer_id": "producer id",
    "producer_epoch": "producer epoch",
    "base_sequence": "base sequence",
}
_FLAGS = {TRANSACTIONAL: "transactional bit", CONTROL: "control bit"}
_NONE = {name: title for name, title in _EQUAL.items() if name != "base_offset"}


def check_batches(before: Chunk, after: Chunk, first: int, end: int, rules: CleaningRules, findings: Findings) -> None:
    """Rows ``[first, end)`` of ``after``, which end within the offsets of ``before``."""
    rows = after.rows[first:end]
    at = np.searchsorted(before.rows["last_offset"], rows["last_offset"])
    at = np.minimum(at, len(before.rows) - 1)
    source = before.rows[at]
    modern = source["magic"] >= 2
    _check_modern(source, rows, modern & (rows["magic"] >= 2), findings)
    _check_legacy(source, rows, ~modern & (rows["magic"] >= 2), findings)
    same = (source["magic"] == rows["magic"]) & (source["size"] == rows["size"])
    _say(rows, (rows["magic"] < 2) & ~same, "batch has a magic or size that it had not", findings)
    largest = _largest_timestamps(after, first, end)
    _check_timestamps(source, rows, largest, findings)
    _check_horizons(source, rows, rules, findings)


def _say(rows: NDArray[np.void], wrong: NDArray[np.bool_], what: str, findings: Findings) -> None:
    findings.add_all(rows["base_offset"][wrong], what)


def _check_modern(source: NDArray[np.void], rows: NDArray[np.void], some: NDArray[np.bool_], findings: Findings) -> None:
    known = some & (source["last_offset"] == rows["last_offset"])
    _say(rows, some & ~known, "batch ends at an offset where none ended", findings)
    for name, title in _EQUAL.items():
        _say(rows, known & (source[name] != rows[name]), f"{title} of the batch differs", findings)
    changed = source["attributes"] ^ rows["attributes"]
    for bit, title in _FLAGS.items():
        _say(rows, known & ((changed & bit) != 0), f"{title} of the batch differs", findings)
    _check_form(changed, rows, known, findings)


def _check_form(changed: NDArray[np.int16], rows: NDArray[np.void], some: NDArray[np.bool_], findings: Findings) -> None:
    emptied = (rows["count"] == 0) & ((rows["attributes"] & CODEC) == 0)
    _say(rows, some & ((changed & CODEC) != 0) & ~emptied, "codec of the batch differs", findings)
    _say(rows, some & ((changed & LOG_APPEND_TIME) != 0), "timestamp type of the batch differs", findings)


def _check_legacy(source: NDArray[np.void], rows: NDArray[np.void], some: NDArray[np.bool_], findings: Findings) -> None:
    for name, title in _NONE.items():
        _say(rows, some & (rows[name] != -1), f"{title} of the batch was made up", findings)
    attributes = np.where(source["magic"] == 0, source["attributes"] & CODEC, source["attributes"] & (CODEC | LOG_APPEND_TIME))
    changed = (attributes ^ rows["attributes"]).astype(np.int16)
    _check_form(changed, rows, some, findings)
    _say(rows, some & ((rows["attributes"] & (TRANSACTIONAL | CONTROL)) != 0), "flags of the batch were made up", findings)


def _largest_timestamps(after: Chunk, first: int, end: int) -> Int64s:
    """Of each batch the largest of its records, the smallest int64 without any."""
    largest = np.full(len(after.rows), np.iinfo(np.int64).min)
    np.maximum.at(largest, after.records["batch"], after.records["timestamp"])
    return largest[first:end]


def _check_timestamps(source: NDArray[np.void], rows: NDArray[np.void], largest: Int64s, findings: Findings) -> None:
    # with log append time the records take theirs from the batch, and are compared themselves
    kept = rows["max_timestamp"] == source["max_timestamp"]
    _say(rows, ~kept & (rows["max_timestamp"] != largest), "largest timestamp of the batch is that of no record", findings)
    empty_or_append = (rows["count"] == 0) | ((rows["attributes"] & LOG_APPEND_TIME) != 0)
    low = (rows["magic"] >= 2) & ~empty_or_append & (rows["max_timestamp"] < largest)
    _say(rows, low & kept, "largest timestamp of the batch is below a record's", findings)
    changed = (rows["magic"] >= 2) & (source["magic"] >= 2) & (rows["count"] == 0) & ~kept
    _say(rows, changed, "largest timestamp of the emptied batch differs", findings)


def _check_horizons(source: NDArray[np.void], rows: NDArray[np.void], rules: CleaningRules, findings: Findings) -> None:
    had = (source["magic"] >= 2) & ((source["attributes"] & DELETE_HORIZON) != 0)
    has = (rows["magic"] >= 2) & ((rows["attributes"] & DELETE_HORIZON) != 0)
    _say(rows, had & ~has & (rows["count"] > 0), "delete horizon is gone", findings)
    moved = had & has & (source["base_timestamp"] != rows["base_timestamp"])
    _say(rows, moved, "delete horizon was moved", findings)
    horizon_ms = rules.now_ms + rules.delete_retention_ms
    if rules.exact and not rules.several_rounds:
        wrong = rows["base_timestamp"] != horizon_ms
    else:
        wrong = rows["base_timestamp"] > horizon_ms
    _say(rows, has & ~had & wrong, "new delete horizon is not that of the round", findings)
