"""The filter of dirty keys: no key of a map is ever missing from it, and what asks need no answer is told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.kernels.keys.key_filter import KeyFilter
from compaction.kernels.reading.tables import CANDIDATE, TOMBSTONE

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
    for low, high, mark in entries:
        if mark and not mark & CANDIDATE:
            words[(high & 0xFFFFFFFF) * size >> 32] |= 1 << (low & 63) | 1 << (low >> 6 & 63)
    return words


@given(st.lists(ENTRY, max_size=40), st.integers(0, 200), st.integers(0, 4000))
def test_the_bits_are_those_of_plain_arithmetic(entries: Rows, keys: int, most_bytes: int) -> None:
    found = KeyFilter.sized(keys, most_bytes)
    found.add(table([*entries, (5, 5, 0), (6, 6, 4 << 2 | CANDIDATE)]))
    assert found.words.tolist() == naive_words(len(found.words), entries)
    assert found.words.nbytes <= max(8, most_bytes)


@given(st.lists(ENTRY, max_size=40), st.lists(ENTRY, max_size=40), st.integers(0, 100), st.integers(0, 2**38))
def test_asks_that_go_are_clean_have_a_key_and_are_of_no_mapped_key(
    entries: Rows, asked: Rows, keys: int, first_dirty: int
) -> None:
    filtered = KeyFilter.sized(keys, 1 << 20)
    filtered.add(table(entries))
    asks = [(low, high, mark | CANDIDATE | (TOMBSTONE if mark % 3 == 0 else 0)) for low, high, mark in [*asked, *entries]]
    kept = filtered.prune(table(asks), first_dirty).tolist()
    words = filtered.words.tolist()

    def matters(low: int, high: int, mark: int) -> bool:
        bits = 1 << (low & 63) | 1 << (low >> 6 & 63)
        mapped = words[(high & 0xFFFFFFFF) * len(words) >> 32] & bits == bits
        return mapped or mark >> 2 >= first_dirty + 1 or bool(mark & TOMBSTONE) or (low, high) == (0, 0)

    assert kept == [list(ask) for ask in asks if matters(*ask)]
    mapped_keys = {(low, high) for low, high, _ in entries}
    lost = [ask for ask in asks if list(ask) not in kept]
    assert not mapped_keys & {(low, high) for low, high, _ in lost}


def test_filters_of_parts_make_that_of_the_whole() -> None:
    rng = np.random.default_rng(1)
    entries = rng.integers(4, 1 << 62, (1_000, 3), np.uint64) & ~np.uint64(CANDIDATE)
    whole, left, right = (KeyFilter.sized(1_000, 1 << 20) for _ in range(3))
    whole.add(entries)
    left.add(entries[:300])
    right.add(entries[300:])
    left.join(right)
    assert (left.words == whole.words).all()


@pytest.mark.parametrize("keys", [1_000, 200_000])
def test_few_other_keys_pass(keys: int) -> None:
    rng = np.random.default_rng(2)
    filtered = KeyFilter.sized(keys, 1 << 24)
    filtered.add(rng.integers(0, 1 << 63, (keys, 3), np.uint64) << np.uint64(1) & ~np.uint64(CANDIDATE) | np.uint64(4))
    asks = rng.integers(0, 1 << 63, (100_000, 3), np.uint64) << np.uint64(1)
    asks[:, 2] = 8 | CANDIDATE
    assert len(filtered.prune(asks, 1 << 40)) < 0.04 * 100_000
