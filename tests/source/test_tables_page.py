"""The examples of docs/tables.md are run, night after night, and the table compared with a dictionary."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import pytest

from tests.dumping.segments import T0
from tests.kafka.encode import Batch, Record
from tests.large_log import END_OFFSET, KEYS, write_large_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tables.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


#: the examples in Python by what only they contain
STEPS = ("register(spark)", "def changes_between", "def update", "from deltalake", "from pyiceberg", "from_json", "from_avro")


def example(step: str, root: Path) -> CodeType:
    """An example as it stands, with paths below ``root``."""
    (source,) = (each for each in examples("python") if step in each)
    return compile(in_place(source, root), "docs/tables.md", "exec")


def in_place(source: str, root: Path) -> str:
    return source.replace("/backup/kafka-1", str(root / "log-dir")).replace("/tables/", f"{root}/")


def append(log_dir: Path, partition: int, base: int, changes: Mapping[str, str | bytes | None]) -> None:
    """A segment with a record for each change."""
    log = log_dir / f"orders-{partition}"
    log.mkdir(exist_ok=True, parents=True)
    records = [
        Record(base + at, T0, key.encode(), value.encode() if isinstance(value, str) else value)
        for at, (key, value) in enumerate(changes.items())
    ]
    (log / f"{base:020d}.log").write_bytes(Batch(tuple(records)).encode())


@pytest.mark.slow
def test_the_table_follows_the_log_night_after_night(spark: SparkSession, tmp_path: Path) -> None:
    log_dir, table = tmp_path / "log-dir", tmp_path / "orders"
    log_dir.mkdir()
    (log_dir / "meta.properties").write_text("version=1\n")
    table.mkdir()
    first = {"a": '{"id": 1, "state": "new"}', "b": "x", "c": None}
    append(log_dir, 0, 0, first)
    append(log_dir, 1, 0, {"a": "other"})
    names: dict[str, Any] = {}
    for step in ("register(spark)", "def changes_between", "def update", "from_json"):
        exec(example(step, tmp_path), names)  # noqa: S102 - the page's own examples
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


def test_every_example_is_run(tmp_path: Path) -> None:
    assert len(examples("python")) == len(STEPS)
    assert all(example(step, tmp_path) for step in STEPS)


@pytest.mark.slow
def test_the_page_can_be_pasted_from_its_first_line(tmp_path: Path) -> None:
    """In an interpreter that has run nothing else, on a large log; examples for other packages only if these are installed."""
    write_large_log(tmp_path / "log-dir")
    append(tmp_path / "log-dir", 0, END_OFFSET, {"a": '{"id": 1, "state": "new"}', "b": None})
    (tmp_path / "orders").mkdir()
    needed = {"from deltalake": "deltalake", "from pyiceberg": "pyiceberg"}
    left_out = ["from_avro", *(step for step, package in needed.items() if find_spec(package) is None)]
    pasted = [each for each in examples("python") if not any(step in each for step in left_out)]
    program = in_place("\n".join(pasted), tmp_path) + "print(orders.count(), orders.where(orders.key == 'a').collect())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, **_catalog(tmp_path), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    # those of the large log, the one of its active segment, and ``a``
    assert done.stdout.splitlines()[-1] == f"{KEYS + 2} [Row(key='a', value=Row(id=1, state='new'))]"


def _catalog(root: Path) -> dict[str, str]:
    """The environment that names the catalog of Iceberg."""
    name = "PYICEBERG_CATALOG__DEFAULT__"
    return {f"{name}URI": f"sqlite:///{root}/catalog.db", f"{name}WAREHOUSE": f"file://{root}/warehouse"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("package", ["deltalake", "pyiceberg"])
def test_other_tables_follow_the_log_and_a_repeated_run_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Callable[[str], None], package: str
) -> None:
    if find_spec(package) is None:
        missing(f"{package} (`make suites` installs it)")
    log_dir = tmp_path / "log-dir"
    append(log_dir, 0, 0, {"a": "new", "b": "x", "c": None})
    append(log_dir, 1, 0, {"a": "other"})
    names: dict[str, Any] = {}
    for name, value in _catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    for step in ("register(spark)", "def changes_between", f"from {package}"):
        exec(example(step, tmp_path), names)  # noqa: S102 - the page's own examples
    table = _Delta(tmp_path, names) if package == "deltalake" else _Iceberg(names)
    assert table.rows() == {(0, "a"): "new", (0, "b"): "x", (1, "a"): "other"}
    found = table.state()
    assert (table.update(), table.state()) == (False, found)
    append(log_dir, 0, 3, {"b": None, "d": "new", "unknown": None})
    append(log_dir, 0, 6, {"a": "changed", "d": "newer"})
    append(log_dir, 1, 1, {"a": None})
    append(log_dir, 2, 0, {"z": "a new partition"})
    assert table.update() is True
    assert table.rows() == {(0, "a"): "changed", (0, "d"): "newer", (2, "z"): "a new partition"}
    assert table.state() != found
    assert table.update() is False
    changed = table.state(), table.rows()
    append(log_dir, 2, 1, {"unknown": None})
    assert table.update() is True
    assert (table.state(), table.rows()) == changed
    # Delta has no commit of it, and so not its offsets
    assert table.update() is (package == "deltalake")


class _Delta:
    def __init__(self, root: Path, names: dict[str, Any]) -> None:
        self._names, self._path = names, str(root / "orders-delta")

    def update(self) -> Any:
        return self._names["merge_into_delta"](self._path, self._names["logs"], "orders")

    def rows(self) -> dict[tuple[int, str], str]:
        return _by_key(self._names["DeltaTable"](self._path).to_pyarrow_table().to_pylist())

    def state(self) -> Any:
        return self._names["DeltaTable"](self._path).version()


class _Iceberg:
    def __init__(self, names: dict[str, Any]) -> None:
        self._names, self._catalog = names, names["catalog"]

    def update(self) -> Any:
        return self._names["upsert_into_iceberg"](self._catalog, "shop.orders", self._names["logs"], "orders")

    def rows(self) -> dict[tuple[int, str], str]:
        return _by_key(self._catalog.load_table("shop.orders").scan().to_arrow().to_pylist())

    def state(self) -> Any:
        return [each.snapshot_id for each in self._catalog.load_table("shop.orders").snapshots()]


def _by_key(found: list[dict[str, Any]]) -> dict[tuple[int, str], str]:
    return {(row["partition"], row["key"].decode()): row["value"].decode() for row in found}


@pytest.mark.slow
def test_values_of_a_registry_are_read_by_from_json_and_from_avro(tmp_path: Path) -> None:
    """In a session of its own, with Spark's package for Avro."""
    prefix = b"\0" + struct.pack(">i", 7)
    for topic, value in (("json", b'{"id": 5, "state": "new"}'), ("avro", b"\x0a" + b"\x06new")):
        append(tmp_path / topic, 0, 0, {"a": prefix + value, "b": prefix + value})
        append(tmp_path / topic, 0, 2, {"b": None})
    script = tmp_path / "read.py"
    script.write_text(textwrap.dedent(REGISTERED))
    sources = {step: source for step in STEPS for source in examples("python") if step in source}
    sources["register(spark)"] = sources["register(spark)"].replace('logs = "/backup/kafka-1"', "")
    (tmp_path / "examples.json").write_text(json.dumps(sources))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    expected = [["a", 5, "new"]]
    assert json.loads(done.stdout.splitlines()[-1]) == {"registered": expected, "avro_orders": expected}


REGISTERED = """
    import json, sys
    from pathlib import Path

    from pyspark.sql import SparkSession

    root = Path(sys.argv[1])
    examples = json.loads((root / "examples.json").read_text())
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", "org.apache.spark:spark-avro_2.13:4.1.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    found = {}
    for name, topic, step in (("registered", "json", "from_json"), ("avro_orders", "avro", "from_avro")):
        names = {"spark": spark, "logs": str(root / topic)}
        exec(examples["register(spark)"], names)
        exec(examples[step], names)
        rows = names[name].collect()
        found[name] = sorted([bytes(row.key).decode(), row.value.id, row.value.state] for row in rows)
    print(json.dumps(found))
    spark.stop()
"""


def rows(spark: SparkSession, table: Path) -> dict[tuple[int, str], str]:
    version = max(table.glob("[0-9]"))
    found = spark.read.parquet(str(version)).collect()
    assert len({(row.partition, bytes(row.key)) for row in found}) == len(found)
    return {(row.partition, bytes(row.key).decode()): bytes(row.value).decode() for row in found}
