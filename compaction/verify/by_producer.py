"""Looks up what follows an offset of a producer, for many at once."""

from __future__ import annotations

import numpy as np

from compaction.verify.model import Int64s


def following(producer: Int64s, offset: Int64s, known: Int64s, ends: Int64s) -> Int64s:
    """Of each ``(producer, offset)`` the row of that producer that is the first to end at or past the offset, -1 without one.

    :param producer, offset: int64[m]
    :param known, ends: int64[n], producer and last offset of each row, in any order
    """
    found = np.full(len(offset), -1, np.int64)
    if not len(known) or not len(offset):
        return found
    is_row = np.repeat([0, 1], [len(offset), len(known)]).astype(np.int8)
    order = np.lexsort((is_row, np.concatenate((offset, ends)), np.concatenate((producer, known))))
    place = np.where(is_row[order] == 1, np.arange(len(order)), len(order))
    place = np.minimum.accumulate(place[::-1])[::-1]
    queries = order[is_row[order] == 0]
    at = place[is_row[order] == 0]
    rows = np.where(at < len(order), order[np.minimum(at, len(order) - 1)] - len(offset), -1)
    rows[(rows >= 0) & (known[np.maximum(rows, 0)] != producer[queries])] = -1
    found[queries] = rows
    return found
