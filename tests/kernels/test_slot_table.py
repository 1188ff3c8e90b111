"""Slot tables of each layout against a dictionary, with colliding hashes; entries by shard, survivor entries by output part."""

from __future__ import annotations

import random
from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.kernels.slot_table import COUNTS, NEWEST, OFFSETS, Arena, Layout, SlotTable, by_bound, by_shard
from compaction.kernels.tables import ENTRY_BYTES, LOOKUP, TOMBSTONE

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
    found = SlotTable(OFFSETS, 1 << 16, 0.9, 80, Arena())
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
    found = SlotTable(OFFSETS, 1 << 16, 0.9, 60, Arena())
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
    assert (len(found), found.remaining(), content(found.slots)) == (0, room, {})


def put_slowly(layout: Layout, held: dict[int, tuple[int, ...]], key: int, word: int) -> None:
    """One record into a dictionary."""
    old = held.get(key)
    if layout == COUNTS:
        held[key] = ((old or (0,))[0] + 1,)
    elif layout == NEWEST:
        held[key] = (max(word, old[0]), old[1] + 1) if old else (word, 1)
    elif old is None or word > old[0]:
        held[key] = (word,)


def records(seed: int, count: int, keys: int) -> Entries:
    """Map entries with distinct offsets, whose hashes collide."""
    rng = random.Random(seed)
    rows = []
    for offset in rng.sample(range(10 * count), count):
        key = rng.randrange(keys)
        rows.append((key % 3, key + 1, (offset + 1) << 2))
    return np.array(rows, np.uint64)


def dictionary(layout: Layout, given: Entries) -> dict[int, tuple[int, ...]]:
    held: dict[int, tuple[int, ...]] = {}
    for row in given.tolist():
        put_slowly(layout, held, row[1], row[2])
    return held


def values(table: SlotTable) -> dict[int, tuple[int, ...]]:
    return {row[1]: tuple(row[2:]) for row in table.occupied().tolist()}


@pytest.mark.parametrize("layout", [OFFSETS, COUNTS, NEWEST])
@pytest.mark.parametrize(("count", "keys"), [(1, 1), (50, 1), (500, 60), (500, 10_000)])
def test_a_table_holds_what_a_dictionary_holds(layout: Layout, count: int, keys: int) -> None:
    given, table = records(count, count, keys), SlotTable(layout, 1 << 20, 0.9, count, Arena())
    half = count // 2
    assert (table.put(given[:half]), table.put(given, half)) == (half, count)
    assert values(table) == dictionary(layout, given)
    assert len(table) == len(values(table))


@pytest.mark.parametrize("layout", [COUNTS, NEWEST])
def test_the_slots_of_two_tables_add_up(layout: Layout) -> None:
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
    held = {row[1] for row in given[:40].tolist()}
    others = table.update(given[40:].copy())
    assert others.tolist() == [row for row in given[40:].tolist() if row[1] not in held]
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
    assert content(again.slots) == {}
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
@pytest.mark.parametrize("words", [3, 4])
def test_every_entry_is_put_into_the_shard_of_its_hash(shards: int, words: int) -> None:
    table = np.random.default_rng(shards).integers(1, 2**64, (500, words), np.uint64)
    table[::5, 2] = 0
    ordered, starts = by_shard(table, shards)
    assert (starts[0], starts[-1]) == (0, np.count_nonzero(table[:, 2]))
    assert sorted(ordered.tolist()) == sorted(row for row in table.tolist() if row[2])
    for shard in range(shards):
        for high in ordered[starts[shard] : starts[shard + 1], 1].tolist():
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
