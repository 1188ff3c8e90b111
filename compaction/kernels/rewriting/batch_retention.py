"""Decides about each batch from its header, its verdict and the survivor entries, without reading records.

Mirrors ``MemoryRecords.filterTo`` and ``Cleaner.shouldRetainRecord``. The survivor entries within the offsets of
a v2 batch in one section, clean or dirty, give the number of its retained records and tombstones. The records of other batches
have to be read (``REWRITE``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compaction.formats.record_batch import CONTROL, DELETE_HORIZON
from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.reading.tables import (
    COPY,
    DISCARD,
    DROP,
    DROPPED,
    EMPTY,
    MARKER_OF_EMPTY_TXN,
    OFFSET_SHIFT,
    RETAIN_EMPTY,
    REWRITE,
    TOMBSTONE,
)


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
    bound = np.uint64(offset + 1) << np.uint64(OFFSET_SHIFT)
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
        if not dirty and survivors[k] & np.uint64(DROPPED):
            dropped += 1
        elif survivors[k] & np.uint64(TOMBSTONE):
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
        if verdict & DISCARD:
            kept = 0
        elif limits.erases and row.magic == 2 and row.count == 0:
            actions[i] = COPY
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
            actions[i] = REWRITE
            continue
        else:
            low = _first_at_least(survivors, row.base_offset, cursor)
            high = _first_at_least(survivors, row.last_offset + 1, low)
            cursor = high
            dirty, expire = row.base_offset >= first_dirty, tombstones_expired(row, limits)
            kept, tombstones, expired = _kept(row, survivors, low, high, dirty, expire)
            if limits.erases_values and kept < row.count:
                actions[i] = REWRITE
                continue
        if kept == 0:
            expired_total += expired
            actions[i] = EMPTY if verdict & RETAIN_EMPTY else DROP
        elif kept < row.count or ((tombstones or verdict & MARKER_OF_EMPTY_TXN) and not final):
            actions[i] = REWRITE
        else:
            actions[i] = COPY
    return expired_total
