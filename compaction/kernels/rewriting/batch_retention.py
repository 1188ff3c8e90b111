"""Decides batch by batch what becomes of it, from headers, verdicts and survivor marks alone: no record is read.

Mirrors ``MemoryRecords.filterTo`` and ``Cleaner.shouldRetainRecord`` (Kafka 4.3.0). For a batch of magic 2 that lies wholly in
the dirty or wholly in the clean section, the marks between its offsets tell how many of its records stay and whether a
tombstone is among them; other batches are left to the walk (``REWRITE``).
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.reading.batches import CONTROL_BIT
from compaction.kernels.reading.tables import (
    CANDIDATE,
    COPY,
    DISCARD,
    DROP,
    EMPTY,
    MARKER_OF_EMPTY_TXN,
    OFFSET_SHIFT,
    RETAIN_EMPTY,
    REWRITE,
    TOMBSTONE,
)

HORIZON_BIT = 0x40


@inner
def _first_at_least(marks, offset, at):
    """The first index ``>= at`` whose mark is of ``offset`` or above."""
    bound = np.uint64(offset + 1) << np.uint64(OFFSET_SHIFT)
    step = 1
    low, high = at, at
    while high < len(marks) and marks[high] < bound:
        low = high + 1
        high += step
        step *= 2
    high = min(high, len(marks))
    while low < high:
        middle = (low + high) >> 1
        if marks[middle] < bound:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _kept(row, marks, low, high, dirty, expired):
    """``(records kept, tombstones that stay, tombstones that expire)`` of a batch wholly in one section; its marks are
    ``marks[low:high]``."""
    listed, dropped, tombstones = high - low, 0, 0
    for k in range(low, high):
        if marks[k] & np.uint64(CANDIDATE):
            dropped += 1
        elif marks[k] & np.uint64(TOMBSTONE):
            tombstones += 1
    kept = listed - dropped if dirty else row.count - dropped
    if expired:
        return kept - tombstones, 0, tombstones
    return kept, tombstones, 0


@kernel
def decide(rows, verdicts, marks, limits, actions):
    """Fill ``actions`` (uint8[r]) with ``DROP``, ``COPY``, ``EMPTY`` or ``REWRITE`` for ``rows`` (``BATCH_ROW[r]``); the number
    of expired tombstones in batches that lose all records (``rewrite`` counts those of the others).

    :param verdicts: uint8[r], bits ``DISCARD``, ``RETAIN_EMPTY``, ``MARKER_OF_EMPTY_TXN``
    :param marks: uint64[m], ascending: of the dirty section (offset >= ``first_dirty``) the records that the map keeps; of the
        clean section those that go (``CANDIDATE``) and the tombstones that stay
    :param limits: int64[4]: first dirty offset, latest offset of the map (records past it stay), now (ms), and one for
        ``rewrite``
    """
    first_dirty, latest_offset, now_ms = limits[0], limits[1], limits[2]
    at, expired_total = 0, 0
    for i in range(len(rows)):
        row = rows[i]
        verdict = verdicts[i]
        horizon_set = (row.attributes & HORIZON_BIT) != 0
        tombstones, expired = 0, 0
        if verdict & DISCARD:
            kept = 0
        elif row.attributes & CONTROL_BIT and row.magic == 2:
            kept = row.count
        elif row.magic < 2 or row.last_offset > latest_offset or row.base_offset < first_dirty <= row.last_offset:
            actions[i] = REWRITE
            continue
        else:
            low = _first_at_least(marks, row.base_offset, at)
            high = _first_at_least(marks, row.last_offset + 1, low)
            at = high
            passed = horizon_set and now_ms >= row.base_timestamp
            kept, tombstones, expired = _kept(row, marks, low, high, row.base_offset >= first_dirty, passed)
        if kept == 0:
            expired_total += expired
            actions[i] = EMPTY if verdict & RETAIN_EMPTY else DROP
        elif kept < row.count or ((tombstones or verdict & MARKER_OF_EMPTY_TXN) and not horizon_set):
            actions[i] = REWRITE
        else:
            actions[i] = COPY
    return expired_total
