"""Spark finds ``kafka_log`` by itself, in a new process in which the package is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
_READS = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
read = spark.read.format("kafka_log").option("topic", "orders")
print(read.load(sys.argv[1]).where("offset > 5").count())
from compaction.source.data_source import register
settings = spark.conf.getAll
register(spark)
print(read.load(sys.argv[1]).where("offset > 5").count(), spark.conf.getAll == settings)
"""


def test_the_format_is_found_without_register_which_sets_nothing(sample: Path, tmp_path: Path) -> None:
    called = [sys.executable, "-c", _READS, str(sample)]
    # Spark looks with the first python3, as it does in an activated environment
    activated = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(called, cwd=tmp_path, env=activated, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    found, registered, unchanged = done.stdout.split()
    assert int(found) == int(registered) > 100
    assert unchanged == "True"
