"""The offset map: key hash -> highest offset, with 24-byte slots and linear probing (Kafka 4.4.0: ``SkimpyOffsetMap``).

A map holds at most ``slots * load_factor`` keys. Probing starts at the low half of a key's hash, scaled to the number of slots.
Kafka hashes with MD5, this map with SipHash under a secret of the run; two keys share a hash once in 2^128 pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.compiling.native import prefetch
from compaction.kernels.reading.tables import ENTRY_BYTES, ENTRY_WORDS, OFFSET_SHIFT

#: how many entries before its use a slot is prefetched
_PREFETCH_DISTANCE = 12
_CACHE_LINE = 64
_MIN_SLOTS = 4
_WORD_BYTES = 8
_MAX_SLOTS = (1 << 32) - 1
#: load of a table that holds all expected keys, if the buffer is large enough: keeps probing short
_TARGET_LOAD = 0.6
#: memory of an arena is released if the next table needs less than half of it, and it is larger than this
_SHRINK = 2
_KEPT_BYTES = 16 << 20


@inner
def _first_slot(low, slots):
    """The slot at which probing for a key starts; ``slots`` is below 2^32."""
    return (low >> np.uint64(32)) * slots >> np.uint64(32)


@inner
def find_slot(table, low, high, slots):
    """``(slot, third word)`` of a key in uint64[slots, 3] ``table``; of an absent key the empty slot that it would take, and
    0."""
    slot = _first_slot(low, slots)
    held = table[slot, 2]
    while held != 0 and (table[slot, 0] != low or table[slot, 1] != high):
        slot = slot + np.uint64(1) if slot + np.uint64(1) < slots else np.uint64(0)
        held = table[slot, 2]
    return slot, held


@inner
def _prefetch_slot(base, low, slots):
    """Prefetch the key's first slot and the cache line after its beginning: a slot may span two, and probing goes on there."""
    first = np.uintp(base + _first_slot(low, slots) * np.uint64(ENTRY_BYTES))
    prefetch(first)
    prefetch(np.uintp(first + np.uint64(_CACHE_LINE)))


@kernel
def _put(table, entries, insert):
    """Put uint64[n, 3] ``entries`` into uint64[slots, 3] ``table``, keeping each key's highest offset. Returns the number of
    new keys. With ``insert`` they are inserted, and ``table`` must have free slots; else their entries are moved to the
    front."""
    slots = np.uint64(len(table))
    base = np.uint64(table.ctypes.data)
    new = 0
    for i in range(min(_PREFETCH_DISTANCE, len(entries))):
        _prefetch_slot(base, entries[i, 0], slots)
    for i in range(len(entries)):
        if i + _PREFETCH_DISTANCE < len(entries):
            _prefetch_slot(base, entries[i + _PREFETCH_DISTANCE, 0], slots)
        low, high, offset_word = entries[i, 0], entries[i, 1], entries[i, 2]
        slot, held = find_slot(table, low, high, slots)
        if held == 0:
            if insert:
                table[slot, 0], table[slot, 1], table[slot, 2] = low, high, offset_word
            else:
                entries[new, 0], entries[new, 1], entries[new, 2] = low, high, offset_word
            new += 1
        elif offset_word >> np.uint64(OFFSET_SHIFT) > held >> np.uint64(OFFSET_SHIFT):
            table[slot, 2] = offset_word
    return new


@kernel
def _superseded(table, lookups, result):
    """Fill bool[n] ``result``: whether ``table`` holds a higher offset for the key of each of uint64[n, 3] ``lookups``."""
    slots = np.uint64(len(table))
    base = np.uint64(table.ctypes.data)
    for i in range(len(lookups)):
        if i + _PREFETCH_DISTANCE < len(lookups):
            _prefetch_slot(base, lookups[i + _PREFETCH_DISTANCE, 0], slots)
        _, held = find_slot(table, lookups[i, 0], lookups[i, 1], slots)
        result[i] = held >> np.uint64(OFFSET_SHIFT) > lookups[i, 2] >> np.uint64(OFFSET_SHIFT)


@kernel
def _by_shard(entries, shards, starts, fill, out):
    """Copy the non-empty rows of uint64[n, 3] ``entries`` to ``out`` (of the same shape), ordered by shard.

    :param starts: int64[shards + 1], zeros, to fill: the first row of each shard, and the number of rows
    :param fill: int64[shards], scratch space
    """
    for i in range(len(entries)):
        if entries[i, 2] != 0:
            starts[((entries[i, 1] >> np.uint64(32)) * shards >> np.uint64(32)) + np.uint64(1)] += 1
    for s in range(len(fill)):
        fill[s] = starts[s]
        starts[s + 1] += starts[s]
    for i in range(len(entries)):
        if entries[i, 2] != 0:
            s = (entries[i, 1] >> np.uint64(32)) * shards >> np.uint64(32)
            at = fill[s]
            out[at, 0], out[at, 1], out[at, 2] = entries[i, 0], entries[i, 1], entries[i, 2]
            fill[s] = at + 1


@kernel
def _by_bound(survivors, bounds, edges, fill, part_of, out):
    """Copy uint64[n] ``survivors`` to ``out``, ordered by part; see ``by_bound``.

    :param fill: int64[b + 1], scratch space, as is int32[n] ``part_of``
    """
    for i in range(len(survivors)):
        low, high = 0, len(bounds)
        while low < high:
            middle = (low + high) >> 1
            if bounds[middle] <= survivors[i]:
                low = middle + 1
            else:
                high = middle
        part_of[i] = low
        edges[low + 1] += 1
    for k in range(len(fill)):
        fill[k] = edges[k]
        edges[k + 1] += edges[k]
    for i in range(len(survivors)):
        at = fill[part_of[i]]
        out[at] = survivors[i]
        fill[part_of[i]] = at + 1


# arrays are allocated outside of the kernels: each kind of allocation takes as long to compile as a kernel


def by_bound(survivors: NDArray[np.uint64], bounds: NDArray[np.uint64], edges: NDArray[np.int64]) -> NDArray[np.uint64]:
    """``survivors`` (uint64[n]) ordered by part: part 0 has those below ``bounds[0]`` (uint64[b], ascending), part ``k`` those
    from ``bounds[k - 1]`` on. Fills int64[b + 2] ``edges`` (zeros) with the start of each part, and ``n``."""
    ordered = np.empty(len(survivors), np.uint64)
    _by_bound(survivors, bounds, edges, np.empty(len(bounds) + 1, np.int64), np.empty(len(survivors), np.int32), ordered)
    return ordered


def by_shard(entries: NDArray[np.uint64], shards: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """``entries`` (uint64[n, 3], empty slots allowed) ordered by shard, and int64[shards + 1] bounds.

    A key's shard is the high half of its hash, scaled to ``shards``: all tasks assign a key to the same shard.
    """
    if shards == 1:
        held = entries[entries[:, 2] != 0]
        return held, np.array([0, len(held)])
    starts = np.zeros(shards + 1, np.int64)
    ordered = np.empty((len(entries), ENTRY_WORDS), np.uint64)
    _by_shard(entries, np.uint64(shards), starts, np.empty(shards, np.int64), ordered)
    return ordered[: starts[-1]], starts


class Arena:
    """Memory that successive maps reuse: page faults are the main cost of a large new table. Memory of a much larger map than
    the next one is released: that task is done, and its worker needs memory for something else."""

    def __init__(self, words: int = ENTRY_WORDS) -> None:
        self._memory = np.empty((0, words), np.uint64)

    def table(self, slots: int) -> NDArray[np.uint64]:
        """An empty table, uint64[slots, words]; invalidates the previous one."""
        held, words = self._memory.shape
        if slots > held or max(slots * _SHRINK, _KEPT_BYTES // (words * _WORD_BYTES)) < held:
            # released first, or both would be held
            self._memory = np.empty((0, words), np.uint64)
            self._memory = np.zeros((slots, words), np.uint64)
            return self._memory
        table = self._memory[:slots]
        table[:, 2] = 0
        return table


class SlotTable:
    """uint64[slots, 3] or more: the halves of a key's hash and a third word, 0 in an empty slot. ``capacity``: most keys that
    it may hold."""

    def __init__(self, slots: NDArray[np.uint64], capacity: int) -> None:
        self.slots, self.capacity = slots, capacity
        self._used = 0

    def __len__(self) -> int:
        """Distinct keys held."""
        return self._used

    def remaining(self) -> int:
        """Number of new keys that still fit."""
        return self.capacity - self._used

    def require(self, entries: int) -> None:
        """:raises ValueError: fewer than ``entries`` new keys still fit"""
        if entries > self.remaining():
            raise ValueError(f"{entries} entries do not fit into a table with {self.remaining()} free slots")

    def clear(self) -> None:
        """Remove all keys, keep the memory."""
        self.slots[:, 2] = 0
        self._used = 0


class SkimpyOffsetMap(SlotTable):
    """Key hash -> highest offset in at most ``buffer_bytes`` of memory. A new map invalidates the previous one of its arena.

    :param buffer_bytes: bound on the slots' memory (``log.cleaner.dedupe.buffer.size``)
    :param load_factor: fraction of the slots that may be filled (``log.cleaner.io.buffer.load.factor``)
    :param expected_keys: upper bound on the number of keys; the map has no more slots than they need
    :param arena: memory of the slots, for callers that use several maps at once; defaults to the process's arena
    """

    #: words of an entry, the memory of the process's maps, and the kernels: another kind of map has others
    words = ENTRY_WORDS
    arena = Arena()
    put_entries = staticmethod(_put)
    look_up = staticmethod(_superseded)

    def __init__(self, buffer_bytes: int, load_factor: float, expected_keys: int, arena: Arena | None = None) -> None:
        limit = min(max(2, buffer_bytes // (self.words * _WORD_BYTES)), _MAX_SLOTS)
        slots = min(limit, max(_MIN_SLOTS, int(expected_keys / min(_TARGET_LOAD, load_factor)) + 2))
        super().__init__((arena or self.arena).table(slots), min(int(slots * load_factor), slots - 1))

    def put(self, entries: NDArray[np.uint64]) -> None:
        """Put uint64[n, 3] ``entries``, keeping the highest offset of each key. ``n`` must not exceed ``remaining()``."""
        self.require(len(entries))
        self._used += self.put_entries(self.slots, entries, True)

    def update(self, entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Put those of uint64[n, 3] ``entries`` whose keys the map holds, and return the others; overwrites ``entries``."""
        return entries[: self.put_entries(self.slots, entries, False)]

    def superseded_by_map(self, lookups: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool[n]: for each of uint64[n, 3] ``lookups``, whether the map holds a higher offset for its key."""
        result = np.empty(len(lookups), np.bool_)
        self.look_up(self.slots, lookups, result)
        return result

    def offset_words(self) -> NDArray[np.uint64]:
        """The offset words of all keys, uint64[n] in no order."""
        words = self.slots[:, 2]
        found: NDArray[np.uint64] = words[words != 0]
        return found
