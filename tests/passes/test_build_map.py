"""What a scan emits: entries leave a task in portions, as soon as its map spills them. The map takes any number of keys in
bounded memory, loses none, and keeps recurring keys resident."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.engine import Emission, Reading
from compaction.kernels.keys import HashSecret
from compaction.kernels.slot_table import Arena
from compaction.kernels.tables import ENTRY_BYTES, OFFSET_SHIFT
from compaction.passes import build_map
from compaction.passes.build_map import TaskMap, flag_single_task_logs, scan_slices
from compaction.passes.scan import Emitted, finish
from compaction.passes.tasks import MapContext, MapSettings, Slice
from tests.oracle.disk import write_partition
from tests.oracle.logs import LogBuilder, Sent

KEYS = 20_000
SHARDS = 3
PORTION = 100


def scan_of(directory: Path, map_slots: int) -> Iterator[Emission]:
    log = LogBuilder()
    for at in range(0, KEYS, 2_000):
        log.batch([Sent(b"%d" % key, b"") for key in range(at, at + 2_000)])
    write_partition(directory, log.build())
    (file,) = directory.glob("*.log")
    settings = MapSettings(map_slots * ENTRY_BYTES, 0.9, HashSecret.random())
    return scan_slices([Slice(0, 0, str(file), 0, KEYS, 0, file.stat().st_size, 0)], {0: MapContext(0, SHARDS)}, settings)


@pytest.mark.parametrize("map_slots", [1_000, 1 << 16], ids=["spilled", "drained"])
def test_entries_are_copied_in_portions_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, map_slots: int
) -> None:
    monkeypatch.setattr(build_map, "_PORTION", PORTION)
    monkeypatch.setattr(build_map, "_PORTION_PER_SHARD", 1)
    values = [(place[1], value) for place, value in scan_of(tmp_path, map_slots) if place is not None]
    entries = [(shard, packed) for shard, packed in values if not isinstance(packed, Reading)]
    assert {shard for shard, _ in entries} == set(range(SHARDS))
    assert max(len(each if each.base is None else each.base) for _, each in entries) <= PORTION
    assert len(np.unique(np.concatenate([each for _, each in entries]), axis=0)) == KEYS


def test_spilled_entries_leave_before_the_slice_has_been_read(tmp_path: Path) -> None:
    emitted = scan_of(tmp_path, 1_000)
    first = list(islice(emitted, SHARDS))
    assert None not in {place for place, _ in first}
    assert sum(len(packed) for _, packed in first) < KEYS / 2
    assert None in {place for place, _ in emitted}


def test_a_scan_of_sinks_that_emit_nothing_has_only_a_result() -> None:
    def scanning(emitted: int) -> Generator[Emitted, None, str]:
        for shard in range(emitted):
            yield (0, shard), []
        return "fingerprint"

    assert finish(scanning(0)) == "fingerprint"
    with pytest.raises(ValueError, match="has spilled"):
        finish(scanning(1))


def test_logs_with_one_shard_and_all_slices_in_one_task_are_single_task() -> None:
    def part(log: int) -> Slice:
        return Slice(log, 0, "x", 0, 1, 0, 1, 0)

    logs = {0: MapContext(0, 1), 1: MapContext(0, 1), 2: MapContext(0, 2), 3: MapContext(0, 1)}
    found = flag_single_task_logs(logs, [[part(0), part(0), part(1)], [part(1), part(2), part(3)]])
    assert {log: work.single_task for log, work in found.items()} == {0: True, 1: False, 2: False, 3: True}


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


def spilled(portions: list[NDArray[np.int64]], load_factor: float = 0.9) -> int:
    """How many entries of keys in portions leave the map early; each key is emitted with its highest offset."""
    taken = Taken(load_factor=load_factor)
    for portion in portions:
        taken.put(portion)
    early = sum(map(len, taken.parts))
    assert taken.merged() == {int(key): offset for offset, key in enumerate(np.concatenate(portions))}
    return early


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 900), st.integers(1, 3000)), min_size=1, max_size=8))
def test_every_key_is_emitted_with_its_highest_offset(seed: int, sizes: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(seed)
    spilled([rng.integers(0, keys, records) for records, keys in sizes])


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
    # a map reset each time it is full would spill eight records in ten
    assert spilled([rng.integers(0, 2 * SLOTS, 100) for _ in range(400)]) < 0.7 * 40_000


def test_keys_that_are_no_longer_written_are_evicted() -> None:
    rng = np.random.default_rng(3)
    days = [1000 * day + rng.integers(0, 300, 3000) for day in range(10)]
    assert spilled([part for day in days for part in np.split(day, 30)]) < 6000


@pytest.mark.parametrize("load_factor", [0.01, 0.5, 1.0])
def test_the_map_works_with_any_load_factor(load_factor: float) -> None:
    spilled([np.random.default_rng(4).integers(0, 1000, 500) for _ in range(6)], load_factor)
