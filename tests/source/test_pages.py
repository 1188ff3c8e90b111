"""The examples of docs/exports.md and docs/tables.md are run, and what they read is compared with a dictionary."""

from __future__ import annotations

import gzip
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
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.dumping.segments import T0
from tests.kafka.encode import Batch, Record
from tests.large_log import END_OFFSET, KEYS, write_large_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


def examples(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


EXPORTS, TABLES = examples("exports.md"), examples("tables.md")
#: the examples of docs/tables.md by what only they contain
STEPS = ("register(spark)", "def changes_between", "def update", "from deltalake", "from pyiceberg", "from_json", "from_avro")
Rows = list[dict[str, Any]]


class Sent(NamedTuple):
    """A record as it was produced; without ``state``, a tombstone."""

    partition: int
    offset: int
    key: str | None
    state: str | None


# tombstones between values, a key in two partitions, a key that is deleted and written again, a record without a key
SENT = [
    Sent(0, 0, "a", "new"),
    Sent(0, 1, "b", "new"),
    Sent(0, 2, "b", None),
    Sent(0, 3, "c", "new"),
    Sent(0, 4, "c", None),
    Sent(0, 6, "a", "paid"),
    Sent(0, 7, "c", "new again"),
    Sent(0, 8, None, "lost"),
    Sent(1, 12, "a", None),
    Sent(1, 13, "b", "other partition"),
]
LATEST = {(0, "a"): "paid", (0, "c"): "new again", (1, "b"): "other partition"}


def sink_tables(form: str) -> dict[str, Rows]:
    """The files of Confluent's sink by name, with ``flush.size`` 2."""
    found: dict[str, Rows] = {}
    for partition in {each.partition for each in SENT}:
        sent = [each for each in SENT if each.partition == partition]
        for folder, of in (
            (f"partition={partition}", [each for each in sent if each.state is not None]),
            ("tombstone", [each for each in sent if each.state is None]),
        ):
            for at in range(0, len(of), 2):
                rows = of[at : at + 2]
                stem = f"orders/{folder}/orders+{partition}+{rows[0].offset:010d}"
                found[f"{stem}.keys.{form}"] = [{"key": row.key, "offset": row.offset} for row in rows]
                if folder != "tombstone":
                    found[f"{stem}.{form}"] = [{"state": row.state, "offset": row.offset} for row in rows]
    return found


def write(path: Path, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


@pytest.mark.parametrize(
    ("form", "extension"), [pytest.param("parquet", "snappy.parquet", marks=pytest.mark.slow), ("json", "json.gz")]
)
def test_the_latest_of_each_key_is_read_from_confluents_sink(
    spark: SparkSession, tmp_path: Path, form: str, extension: str
) -> None:
    for name, rows in sink_tables(extension).items():
        write(tmp_path / "topics" / name, rows)
    names: dict[str, Any] = {"spark": spark, "topics": f"{tmp_path}/topics", "form": form, "extension": extension}
    exec(compile(EXPORTS[0], "docs/exports.md", "exec"), names)  # noqa: S102 - the page's own example
    assert {(row.partition, row.key): row.state for row in names["latest"].collect()} == LATEST
    (tmp_path / f"topics/orders/partition=0/orders+0+0000000003.{extension}").unlink()
    again = names["latest_of_sink"](f"{tmp_path}/topics/orders", form, extension).where("state is null")
    missing = [(row.partition, row.key) for row in again.collect()]
    assert missing == [(0, "a")], "values that are missing are no deletes"


@pytest.mark.parametrize(("row_form", "suffix"), [("json", ".gz"), ("parquet", "")])
def test_the_latest_of_each_key_is_read_from_rows(spark: SparkSession, tmp_path: Path, row_form: str, suffix: str) -> None:
    for partition in (0, 1):
        sent = [each for each in SENT if each.partition == partition]
        for at in range(0, len(sent), 3):
            rows = [{"key": each.key, "value": each.state, "offset": each.offset} for each in sent[at : at + 3]]
            name = tmp_path / f"orders-{partition}-{rows[0]['offset']}{suffix}"
            write(name if suffix else name.with_suffix(".parquet"), rows)
            if not suffix:
                name.with_suffix(".parquet").rename(name)
    names: dict[str, Any] = {"spark": spark, "bucket": str(tmp_path), "row_form": row_form}
    exec(compile(EXPORTS[0].split("latest = ")[0] + EXPORTS[1], "docs/exports.md", "exec"), names)  # noqa: S102
    assert {(row.partition, row.key): row.value for row in names["latest_rows"].collect()} == LATEST


pytestmark = pytest.mark.spark


def example(step: str, root: Path) -> CodeType:
    """An example as it stands, with paths below ``root``."""
    (source,) = (each for each in TABLES if step in each)
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


def test_every_example_is_run(tmp_path: Path) -> None:
    assert len(TABLES) == len(STEPS)
    assert all(example(step, tmp_path) for step in STEPS)


@pytest.mark.slow
def test_the_page_can_be_pasted_from_its_first_line(tmp_path: Path) -> None:
    """In an interpreter that has run nothing else, on a large log; examples for other packages only if these are installed."""
    write_large_log(tmp_path / "log-dir")
    append(tmp_path / "log-dir", 0, END_OFFSET, {"a": '{"id": 1, "state": "new"}', "b": None})
    (tmp_path / "orders").mkdir()
    needed = {"from deltalake": "deltalake", "from pyiceberg": "pyiceberg"}
    left_out = ["from_avro", *(step for step, package in needed.items() if find_spec(package) is None)]
    pasted = [each for each in TABLES if not any(step in each for step in left_out)]
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
@pytest.mark.parametrize("kind", ["def update", "from deltalake", "from pyiceberg"])
def test_a_table_follows_the_log_and_a_repeated_run_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Callable[[str], None], kind: str
) -> None:
    package = kind.removeprefix("from ")
    if kind.startswith("from ") and find_spec(package) is None:
        missing(f"{package} (`make suites` installs it)")
    log_dir, parquet, delta = tmp_path / "log-dir", tmp_path / "orders", f"{tmp_path}/orders-delta"
    parquet.mkdir()
    append(log_dir, 0, 0, {"a": "new", "b": "x", "c": None})
    append(log_dir, 1, 0, {"a": "other"})
    names: dict[str, Any] = {}
    for name, value in _catalog(tmp_path).items():
        monkeypatch.setenv(name, value)
    for step in ("register(spark)", "def changes_between", kind):
        exec(example(step, tmp_path), names)  # noqa: S102 - the page's own examples

    def versions() -> list[int]:
        return sorted(int(path.name) for path in parquet.iterdir())

    def iceberg() -> Any:
        return names["catalog"].load_table("shop.orders")

    # how to update the table, its rows, and what each change of it changes
    tables: dict[str, tuple[Callable[[], Any], ...]] = {
        "def update": (
            lambda: names["update"](parquet, names["logs"], "orders"),
            lambda: spark.read.parquet(f"{parquet}/{max(versions())}").toArrow(), versions,
        ),
        "from deltalake": (
            lambda: names["merge_into_delta"](delta, names["logs"], "orders"),
            lambda: names["DeltaTable"](delta).to_pyarrow_table(), lambda: names["DeltaTable"](delta).version(),
        ),
        "from pyiceberg": (
            lambda: names["upsert_into_iceberg"](names["catalog"], "shop.orders", names["logs"], "orders"),
            lambda: iceberg().scan().to_arrow(), lambda: [each.snapshot_id for each in iceberg().snapshots()],
        ),
    }  # fmt: skip
    update, rows, state = tables[kind]

    def by_key() -> dict[tuple[int, str], str]:
        found = rows().to_pylist()
        made = {(row["partition"], row["key"].decode()): row["value"].decode() for row in found}
        assert len(made) == len(found)
        return made

    assert by_key() == {(0, "a"): "new", (0, "b"): "x", (1, "a"): "other"}
    found = state()
    assert (update(), state()) == (False, found)
    append(log_dir, 0, 3, {"b": None, "d": "new", "unknown": None})
    append(log_dir, 0, 6, {"a": "changed", "d": "newer"})
    append(log_dir, 1, 1, {"a": None})
    append(log_dir, 2, 0, {"z": "a new partition"})
    if kind == "def update":
        # a run that was killed before its rename leaves the last version, and the next one replaces what it wrote
        (parquet / "2.tmp").mkdir()
    assert update() is True
    assert by_key() == {(0, "a"): "changed", (0, "d"): "newer", (2, "z"): "a new partition"}
    assert state() != found
    assert update() is False
    changed = state(), by_key()
    append(log_dir, 2, 1, {"unknown": None})
    assert update() is True
    assert by_key() == changed[1]
    # a directory of Parquet files has a version more; Delta has no commit of it, and so not its offsets
    assert (state() == changed[0]) is (kind != "def update")
    assert update() is (package == "deltalake")


@pytest.mark.slow
def test_avro_is_read_from_confluents_sink_and_with_the_prefix_of_a_registry(tmp_path: Path) -> None:
    """In a session of its own, with Spark's package for Avro, which also writes the files of the sink."""
    (tmp_path / "tables.json").write_text(json.dumps(sink_tables("avro")))
    prefix = b"\0" + struct.pack(">i", 7)
    for topic, value in (("json", b'{"id": 5, "state": "new"}'), ("avro", b"\x0a" + b"\x06new")):
        append(tmp_path / topic, 0, 0, {"a": prefix + value, "b": prefix + value})
        append(tmp_path / topic, 0, 2, {"b": None})
    sources = {step: source for step in STEPS for source in TABLES if step in source}
    sources["register(spark)"] = sources["register(spark)"].replace('logs = "/backup/kafka-1"', "")
    (tmp_path / "examples.json").write_text(json.dumps({"sink": EXPORTS[0], **sources}))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(AVRO), str(tmp_path)], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    sink, registered = json.loads(done.stdout.splitlines()[-1])
    assert {(partition, key): state for partition, key, state in sink} == LATEST
    expected = [["a", 5, "new"]]
    assert registered == {"registered": expected, "avro_orders": expected}


AVRO = """
    import json, shutil, sys
    from pathlib import Path

    from pyspark.sql import SparkSession

    root = Path(sys.argv[1])
    examples = json.loads((root / "examples.json").read_text())
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", "org.apache.spark:spark-avro_2.13:4.1.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    for name, rows in json.loads((root / "tables.json").read_text()).items():
        schema = "offset bigint, key string" if ".keys." in name else "offset bigint, state string"
        spark.createDataFrame(rows, schema).coalesce(1).write.mode("overwrite").format("avro").save(str(root / "written"))
        (written,) = (root / "written").glob("*.avro")
        target = root / "topics" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(written, target)
    names = {"spark": spark, "topics": str(root / "topics"), "form": "avro", "extension": "avro"}
    exec(examples["sink"], names)
    sink = [[row.partition, row.key, row.state] for row in names["latest"].collect()]
    found = {}
    for name, topic, step in (("registered", "json", "from_json"), ("avro_orders", "avro", "from_avro")):
        names = {"spark": spark, "logs": str(root / topic)}
        exec(examples["register(spark)"], names)
        exec(examples[step], names)
        rows = names[name].collect()
        found[name] = sorted([bytes(row.key).decode(), row.value.id, row.value.state] for row in rows)
    print(json.dumps([sink, found]))
    spark.stop()
"""
