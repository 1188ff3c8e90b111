"""Between the passes: merges the packed entries of a shard into one map, resolves it into survivor entries by output part, and
hands these to the task that cleans the part."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from compaction.engine import Item, Items, Place, Reading, pack
from compaction.errors import CorruptLogError, LogError
from compaction.kernels.slot_table import OFFSETS, WORDS, SlotTable, by_bound
from compaction.kernels.tables import DROPPED, LOOKUP, OFFSET_SHIFT, TOMBSTONE
from compaction.passes.tasks import OutputPart, Packed, Resolved, Slice

R = TypeVar("R")

#: survivor entries of a part, or why a shard that may have some was refused
Survivors = Packed | LogError

#: parts of together this size are cleaned in step: the disk is waited for once for all of them
_IN_STEP_BYTES = 8 << 20
#: a part counts as at least this size, which bounds the number of buffers
_LEAST_PART_BYTES = 64 << 10
#: load of a shard's map: keeps probing short
_LOAD = 0.7
_WORD_BYTES = 8


@dataclass(frozen=True)
class MapParts:
    """The parts that the survivor entries of a map belong to: their first offsets, int64[parts] ascending, and their ids.
    ``reading``: what pass 1 has read for the map, as the driver knows it."""

    first_dirty_offset: int
    first_offsets: NDArray[np.int64]
    ids: tuple[Hashable, ...]
    reading: Reading = Reading()

    @classmethod
    def of(cls, first_dirty_offset: int, parts: Iterable[OutputPart | Slice]) -> MapParts:
        pairs = [(part.first_offset, part.id) for part in parts]
        return cls(first_dirty_offset, np.array([first for first, _ in pairs], np.int64), tuple(part for _, part in pairs))


def resolve_into_parts(shards: Items, maps: Mapping[int, MapParts], load_factor: float) -> Iterator[Item]:
    """Resolves merged shards of ``maps``: the survivor entries by map and id of the part; for the first part also the number of
    keys of the shard, an ``int``. Shards of other maps are skipped. A shard that is refused fails every part of its map: a
    record without an entry is dropped."""
    for (number, _), values in shards:
        if number in maps:
            parts = maps[number]
            try:
                packed = accepted_entries(values, parts.reading)
            except LogError as error:
                yield from (((number, part), error) for part in parts.ids)
                continue
            survivors, keys = resolve_shard(packed, parts.first_dirty_offset, load_factor)
            yield (number, parts.ids[0]), keys
            for index, entries in split_by_part(survivors, parts.first_offsets):
                yield (number, parts.ids[index]), entries


@dataclass(frozen=True)
class PartPlaces:
    """The tasks of pass 2 by place: their number, and that of the task of each part."""

    parts: int
    tasks: Mapping[Hashable, int]

    def __call__(self, place: Place) -> int:
        return self.tasks[place[1]]


def accepted_entries(values: Iterable[Any], accepted: Reading) -> list[Any]:
    """The packed entries of a merged shard, without the readings that its tasks have sent with them.

    :param accepted: what was read for the shard's map, as the driver knows it
    :raises CorruptLogError: a task was repeated and has read something else, or entries are missing
    """
    reading, packed = Reading(), []
    for value in values:
        if isinstance(value, Reading):
            reading += value
        else:
            packed.append(value)
    difference = reading.difference(accepted)
    if difference is None and len(packed) != reading.items:
        difference = f"a map shard has {len(packed)} arrays of entries, expected {reading.items}; run it again"
    if difference is not None:
        raise CorruptLogError(difference)
    return packed


#: some parts, each with the survivor entries of each map for it
PartsToClean = Sequence[tuple[Any, Mapping[int, Sequence[Survivors]]]]


@dataclass(frozen=True)
class CleanedParts(Generic[R]):
    """The result of pass 2: the results of all parts, and the number of distinct keys in each map."""

    results: Sequence[R]
    keys: Mapping[int, int]

    @classmethod
    def of(cls, tasks: Iterable[CleanedParts[R]]) -> CleanedParts[R]:
        """The results of all tasks; the keys of a map are counted by one task."""
        done = list(tasks)
        keys = {number: count for task in done for number, count in task.keys.items()}
        return cls([result for task in done for result in task.results], keys)


def clean_task(
    parts: Sequence[Any], items: Items, known: Any, clean: Callable[[PartsToClean, Any], list[R]], threads: int
) -> CleanedParts[R]:
    """One task of pass 2: cleans ``parts``, and adds up the numbers of keys of shards.

    :param items: from ``resolve_into_parts``
    :param clean: called with some parts, each with the survivor entries of each map for it, and ``known``
    :param threads: number of such calls at a time
    """
    survivors: dict[Hashable, dict[int, list[Survivors]]] = {}
    keys: dict[int, int] = {}
    for (number, part), values in items:
        for value in values:
            if isinstance(value, int):
                keys[number] = keys.get(number, 0) + value
            else:
                survivors.setdefault(part, {}).setdefault(number, []).append(value)
    works = [(part, survivors.get(part.id, {})) for part in parts]
    in_step = pack(works, lambda work: max(_LEAST_PART_BYTES, work[0].size_bytes), _IN_STEP_BYTES)
    if threads == 1 or len(in_step) <= 1:
        results = [clean(group, known) for group in in_step]
    else:
        # after an error or an interrupt, running calls complete and the others do not start
        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(lambda group: clean(group, known), in_step))
    return CleanedParts([result for group in results for result in group], keys)


def accepted_survivors(survivors: Iterable[Survivors]) -> list[Packed] | LogError:
    """The survivor entries of a part from all shards, or why one of these was refused."""
    packed: list[Packed] = []
    for entries in survivors:
        if isinstance(entries, LogError):
            return entries
        packed.append(entries)
    return packed


def resolve_shard(packed: Sequence[Packed | Resolved], first_dirty_offset: int, load_factor: float) -> Resolved:
    """Merges one shard, of arrays of uint64[n, 3], each either of map entries or of lookups; or one ``Resolved``."""
    arrays: list[Packed] = []
    for item in packed:
        if isinstance(item, Resolved):
            return item
        arrays.append(item)
    lookups = [array for array in arrays if array[0, 2] & np.uint64(LOOKUP)]
    entries = [array for array in arrays if not array[0, 2] & np.uint64(LOOKUP)]
    expected = sum(map(len, entries))
    # few collisions
    table_bytes = (int(expected / min(load_factor, _LOAD)) + 4) * WORDS[OFFSETS] * _WORD_BYTES
    shard = SlotTable(OFFSETS, table_bytes, load_factor, expected)
    for item in entries:
        if shard.put(item) < len(item):
            raise ValueError(f"a map of {shard.capacity} keys is too small for {expected} entries")
    return resolve(shard, lookups, first_dirty_offset)


def resolve(shard: SlotTable, lookups: Sequence[Packed], first_dirty_offset: int) -> Resolved:
    """Resolve a complete shard into survivor entries.

    These are, in no order: of the dirty section every record that the map holds; of the clean section every record to be
    dropped (``DROPPED``: superseded, or without a key) and every tombstone that is not.

    :param lookups: all of the shard's, each uint64[n, 3]
    """
    survivors = [shard.offset_words(), *(_look_up(shard, array, first_dirty_offset) for array in lookups)]
    return Resolved(np.concatenate(survivors), len(shard))


def _look_up(shard: SlotTable, lookups: Packed, first_dirty_offset: int) -> Packed:
    """The survivor entries that follow from ``lookups``; those of dirty records are of aborted data."""
    dropped = shard.superseded(lookups)
    dropped |= (lookups[:, 0] == 0) & (lookups[:, 1] == 0)
    survivors = lookups[:, 2] & ~np.uint64(LOOKUP)
    clean = survivors < np.uint64((first_dirty_offset + 1) << OFFSET_SHIFT)
    tombstone = (survivors & np.uint64(TOMBSTONE)) != 0
    survivors[clean & dropped] |= np.uint64(DROPPED)
    return survivors[np.where(clean, dropped | tombstone, ~dropped)]


def split_by_part(survivors: Packed, first_offsets: NDArray[np.int64]) -> Iterator[tuple[int, Packed]]:
    """The survivor entries of each output part that has any, in no order: ``(part number, uint64[n])``. Entries below the first
    of ``first_offsets``, int64[parts] ascending, are skipped."""
    if len(first_offsets) == 1:
        within = survivors[survivors >= np.uint64((int(first_offsets[0]) + 1) << OFFSET_SHIFT)]
        if len(within):
            yield 0, within
        return
    bounds = (first_offsets.astype(np.uint64) + np.uint64(1)) << np.uint64(OFFSET_SHIFT)
    edges = np.zeros(len(bounds) + 2, np.int64)
    ordered = by_bound(survivors, bounds, edges)
    for number, (start, end) in enumerate(pairwise(edges[1:].tolist())):
        if start < end:
            yield number, ordered[start:end]
