"""What becomes of a key's records decides whether they were superseded, dropped as tombstones, or lost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from compaction.certifier import key_tables
from compaction.certifier.key_tables import JoinedKeys, KeyTables
from compaction.certifier.reader import Chunk
from compaction.kernels.locate import RECORD_ROW
from compaction.kernels.tables import BATCH_ROW


class Seen(NamedTuple):
    """A record of ``before``."""

    key: bytes
    offset: int
    missing: bool = False
    droppable: bool = False


LOST = "record is missing though it is the last of its key"
EARLY = "tombstone is missing though older records of its key are retained"
EXTRA = "older records of this record's key are retained"


def tables(records: list[Seen], partitions: int = 1) -> list[tuple[int, bytes]]:
    keys = KeyTables(partitions, 5)
    data = b"".join(each.key for each in records)
    rows = np.zeros(len(records), RECORD_ROW)
    rows["offset"] = [each.offset for each in records]
    rows["key_size"] = [len(each.key) for each in records]
    rows["key_at"] = np.cumsum(rows["key_size"]) - rows["key_size"]
    chunk = Chunk(np.zeros(1, BATCH_ROW), rows, np.frombuffer(data, np.uint8), "", 0)
    flags = (np.array([getattr(each, name) for each in records], np.bool_) for name in ("missing", "droppable"))
    keys.add(chunk, np.arange(len(records)), *flags)
    return list(keys.packed())


def concluded(*tasks: list[Seen], strict: bool = False) -> tuple[set[tuple[int, str]], dict[str, int]]:
    joined = JoinedKeys()
    for _, packed in (each for task in tasks for each in tables(task)):
        joined.add(packed)
    findings, counts = joined.conclude(strict=strict)
    return {(each.offset, each.what) for each in findings.named}, {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("records", "violations", "counts"),
    [
        ([Seen(b"a", 1), Seen(b"b", 2)], set(), {}),
        ([Seen(b"a", 1, missing=True), Seen(b"a", 2)], set(), {"superseded": 1}),
        ([Seen(b"a", 1), Seen(b"a", 2)], set(), {"superseded_left": 1}),
        ([Seen(b"a", 1, missing=True)], {(1, LOST)}, {}),
        ([Seen(b"a", 1), Seen(b"a", 2, missing=True)], {(2, LOST)}, {"superseded_left": 1}),
        ([Seen(b"a", 1, missing=True, droppable=True)], set(), {"tombstone": 1}),
        ([Seen(b"a", 1, missing=True), Seen(b"a", 2, missing=True, droppable=True)], set(), {"superseded": 1, "tombstone": 1}),
        ([Seen(b"a", 1), Seen(b"a", 2, missing=True, droppable=True)], {(2, EARLY)}, {"tombstone": 1, "superseded_left": 1}),
        ([Seen(b"", 1, missing=True), Seen(b"", 2), Seen(b"\0", 3, missing=True)], {(3, LOST)}, {"superseded": 1}),
    ],
)
def test_a_missing_record_is_superseded_a_tombstone_or_lost(
    records: list[Seen], violations: set[tuple[int, str]], counts: dict[str, int]
) -> None:
    assert concluded(records) == (violations, counts)
    assert concluded(*([each] for each in records)) == (violations, counts)


def test_retained_superseded_records_are_violations_when_strict() -> None:
    assert concluded([Seen(b"a", 1), Seen(b"a", 9)], strict=True)[0] == {(9, EXTRA)}


def test_a_key_is_in_the_same_partition_for_every_task() -> None:
    keys = [b"key-%d" % number for number in range(200)]
    found: list[dict[int, set[bytes]]] = []
    for task in (keys, keys[::-1]):
        packed = tables([Seen(key, number) for number, key in enumerate(task)], partitions=7)
        found.append({partition: set(pa.ipc.open_stream(table).read_all()["key"].to_pylist()) for partition, table in packed})
    assert found[0] == found[1]
    assert (set(found[0]), sum(map(len, found[0].values()))) == (set(range(7)), 200)


def test_tables_that_outgrow_memory_are_joined_and_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_tables, "_JOIN_BYTES", 1)
    monkeypatch.setattr(key_tables, "_SPILL_BYTES", 1)
    assert concluded([Seen(b"a", 1, missing=True), Seen(b"a", 2)], [Seen(b"a", 3, missing=True)]) == (
        {(3, LOST)},
        {"superseded": 1, "superseded_left": 1},
    )
