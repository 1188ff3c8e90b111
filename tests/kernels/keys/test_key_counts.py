"""Counting keys against a dictionary."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.kernels.keys.key_counts import KeyCounts, new_table, put_until_full


def entries(keys: list[int]) -> NDArray[np.uint64]:
    """Map entries of these keys, whose hashes collide in their first slot all the time."""
    made = np.empty((len(keys), 3), np.uint64)
    made[:, 0], made[:, 1], made[:, 2] = np.array(keys, np.uint64) % 3, keys, 4711
    return made


def held(counts: KeyCounts) -> dict[int, int]:
    slots = counts.slots[counts.slots[:, 2] != 0]
    return dict(zip(slots[:, 1].tolist(), slots[:, 2].tolist(), strict=True))


def keys_of(seed: int, n: int, distinct: int) -> list[int]:
    return [int(key) for key in np.random.default_rng(seed).integers(0, distinct, n)]


@pytest.mark.parametrize(("n", "distinct"), [(0, 1), (1, 1), (50, 1), (500, 40), (500, 10_000)])
def test_records_are_counted_by_key(n: int, distinct: int) -> None:
    keys = keys_of(n, n, distinct)
    counts = KeyCounts(1 << 20, n)
    counts.add(entries(keys), once=True)
    assert held(counts) == Counter(keys)
    assert len(counts) == len(set(keys))


def test_counts_of_two_tables_add_up() -> None:
    left, right = keys_of(1, 300, 50), keys_of(2, 300, 80)
    total = KeyCounts(1 << 20, 200)
    for keys in (left, right):
        part = KeyCounts(1 << 20, 300)
        part.add(entries(keys), once=True)
        total.add(part.slots[part.slots[:, 2] != 0], once=False)
    assert held(total) == Counter(left + right)


def test_memory_is_bounded_and_overfilling_raises() -> None:
    counts = KeyCounts(64 * 24, 10**9)
    room = counts.remaining()
    assert 0 < room < 64
    counts.add(entries(list(range(room))), once=True)
    assert counts.remaining() == 0
    with pytest.raises(ValueError, match="1 entries do not fit"):
        counts.add(entries([1]), once=True)
    counts.clear()
    assert (len(counts), counts.remaining(), held(counts)) == (0, room, {})


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
def test_a_round_ends_when_the_map_is_full(most: int, distinct: int) -> None:
    keys = keys_of(most, 400, distinct)
    given, at, rounds = entries(keys), 0, 0
    while at < len(keys):
        at, used = put_until_full(new_table(most), given, at, 0, most)
        assert used <= most
        rounds += 1
    assert rounds == rounds_of(keys, most)
