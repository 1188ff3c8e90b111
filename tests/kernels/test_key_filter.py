"""The filter of dirty keys: it matches every key of a map, and prunes lookups without effect."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.kernels.keys import KeyFilter
from compaction.kernels.tables import LOOKUP, TOMBSTONE

Rows = list[tuple[int, int, int]]
WORDS = st.integers(0, 2**64 - 1)
#: few different halves besides any, so that keys share words and bits
HALF = st.sampled_from([0, 1, 63, 64, 2**32 - 1, 2**32, 2**64 - 1]) | WORDS
ENTRY = st.tuples(HALF, HALF, st.integers(1, 2**40).map(lambda offset: offset << 2))


def table(rows: Rows) -> NDArray[np.uint64]:
    return np.array(rows, np.uint64).reshape(-1, 3)


def naive_words(size: int, entries: Rows) -> list[int]:
    """What ``add`` makes of ``size`` empty words."""
    words = [0] * size
    for low, high, word in entries:
        if word and not word & LOOKUP:
            words[(high & 0xFFFFFFFF) * size >> 32] |= 1 << (low & 63) | 1 << (low >> 6 & 63)
    return words


@given(st.lists(ENTRY, max_size=40), st.integers(0, 200), st.integers(0, 4000))
def test_the_bits_are_those_of_plain_arithmetic(entries: Rows, keys: int, most_bytes: int) -> None:
    found = KeyFilter.sized(keys, most_bytes)
    found.add(table([*entries, (5, 5, 0), (6, 6, 4 << 2 | LOOKUP)]))
    assert found.words.tolist() == naive_words(len(found.words), entries)
    assert found.words.nbytes <= max(8, most_bytes)


@given(st.lists(ENTRY, max_size=40), st.lists(ENTRY, max_size=40), st.integers(0, 100), st.integers(0, 2**38))
def test_pruned_lookups_are_of_clean_records_with_keys_that_are_not_mapped(
    entries: Rows, looked_up: Rows, keys: int, first_dirty: int
) -> None:
    filtered = KeyFilter.sized(keys, 1 << 20)
    filtered.add(table(entries))
    lookups = [(a, b, word | LOOKUP | (TOMBSTONE if word % 3 == 0 else 0)) for a, b, word in [*looked_up, *entries]]
    kept = filtered.prune(table(lookups), first_dirty).tolist()
    words = filtered.words.tolist()

    def matters(low: int, high: int, word: int) -> bool:
        bits = 1 << (low & 63) | 1 << (low >> 6 & 63)
        mapped = words[(high & 0xFFFFFFFF) * len(words) >> 32] & bits == bits
        return mapped or word >> 2 >= first_dirty + 1 or bool(word & TOMBSTONE) or (low, high) == (0, 0)

    assert kept == [list(each) for each in lookups if matters(*each)]
    mapped_keys = {(low, high) for low, high, _ in entries}
    lost = [each for each in lookups if list(each) not in kept]
    assert not mapped_keys & {(low, high) for low, high, _ in lost}


def test_joined_filters_equal_the_filter_of_all_entries() -> None:
    rng = np.random.default_rng(1)
    entries = rng.integers(4, 1 << 62, (1_000, 3), np.uint64) & ~np.uint64(LOOKUP)
    expected, left, right = (KeyFilter.sized(1_000, 1 << 20) for _ in range(3))
    expected.add(entries)
    left.add(entries[:300])
    right.add(entries[300:])
    left.join(right)
    assert (left.words == expected.words).all()


@pytest.mark.parametrize("keys", [1_000, 200_000])
def test_fewer_than_four_in_a_hundred_unmapped_keys_pass(keys: int) -> None:
    rng = np.random.default_rng(2)
    filtered = KeyFilter.sized(keys, 1 << 24)
    filtered.add(rng.integers(0, 1 << 63, (keys, 3), np.uint64) << np.uint64(1) & ~np.uint64(LOOKUP) | np.uint64(4))
    lookups = rng.integers(0, 1 << 63, (100_000, 3), np.uint64) << np.uint64(1)
    lookups[:, 2] = 8 | LOOKUP
    assert len(filtered.prune(lookups, 1 << 40)) < 0.04 * 100_000
