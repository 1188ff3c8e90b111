"""Views of the data source: the newest record of each key equals that of a plain dictionary of what a consumer is served."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compaction.errors import CorruptLogError
from compaction.source import latest
from compaction.source.data_source import end_offsets
from tests.dumping.segments import write_segment
from tests.source.plain_consumer import Served, read_rows, reader_of, serve, served
from tests.source.random_partition import FLAVOURS, write_random

View = list[tuple[Served, int]]


def newest(records: Iterable[Served], first: int = 0, end: int | None = None, *, tombstones: bool = True) -> View:
    """By a dictionary: the newest record of each key in the order of offsets, with the number of older ones."""
    found: dict[tuple[str, int, bytes], tuple[Served, int]] = {}
    for each in records:
        if each.key is not None and each.offset >= first and (end is None or each.offset < end):
            key = each.topic, each.partition, each.key
            found[key] = each, found[key][1] + 1 if key in found else 0
    return sorted(each for each in found.values() if tombstones or each[0].value is not None)


def viewed(rows: Iterable[dict[str, Any]]) -> View:
    return [(served(row), row["superseded"]) for row in rows]


@pytest.mark.parametrize("memory", [256 << 20, 5 * 48], ids=["in memory", "spooled"])
@pytest.mark.parametrize("flavour", list(FLAVOURS))
def test_random_logs_have_the_view_of_a_dictionary(
    tmp_log_dir: Path, flavour: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "TABLE_BYTES", memory)
    for seed in range(2):
        log_dir = tmp_log_dir / str(seed)
        path, made = write_random(log_dir, flavour, seed)
        every = list(serve(path, committed=True, end_offset=made.last_stable_offset))
        assert viewed(read_rows(log_dir, view="latest")) == newest(every)
        assert viewed(read_rows(log_dir, view="latest", slicebytes="700", tombstones="drop")) == newest(every, tombstones=False)
        middle, late = (every[len(every) * part // 4].offset for part in (2, 3))
        offsets = {
            "startingoffsets": json.dumps({"random": {"0": middle}}), "endingoffsets": json.dumps({"random": {"0": late}}),
        }  # fmt: skip
        assert viewed(read_rows(log_dir, view="latest", slicebytes="700", **offsets)) == newest(every, middle, late)


def test_changes_are_upserts_and_deletes(sample: Path) -> None:
    rows = read_rows(sample / "ledger-0", view="changes")
    assert viewed(rows) == newest(serve(sample / "ledger-0", committed=True))
    assert {(row["change"], row["value"] is None) for row in rows} == {("upsert", False), ("delete", True)}


def test_columns_are_those_that_are_named(sample: Path) -> None:
    expected = [{"superseded": count, "offset": each.offset} for each, count in newest(serve(sample / "orders-1"))]
    assert read_rows(sample / "orders-1", view="latest", columns="superseded,offset") == expected
    batches = read_rows(sample / "orders-1", view="latest", batchcolumns="true")
    assert [row["superseded"] for row in batches] == [row["superseded"] for row in expected]
    assert all(row["baseOffset"] <= row["offset"] for row in batches)


def test_logs_without_records_in_the_view_have_no_rows(sample: Path) -> None:
    assert read_rows(sample / "never-written-0", view="latest") == []
    assert read_rows(sample / "orders-0", view="latest", startingoffsets='{"orders": {"0": 99999}}') == []


def test_offsets_of_partitions_bound_reads_without_a_view(sample: Path) -> None:
    options = {"startingoffsets": '{"orders": {"0": 1490, "1": -2}}', "endingoffsets": '{"orders": {"1": 7, "2": -1}}'}
    rows = read_rows(sample, topic="orders", **options)
    found: dict[int, list[int]] = {partition: [] for partition in range(3)}
    for row in rows:
        found[row["partition"]].append(row["offset"])
    assert found == {0: list(range(1490, 1500)), 1: list(range(7)), 2: list(range(1500))}


def test_the_offsets_reached_are_the_start_of_the_next_read(sample: Path) -> None:
    reached = end_offsets(str(sample), topic="orders payments-open")
    ends = json.loads(reached)
    assert ends["orders"] == {"0": 1500, "1": 1500, "2": 1500}
    assert read_rows(sample, topic="orders payments-open", startingoffsets=reached, endingoffsets=reached) == []
    committed = json.loads(end_offsets(str(sample), topic="payments-open", view="latest"))
    offsets = [row["offset"] for row in read_rows(sample, topic="payments-open", view="latest")]
    assert max(offsets) < committed["payments-open"]["0"] < ends["payments-open"]["0"]


def test_topics_and_partitions_select_the_logs_of_a_view(sample: Path) -> None:
    tasks = [part.value[0] for part in reader_of(sample, view="latest", topic="orders", partition="prices-0").partitions()]
    assert [str(task.topic_partition) for task in tasks] == ["orders-0", "orders-1", "orders-2", "prices-0"]


def test_damage_is_an_error_with_its_position(tmp_log_dir: Path) -> None:
    made = write_segment(tmp_log_dir / "orders-0")
    write_segment(tmp_log_dir / "orders-0", base=300)
    reader = reader_of(tmp_log_dir, view="latest")
    content = bytearray(made.path.read_bytes())
    content[made.positions[3] + 70] ^= 1
    made.path.write_bytes(content)
    with pytest.raises(CorruptLogError, match=rf"at byte {made.positions[3]}: batch fails its CRC"):
        [list(reader.read(part)) for part in reader.partitions()]


def test_a_spool_returns_the_rows_of_each_part_in_order(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for memory in (0, 1 << 20):
        with closing(latest.PartSpool(2, 3, memory)) as spool:
            expected: list[list[list[int]]] = [[], [], []]
            for size in (0, 5, 40, 1):
                rows = rng.integers(0, 9, (size, 2)).astype(np.uint64)
                part_of = rng.integers(0, 3, size)
                spool.add(rows, part_of)
                for row, part in zip(rows.tolist(), part_of.tolist(), strict=True):
                    expected[part].append(row)
            assert [spool.read(part).tolist() for part in range(3)] == expected
