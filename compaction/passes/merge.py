"""Between the passes: one shard's packed entries become one map, and the map says which records stay and to which piece they
belong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.keys.offset_map import SkimpyOffsetMap, by_bound
from compaction.kernels.reading.tables import ENTRY_BYTES, ENTRY_WORDS, LOOKUP, OFFSET_SHIFT, TOMBSTONE
from compaction.passes.tasks import Packed, Resolved

T = TypeVar("T")

#: shards are probed once and small: a load that keeps probing short
_LOAD = 0.7


def merge_lists(left: list[T], right: list[T]) -> list[T]:
    """Join the packed parts of one key: the ``reduceByKey`` of both shuffles. No bytes are copied."""
    left.extend(right)
    return left


def resolve_shard(packed: Sequence[Packed | Resolved], first_dirty_offset: int, load_factor: float) -> Resolved:
    """Merge one shard.

    :param packed: parts of uint64[n, 3], each either all map entries or all lookups; or all that there is, resolved before
    """
    parts: list[NDArray[np.uint64]] = []
    for part in packed:
        if isinstance(part, Resolved):
            return part
        parts.append(np.frombuffer(part, np.uint64).reshape(-1, ENTRY_WORDS))
    lookups = [part for part in parts if part[0, 2] & np.uint64(LOOKUP)]
    entries = [part for part in parts if not part[0, 2] & np.uint64(LOOKUP)]
    expected = sum(map(len, entries))
    shard = SkimpyOffsetMap(_table_bytes(expected, load_factor), load_factor, expected)
    for part in entries:
        shard.put(part)
    return resolve(shard, lookups, first_dirty_offset)


def resolve(shard: SkimpyOffsetMap, lookups: Sequence[NDArray[np.uint64]], first_dirty_offset: int) -> Resolved:
    """What a map that holds all entries of its shard says.

    The survivors are, in no order: of the dirty section every record that the map keeps; of the clean section every record that
    goes (``DROPPED`` set: a higher offset is mapped, or it has no key) and every tombstone that stays.

    :param lookups: all of the shard, in parts of uint64[n, 3]
    """
    slots = shard.slots[:, 2]
    survivors = [slots[slots != 0], *(_answers(shard, part, first_dirty_offset) for part in lookups)]
    return Resolved(np.concatenate(survivors), len(shard))


def _table_bytes(entries: int, load_factor: float) -> int:
    """Memory that surely takes ``entries`` keys, with few collisions."""
    return (int(entries / min(load_factor, _LOAD)) + 4) * ENTRY_BYTES


def _answers(shard: SkimpyOffsetMap, lookups: NDArray[np.uint64], first_dirty_offset: int) -> NDArray[np.uint64]:
    """The survivors that follow from the lookups."""
    goes = shard.superseded_by_map(lookups)
    goes |= (lookups[:, 0] == 0) & (lookups[:, 1] == 0)
    survivors = lookups[:, 2]
    clean = survivors < np.uint64((first_dirty_offset + 1) << OFFSET_SHIFT)
    stays = survivors & ~np.uint64(LOOKUP)
    tombstone = (survivors & np.uint64(TOMBSTONE)) != 0
    return np.concatenate([survivors[clean & goes], stays[clean & ~goes & tombstone], stays[~clean & ~goes]])


def split_by_part(survivors: Packed, first_offsets: NDArray[np.int64]) -> Iterator[tuple[int, Packed]]:
    """The survivors of each piece that has any, in no order: ``(piece number, uint64[n])``.

    :param first_offsets: int64[pieces], ascending; survivors below the first one belong to no piece
    """
    if len(first_offsets) == 1:
        within = survivors[survivors >= np.uint64((int(first_offsets[0]) + 1) << OFFSET_SHIFT)]
        if len(within):
            yield 0, within
        return
    bounds = (first_offsets.astype(np.uint64) + np.uint64(1)) << np.uint64(OFFSET_SHIFT)
    edges = np.zeros(len(bounds) + 2, np.int64)
    ordered = by_bound(survivors, bounds, edges)
    for piece, (start, end) in enumerate(pairwise(edges[1:].tolist())):
        if start < end:
            yield piece, ordered[start:end]
