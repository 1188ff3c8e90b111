"""The map of one task: the newest offset of every key that the task meets, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.keys.offset_map import Arena, SkimpyOffsetMap

#: the second map's share of the first one's memory
_SECOND = 4
#: a full map stays as long as it knows one in so many of the records that come
_KNOWN = 4
#: a map is full with this load: to find that it lacks a key takes 6 probes then, and 50 with the 0.9 that it may have
_LOAD = 0.7
#: a map with little room left would take its last keys in ever smaller portions: it counts as full with so much of it left
_RESERVE = 8


class TaskMap:
    """Takes map entries; what it cannot hold it hands on, for whoever merges the entries of several tasks.

    A full map goes on raising the offsets of the keys that it holds. Other keys gather in a second, smaller map, which is
    handed on each time it is full. Then the first one is too, and begins anew, if it knew few of the records that came
    meanwhile: keys that are written again and again stay, those that were written for a while give way.

    :param map_bytes: of the first map at most; a second one, if need be, takes a quarter of it besides
    :param most_records: at most so many entries will come
    :param hand_on: takes uint64[n, 3] entries, empty slots among them, which are not valid any more when it returns
    """

    def __init__(
        self,
        map_bytes: int,
        load_factor: float,
        most_records: int,
        hand_on: Callable[[NDArray[np.uint64]], None],
        arena: Arena | None = None,
    ) -> None:
        load = min(load_factor, _LOAD)
        self._first = SkimpyOffsetMap(map_bytes, load, most_records, arena)
        self._second: SkimpyOffsetMap | None = None
        self._second_arena = Arena()
        self._second_size = map_bytes // _SECOND, load, most_records
        self._hand_on = hand_on
        self._came, self._unknown = 0, 0
        #: the map that holds all entries taken so far; ``None`` once it could not
        self.complete: SkimpyOffsetMap | None = self._first

    def put(self, entries: NDArray[np.uint64]) -> None:
        """Take uint64[n, 3] ``entries``, the order of which is lost."""
        while len(entries):
            if self._second is None:
                entries = _fill(self._first, entries)
                if not len(entries):
                    return
                self.complete = None
                self._second = SkimpyOffsetMap(*self._second_size, self._second_arena)
            unknown = self._first.update(entries)
            self._came += len(entries)
            self._unknown += len(unknown)
            entries = self._gather(self._second, unknown)

    def _gather(self, second: SkimpyOffsetMap, entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Put entries of keys that the first map lacks into the second one; those left when both begin anew."""
        while len(entries := _fill(second, entries)):
            self._hand_on(second.slots)
            second.clear()
            known, came = self._came - self._unknown, self._came
            self._came = self._unknown = 0
            if known * _KNOWN < came:
                self._hand_on(self._first.slots)
                self._first.clear()
                self._second = None
                break
        return entries

    def rest(self) -> Iterator[NDArray[np.uint64]]:
        """The slots of all that is held."""
        if self._second is not None:
            yield self._second.slots
            self._second, self._second_arena = None, Arena()
        yield self._first.slots


def _fill(held: SkimpyOffsetMap, entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Put entries into a map until it counts as full; those left."""
    reserve = max(1, held.capacity // _RESERVE)
    while len(entries) and held.remaining() >= min(len(entries), reserve):
        room = held.remaining()
        held.put(entries[:room])
        entries = entries[room:]
    return entries
