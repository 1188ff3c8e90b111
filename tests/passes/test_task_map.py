"""A task's map takes any number of keys in bounded memory, loses none, and keeps recurring keys resident."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.kernels.slot_table import Arena
from compaction.kernels.tables import ENTRY_BYTES, OFFSET_SHIFT
from compaction.passes.build_map import TaskMap

SLOTS = 400
MAP_BYTES = SLOTS * ENTRY_BYTES


def entries_of(keys: NDArray[np.int64], first_offset: int) -> NDArray[np.uint64]:
    """An entry a key at ascending offsets; keys are spread over the slots."""
    spread = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    offsets = np.arange(first_offset, first_offset + len(keys), dtype=np.uint64)
    return np.stack([spread, keys.astype(np.uint64), (offsets + np.uint64(1)) << np.uint64(OFFSET_SHIFT)], axis=1)


class Taken:
    """A map and what it has spilled."""

    def __init__(self, max_records: int = 1 << 30, load_factor: float = 0.9) -> None:
        self.parts: list[NDArray[np.uint64]] = []
        self.map = TaskMap(MAP_BYTES, load_factor, max_records, Arena())
        self.offset = 0

    def _take(self, slots: NDArray[np.uint64]) -> None:
        self.parts.append(slots[slots[:, 2] != 0].copy())

    def put(self, keys: NDArray[np.int64]) -> None:
        for slots in self.map.put(entries_of(keys, self.offset)):
            self._take(slots)
        self.offset += len(keys)

    def merged(self) -> dict[int, int]:
        """Key -> highest offset of all entries, spilled or not."""
        for slots in self.map.drain():
            self._take(slots)
        found: dict[int, int] = {}
        for key, mark in ((int(key), int(mark)) for part in self.parts for key, mark in part[:, 1:]):
            found[key] = max(found.get(key, -1), (mark >> OFFSET_SHIFT) - 1)
        return found


def newest(portions: list[NDArray[np.int64]]) -> dict[int, int]:
    return {int(key): offset for offset, key in enumerate(np.concatenate(portions))}


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 900), st.integers(1, 3000)), min_size=1, max_size=8))
def test_every_key_is_emitted_with_its_highest_offset(seed: int, sizes: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(seed)
    portions = [rng.integers(0, keys, records) for records, keys in sizes]
    taken = Taken()
    for portion in portions:
        taken.put(portion)
    assert taken.merged() == newest(portions)


def test_keys_that_fit_are_never_spilled() -> None:
    taken, keys = Taken(), np.arange(200)
    for _ in range(20):
        taken.put(np.random.default_rng(1).permutation(keys))
    complete = taken.map.complete
    assert not taken.parts
    assert complete is not None
    assert len(complete) == len(keys)


def test_a_map_that_has_spilled_is_not_complete() -> None:
    taken = Taken()
    taken.put(np.arange(SLOTS + 1))
    assert taken.map.complete is None


def test_recurring_keys_stay_resident() -> None:
    rng = np.random.default_rng(2)
    portions = [rng.integers(0, 2 * SLOTS, 100) for _ in range(400)]
    taken = Taken()
    for portion in portions:
        taken.put(portion)
    # a map reset each time it is full would spill eight records in ten
    assert taken.merged() == newest(portions)
    assert sum(map(len, taken.parts)) < 0.7 * 40_000


def test_keys_that_are_no_longer_written_are_evicted() -> None:
    rng = np.random.default_rng(3)
    portions = [1000 * day + rng.integers(0, 300, 3000) for day in range(10)]
    taken = Taken()
    for portion in portions:
        for part in np.split(portion, 30):
            taken.put(part)
    spilled = sum(map(len, taken.parts))
    assert taken.merged() == newest(portions)
    assert spilled < 6000


@pytest.mark.parametrize("load_factor", [0.01, 0.5, 1.0])
def test_the_map_works_with_any_load_factor(load_factor: float) -> None:
    portions = [np.random.default_rng(4).integers(0, 1000, 500) for _ in range(6)]
    taken = Taken(load_factor=load_factor)
    for portion in portions:
        taken.put(portion)
    assert taken.merged() == newest(portions)


def test_a_tiny_map_takes_any_number_of_keys() -> None:
    entries = entries_of(np.arange(20_000), 0)
    found: list[int] = []
    tiny = TaskMap(4 * ENTRY_BYTES, 0.9, len(entries), Arena())
    for slots in chain(tiny.put(entries), tiny.drain()):
        found += slots[slots[:, 2] != 0, 1].tolist()
    assert sorted(found) == list(range(20_000))
