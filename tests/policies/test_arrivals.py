"""The cells of a log: which bucket superseded what, however the log is cut into slices and shards."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from compaction.kernels.slot_table import ENDS, SlotTable
from compaction.policies import arrivals as module
from compaction.policies.arrivals import BATCHES, CONTROLS, LARGEST_TIMESTAMP, NEVER, RECORDS, STORED
from tests.kafka.encode import Batch, Record
from tests.policies.simulated import arrivals_of
from tests.policies.stories import Shape, story

MIXED = [each.data for day in story(7, Shape(transactions=True, keyless=True, most_records=3), days=20) for each in day]
PLAIN = [
    Batch([Record(offset, offset, b"k%d" % (offset * 7 % 31), None if offset % 5 == 0 else b"v" * (offset % 40))])
    for offset in range(300)
]  # fmt: skip


def expected(batches: list[Batch]) -> dict[tuple[int, int, bool, bool], tuple[int, int]]:
    """Records and bytes by bucket, successor, and whether the two are tombstones."""
    records = [batch.records[0] for batch in batches]
    cells: dict[tuple[int, int, bool, bool], tuple[int, int]] = {}
    for at, (record, batch) in enumerate(zip(records, batches, strict=True)):
        later = [other for other in range(at + 1, len(records)) if records[other].key == record.key]
        successor = later[0] if later else NEVER
        by_tombstone = bool(later) and records[successor].value is None
        cells[at, successor, record.value is None, by_tombstone] = 1, len(batch.encode()) - 61
    return cells


@pytest.mark.parametrize(("slice_bytes", "shard_entries"), [(1 << 26, 1 << 20), (2000, 1 << 20), (2000, 3), (100, 1)])
def test_each_record_has_the_next_one_of_its_key(tmp_path: Path, slice_bytes: int, shard_entries: int) -> None:
    found = arrivals_of(tmp_path, [batch.encode() for batch in PLAIN], slice_bytes=slice_bytes, shard_entries=shard_entries)
    columns = (found.cells.bucket, found.cells.successor, found.cells.tombstone, found.cells.by_tombstone)
    keys = zip(*(column.tolist() for column in columns), strict=True)
    assert dict(zip(keys, map(tuple, found.cells.numbers.tolist()), strict=True)) == expected(PLAIN)
    assert found.exact


def test_a_task_that_spills_its_keys_finds_the_same_cells(tmp_path: Path) -> None:
    whole = arrivals_of(tmp_path / "a", MIXED)
    with patch.object(module, "SlotTable", _Small):
        spilled = arrivals_of(tmp_path / "b", MIXED, slice_bytes=3000, shard_entries=10)
    assert np.array_equal(whole.cells.keys, spilled.cells.keys)
    assert np.array_equal(whole.cells.numbers, spilled.cells.numbers)
    assert np.array_equal(whole.parts, spilled.parts)


class _Small(SlotTable):
    """Holds few keys."""

    def __init__(self, layout: object, *args: object) -> None:
        super().__init__(ENDS, 5 * 8 * ENDS.words, 0.9, 4)

    @classmethod
    def of_keys(cls, layout: object, keys: int) -> SlotTable:
        return SlotTable.of_keys(ENDS, keys)


def test_a_large_log_has_buckets_of_equal_size(tmp_path: Path) -> None:
    exact = arrivals_of(tmp_path / "a", MIXED)
    with patch.object(module, "EXACT_RECORDS", 10), patch.object(module, "BUCKETS", 16):
        found = arrivals_of(tmp_path / "b", MIXED, slice_bytes=5000, shard_entries=50)
    assert not found.exact
    assert len(found.starts) == 16
    assert found.buckets.tolist() == sorted(found.buckets.tolist())
    assert 16 < len(found.parts) <= 16 * module.PARTS
    for column in (BATCHES, RECORDS, STORED, CONTROLS):
        assert found.parts[:, column].sum() == exact.parts[:, column].sum()
    assert found.cells.numbers.sum(axis=0).tolist() == exact.cells.numbers.sum(axis=0).tolist()
    assert (np.diff(found.parts[:, LARGEST_TIMESTAMP]) >= 0).all()
    never, ever = (each.cells.records[each.cells.successor == NEVER].sum() for each in (found, exact))
    assert never == ever
