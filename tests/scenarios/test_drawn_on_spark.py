"""Random logs are left on Spark as without it: all files, checkpoints and figures."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compaction.run.sizing import Sizes
from tests.kafka.jars import spark_home
from tests.local_job import KAFKA, TopicConfigs, topics_file
from tests.processes import ROOT, started
from tests.scenarios.answers import Outcome
from tests.scenarios.draw import ROUND_TIMES, drawn
from tests.scenarios.language import Scenario
from tests.scenarios.runner import Outcomes, by, in_place, on_spark
from tests.scenarios.test_drawn import differences, kept_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def logs() -> dict[str, Scenario]:
    """Each with its first round alone, at one time."""
    found = drawn(range(60, 72))
    return {name: replace(one, rounds=[replace(one.rounds[0], now_ms=ROUND_TIMES[0])]) for name, one in found.items()}


#: many tasks
TINY = pytest.param(Sizes(600, 2_000, 5), marks=pytest.mark.slow)


@pytest.mark.parametrize("sizes", [TINY, Sizes(2_000, 600, 1 << 20), None], ids=["tiny", "mixed", "by size"])
def test_both_leave_the_same(spark: SparkSession, sizes: Sizes | None, logs: dict[str, Scenario]) -> None:
    assert differences(kept_by(on_spark(spark, sizes), logs), kept_by(by(sizes=sizes), logs)) == []


def submitted(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
    """On three cores; the other tests use two."""
    config = topics_file(log_dir.with_suffix(".toml"), topics)
    command = [str(spark_home() / "bin/spark-submit"), "--master", "local[3]", str(ROOT / "jobs/compact.py"), "--allow-keyless"]
    command += ["--log-dir", str(log_dir), "--as-of-ms", str(now_ms), "--config", str(config), "--kafka-version", KAFKA]
    done = started(command, PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    assert done.returncode in (0, 1), done.stderr
    return {name: Outcome(None) for name in topics}, log_dir


@pytest.mark.slow
def test_another_number_of_sparks_cores_leaves_the_same(logs: dict[str, Scenario]) -> None:
    expected = {at: kept._replace(outcome=Outcome(None)) for at, kept in kept_by(in_place, logs).items()}
    assert differences(kept_by(submitted, logs), expected) == []
