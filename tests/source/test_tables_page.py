"""The examples of docs/tables.md are run, night after night, and the table compared with a dictionary."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.dump.segments import T0
from tests.kafka.encode import Batch, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def append(log_dir: Path, partition: int, base: int, changes: dict[str, str | None]) -> None:
    """A segment with a record for each change."""
    log = log_dir / f"orders-{partition}"
    log.mkdir(exist_ok=True)
    records = [
        Record(base + at, T0, key.encode(), None if value is None else value.encode())
        for at, (key, value) in enumerate(changes.items())
    ]
    (log / f"{base:020d}.log").write_bytes(Batch(tuple(records)).encode())


@pytest.mark.slow
def test_the_table_follows_the_log_night_after_night(spark: SparkSession, tmp_path: Path) -> None:
    log_dir, table = tmp_path / "log-dir", tmp_path / "table"
    log_dir.mkdir()
    (log_dir / "meta.properties").write_text("version=1\n")
    table.mkdir()
    first = {"a": '{"id": 1, "state": "new"}', "b": "x", "c": None}
    append(log_dir, 0, 0, first)
    append(log_dir, 1, 0, {"a": "other"})
    names: dict[str, Any] = {"spark": spark, "logs": str(log_dir), "table": str(table)}
    for source in examples("python"):
        exec(compile(source, "docs/tables.md", "exec"), names)  # noqa: S102 - the page's own examples
    assert rows(spark, table) == {(0, "a"): first["a"], (0, "b"): "x", (1, "a"): "other"}
    parsed = [(row.value.id, row.value.state) for row in names["orders"].collect()]
    assert sorted(parsed, key=str) == [(1, "new"), (None, None), (None, None)]

    update = names["update"]
    assert update(table, str(log_dir), "orders") is False
    append(log_dir, 0, 3, {"b": None, "d": "new"})
    append(log_dir, 0, 5, {"a": "changed", "d": "newer"})
    append(log_dir, 1, 1, {"a": None})
    append(log_dir, 2, 0, {"z": "a new partition"})
    # a run that was killed before its rename leaves the last version, and the next one replaces what it wrote
    (table / "2.tmp").mkdir()
    assert update(table, str(log_dir), "orders") is True
    assert rows(spark, table) == {(0, "a"): "changed", (0, "d"): "newer", (2, "z"): "a new partition"}
    assert update(table, str(log_dir), "orders") is False
    assert sorted(path.name for path in table.iterdir()) == ["1", "2"]


def rows(spark: SparkSession, table: Path) -> dict[tuple[int, str], str]:
    version = max(table.glob("[0-9]"))
    found = spark.read.parquet(str(version)).collect()
    assert len({(row.partition, bytes(row.key)) for row in found}) == len(found)
    return {(row.partition, bytes(row.key).decode()): bytes(row.value).decode() for row in found}


def test_the_merge_is_a_statement_of_spark_sql(spark: SparkSession) -> None:
    (statement,) = examples("sql")
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)
    assert "MergeIntoTable" in plan.toString()
