"""Maps a key's hash to its newest record and the number of its records, in tables of 32-byte slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import kernel
from compaction.kernels.keys.offset_map import find_slot

#: words of a slot: the halves of the key's hash, the newest offset word, the number of records
LATEST_WORDS = 4
_LOAD = 0.7


@kernel
def _put(table, entries, at, used, most, once):
    """Put ``entries[at:]`` into ``table`` until it holds ``most`` keys: ``(next entry, keys held)``.

    :param table: uint64[slots, 4] with free slots
    :param entries: map entries, uint64[n, 3], each of one record, with ``once``; else slots of another table, uint64[n, 4]
    """
    slots = np.uint64(len(table))
    for i in range(at, len(entries)):
        low, high = entries[i, 0], entries[i, 1]
        slot, newest = find_slot(table, low, high, slots)
        if newest == 0:
            if used >= most:
                return i, used
            table[slot, 0], table[slot, 1], table[slot, 3] = low, high, 0
            used += 1
        table[slot, 2] = max(newest, entries[i, 2])
        table[slot, 3] += np.uint64(1) if once else entries[i, 3]
    return len(entries), used


class LatestTable:
    """Newest record and number of records of at most ``keys`` keys."""

    def __init__(self, keys: int) -> None:
        self._most = max(keys, 1)
        self._slots = np.zeros((int(self._most / _LOAD) + 2, LATEST_WORDS), np.uint64)
        self._used = 0

    def put(self, entries: NDArray[np.uint64], at: int, *, once: bool) -> int:
        """Put entries from ``at`` on; the first one that does not fit, or their number. See ``_put``."""
        next_at, self._used = _put(self._slots, entries, at, self._used, self._most, once)
        return int(next_at)

    def take(self) -> NDArray[np.uint64]:
        """The slots of all keys, uint64[n, 4] in no order; the table is empty afterwards."""
        found: NDArray[np.uint64] = self._slots[self._slots[:, 2] != 0]
        self._slots[:, 2] = 0
        self._used = 0
        return found
