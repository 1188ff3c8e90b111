"""The offset map against a dictionary, with colliding hashes; entries by shard, and survivor entries by output part."""

from __future__ import annotations

import random
from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.kernels.keys.offset_map import Arena, SkimpyOffsetMap, by_bound, by_shard
from compaction.kernels.reading.tables import ENTRY_BYTES, LOOKUP, TOMBSTONE

Entries = NDArray[np.uint64]
#: hashes of few different halves, so that slots and shards collide
HASHES = st.tuples(st.integers(0, 7) | st.just(2**64 - 1), st.integers(0, 3) | st.just(2**64 - 1))
PUT = st.tuples(HASHES, st.integers(0, 60), st.booleans())


def entries(puts: list[tuple[tuple[int, int], int, bool]], flag: int = 0) -> Entries:
    rows = [(low, high, (offset + 1) << 2 | (TOMBSTONE if tombstone else 0) | flag) for (low, high), offset, tombstone in puts]
    return np.array(rows, np.uint64).reshape(-1, 3)


def content(table: Entries) -> dict[tuple[int, int], int]:
    return {(low, high): word for low, high, word in table.tolist() if word}


@given(st.lists(PUT, max_size=80))
def test_the_map_holds_the_highest_offset_of_each_key(puts: list[tuple[tuple[int, int], int, bool]]) -> None:
    expected: dict[tuple[int, int], int] = {}
    for key, offset, tombstone in puts:
        if key not in expected or offset + 1 > expected[key] >> 2:
            expected[key] = (offset + 1) << 2 | int(tombstone)
    found = SkimpyOffsetMap(1 << 16, 0.9, 80, Arena())
    half = len(puts) // 2
    found.put(entries(puts[:half]))
    found.put(entries(puts[half:]))
    assert content(found.slots) == expected
    assert len(found) == len(expected)


@given(st.lists(PUT, max_size=60), st.lists(PUT, max_size=60))
def test_only_a_higher_offset_of_the_same_key_supersedes_a_record(
    puts: list[tuple[tuple[int, int], int, bool]], looked_up: list[tuple[tuple[int, int], int, bool]]
) -> None:
    highest: dict[tuple[int, int], int] = {}
    for key, offset, _ in puts:
        highest[key] = max(offset, highest.get(key, -1))
    found = SkimpyOffsetMap(1 << 16, 0.9, 60, Arena())
    found.put(entries(puts))
    expected = [highest.get(key, -1) > offset for key, offset, _ in looked_up]
    assert found.superseded_by_map(entries(looked_up, LOOKUP)).tolist() == expected


@pytest.mark.parametrize("load_factor", [0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("slots", [2, 4, 64, 4096])
def test_a_map_holds_as_many_keys_as_its_buffer_and_load_factor_allow(slots: int, load_factor: float) -> None:
    found = SkimpyOffsetMap(slots * ENTRY_BYTES, load_factor, 1 << 40, Arena())
    room = found.remaining()
    assert room == min(int(slots * load_factor), slots - 1)
    found.put(entries([((key, key * 7), key, False) for key in range(room)]))
    assert (found.remaining(), len(found)) == (0, room)
    with pytest.raises(ValueError, match="do not fit"):
        found.put(entries([((1, 7), 99, False)]))
    assert not found.superseded_by_map(entries([((room, 7), 0, False)], LOOKUP)).any()
    found.clear()
    assert (len(found), found.remaining(), content(found.slots)) == (0, room, {})


@pytest.mark.parametrize("expected_keys", [0, 1, 100, 5_000])
def test_a_map_for_few_keys_is_small_and_holds_them(expected_keys: int) -> None:
    found = SkimpyOffsetMap(1 << 24, 0.9, expected_keys, Arena())
    assert found.remaining() >= expected_keys
    assert found.slots.nbytes < 1 << 19


def test_an_arena_reuses_its_memory_and_clears_it() -> None:
    arena = Arena()
    first = SkimpyOffsetMap(1 << 12, 0.9, 100, arena)
    first.put(entries([((key, 1), key, False) for key in range(50)]))
    again = SkimpyOffsetMap(1 << 12, 0.9, 100, arena)
    assert content(again.slots) == {}
    assert np.shares_memory(first.slots, again.slots)


def test_an_arena_keeps_memory_for_similar_tables_and_releases_that_of_a_much_larger_one() -> None:
    arena, slots = Arena(), (64 << 20) // ENTRY_BYTES
    first = arena.table(slots)
    assert np.shares_memory(first, arena.table(slots * 2 // 3))
    small = arena.table(slots // 3)
    assert not np.shares_memory(first, small)
    assert small.base is None
    assert len(small) == slots // 3
    assert not small.any()
    # a few MiB are kept
    assert np.shares_memory(arena.table(1000), arena.table(10))


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 64, 1000])
def test_every_entry_is_put_into_the_shard_of_its_hash(shards: int) -> None:
    rng = random.Random(shards)
    puts = [((rng.randrange(2**64), rng.randrange(2**64)), at, False) for at in range(500)]
    table = entries(puts)
    table[::5, 2] = 0
    ordered, starts = by_shard(table, shards)
    assert (starts[0], starts[-1]) == (0, np.count_nonzero(table[:, 2]))
    assert content(ordered) == content(table)
    for shard in range(shards):
        for _, high, _ in ordered[starts[shard] : starts[shard + 1]].tolist():
            assert (high >> 32) * shards >> 32 == shard


def test_no_entries_give_empty_shards() -> None:
    ordered, starts = by_shard(np.empty((0, 3), np.uint64), 5)
    assert (len(ordered), starts.tolist()) == (0, [0] * 6)


@given(st.lists(st.integers(0, 40), max_size=60), st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_survivor_entries_are_ordered_by_the_part_between_their_bounds(survivors: list[int], bounds: list[int]) -> None:
    bounds.sort()
    edges = np.zeros(len(bounds) + 2, np.int64)
    ordered = by_bound(np.array(survivors, np.uint64), np.array(bounds, np.uint64), edges)
    parts: list[list[int]] = [[] for _ in range(len(bounds) + 1)]
    for word in survivors:
        parts[bisect_right(bounds, word)].append(word)
    assert [ordered[edges[k] : edges[k + 1]].tolist() for k in range(len(parts))] == parts
    assert edges[-1] == len(survivors)
