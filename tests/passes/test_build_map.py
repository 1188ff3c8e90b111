"""What a scan emits: entries leave a task in portions, as soon as its map spills them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from compaction.engine import Emission, Reading
from compaction.kernels.keys import HashSecret
from compaction.kernels.tables import ENTRY_BYTES
from compaction.passes import build_map
from compaction.passes.build_map import scan_slices
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
