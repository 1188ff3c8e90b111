"""The data source of Spark on an export in each layout: it has the rows of the log directory that was exported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compaction.files.calls import KEYS_VARIABLE
from compaction.source.data_source import register
from tests.commands.test_exports import LAYOUTS, exported, of_log_dir
from tests.exports.aiven_objects import KEY_ID
from tests.exports.exports import no_exports_known

__all__ = ["exported", "no_exports_known"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_data_source_has_the_rows_of_the_log_directory(layout: str, spark: SparkSession, exported: Path) -> None:
    register(spark)
    os.environ.pop(KEYS_VARIABLE)
    reader = spark.read.format("kafka_log").option("privateKeys", f"{KEY_ID}={exported}/key.pem")
    found = reader.load(f"{layout}+{exported / layout}").collect()
    assert found == spark.read.format("kafka_log").load(str(of_log_dir(layout, exported))).collect() != []
