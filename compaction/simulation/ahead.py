"""Goes on after the present: the arrivals of the last days once more, as often as needed.

A copy of the last days has the same records at the same distances. Its keys recur as they did: of the records that were
superseded in the last days, as many of the same age, as far as so many of that age remain, are superseded at the same place of
the copy. Each copy takes the time of all before it, and a log that is much shorter says little of what comes: there are at most
``MOST_COPIES``.
"""

from __future__ import annotations

import numpy as np

from compaction.simulation.arrivals import (
    FIRST_OFFSET,
    FIRST_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LAST_OFFSET,
    NEVER,
    TOMBSTONE,
    Arrivals,
    Cells,
    Int64s,
    cell_keys,
    joined_cells,
)

#: the days that are repeated
WINDOW_MS = 30 * 86_400_000
MOST_COPIES = 100


def window_ms(arrivals_ms: Int64s, now_ms: int) -> int:
    """The length of what is repeated, ms; 0 if nothing is."""
    length_ms = min(WINDOW_MS, now_ms - int(arrivals_ms[0])) if len(arrivals_ms) else 0
    return length_ms if length_ms > 0 and arrivals_ms[-1] > now_ms - length_ms else 0


def continued(arrivals: Arrivals, arrivals_ms: Int64s, now_ms: int, ahead_ms: int) -> tuple[Arrivals, Int64s]:
    """The arrivals and their times, with those of ``ahead_ms`` after ``now_ms``; whole buckets are copied."""
    parts, buckets, cells, count = arrivals.parts, arrivals.buckets, arrivals.cells, len(arrivals_ms)
    length_ms = window_ms(arrivals_ms, now_ms)
    if not length_ms:
        return arrivals, arrivals_ms
    first = int(np.searchsorted(arrivals_ms, now_ms - length_ms, "right"))
    first, starts = int(arrivals.starts[buckets[first]]), np.append(arrivals.starts, count)
    bucket_ms = arrivals_ms[arrivals.starts]
    for copy in range(1, -(-ahead_ms // length_ms) + 1):
        last = first + int(np.searchsorted(arrivals_ms[first:count], now_ms + ahead_ms - copy * length_ms, "right"))
        copied = slice(int(buckets[first]), int(buckets[last - 1]) + 1 if last > first else int(buckets[first]))
        of, start = slice(first, int(starts[copied.stop])), len(bucket_ms)
        arrivals_ms = np.append(arrivals_ms, arrivals_ms[of] + copy * length_ms)
        parts = np.concatenate([parts, _later(parts[of], parts[-1, LAST_OFFSET] + 1, copy * length_ms)])
        buckets = np.append(buckets, arrivals.buckets[of] - copied.start + start)
        bucket_ms = np.append(bucket_ms, bucket_ms[copied] + copy * length_ms)
        cells = _superseding(cells, arrivals.cells, bucket_ms, (copied.start, copied.stop, start), copy * length_ms)
    return arrivals._replace(parts=parts, buckets=buckets, cells=cells), arrivals_ms


def _later(parts: Int64s, offset: int, by_ms: int) -> Int64s:
    copied = parts.copy()
    copied[:, [FIRST_OFFSET, LAST_OFFSET]] += offset - parts[0, FIRST_OFFSET] if len(parts) else 0
    copied[:, [FIRST_TIMESTAMP, LARGEST_TIMESTAMP]] += by_ms
    return copied


def _superseding(cells: Cells, pattern: Cells, bucket_ms: Int64s, copied: tuple[int, int, int], by_ms: int) -> Cells:
    """``cells`` with those of a copy.

    :param pattern: the cells of what is copied
    :param copied: the buckets ``[first, end)`` are copied to those from ``start`` on
    """
    first, end, start = copied
    shift, flags = start - first, pattern.keys & 3
    # the records of the copy; what supersedes them after its end is not in it
    own = (pattern.bucket >= first) & (pattern.bucket < end)
    successor = np.where(pattern.successor[own] < end, pattern.successor[own] + shift, NEVER)
    records = Cells(cell_keys(pattern.bucket[own] + shift, successor, flags[own]), pattern.numbers[own])
    # the older ones that they supersede
    older = (pattern.bucket < first) & (pattern.successor >= first) & (pattern.successor < end)
    place = np.searchsorted(bucket_ms[:start], bucket_ms[pattern.bucket[older]] + by_ms, "right") - 1
    waiting = place * 2 + (flags[older] & TOMBSTONE)
    newest = cells.successor == NEVER
    pool = cells.bucket[newest] * 2 + (cells.keys[newest] & TOMBSTONE)
    available, sizes = (_sums(pool, column, 2 * start) for column in cells.numbers[newest].T)
    wanted = _sums(waiting, pattern.records[older], 2 * start)
    granted = np.divide(np.minimum(wanted, available), wanted, out=np.zeros(2 * start), where=wanted > 0)
    order = np.argsort(waiting, kind="stable")
    # rounded so that the sums are right
    taken = np.diff(np.floor(np.cumsum(pattern.records[older][order] * granted[waiting[order]]) + 1e-6), prepend=0)
    each = np.divide(sizes, available, out=np.zeros(2 * start), where=available > 0)
    numbers = np.stack([taken, np.rint(taken * each[waiting[order]])], axis=1).astype(np.int64)
    keys = cell_keys(place[order], pattern.successor[older][order] + shift, flags[older][order])
    left = cell_keys(place[order], np.full(len(order), NEVER), flags[older][order] & TOMBSTONE)
    joined = joined_cells([cells, records, Cells(keys, numbers), Cells(left, -numbers)])
    present = joined.records > 0
    return Cells(joined.keys[present], joined.numbers[present])


def _sums(index: Int64s, values: Int64s, count: int) -> Int64s:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, index, values)
    return sums
