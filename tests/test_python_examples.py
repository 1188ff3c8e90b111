"""The examples of all documents, as their users run them: the commands of recipes, and Python on logs that need workers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import compaction
from tests.golden import unpack_sample
from tests.jvm import spark_variables
from tests.large_log import KEYS, replace_log, write_large_log

ROOT = Path(__file__).resolve().parent.parent
#: commands of the system and of Kafka, which do nothing here
_STUBS = "kafka-server-start.sh() { :; }\n"
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_WARNING = "[2026-11-22 02:00:01,001] INFO Starting the log cleaner (org.apache.kafka.storage.internals.log.LogCleaner)\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A root with the sample as a broker's directory, as a backup and as a snapshot."""
    logs = unpack_sample(tmp_path / "unpacked")
    for name in ("var/lib/kafka/data", "backup/kafka-1", "snap/data"):
        shutil.copytree(logs, tmp_path / name)
    (tmp_path / "opt/kafka/logs").mkdir(parents=True)
    return tmp_path


def follow(page: str, place: Path) -> str:
    """The output of all commands of a page; each has to end with 0."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    script = "\n".join(_BLOCK.findall(text))
    # a value or the beginning of one
    script = re.sub(r"(?<=[ =])/(?=(?:var|backup|snap|opt)/)", f"{place}/", script)
    return run(["bash", "-e", "-c", _STUBS + script], place)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.log"))


def offsets(log_dir: Path) -> set[tuple[str, int, int]]:
    """The newest record of each key."""
    rows = compaction.read_arrow(log_dir, view="latest", columns=["topic", "partition", "offset"]).read_all().to_pylist()
    return {(row["topic"], row["partition"], row["offset"]) for row in rows}


def test_a_full_disk_gets_space_and_keeps_what_its_policies_keep(place: Path) -> None:
    data = place / "var/lib/kafka/data"
    before = size_of(data)
    follow("disk-full.md", place)
    assert size_of(data) < before
    assert list(data.rglob("*.deleted")) == []
    kept, all_newest = offsets(data), offsets(place / "snap/data")
    assert {name for name, *_ in kept} >= {"orders", "customers", "prices"}
    assert kept <= all_newest


def test_each_night_has_a_complete_copy(place: Path) -> None:
    shown = follow("nightly-copy.md", place)
    nights = sorted((place / "backup").glob("2026-*"))
    assert [night.name for night in nights] == ["2026-11-22", "2026-11-23"]
    assert "16 logs: 16 hold" in shown
    for night in nights:
        assert offsets(night) == offsets(nights[0])
        assert size_of(night) < size_of(place / "snap/data")


def test_an_erased_person_does_not_come_back_with_a_restored_backup(place: Path) -> None:
    (place / "erased-keys.txt").write_text("customers-00009\n")
    follow("erase-from-backups.md", place)
    for log_dir in (place / "backup/kafka-1", place / "var/lib/kafka/restored"):
        keys = compaction.read_arrow(log_dir, "customers", columns="key").read_all()["key"].to_pylist()
        assert keys
        assert b"customers-00009" not in keys
    unerased = compaction.read_arrow(place / "snap/data", "customers", columns="key").read_all()["key"].to_pylist()
    assert b"customers-00009" in unerased


def test_the_size_of_a_topic_is_shown_now_and_later(place: Path) -> None:
    shown = follow("topic-size.md", place)
    assert re.search(r"^orders +bytes", shown, re.MULTILINE)
    assert (place / "size.html").stat().st_size > 10_000


def test_an_uncleanable_partition_is_named_and_compacted(place: Path) -> None:
    log = place / "opt/kafka/logs/log-cleaner.log"
    page = (ROOT / "docs/uncleanable.md").read_text(encoding="utf-8")
    (line,) = re.findall("^WARN.*", page, re.MULTILINE)
    log.write_text(_WARNING)
    follow("uncleanable.md", place)
    log.write_text(f"{_WARNING}{line}\njava.io.IOException: No space left on device\n")
    found = compaction.doctor(place / "snap/data", broker_logs=log)
    assert [Path(check.area).name for check in found.checks if "given up" in check.name] == ["orders-0"]


LIMIT_S = 300
#: the tests that run the examples of a page, and the number of these
RUN_BY = {
    "README.md": ("engines/test_workers.py", 1),
    "airflow.md": ("airflow/test_dag.py", 1),
    "data-source.md": ("test_python_examples.py", 2),
    # on files of other programs, which only Spark reads
    "exports.md": ("source/test_pages.py", 2),
    # the engine: engines/test_how_to_add.py; the option is a part of a module
    "how-to-add.md": ("test_python_examples.py", 4),
    "newest-values.md": ("test_python_examples.py", 3),
    "python.md": ("engines/test_workers.py", 1),
    "tables.md": ("source/test_pages.py", 7),
}


def examples(page: str) -> list[str]:
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_every_page_with_examples_has_a_test_that_runs_them() -> None:
    pages = ["README.md", *(path.name for path in (ROOT / "docs").glob("*.md"))]
    assert {page: len(examples(page)) for page in pages if examples(page)} == {page: n for page, (_, n) in RUN_BY.items()}
    for page, (module, _) in RUN_BY.items():
        assert page in (ROOT / "tests" / module).read_text(encoding="utf-8"), page


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with a log that needs workers."""
    place = tmp_path_factory.mktemp("large")
    log_dir = unpack_sample(place)
    replace_log(log_dir, "orders", write_large_log(place / "log", step_ms=60_000) / "orders-0")
    return log_dir


def run(command: list[str], place: Path, program: str = "") -> str:
    """The standard output of a command in the activated environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    packages = os.pathsep.join([str(place), str(ROOT)])
    done = subprocess.run(
        command, cwd=place, env={**os.environ, "PATH": path, "PYTHONPATH": packages, **spark_variables()},
        input=program, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


SESSION = """\
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("registered", [False, True], ids=["found by Spark", "registered"])
def test_the_examples_of_the_data_source_read_a_large_log(registered: bool, logs: Path, tmp_path: Path) -> None:
    """From standard input, as in a shell."""
    read, register = examples("data-source.md")
    count = f"print(orders.where('partition = 0').select('key').distinct().count(), {KEYS} + 1)"
    program = SESSION + (register if registered else "") + read.replace("/backup/kafka-1", str(logs)) + count
    found = run([sys.executable, "-"], tmp_path, program)
    assert "|count|" in found
    assert found.splitlines()[-1] == f"{KEYS + 1} {KEYS + 1}"


@pytest.mark.slow
def test_the_newest_values_of_a_large_log_go_into_duckdb_polars_and_a_file(logs: Path, tmp_path: Path) -> None:
    program = "\n".join(examples("newest-values.md")).replace("/backup/kafka-1", str(logs))
    shown = run([sys.executable, "-"], tmp_path, program)
    partitions = {path.name.partition("-")[2] for path in logs.glob("orders-*")}
    assert set(re.findall(r"^│ +(\d+) │ +\d+ │ \d{4}-", shown, re.MULTILINE)) == partitions
    assert re.search(r"key +┆ value +┆ superseded", shown)
    newest = pq.read_table(tmp_path / "orders.parquet")
    assert newest.filter(pc.field("partition") == 0).num_rows == KEYS + 1


@pytest.mark.slow
def test_the_export_layout_of_how_to_add_md_passes_its_own_test(logs: Path, tmp_path: Path) -> None:
    """In a package with the page's three files, as it is installed."""
    page = (ROOT / "docs/how-to-add.md").read_text(encoding="utf-8")
    layout, test = examples("how-to-add.md")[:2]
    (entry_point,) = re.findall(r"^(\[project.entry-points.*\]\n.*\n)", page, re.MULTILINE)
    group, name = re.findall(r'entry-points\."(.+)"\]\n(.*)', entry_point)[0]
    metadata = tmp_path / "flat_layout-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flat-layout\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name.replace(chr(34), '')}\n")
    (tmp_path / "flat_layout.py").write_text(layout)
    (tmp_path / "test_flat_layout.py").write_text(test)
    (tmp_path / "kafka-logs").symlink_to(logs)
    assert "1 passed" in run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_flat_layout.py"], tmp_path)
