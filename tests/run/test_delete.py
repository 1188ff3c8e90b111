"""Runs of the delete policy: reports, logs that are not changed, and errors of single logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compaction.config.request import CompactionRequest
from compaction.config.resolver import Resolver
from compaction.config.sources import read_sets
from compaction.engine import Job
from compaction.engines.spark import SparkEngine
from compaction.files.local import LocalFileSystem
from compaction.log.read_log import segment_bases
from compaction.report import LogReport, LogStatus, RunReport
from compaction.rules.log_view import LogView
from compaction.run import prepare
from compaction.run.compact import clean_logs
from compaction.run.expire import delete_old_segments
from tests.formats.test_metadata_log import config as stored_config
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record
from tests.local_job import logs_in, request_for
from tests.local_passes import LocalPasses
from tests.log.logs import data_segment
from tests.recovery.test_split import FAR, overflowing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_767_225_600_000


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return unpack_sample(tmp_path)


def request(logs: Path, *sets: str, dry_run: bool = False, topics: tuple[str, ...] = ()) -> CompactionRequest:
    resolver = Resolver(read_sets(sets))
    return CompactionRequest(*logs_in(logs, topics), NOW_MS, resolver=resolver, dry_run=dry_run)


def tree(path: Path) -> dict[str, tuple[int, int]]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


def by_name(report: RunReport) -> dict[str, LogReport]:
    return {log.name: replace(log, seconds=0) for log in report.logs}


def store(logs: Path, value: bytes) -> None:
    """Appends a record to the metadata log, as a controller of another version might."""
    log = max((logs / "__cluster_metadata-0").glob("*.log"))
    log.write_bytes(log.read_bytes() + Batch([Record(10**6, 1, None, value)]).encode())


def test_a_bad_value_in_the_metadata_log_fails_the_logs_of_its_topic(logs: Path) -> None:
    store(logs, stored_config("clickstream", "retention.ms", "-7"))
    report = by_name(delete_old_segments(LocalPasses, request(logs)))
    assert {name for name, log in report.items() if log.status is LogStatus.FAILED} == {"clickstream-0", "clickstream-1"}
    assert "retention.ms = '-7' is less than -1" in report["clickstream-0"].reason
    assert report["sessions-0"].expired_segments


def read_by_tasks(request: CompactionRequest) -> tuple[list[Any], list[Any]]:
    """The inputs and the results of the tasks that read the logs of a run."""
    tasks, results = list[Any](), list[Any]()

    class Recorded(LocalPasses):
        def run(self, job: Job, source: Any, work: Callable[..., Any]) -> list[Any]:
            found = super().run(job, source, work)
            tasks.extend(task for pack in source for task in pack)
            results.extend(result for pack in found for result in pack)
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "MANY_SEGMENTS", 1)
        delete_old_segments(Recorded, request)
    return tasks, results


def test_producers_expire_by_the_configuration_that_the_broker_stored(logs: Path) -> None:
    store(logs, stored_config("", "producer.id.expiration.ms", "777", kind=4))
    tasks, _ = read_by_tasks(request(logs, dry_run=True))
    assert {task.settings.broker.producer_id_expiration_ms for task in tasks} == {777}


@pytest.mark.spark
def test_reading_many_logs_by_spark_does_not_change_the_report(
    logs: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = delete_old_segments(LocalPasses, request(logs, dry_run=True))
    # one log needs recovery, one is damaged
    (logs / "sessions-0" / f"{0:020d}.index").unlink()
    segment = min((logs / "orders-0").glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-7])
    monkeypatch.setattr(prepare, "MANY_SEGMENTS", 1)
    before = tree(logs)
    parallel = delete_old_segments(lambda: SparkEngine(spark.sparkContext), request(logs, dry_run=True))
    assert tree(logs) == before
    expected = by_name(local)
    found = by_name(parallel)
    assert found.pop("orders-0").status is LogStatus.FAILED
    del expected["orders-0"]
    assert found == expected
    deleted = delete_old_segments(lambda: SparkEngine(spark.sparkContext), request(logs))
    assert deleted.totals["expired_segments"] == sum(log.expired_segments for log in expected.values())


def test_a_log_that_needs_recovery_is_not_read_in_parallel(logs: Path) -> None:
    (logs / "clickstream-0" / f"{0:020d}.index").unlink()
    _, found = read_by_tasks(request(logs, dry_run=True, topics=("clickstream",)))
    assert found[0] is None
    assert isinstance(found[1], LogView)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_new_segments_of_a_split_may_be_deleted_at_once(policy: str, tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    for segment in (overflowing(), data_segment(3 * FAR, [3 * FAR])):
        segment.put(LocalFileSystem(), str(tmp_path / "t-0"))
    settings = {"cleanup.policy": policy, "retention.ms": "-1", "retention.bytes": "200", "min.cleanable.dirty.ratio": "0"}
    run = request_for(tmp_path, NOW_MS, {"t": settings})
    (log,) = (clean_logs(LocalPasses, run) if "compact" in policy else delete_old_segments(LocalPasses, run)).logs
    assert log.reason.startswith("2 of 4 segments expired (2 by size)")
    assert segment_bases(LocalFileSystem(), str(tmp_path / "t-0")) == [2 * FAR, 3 * FAR]
