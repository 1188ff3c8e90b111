"""The ``SkimpyOffsetMap``: key hash -> highest offset, 24 bytes a slot, linear probing (Kafka 4.3.0: ``SkimpyOffsetMap``).

A map takes ``slots * load_factor`` keys at most; the low half of a key's hash, scaled to the slots, says where probing begins.
Kafka hashes by MD5, this map by SipHash with a secret of the run; two keys share a hash once in 2^128 pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.compiling.native import prefetch
from compaction.kernels.reading.tables import ENTRY_BYTES, ENTRY_WORDS, OFFSET_SHIFT

_AHEAD = 12
_FEWEST_SLOTS = 4
_MOST_SLOTS = (1 << 32) - 1
#: a table is made large enough, if it may, that all expected keys load it no more than this: probing stays short
_GOOD_LOAD = 0.6


@inner
def _first_slot(low, slots):
    """Where probing for a key begins; ``slots`` is below 2^32."""
    return (low >> np.uint64(32)) * slots >> np.uint64(32)


@inner
def _fetch(base, low, slots):
    """Ask for the key's first slot, which may lie in two cache lines."""
    first = np.uintp(base + _first_slot(low, slots) * np.uint64(ENTRY_BYTES))
    prefetch(first)
    prefetch(np.uintp(first + np.uint64(ENTRY_BYTES - 1)))


@kernel
def _put(table, entries):
    """Put uint64[n, 3] ``entries`` into uint64[slots, 3] ``table`` (which must have room), highest offset wins; keys added."""
    slots = np.uint64(len(table))
    base = np.uint64(table.ctypes.data)
    added = 0
    for i in range(min(_AHEAD, len(entries))):
        _fetch(base, entries[i, 0], slots)
    for i in range(len(entries)):
        if i + _AHEAD < len(entries):
            _fetch(base, entries[i + _AHEAD, 0], slots)
        low, high, mark = entries[i, 0], entries[i, 1], entries[i, 2]
        slot = _first_slot(low, slots)
        while True:
            held = table[slot, 2]
            if held == 0:
                table[slot, 0], table[slot, 1], table[slot, 2] = low, high, mark
                added += 1
                break
            if table[slot, 0] == low and table[slot, 1] == high:
                if mark >> np.uint64(OFFSET_SHIFT) > held >> np.uint64(OFFSET_SHIFT):
                    table[slot, 2] = mark
                break
            slot = slot + np.uint64(1) if slot + np.uint64(1) < slots else np.uint64(0)
    return added


@kernel
def _update(table, entries):
    """Raise the offsets of those keys of uint64[n, 3] ``entries`` that ``table`` holds, and move the entries of all others to
    the front; how many these are."""
    slots = np.uint64(len(table))
    base = np.uint64(table.ctypes.data)
    others = 0
    for i in range(len(entries)):
        if i + _AHEAD < len(entries):
            _fetch(base, entries[i + _AHEAD, 0], slots)
        low, high, mark = entries[i, 0], entries[i, 1], entries[i, 2]
        slot = _first_slot(low, slots)
        while table[slot, 2] != 0 and (table[slot, 0] != low or table[slot, 1] != high):
            slot = slot + np.uint64(1) if slot + np.uint64(1) < slots else np.uint64(0)
        held = table[slot, 2]
        if held == 0:
            entries[others, 0], entries[others, 1], entries[others, 2] = low, high, mark
            others += 1
        elif mark >> np.uint64(OFFSET_SHIFT) > held >> np.uint64(OFFSET_SHIFT):
            table[slot, 2] = mark
    return others


@kernel
def _beaten(table, asks, result):
    """Fill bool[n] ``result``: whether ``table`` holds a higher offset for the key of each of uint64[n, 3] ``asks``."""
    slots = np.uint64(len(table))
    base = np.uint64(table.ctypes.data)
    for i in range(len(asks)):
        if i + _AHEAD < len(asks):
            _fetch(base, asks[i + _AHEAD, 0], slots)
        low, high, mark = asks[i, 0], asks[i, 1], asks[i, 2]
        result[i] = False
        slot = _first_slot(low, slots)
        while table[slot, 2] != 0:
            if table[slot, 0] == low and table[slot, 1] == high:
                result[i] = table[slot, 2] >> np.uint64(OFFSET_SHIFT) > mark >> np.uint64(OFFSET_SHIFT)
                break
            slot = slot + np.uint64(1) if slot + np.uint64(1) < slots else np.uint64(0)


@kernel
def _by_shard(entries, shards, starts, fill, out):
    """Copy the rows of uint64[n, 3] ``entries`` whose mark is not 0 to ``out`` (of the same shape), ordered by shard.

    :param starts: int64[shards + 1], zeros; gets where each shard starts, and the number of rows
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
def _by_bound(marks, bounds, edges, fill, part_of, out):
    """Copy uint64[n] ``marks`` to ``out``, ordered by part; see ``by_bound``.

    :param fill: int64[b + 1], scratch space, as is int32[n] ``part_of``
    """
    for i in range(len(marks)):
        low, high = 0, len(bounds)
        while low < high:
            middle = (low + high) >> 1
            if bounds[middle] <= marks[i]:
                low = middle + 1
            else:
                high = middle
        part_of[i] = low
        edges[low + 1] += 1
    for k in range(len(fill)):
        fill[k] = edges[k]
        edges[k + 1] += edges[k]
    for i in range(len(marks)):
        at = fill[part_of[i]]
        out[at] = marks[i]
        fill[part_of[i]] = at + 1


# arrays are made out here: within a kernel each way to make one takes as long to compile as a kernel


def by_bound(marks: NDArray[np.uint64], bounds: NDArray[np.uint64], edges: NDArray[np.int64]) -> NDArray[np.uint64]:
    """``marks`` (uint64[n]) ordered by part: part 0 holds those below ``bounds[0]`` (uint64[b], ascending), part ``k`` those
    from ``bounds[k - 1]`` on; int64[b + 2] ``edges`` (zeros) gets where each part starts, and ``n``."""
    ordered = np.empty(len(marks), np.uint64)
    _by_bound(marks, bounds, edges, np.empty(len(bounds) + 1, np.int64), np.empty(len(marks), np.int32), ordered)
    return ordered


def by_shard(entries: NDArray[np.uint64], shards: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """``entries`` (uint64[n, 3], empty slots allowed) ordered by shard, and int64[shards + 1] bounds.

    The shard of a key is the top of its hash's high half scaled to ``shards``, so that any two maps of one log agree on it.
    """
    if shards == 1:
        held = entries[entries[:, 2] != 0]
        return held, np.array([0, len(held)])
    starts = np.zeros(shards + 1, np.int64)
    ordered = np.empty((len(entries), ENTRY_WORDS), np.uint64)
    _by_shard(entries, np.uint64(shards), starts, np.empty(shards, np.int64), ordered)
    return ordered[: starts[-1]], starts


class Arena:
    """The memory of maps, kept from one map to the next: fresh pages are what costs most about a large table."""

    def __init__(self) -> None:
        self._memory = np.empty((0, ENTRY_WORDS), np.uint64)

    def table(self, slots: int) -> NDArray[np.uint64]:
        """An empty table; the one given before must not be used any more."""
        if slots > len(self._memory):
            self._memory = np.zeros((slots, ENTRY_WORDS), np.uint64)
            return self._memory
        table = self._memory[:slots]
        table[:, 2] = 0
        return table


_ARENA = Arena()


class SkimpyOffsetMap:
    """Key hash -> highest offset in at most ``buffer_bytes`` of memory. Only the map made last of an arena may be used.

    :param buffer_bytes: bound on the slots' memory (``log.cleaner.dedupe.buffer.size``)
    :param load_factor: share of the slots that may fill up (``log.cleaner.io.buffer.load.factor``)
    :param expected_keys: at most so many keys will come; fewer slots than ``buffer_bytes`` would give are enough for them
    :param arena: where the slots are, for those who need several maps at once; the process's own where not given
    """

    def __init__(
        self, buffer_bytes: int, load_factor: float, expected_keys: int, arena: Arena | None = None
    ) -> None:
        most = min(max(2, buffer_bytes // ENTRY_BYTES), _MOST_SLOTS)
        slots = min(most, max(_FEWEST_SLOTS, int(expected_keys / min(_GOOD_LOAD, load_factor)) + 2))
        self._table = (arena or _ARENA).table(slots)
        #: keys that fit
        self.capacity = min(int(slots * load_factor), slots - 1)
        self._used = 0

    def __len__(self) -> int:
        """Distinct keys held."""
        return self._used

    @property
    def slots(self) -> NDArray[np.uint64]:
        """uint64[slots, 3]: all slots; an empty one has mark 0."""
        return self._table

    def room(self) -> int:
        """Keys that surely still fit."""
        return self.capacity - self._used

    def put(self, entries: NDArray[np.uint64]) -> None:
        """Take uint64[n, 3] ``entries``; for a key seen before the higher offset stays. ``n`` must not exceed ``room()``."""
        if len(entries) > self.room():
            raise ValueError(f"{len(entries)} entries do not fit into a map with room for {self.room()}")
        self._used += _put(self._table, entries)

    def update(self, entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Take those of uint64[n, 3] ``entries`` whose keys are held, as ``put`` does; the others, moved to the front."""
        return entries[: _update(self._table, entries)]

    def superseded_by_map(self, asks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool[n]: for each of uint64[n, 3] ``asks``, whether a higher offset is held for its key."""
        result = np.empty(len(asks), np.bool_)
        _beaten(self._table, asks, result)
        return result

    def clear(self) -> None:
        """Forget all keys, keep the memory."""
        self._table[:, 2] = 0
        self._used = 0
