"""The passes on Spark and the passes without it keep one contract: the same files, checkpoints and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compaction.report import LogReport
from compaction.run.sizing import Sizes
from tests.local_job import clean_locally, clean_on_spark, write_offsets
from tests.memory import scratch
from tests.oracle.disk import write_partition, write_producers
from tests.passes.random_cases import NOW_MS, random_cases
from tests.passes.rounds import Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

#: many tasks
TINY = pytest.param(Sizes(600, 2_000, 5), marks=pytest.mark.slow)


def lay_out(log_dir: Path, cases: list[Case]) -> None:
    for case in cases:
        write_partition(log_dir / f"{case.name}-0", case.segments)
        active = (entry._replace(last_timestamp_ms=NOW_MS) for entry in case.producers)
        write_producers(log_dir / f"{case.name}-0", case.segments[-1].next_offset, active)
    write_offsets(log_dir, cleaner_offsets={case.name: case.checkpoint for case in cases})


def contents(log_dir: Path) -> dict[str, bytes]:
    """All files but those on their way out, and the lock."""
    files = (path for path in log_dir.rglob("*") if path.is_file() and path.suffix not in (".deleted", ".lock"))
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in files}


def plain(report: LogReport, log_dir: Path) -> LogReport:
    """Without what differs from run to run."""
    return replace(report, seconds=0.0, log_dir="", reason=report.reason.replace(str(log_dir), ""))


@pytest.mark.parametrize("sizes", [TINY, Sizes(2_000, 600, 1 << 20), None], ids=["tiny", "mixed", "by size"])
def test_both_give_the_same_files_checkpoints_and_reports(spark: SparkSession, sizes: Sizes | None) -> None:
    cases = random_cases([60])[::2]
    topics = {case.name: case.topic_config for case in cases}
    with scratch() as root:
        left, right = root / "local", root / "spark"
        for log_dir in (left, right):
            lay_out(log_dir, cases)
        local = clean_locally(left, NOW_MS, topics, sizes)
        on_spark = clean_on_spark(sizes, spark)(right, NOW_MS, topics)
        assert contents(left) == contents(right)
        assert {name: plain(each, left) for name, each in local.items()} == {
            name: plain(each, right) for name, each in on_spark.items()
        }
