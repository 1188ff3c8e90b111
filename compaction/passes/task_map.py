"""The offset map of one task: the highest offsets of the keys that it meets, in bounded memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.keys.offset_map import Arena, SkimpyOffsetMap
from compaction.kernels.keys.ranked_map import RankedMap

#: the second map has 1/4 of the first map's memory
_SECOND = 4
#: the first map is reset when fewer than 1/4 of the entries since the last spill hit it
_HIT_RATE = 4
#: load at which a map counts as full: a failed lookup takes 6 probes there, and 50 at the permitted load of 0.9
_LOAD = 0.7
#: a map counts as full when less than 1/8 of its capacity remains: its last keys would arrive in ever smaller chunks
_RESERVE = 8


class TaskMap:
    """Takes map entries, and spills those that do not fit: it yields the slots of a full map, including empty ones, which are
    valid until the next ones.

    When the map is full, its keys are still updated. New keys go to a second, smaller map, which is spilled whenever it is
    full. The first map is then spilled and reset too if its hit rate has fallen below 1/4: keys that recur stay resident, keys
    that were written for a while are evicted.

    :param map_bytes: memory of the first map; a second one takes a quarter of it in addition
    :param max_records: upper bound on the number of entries
    """

    #: the kind of both maps
    kind: type[SkimpyOffsetMap] = SkimpyOffsetMap

    def __init__(
        self, map_bytes: int, load_factor: float, max_records: int, arena: Arena | None = None
    ) -> None:
        load = min(load_factor, _LOAD)
        self._first = self.kind(map_bytes, load, max_records, arena)
        self._second: SkimpyOffsetMap | None = None
        self._second_arena = Arena(self.kind.words)
        self._second_size = map_bytes // _SECOND, load, max_records
        self._entries, self._misses = 0, 0
        #: the map of all entries so far, or ``None`` if they did not fit
        self.complete: SkimpyOffsetMap | None = self._first

    def put(self, entries: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
        """Put uint64[n, 3] ``entries``, which are reordered. To be consumed, even if nothing is spilled."""
        while len(entries):
            if self._second is None:
                entries = _fill(self._first, entries)
                if not len(entries):
                    return
                self.complete = None
                self._second = self.kind(*self._second_size, self._second_arena)
            misses = self._first.update(entries)
            self._entries += len(entries)
            self._misses += len(misses)
            entries = yield from self._put_second(self._second, misses)

    def _put_second(
        self, second: SkimpyOffsetMap, entries: NDArray[np.uint64]
    ) -> Generator[NDArray[np.uint64], None, NDArray[np.uint64]]:
        """Put entries that missed the first map into the second one. Returns those that are left when both are reset."""
        while len(entries := _fill(second, entries)):
            yield second.slots
            second.clear()
            hits, total = self._entries - self._misses, self._entries
            self._entries = self._misses = 0
            if hits * _HIT_RATE < total:
                yield self._first.slots
                self._first.clear()
                self._second = None
                break
        return entries

    def drain(self) -> Iterator[NDArray[np.uint64]]:
        """The slots of both maps."""
        if self._second is not None:
            yield self._second.slots
            self._second, self._second_arena = None, Arena(self.kind.words)
        yield self._first.slots


def _fill(target: SkimpyOffsetMap, entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Put entries into a map until it counts as full. Returns the remaining ones."""
    reserve = max(1, target.capacity // _RESERVE)
    while len(entries) and target.remaining() >= min(len(entries), reserve):
        chunk = target.remaining()
        target.put(entries[:chunk])
        entries = entries[chunk:]
    return entries


class RankedTaskMap(TaskMap):
    """The same with ranked entries, uint64[n, 4]."""

    kind = RankedMap
