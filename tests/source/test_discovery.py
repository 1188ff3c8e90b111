"""Spark finds ``kafka_log`` by itself, in a new process in which the package is installed, with and without filter pushdown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import datasource

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
_READS = """
import re, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("kafka_log").option("topic", "orders").load(sys.argv[1]).where("offset > 5")
def plan():
    return re.search(r"\\bFilter\\b", str(rows._jdf.queryExecution().executedPlan())) is not None
print(rows.count(), plan())
"""
_REGISTERS = """
from compaction.source.data_source import register
register(spark)
rows = spark.read.format("kafka_log").option("topic", "orders").load(sys.argv[1]).where("offset > 5")
print(rows.count(), plan())
"""


def test_the_format_is_found_without_register_which_only_enables_the_pushdown(sample: Path, tmp_path: Path) -> None:
    called = [sys.executable, "-c", _READS + _REGISTERS, str(sample)]
    # Spark looks with the first python3, as it does in an activated environment
    activated = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(called, cwd=tmp_path, env=activated, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    (found, spark_filters), (registered, still_filters) = map(str.split, done.stdout.splitlines())
    assert int(found) == int(registered) > 100
    assert spark_filters == "True"
    if hasattr(datasource, "EqualTo"):
        assert still_filters == "False"
