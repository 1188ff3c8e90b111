"""Counts how often each key occurs: key hash -> count, with the 24-byte slots of the offset map."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import kernel
from compaction.kernels.keys.offset_map import SlotTable, find_slot
from compaction.kernels.reading.tables import ENTRY_BYTES, ENTRY_WORDS

_LOAD = 0.7


@kernel
def _add(table, entries, once):
    """Add uint64[n, 3] ``entries`` to uint64[slots, 3] ``table``, which must have free slots. Each entry counts 1 with
    ``once``, else its third word. Returns the number of new keys."""
    slots = np.uint64(len(table))
    added = 0
    for i in range(len(entries)):
        low, high = entries[i, 0], entries[i, 1]
        slot, count = find_slot(table, low, high, slots)
        if count == 0:
            table[slot, 0], table[slot, 1] = low, high
            added += 1
        table[slot, 2] = count + (np.uint64(1) if once else entries[i, 2])
    return added


@kernel
def put_until_full(table, entries, at, used, most):
    """Put the keys of uint64[n, 3] ``entries[at:]`` into ``table`` until it holds ``most`` keys: ``(next entry, keys held)``.

    As in Kafka's cleaner, an entry is not looked up in a full map, so it ends the round even if the map holds its key.
    """
    slots = np.uint64(len(table))
    for i in range(at, len(entries)):
        if used >= most:
            return i, used
        low, high = entries[i, 0], entries[i, 1]
        slot, count = find_slot(table, low, high, slots)
        if count == 0:
            table[slot, 0], table[slot, 1], table[slot, 2] = low, high, 1
            used += 1
    return len(entries), used


def new_table(keys: int) -> NDArray[np.uint64]:
    """An empty table for ``keys`` keys, uint64[slots, 3]."""
    return np.zeros((int(keys / _LOAD) + 2, ENTRY_WORDS), np.uint64)


class KeyCounts(SlotTable):
    """Counts keys in at most ``buffer_bytes`` of memory, or in less if ``expected_keys`` (an upper bound) need less."""

    def __init__(self, buffer_bytes: int, expected_keys: int) -> None:
        most = max(4, int(buffer_bytes // ENTRY_BYTES * _LOAD))
        table = new_table(min(most, max(expected_keys, 1)))
        super().__init__(table, int(len(table) * _LOAD))

    def add(self, entries: NDArray[np.uint64], *, once: bool) -> None:
        """Add uint64[n, 3] ``entries``: map entries, each of one record, with ``once``; else the slots of another table."""
        self.require(len(entries))
        self._used += _add(self.slots, entries, once)
