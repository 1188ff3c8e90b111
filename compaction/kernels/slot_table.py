"""The offset map and its relatives: tables of slots by the hash of a key, with linear probing.

A slot has the two halves of the hash, a third word that is 0 only in an empty slot, and with some layouts a fourth one:

``OFFSETS``  key -> highest offset word, as Kafka's ``SkimpyOffsetMap``
``COUNTS``   key -> number of its records
``NEWEST``   key -> highest offset word and number of its records
``ENDS``     key -> its first and its last record in some part of a log (``follow``)

Probing starts at the low half of the hash, scaled to the number of slots. Kafka hashes with MD5, these tables with SipHash
under a secret of the run; two keys share a hash once in 2^128 pairs.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling import inner, kernel, prefetch
from compaction.kernels.tables import ENTRY_WORDS, OFFSET_SHIFT

#: number of entries before its use at which a slot is prefetched
_PREFETCH_DISTANCE = 12
_CACHE_LINE = 64
_MIN_SLOTS = 4
_WORD_BYTES = 8
_MAX_SLOTS = (1 << 32) - 1
#: load of a table that holds all expected keys, if the buffer is large enough: keeps probing short
_TARGET_LOAD = 0.6
#: load of a table for a known number of keys
_EXACT_LOAD = 0.7
#: memory of an arena is released if the next table needs less than half of it, and it is larger than this
_SHRINK = 2
_KEPT_BYTES = 16 << 20


OFFSETS, COUNTS, NEWEST, ENDS = range(4)
#: words of a slot by layout
WORDS = (ENTRY_WORDS, ENTRY_WORDS, ENTRY_WORDS + 1, ENTRY_WORDS + 1)


@inner
def _first_slot(low, slots):
    """The slot at which probing for a key starts; ``slots`` is below 2^32."""
    return (low >> np.uint64(32)) * slots >> np.uint64(32)


@inner
def _find_slot(table, low, high, slots):
    """``(slot, third word)`` of a key; of an absent key the empty slot that it would take, and 0."""
    slot = _first_slot(low, slots)
    word = table[slot, 2]
    while word != 0 and (table[slot, 0] != low or table[slot, 1] != high):
        slot = slot + np.uint64(1) if slot + np.uint64(1) < slots else np.uint64(0)
        word = table[slot, 2]
    return slot, word


@inner
def _prefetch_slot(base, slot_bytes, low, slots):
    """Prefetch the key's first slot and the next cache line: a slot may span two, and probing continues there."""
    first = np.uintp(base + _first_slot(low, slots) * slot_bytes)
    prefetch(first)
    prefetch(np.uintp(first + np.uint64(_CACHE_LINE)))


@inner
def _supersedes(word, other_word):
    """Whether the record of an offset word supersedes another one of its key."""
    return word >> np.uint64(OFFSET_SHIFT) > other_word >> np.uint64(OFFSET_SHIFT)


@inner
def _merge(table, slot, old_word, layout, word, fourth):
    if layout == OFFSETS:
        if _supersedes(word, old_word):
            table[slot, 2] = word
    elif layout == COUNTS:
        table[slot, 2] = old_word + word
    else:
        table[slot, 2] = max(old_word, word)
        table[slot, 3] += fourth


@inner
def _value(entries, i, layout, of_records):
    """The third and fourth word that an entry adds to its key's slot."""
    word = entries[i, 2]
    if layout == OFFSETS:
        return word, np.uint64(0)
    if layout == COUNTS:
        return np.uint64(1) if of_records else word, np.uint64(0)
    return word, np.uint64(1) if of_records else entries[i, 3]


@kernel
def _put(table, layout, entries, first, used, capacity, of_records):
    """Put ``entries[first:]`` into ``table`` until it holds ``capacity`` keys: ``(next entry, keys held)``.

    As in Kafka's cleaner, an entry is not looked up in a full map, even if the map may hold its key.

    :param table: uint64[slots, words] with free slots
    :param of_records: whether ``entries`` are map entries of one record each, uint64[n, 3], else slots of another table
    """
    slots, base, slot_bytes = np.uint64(len(table)), np.uint64(table.ctypes.data), np.uint64(table.shape[1] * _WORD_BYTES)
    for i in range(first, min(first + _PREFETCH_DISTANCE, len(entries))):
        _prefetch_slot(base, slot_bytes, entries[i, 0], slots)
    for i in range(first, len(entries)):
        if used >= capacity:
            return i, used
        if i + _PREFETCH_DISTANCE < len(entries):
            _prefetch_slot(base, slot_bytes, entries[i + _PREFETCH_DISTANCE, 0], slots)
        low, high = entries[i, 0], entries[i, 1]
        word, fourth = _value(entries, i, layout, of_records)
        slot, old_word = _find_slot(table, low, high, slots)
        if old_word != 0:
            _merge(table, slot, old_word, layout, word, fourth)
            continue
        used += 1
        table[slot, 0], table[slot, 1], table[slot, 2] = low, high, word
        if table.shape[1] > ENTRY_WORDS:
            table[slot, 3] = fourth
    return len(entries), used


@kernel
def _update(table, layout, entries):
    """Put those of ``entries`` (of the table's width) whose keys ``table`` holds; moves the others to the front, and returns
    their number."""
    slots, base, slot_bytes = np.uint64(len(table)), np.uint64(table.ctypes.data), np.uint64(table.shape[1] * _WORD_BYTES)
    new = 0
    for i in range(min(_PREFETCH_DISTANCE, len(entries))):
        _prefetch_slot(base, slot_bytes, entries[i, 0], slots)
    for i in range(len(entries)):
        if i + _PREFETCH_DISTANCE < len(entries):
            _prefetch_slot(base, slot_bytes, entries[i + _PREFETCH_DISTANCE, 0], slots)
        slot, old_word = _find_slot(table, entries[i, 0], entries[i, 1], slots)
        if old_word != 0:
            word, fourth = _value(entries, i, layout, False)
            _merge(table, slot, old_word, layout, word, fourth)
        else:
            for k in range(entries.shape[1]):
                entries[new, k] = entries[i, k]
            new += 1
    return new


#: flags of the fourth word of ``ENDS``, below the size of the last record: the last record, the first one is a tombstone
LAST_IS_TOMBSTONE, FIRST_IS_TOMBSTONE, SIZE_SHIFT = 1, 2, 2


@kernel
def _follow(table, entries, first, used, capacity, pairs):
    """See ``SlotTable.follow``: ``(next entry, keys held, number of pairs)``."""
    slots, base, slot_bytes = np.uint64(len(table)), np.uint64(table.ctypes.data), np.uint64(table.shape[1] * _WORD_BYTES)
    low_half, high_half = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFF00000000)
    found = 0
    for i in range(first, len(entries)):
        if i + _PREFETCH_DISTANCE < len(entries):
            _prefetch_slot(base, slot_bytes, entries[i + _PREFETCH_DISTANCE, 0], slots)
        slot, old = _find_slot(table, entries[i, 0], entries[i, 1], slots)
        word, fourth = entries[i, 2], entries[i, 3]
        if old != 0:
            last = table[slot, 3]
            pairs[found, 0] = (old & low_half) << np.uint64(32) | word >> np.uint64(32)
            pairs[found, 1] = (last & ~np.uint64(FIRST_IS_TOMBSTONE)) | (fourth & np.uint64(FIRST_IS_TOMBSTONE))
            found += 1
            table[slot, 2] = (old & high_half) | (word & low_half)
            table[slot, 3] = (fourth & ~np.uint64(FIRST_IS_TOMBSTONE)) | (last & np.uint64(FIRST_IS_TOMBSTONE))
            continue
        if used >= capacity:
            return i, used, found
        used += 1
        table[slot, 0], table[slot, 1], table[slot, 2], table[slot, 3] = entries[i, 0], entries[i, 1], word, fourth
    return len(entries), used, found


@kernel
def _superseded(table, lookups, result):
    """Fill bool[n] ``result``: whether ``table`` holds a record that supersedes that of each of ``lookups``."""
    slots, base, slot_bytes = np.uint64(len(table)), np.uint64(table.ctypes.data), np.uint64(table.shape[1] * _WORD_BYTES)
    for i in range(len(lookups)):
        if i + _PREFETCH_DISTANCE < len(lookups):
            _prefetch_slot(base, slot_bytes, lookups[i + _PREFETCH_DISTANCE, 0], slots)
        slot, word = _find_slot(table, lookups[i, 0], lookups[i, 1], slots)
        result[i] = word != 0 and _supersedes(word, lookups[i, 2])


@kernel
def _by_shard(entries, shards, starts, fill, out):
    """Copy the non-empty rows of uint64[n, words] ``entries`` to ``out`` (of the same shape), ordered by shard.

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
            row = fill[s]
            out[row, 0], out[row, 1], out[row, 2] = entries[i, 0], entries[i, 1], entries[i, 2]
            if entries.shape[1] > ENTRY_WORDS:
                out[row, 3] = entries[i, 3]
            fill[s] = row + 1


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
        row = fill[part_of[i]]
        out[row] = survivors[i]
        fill[part_of[i]] = row + 1


# arrays are allocated outside of the kernels: each kind of allocation takes as long to compile as a kernel


def by_bound(survivors: NDArray[np.uint64], bounds: NDArray[np.uint64], edges: NDArray[np.int64]) -> NDArray[np.uint64]:
    """``survivors`` (uint64[n]) ordered by part: part 0 has those below ``bounds[0]`` (uint64[b], ascending), part ``k`` those
    from ``bounds[k - 1]`` on. Fills int64[b + 2] ``edges`` (zeros) with the start of each part, and ``n``."""
    ordered = np.empty(len(survivors), np.uint64)
    _by_bound(survivors, bounds, edges, np.empty(len(bounds) + 1, np.int64), np.empty(len(survivors), np.int32), ordered)
    return ordered


def by_shard(entries: NDArray[np.uint64], shards: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """``entries`` (uint64[n, words], empty slots allowed) ordered by shard, and int64[shards + 1] bounds.

    A key's shard is the high half of its hash, scaled to ``shards``: all tasks assign a key to the same shard.
    """
    if shards == 1:
        occupied = entries[entries[:, 2] != 0]
        return occupied, np.array([0, len(occupied)])
    starts = np.zeros(shards + 1, np.int64)
    ordered = np.empty(entries.shape, np.uint64)
    _by_shard(entries, np.uint64(shards), starts, np.empty(shards, np.int64), ordered)
    return ordered[: starts[-1]], starts


class Arena:
    """Memory that successive tables reuse: page faults are the main cost of a large new table. If the next table is much
    smaller, the memory is released: the task that needed it is done."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint64)

    def table(self, slots: int, words: int = ENTRY_WORDS) -> NDArray[np.uint64]:
        """An empty table, uint64[slots, words]; invalidates the previous one."""
        allocated, size = len(self._memory), slots * words
        if size > allocated or max(size * _SHRINK, _KEPT_BYTES // _WORD_BYTES) < allocated:
            # released first, or both would be held
            self._memory = np.empty(0, np.uint64)
            self._memory = np.zeros(size, np.uint64)
            return self._memory.reshape(slots, words)
        table = self._memory[:size].reshape(slots, words)
        table[:, 2] = 0
        return table


#: has the arena of this thread, for its tasks, which run one after the other
_this_thread = threading.local()


class SlotTable:
    """A table in at most ``buffer_bytes`` of memory. A new table invalidates the previous one of its arena.

    :param buffer_bytes: bound on the slots' memory (``log.cleaner.dedupe.buffer.size``)
    :param load_factor: fraction of the slots that may be filled (``log.cleaner.io.buffer.load.factor``)
    :param expected_keys: upper bound on the number of keys; the table has no more slots than they need
    :param arena: memory of the slots, for callers that use several tables at once; defaults to the thread's arena
    """

    def __init__(
        self, layout: int, buffer_bytes: int, load_factor: float, expected_keys: int, arena: Arena | None = None
    ) -> None:
        words = WORDS[layout]
        limit = min(max(2, buffer_bytes // (words * _WORD_BYTES)), _MAX_SLOTS)
        slots = min(limit, max(_MIN_SLOTS, int(expected_keys / min(_TARGET_LOAD, load_factor)) + 2))
        self._layout = layout
        #: uint64[slots, words]
        self.slots = (arena or vars(_this_thread).setdefault("arena", Arena())).table(slots, words)
        #: most keys that it may hold
        self.capacity = max(1, min(int(slots * load_factor), slots - 1))
        self._used = 0

    @classmethod
    def of_keys(cls, layout: int, keys: int) -> SlotTable:
        """A table for exactly ``keys`` keys, at least one, in memory of its own."""
        capacity = max(keys, 1)
        slots = int(capacity / _EXACT_LOAD) + 2
        table = cls(layout, slots * WORDS[layout] * _WORD_BYTES, 1.0, slots, Arena())
        table.capacity = capacity
        return table

    def __len__(self) -> int:
        """Distinct keys held."""
        return self._used

    def remaining(self) -> int:
        """Number of new keys that still fit."""
        return self.capacity - self._used

    def put(self, entries: NDArray[np.uint64], first: int = 0, *, of_records: bool = True) -> int:
        """Put ``entries[first:]`` until the table is full: the index of the first entry that was not put, or their number.

        :param entries: of one record each, uint64[n, 3]; else slots of another table
        """
        next_entry, self._used = _put(self.slots, self._layout, entries, first, self._used, self.capacity, of_records)
        return int(next_entry)

    def follow(self, entries: NDArray[np.uint64], first: int, pairs: NDArray[np.uint64]) -> tuple[int, NDArray[np.uint64]]:
        """Put ``entries[first:]`` (``ENDS``, uint64[n, 4], in the order of the log) until the table is full: the index of the
        first entry that was not put, or their number; and of each entry that follows another one of its key, a pair.

        The third word of an entry has the places of its first record, above, and of its last one, below, int32 from 1 on; the
        fourth has the size of the last one and two flags. A pair is the place of the record that is superseded, above, and that
        of the one that supersedes it; and the size and the flags of these two.

        :param pairs: uint64[n, 2] to fill, at least as many as entries
        """
        next_entry, self._used, found = _follow(self.slots, entries, first, self._used, self.capacity, pairs)
        return int(next_entry), pairs[:found]

    def update(self, entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Put those of ``entries``, of the table's width, whose keys it holds; return the others. Overwrites ``entries``."""
        return entries[: _update(self.slots, self._layout, entries)]

    def superseded(self, lookups: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool[n]: for each of ``lookups``, uint64[n, 3], whether the table (``OFFSETS``) holds a record that supersedes it."""
        result = np.empty(len(lookups), np.bool_)
        _superseded(self.slots, lookups, result)
        return result

    def occupied(self) -> NDArray[np.uint64]:
        """A copy of the slots of all keys, uint64[n, words] in no order."""
        occupied: NDArray[np.uint64] = self.slots[self.slots[:, 2] != 0]
        return occupied

    def offset_words(self) -> NDArray[np.uint64]:
        """The offset words of all keys, uint64[n] in no order."""
        words = self.slots[:, 2]
        occupied: NDArray[np.uint64] = words[words != 0]
        return occupied

    def clear(self) -> None:
        self.slots[:, 2] = 0
        self._used = 0
