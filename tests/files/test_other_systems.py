"""Processes without what only Linux has: calls, flags and ``/proc`` are taken away. ``test_filesystem.py`` has each call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from compaction.commands import compact
from compaction.run.compact import clean_logs
from compaction.source.data_source import KafkaLogReader, KafkaLogSource
from tests.executed import executed
from tests.golden import unpack_sample
from tests.local_passes import LocalPasses

ROOT = Path(__file__).resolve().parents[2]

#: of a process without Linux's calls
SITE = """
import ctypes, errno, os, pathlib
for name in ("O_DIRECT", "O_PATH", "posix_fadvise", "preadv", "pwritev", "listxattr", "getxattr", "setxattr", "copy_file_range",
             "sched_getaffinity", "memfd_create", "posix_fallocate"):
    if hasattr(os, name):
        delattr(os, name)
def hidden(method):
    def call(self, *arguments, **options):
        if str(self).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return method(self, *arguments, **options)
    return call
for name in ("read_text", "read_bytes", "readlink", "open"):
    setattr(pathlib.Path, name, hidden(getattr(pathlib.Path, name)))
class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("sync_file_range", "renameat2", "syncfs", "fallocate"):
            raise AttributeError(name)
        return super().__getattr__(name)
ctypes.CDLL = Library
"""


@pytest.mark.slow
def test_a_dry_run_and_the_data_source_have_the_results_of_linux(tmp_path: Path) -> None:
    """Both as complete processes, in which nothing that only Linux has can be imported; this process has it."""
    log_dir = unpack_sample(tmp_path)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(ROOT))), "PYSPARK_PYTHON": sys.executable}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    options = ["--log-dir", str(log_dir), "--dry-run", "--include-active", "--as-of-ms", "1798761600000"]
    run("-m", "jobs", "compact", *options, "--report", str(tmp_path / "other.json"))
    on_linux = [*options, "--report", str(tmp_path / "linux.json")]
    assert executed(compact, on_linux, lambda _, request: clean_logs(LocalPasses, request)) == 0
    reports = [figures(tmp_path / name) for name in ("linux.json", "other.json")]
    assert reports[0] == reports[1]
    assert reports[0]["totals"]["cleaned"] > 3

    program = (
        "from pyspark.sql import SparkSession; from compaction.source.data_source import register;"
        "spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false').getOrCreate();"
        "register(spark);"
        f"frame = spark.read.format('kafka_log').option('topic', 'orders').load({str(log_dir)!r});"
        "print(list(frame.selectExpr('count(*)', 'sum(crc32(value))', 'max(offset)').first()))"
    )
    reader = KafkaLogReader({"path": str(log_dir), "topic": "orders"}, KafkaLogSource({}).schema())
    rows = [row for share in reader.partitions() for batch in reader.read(share) for row in batch.to_pylist()]
    checksums = [zlib.crc32(row["value"]) for row in rows if row["value"] is not None]
    assert json.loads(run("-c", program)) == [len(rows), sum(checksums), max(row["offset"] for row in rows)]
    assert checksums


def figures(report: Path) -> dict[str, Any]:
    """What a report says of the logs, but for times."""
    found = json.loads(report.read_text())
    logs = [log | {"seconds": 0, "task_seconds": 0} for log in found["logs"]]
    return {"totals": found["totals"] | {"seconds": 0}, "logs": logs}
