"""How often each key occurs: key hash -> count, 24 bytes a slot, laid out as the slots of the offset map are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import kernel
from compaction.kernels.reading.tables import ENTRY_BYTES, ENTRY_WORDS

_LOAD = 0.7


@kernel
def _add(table, entries, once):
    """Add uint64[n, 3] ``entries`` to uint64[slots, 3] ``table`` (which must have room); keys added. ``once``: each counts 1,
    whatever its third word is."""
    mask = np.uint64(len(table) - 1)
    added = 0
    for i in range(len(entries)):
        low, high = entries[i, 0], entries[i, 1]
        count = np.uint64(1) if once else entries[i, 2]
        slot = low & mask
        while table[slot, 2] != 0 and (table[slot, 0] != low or table[slot, 1] != high):
            slot = (slot + np.uint64(1)) & mask
        if table[slot, 2] == 0:
            table[slot, 0], table[slot, 1] = low, high
            added += 1
        table[slot, 2] += count
    return added


@kernel
def put_until_full(table, entries, at, used, most):
    """Take the keys of uint64[n, 3] ``entries[at:]`` into ``table`` as long as it holds fewer than ``most`` of them.

    ``(next entry, keys held)``: as in Kafka's cleaner, an entry that meets a full map is not looked up, so that it ends the
    round even where its key is held.
    """
    mask = np.uint64(len(table) - 1)
    for i in range(at, len(entries)):
        if used >= most:
            return i, used
        low, high = entries[i, 0], entries[i, 1]
        slot = low & mask
        while table[slot, 2] != 0 and (table[slot, 0] != low or table[slot, 1] != high):
            slot = (slot + np.uint64(1)) & mask
        if table[slot, 2] == 0:
            table[slot, 0], table[slot, 1], table[slot, 2] = low, high, 1
            used += 1
    return len(entries), used


def new_table(keys: int) -> NDArray[np.uint64]:
    """uint64[slots, 3]: an empty table for so many keys; slots are a power of two."""
    slots = 4
    while slots * _LOAD < keys:
        slots *= 2
    return np.zeros((slots, ENTRY_WORDS), np.uint64)


class KeyCounts:
    """Counts keys in at most ``buffer_bytes`` of memory; ``expected_keys`` at most will come, so that fewer may do."""

    def __init__(self, buffer_bytes: int, expected_keys: int) -> None:
        most = max(4, int(buffer_bytes // ENTRY_BYTES * _LOAD))
        self._table = new_table(min(most, max(expected_keys, 1)))
        self._used = 0

    def __len__(self) -> int:
        """Distinct keys held."""
        return self._used

    @property
    def slots(self) -> NDArray[np.uint64]:
        """uint64[slots, 3]: hash and count; an empty one has count 0."""
        return self._table

    def room(self) -> int:
        """Keys that surely still fit."""
        return int(len(self._table) * _LOAD) - self._used

    def add(self, entries: NDArray[np.uint64], *, once: bool) -> None:
        """Take uint64[n, 3] ``entries``: ``once`` for map entries, of which each is one record, else for other maps' slots."""
        if len(entries) > self.room():
            raise ValueError(f"{len(entries)} entries do not fit into counts with room for {self.room()}")
        self._used += _add(self._table, entries, once)

    def clear(self) -> None:
        """Forget all keys, keep the memory."""
        self._table[:, 2] = 0
        self._used = 0
