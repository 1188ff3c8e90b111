"""Verification on Spark says what it says in one process, however the work is cut."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from compaction.certifier.certificate import Status, VerifyReport
from compaction.certifier.checks import offset_ranges
from compaction.certifier.checks.erased_keys import ErasedKeys
from compaction.certifier.task_runner import LocalTaskRunner
from compaction.certifier.verify_request import VerifyRequest
from compaction.config import Resolver, read_sets
from compaction.config.request import CompactionRequest
from compaction.engine.clean import clean_logs
from compaction.errors import UsageError
from compaction.formats.key_criteria import KeyCriteria, KeyPattern
from compaction.spark import certify_job as on_spark
from compaction.spark.certify_job import SparkTaskRunner
from compaction.spark.progress import Progress
from tests.certifier.certify import certify
from tests.erasure.test_erase_keys import write_odd
from tests.golden import unpack_sample
from tests.local_job import logs_in
from tests.local_passes import LocalPasses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOW_MS = 1_767_225_600_000


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> VerifyRequest:
    """The sample and a compacted copy of it."""
    root = tmp_path_factory.mktemp("certify")
    log_dir, copy = unpack_sample(root), root / "copy"
    resolver = Resolver(read_sets(["min.cleanable.dirty.ratio=0"]))
    run = CompactionRequest(*logs_in(log_dir), NOW_MS, resolver=resolver, output_dir=str(copy), allow_keyless=True)
    assert clean_logs(LocalPasses, run).exit_code == 0
    return VerifyRequest((str(log_dir),), (str(copy),), NOW_MS, exact=True, resolver=resolver)


def timeless(report: VerifyReport) -> VerifyReport:
    return replace(report, seconds=0)


@pytest.mark.parametrize("range_bytes", [1_000, 64 << 20])
def test_spark_and_one_process_agree_on_logs_that_hold(
    spark: SparkSession, request_: VerifyRequest, range_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_ranges, "PARTITION_BYTES", range_bytes)
    local = certify(request_)
    assert local.status is Status.HOLDS
    told = io.StringIO()
    runner = SparkTaskRunner(spark.sparkContext, Progress(told))
    assert timeless(certify(request_, range_bytes, runner)) == timeless(local)
    assert [line.partition(":")[0] for line in told.getvalue().splitlines()] == ["segments", "records"]


def test_spark_and_one_process_agree_on_logs_that_are_violated(
    spark: SparkSession, request_: VerifyRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_ranges, "PARTITION_BYTES", 5_000)
    # copy for source: everything that cleaning dropped is nowhere in the source
    turned = replace(request_, before=request_.after, after=request_.before)
    local = certify(turned)
    assert local.status is Status.VIOLATED
    found = certify(turned, 2_000, SparkTaskRunner(spark.sparkContext, Progress(io.StringIO())))
    assert [log.name for log in found.logs if log.status is Status.VIOLATED] == [
        log.name for log in local.logs if log.status is Status.VIOLATED
    ]
    assert [log.violation_count for log in found.logs] == [log.violation_count for log in local.logs]


def test_small_logs_need_no_session(request_: VerifyRequest) -> None:
    def no_session() -> SparkSession:
        raise AssertionError("a session was started")

    assert on_spark.certify(no_session, request_, Progress(io.StringIO())).status is Status.HOLDS


def test_large_logs_are_verified_on_spark(
    spark: SparkSession, request_: VerifyRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_spark, "WORTH_SPARK_BYTES", 0)
    shown = Progress(io.StringIO())
    assert on_spark.certify(lambda: spark, request_, shown).status is Status.HOLDS
    with pytest.raises(UsageError, match="nothing to compare: no log here has .deleted files"):
        on_spark.certify(lambda: spark, replace(request_, before=(), after=request_.before), shown)


def test_spark_searches_files_for_keys_and_patterns(spark: SparkSession, tmp_path: Path) -> None:
    write_odd(tmp_path)
    (tmp_path / "notes.txt").write_text("no batches")
    criteria = KeyCriteria.of(pa.array([b"k"], pa.binary()), (KeyPattern.parse("regex=кл.*"),))
    files = [(str(tmp_path), f"odd-0/{base:020d}.log") for base in (0, 10, 20)] + [(str(tmp_path), "notes.txt")]
    found = SparkTaskRunner(spark.sparkContext, Progress(io.StringIO())).search(files, ErasedKeys(criteria))
    assert [each.records for each in found] == [2, 2, 2, None]
    assert found == LocalTaskRunner().search(files, ErasedKeys(criteria))
