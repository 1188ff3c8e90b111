"""Compares the batches of ``after`` with their sources.

The rule for a batch ``b`` of ``before`` and its batch ``a`` of ``after``:

* ``b`` is v2: ``a`` has the same base and last offset, leader epoch, producer id and epoch, base sequence, codec (none if ``a``
  is emptied), timestamp type, transactional and control bits. A delete horizon does not change while there are records; a new
  one is ``now + delete.retention.ms``. The max timestamp is that of the retained records, or unchanged. Up to Kafka 3.0 there
  are no new delete horizons, and a rewritten batch loses the one that it has. An erasure sets none.
* ``b`` is v0 or v1: ``a`` is an equal message, or a v2 batch of some of its records with the same codec and timestamp type,
  without producer and leader epoch. Up to Kafka 3.9 it is not a v2 batch but a wrapper of the same magic.

Mirrors ``MemoryRecords.filterTo``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.certifier.checks.log_pair import CleaningRules, Int64s
from compaction.certifier.checks.read_chunks import CODEC, LOG_APPEND_TIME, Chunk
from compaction.certifier.checks.segment_walk import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from compaction.certifier.checks.violations import Findings
from compaction.config.kinds import to_long

_EQUAL = {
    "base_offset": "base offset",
    "leader_epoch": "leader epoch",
    "producer_id": "producer id",
    "producer_epoch": "producer epoch",
    "base_sequence": "base sequence",
}
_FLAGS = {TRANSACTIONAL: "transactional bit", CONTROL: "control bit"}
_NONE = {name: title for name, title in _EQUAL.items() if name != "base_offset"}


def check_batches(before: Chunk, after: Chunk, first: int, end: int, rules: CleaningRules, findings: Findings) -> None:
    """Check rows ``[first, end)`` of ``after``, whose last offsets are within ``before``."""
    rows = after.rows[first:end]
    source_rows = np.searchsorted(before.rows["last_offset"], rows["last_offset"])
    source_rows = np.minimum(source_rows, len(before.rows) - 1)
    source = before.rows[source_rows]
    v2 = source["magic"] >= 2
    _check_v2(source, rows, v2 & (rows["magic"] >= 2), findings)
    _check_converted(source, rows, ~v2 & (rows["magic"] >= 2), findings)
    _check_messages(source, rows, rules, findings)
    largest = _largest_timestamps(after, first, end)
    _check_timestamps(source, rows, largest, rules, findings)
    _check_horizons(source, rows, rules, findings)


def _report(rows: NDArray[np.void], wrong: NDArray[np.bool_], message: str, findings: Findings) -> None:
    findings.add_all(rows["base_offset"][wrong], message)


def _check_v2(source: NDArray[np.void], rows: NDArray[np.void], selected: NDArray[np.bool_], findings: Findings) -> None:
    paired = selected & (source["last_offset"] == rows["last_offset"])
    _report(rows, selected & ~paired, "no batch of the source has this batch's last offset", findings)
    for name, title in _EQUAL.items():
        _report(rows, paired & (source[name] != rows[name]), f"{title} of the batch differs", findings)
    changed = source["attributes"] ^ rows["attributes"]
    for bit, title in _FLAGS.items():
        _report(rows, paired & ((changed & bit) != 0), f"{title} of the batch differs", findings)
    _check_form(changed, rows, paired, findings)


def _check_form(changed: NDArray[np.int16], rows: NDArray[np.void], selected: NDArray[np.bool_], findings: Findings) -> None:
    emptied = (rows["count"] == 0) & ((rows["attributes"] & CODEC) == 0)
    _report(rows, selected & ((changed & CODEC) != 0) & ~emptied, "codec of the batch differs", findings)
    _report(rows, selected & ((changed & LOG_APPEND_TIME) != 0), "timestamp type of the batch differs", findings)


def _check_converted(source: NDArray[np.void], rows: NDArray[np.void], selected: NDArray[np.bool_], findings: Findings) -> None:
    for name, title in _NONE.items():
        _report(rows, selected & (rows[name] != -1), f"batch has a {title}, its source has none", findings)
    attributes = np.where(source["magic"] == 0, source["attributes"] & CODEC, source["attributes"] & (CODEC | LOG_APPEND_TIME))
    changed = (attributes ^ rows["attributes"]).astype(np.int16)
    _check_form(changed, rows, selected, findings)
    flagged = selected & ((rows["attributes"] & (TRANSACTIONAL | CONTROL)) != 0)
    _report(rows, flagged, "batch is transactional or a control batch, its source is not", findings)


def _check_messages(source: NDArray[np.void], rows: NDArray[np.void], rules: CleaningRules, findings: Findings) -> None:
    """Check rows of magic 0 and 1, and whether these became v2 though they must not."""
    old = rows["magic"] < 2
    same_magic = source["magic"] == rows["magic"]
    same = same_magic & (source["size"] == rows["size"])
    if rules.keeps_magic:
        wrapper = same_magic & ((rows["attributes"] & CODEC) != 0)
        same |= wrapper & (((source["attributes"] ^ rows["attributes"]) & (CODEC | LOG_APPEND_TIME)) == 0)
        # an emptied batch has no message
        became_v2 = (source["magic"] < 2) & ~old & (rows["count"] > 0)
        if rules.erases:
            # only v2 retains the end of a log whose last record is erased
            became_v2 &= rows["last_offset"] != source["last_offset"]
        _report(rows, became_v2, "message became v2", findings)
    _report(rows, old & ~same, "magic or size of the message differs", findings)


def _largest_timestamps(after: Chunk, first: int, end: int) -> Int64s:
    """The largest timestamp of each batch's records, the smallest int64 if it has none: int64[end - first]."""
    largest = np.full(len(after.rows), np.iinfo(np.int64).min)
    np.maximum.at(largest, after.records["batch"], after.records["timestamp"])
    return largest[first:end]


def _check_timestamps(
    source: NDArray[np.void], rows: NDArray[np.void], largest: Int64s, rules: CleaningRules, findings: Findings
) -> None:
    # under log append time records have the timestamp of their batch; record_checks compares it
    unchanged = rows["max_timestamp"] == source["max_timestamp"]
    if rules.several_rounds:
        # an earlier round has retained records of the batch, and their largest timestamp
        unchanged |= rows["count"] == 0
    _report(
        rows, ~unchanged & (rows["max_timestamp"] != largest), "max timestamp of the batch is not that of any record", findings
    )
    empty_or_append = (rows["count"] == 0) | ((rows["attributes"] & LOG_APPEND_TIME) != 0)
    # what retains all records and gets no delete horizon is copied with the max timestamp of its source, be that too low
    copied = np.logical_and.reduce([rows[name] == source[name] for name in ("magic", "attributes", "count")])
    low = (rows["magic"] >= 2) & ~empty_or_append & ~copied & (rows["max_timestamp"] < largest)
    _report(rows, low & unchanged, "max timestamp of the batch is below that of a record", findings)
    changed = (rows["magic"] >= 2) & (source["magic"] >= 2) & (rows["count"] == 0) & ~unchanged
    _report(rows, changed, "max timestamp of the emptied batch differs", findings)


def _check_horizons(source: NDArray[np.void], rows: NDArray[np.void], rules: CleaningRules, findings: Findings) -> None:
    old_horizon = (source["magic"] >= 2) & ((source["attributes"] & DELETE_HORIZON) != 0)
    new_horizon = (rows["magic"] >= 2) & ((rows["attributes"] & DELETE_HORIZON) != 0)
    if rules.erases:
        _report(rows, new_horizon & ~old_horizon, "batch has a delete horizon, its source has none", findings)
        new_horizon = new_horizon & old_horizon
    if rules.mtime_only:
        _report(rows, new_horizon & ~old_horizon, "delete horizon in a log of a Kafka without them", findings)
        old_horizon = old_horizon & new_horizon
    _report(rows, old_horizon & ~new_horizon & (rows["count"] > 0), "delete horizon was removed", findings)
    moved = old_horizon & new_horizon & (source["base_timestamp"] != rows["base_timestamp"])
    _report(rows, moved, "delete horizon was changed", findings)
    horizon_ms = rules.now_ms + rules.delete_retention_ms
    if rules.exact and not rules.several_rounds:
        # a sum that wraps to a negative one sets no horizon
        wrong = rows["base_timestamp"] != to_long(horizon_ms)
    else:
        wrong = rows["base_timestamp"] > horizon_ms
    if not rules.mtime_only:
        _report(rows, new_horizon & ~old_horizon & wrong, "new delete horizon is not that of the round", findings)
