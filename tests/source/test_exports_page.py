"""The examples of docs/exports.md are run on files of the sinks' documented layouts, and compared with a dictionary."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "exports.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
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
    exec(compile(EXAMPLES[0], "docs/exports.md", "exec"), names)  # noqa: S102 - the page's own example
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
    exec(compile(EXAMPLES[0].split("latest = ")[0] + EXAMPLES[1], "docs/exports.md", "exec"), names)  # noqa: S102
    assert {(row.partition, row.key): row.value for row in names["latest_rows"].collect()} == LATEST


@pytest.mark.slow
def test_the_latest_of_each_key_is_read_from_avro(tmp_path: Path) -> None:
    """In a session of its own, with Spark's package for Avro, which also writes the files."""
    (tmp_path / "tables.json").write_text(json.dumps(sink_tables("avro")))
    (tmp_path / "example.py").write_text(EXAMPLES[0])
    script = tmp_path / "read_avro.py"
    script.write_text(textwrap.dedent(AVRO))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {(partition, key): state for partition, key, state in found} == LATEST


AVRO = """
    import json, shutil, sys
    from pathlib import Path

    from pyspark.sql import SparkSession

    root = Path(sys.argv[1])
    package = "org.apache.spark:spark-avro_2.13:4.1.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", package)
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
    exec((root / "example.py").read_text(), names)
    print(json.dumps([[row.partition, row.key, row.state] for row in names["latest"].collect()]))
    spark.stop()
"""
