"""On Spark, the error of a damaged log names the same log, file and position; ``tests/crash/test_sources.py`` has more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.surroundings import make_logs, only_the_subject_failed, run
from tests.damage.harm import flipped
from tests.damage.valid_logs import look_at, valid_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_a_damaged_log_is_one_line_and_the_other_is_cleaned(tmp_path: Path, spark: SparkSession) -> None:
    from compaction.engines.spark import SparkEngine

    log_dir = make_logs(tmp_path / "data")
    path = log_dir / "subject-0" / valid_log("none").log(0)
    path.write_bytes(flipped(path.read_bytes(), 200))
    before = look_at(log_dir / "subject-0")
    ended = run(log_dir, engine=lambda: SparkEngine(spark.sparkContext))
    only_the_subject_failed(ended, log_dir, before, rf"{path} at byte \d+: batch fails its CRC", log_dir)
