"""Slot tables of each layout against a dictionary, with colliding hashes; entries by shard, survivor entries by output part."""

from __future__ import annotations

import random
from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.kernels.slot_table import COUNTS, NEWEST, OFFSETS, Arena, SlotTable, by_bound, by_shard
from compaction.kernels.tables import ENTRY_BYTES, LOOKUP, TOMBSTONE

Entries = NDArray[np.uint64]
#: hashes of few different halves, so that slots and shards collide
HASHES = st.tuples(st.integers(0, 7) | st.just(2**64 - 1), st.integers(0, 3) | st.just(2**64 - 1))
#: records whose keys have these hashes, in any order of offsets
PUTS = st.lists(st.tuples(HASHES, st.integers(0, 60), st.booleans()), max_size=80)
Puts = list[tuple[tuple[int, int], int, bool]]
Held = dict[tuple[int, int], tuple[int, ...]]


def entries(puts: Puts, flag: int = 0) -> Entries:
    rows = [(low, high, (offset + 1) << 2 | (TOMBSTONE if tombstone else 0) | flag) for (low, high), offset, tombstone in puts]
    return np.array(rows, np.uint64).reshape(-1, 3)


def records(seed: int, count: int, keys: int) -> Entries:
    """Map entries with distinct offsets, whose hashes collide."""
    rng = random.Random(seed)
    numbers = [(rng.randrange(keys), offset) for offset in rng.sample(range(10 * count), count)]
    return entries([((key % 3, key + 1), offset, False) for key, offset in numbers])


def dictionary(layout: int, given: Entries) -> Held:
    """Of each key the entry with the highest offset, the first of equal ones; the number of entries; or both."""
    held: Held = {}
    for low, high, word in given.tolist():
        newest, count = held.get((low, high), (0, 0))
        held[low, high] = (word if word >> 2 > newest >> 2 else newest, count + 1)
    return {key: {OFFSETS: found[:1], COUNTS: found[1:], NEWEST: found}[layout] for key, found in held.items()}


def values(table: SlotTable) -> Held:
    return {(row[0], row[1]): tuple(row[2:]) for row in table.occupied().tolist()}


def check_halves(layout: int, given: Entries) -> None:
    """A table holds what a dictionary holds, in one call or two."""
    table, half = SlotTable(layout, 1 << 20, 0.9, len(given), Arena()), len(given) // 2
    assert (table.put(given[:half]), table.put(given, half)) == (half, len(given))
    assert values(table) == dictionary(layout, given)
    assert len(table) == len(values(table))


@given(PUTS, st.sampled_from([OFFSETS, COUNTS]))
def test_a_table_holds_what_a_dictionary_holds(puts: Puts, layout: int) -> None:
    check_halves(layout, entries(puts))


@pytest.mark.parametrize("layout", [OFFSETS, COUNTS, NEWEST])
@pytest.mark.parametrize(("count", "keys"), [(1, 1), (50, 1), (500, 60), (500, 10_000)])
def test_a_large_table_holds_what_a_dictionary_holds(layout: int, count: int, keys: int) -> None:
    check_halves(layout, records(count, count, keys))


@given(PUTS, PUTS)
def test_only_a_higher_offset_of_the_same_key_supersedes_a_record(puts: Puts, looked_up: Puts) -> None:
    highest: dict[tuple[int, int], int] = {}
    for key, offset, _ in puts:
        highest[key] = max(offset, highest.get(key, -1))
    found = SlotTable(OFFSETS, 1 << 16, 0.9, 80, Arena())
    found.put(entries(puts))
    expected = [highest.get(key, -1) > offset for key, offset, _ in looked_up]
    assert found.superseded(entries(looked_up, LOOKUP)).tolist() == expected


@pytest.mark.parametrize("load_factor", [0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("slots", [2, 4, 64, 4096])
def test_a_map_holds_as_many_keys_as_its_buffer_and_load_factor_allow(slots: int, load_factor: float) -> None:
    found = SlotTable(OFFSETS, slots * ENTRY_BYTES, load_factor, 1 << 40, Arena())
    room = found.remaining()
    assert room == min(int(slots * load_factor), slots - 1)
    found.put(entries([((key, key * 7), key, False) for key in range(room)]))
    assert (found.remaining(), len(found)) == (0, room)
    # an entry is not looked up in a full map
    assert found.put(entries([((1, 7), 99, False)])) == 0
    assert not found.superseded(entries([((room, 7), 0, False)], LOOKUP)).any()
    found.clear()
    assert (len(found), found.remaining(), values(found)) == (0, room, {})


@pytest.mark.parametrize("layout", [COUNTS, NEWEST])
def test_the_slots_of_two_tables_add_up(layout: int) -> None:
    given = records(1, 500, 60)
    # not full with all keys, as no entry is put into a full table
    total = SlotTable.of_keys(layout, 61)
    for part in (given[:200], given[200:]):
        table = SlotTable.of_keys(layout, 61)
        table.put(part)
        assert total.put(table.occupied(), of_records=False) == len(table)
    assert values(total) == dictionary(layout, given)


def test_updates_change_held_keys_and_return_the_others() -> None:
    given, table = records(2, 400, 60), SlotTable(OFFSETS, 1 << 20, 0.9, 400, Arena())
    table.put(given[:40])
    held = set(values(table))
    others = table.update(given[40:].copy())
    assert others.tolist() == [row for row in given[40:].tolist() if (row[0], row[1]) not in held]
    expected = dictionary(OFFSETS, given)
    assert values(table) == {key: expected[key] for key in held}


def rounds_of(keys: list[int], most: int) -> int:
    """As Kafka's cleaner goes on: a round ends at the first record that meets a full map."""
    rounds, known = 0, set[int]()
    for number, key in enumerate(keys):
        if number == 0 or len(known) >= most:
            rounds, known = rounds + 1, set()
        known.add(key)
    return rounds


@pytest.mark.parametrize("most", [1, 2, 7, 50, 51])
@pytest.mark.parametrize("distinct", [1, 5, 50, 1000])
def test_a_table_is_full_with_the_given_number_of_keys(most: int, distinct: int) -> None:
    given, at, rounds = records(most, 400, distinct), 0, 0
    while at < len(given):
        table = SlotTable.of_keys(COUNTS, most)
        at = table.put(given, at)
        assert len(table) <= most
        rounds += 1
    assert rounds == rounds_of(given[:, 1].tolist(), most)


@pytest.mark.parametrize("expected_keys", [0, 1, 100, 5_000])
def test_a_map_for_few_keys_is_small_and_holds_them(expected_keys: int) -> None:
    found = SlotTable(OFFSETS, 1 << 24, 0.9, expected_keys, Arena())
    assert found.remaining() >= expected_keys
    assert found.slots.nbytes < 1 << 19


def test_an_arena_reuses_its_memory_and_clears_it() -> None:
    arena = Arena()
    first = SlotTable(OFFSETS, 1 << 12, 0.9, 100, arena)
    first.put(entries([((key, 1), key, False) for key in range(50)]))
    again = SlotTable(OFFSETS, 1 << 12, 0.9, 100, arena)
    assert values(again) == {}
    assert np.shares_memory(first.slots, again.slots)


def test_an_arena_keeps_memory_for_similar_tables_and_releases_that_of_a_much_larger_one() -> None:
    arena, slots = Arena(), (64 << 20) // ENTRY_BYTES
    first = arena.table(slots)
    assert np.shares_memory(first, arena.table(slots * 2 // 3))
    small = arena.table(slots // 3)
    assert not np.shares_memory(first, small)
    assert small.base is not None
    assert small.base.nbytes == small.nbytes
    assert len(small) == slots // 3
    assert not small.any()
    # a few MiB are kept
    assert np.shares_memory(arena.table(1000), arena.table(10))


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize(("words", "count"), [(3, 500), (4, 500), (3, 0)])
def test_every_entry_is_put_into_the_shard_of_its_hash(shards: int, words: int, count: int) -> None:
    table = np.random.default_rng(shards).integers(1, 2**64, (count, words), np.uint64)
    table[::5, 2] = 0
    ordered, starts = by_shard(table, shards)
    assert (starts[0], starts[-1]) == (0, np.count_nonzero(table[:, 2]))
    assert sorted(ordered.tolist()) == sorted(row for row in table.tolist() if row[2])
    for shard in range(shards):
        for high in ordered[starts[shard] : starts[shard + 1], 1].tolist():
            assert (high >> 32) * shards >> 32 == shard


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
