"""A call on a caller's session: it is left as it was, work is sized by the tasks that run, and failures are one line."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import compaction
from compaction.engine import Job
from compaction.engines import spark as spark_engine
from compaction.engines.spark import SparkEngine, cause_in, concurrent_tasks, why_stalled
from compaction.engines.spark_session import ship_package
from compaction.errors import CompactionError
from compaction.options.table import SPARK
from tests.commands.test_api import examine, write_log
from tests.golden import unpack_sample
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

AS_OF_MS = 1_798_761_600_000
PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.tags", "spark.job.interruptOnCancel")


def _fails(_: int) -> None:
    raise OSError(28, "No space left on device")


def _number(task: int) -> int:
    return task


def test_a_call_leaves_a_callers_session_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    sc, log_dir = spark.sparkContext, unpack_sample(tmp_path)
    # the first query of a session adds a setting
    assert spark.range(1).count() == 1
    settings = dict(sc.getConf().getAll())
    sc.setJobGroup("mine", "my own work")
    try:
        compaction.count(log_dir, topics="payments", spark=spark)
        before, files = [sc.getLocalProperty(name) for name in PROPERTIES], set(Path(str(sc._temp_dir)).iterdir())
        environment = dict(sc.environment)
        for _ in range(2):
            report = compaction.compact(
                log_dir, dry_run=True, settings={"cleanup.policy": "compact"}, as_of=AS_OF_MS, spark=spark
            )
            assert report.exit_code == 0
            assert report.to_dict()["engine"] == {"name": SPARK, "reason": "the caller's session"}
        assert [sc.getLocalProperty(name) for name in PROPERTIES] == before == ["mine", "my own work", before[2], before[3]]
        assert set(Path(str(sc._temp_dir)).iterdir()) == files
        # Spark starts new workers for another environment
        assert sc.environment == environment
        assert dict(sc.getConf().getAll()) == settings
        assert spark.range(1).count() == 1
    finally:
        for name in PROPERTIES:
            sc.setLocalProperty(name, None)  # type: ignore[arg-type]


def test_records_are_read_into_a_data_frame(spark: SparkSession, tmp_path: Path) -> None:
    log_dir = write_log(tmp_path / "logs")
    examine("read", {"log_dir": log_dir, "spark": spark})
    frame = compaction.read(spark, log_dir, topics=["o.*"], partitions="orders-0", columns=["offset"])
    assert (frame.columns, frame.count()) == (["offset"], 6)


def test_the_package_is_shipped_to_a_session_once(spark: SparkSession) -> None:
    ship_package(spark)
    shipped = dict(spark.sparkContext.environment)
    ship_package(spark)
    assert spark.sparkContext.environment == shipped


def test_an_interrupt_cancels_only_the_jobs_of_the_call(spark: SparkSession) -> None:
    sc, jobs = spark.sparkContext, SparkEngine(spark.sparkContext)
    results: list[int] = []

    def slow(number: int) -> int:
        time.sleep(3)
        return number

    others = threading.Thread(target=lambda: results.append(sc.parallelize([7], 1).map(slow).sum()))
    others.start()
    wait_until(lambda: sc.statusTracker().getActiveJobsIds(), 30)
    with pytest.raises(KeyboardInterrupt), jobs.running():
        raise KeyboardInterrupt
    others.join()
    assert results == [7]


def test_work_is_sized_by_the_tasks_that_run_at_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the number of partitions that the user wants, by which a rate limit would be divided."""
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: 500))
    assert concurrent_tasks(spark.sparkContext, spark.sparkContext.getConf()) == SparkEngine(spark.sparkContext).cores == 2


class Registering:
    """The settings of a cluster whose executors register one after the other."""

    def __init__(self, master: str, *settings: tuple[str, str]) -> None:
        self.master, self._settings = master, dict(settings)
        self.asked = 0

    @property
    def startTime(self) -> float:  # noqa: N802
        return time.time() * 1000

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return self._settings

    def slots(self, _: Any) -> int:
        self.asked += 1
        return min(4, self.asked // 3)


@pytest.mark.parametrize(
    ("sc", "found"),
    [
        (Registering("local-cluster[4,1,1024]"), 4),
        (Registering("spark://h:7077", ("spark.cores.max", "4")), 4),
        (Registering("yarn", ("spark.executor.instances", "2"), ("spark.executor.cores", "2")), 4),
        (Registering("yarn", ("spark.executor.instances", "3")), 3),
        (Registering("spark://h:7077"), 4),
        (Registering("yarn", ("spark.dynamicAllocation.enabled", "true"), ("spark.dynamicAllocation.minExecutors", "2")), 2),
        (Registering("yarn", ("spark.dynamicAllocation.enabled", "true")), 0),
    ],
    ids=["local-cluster", "cores.max", "instances", "fewer", "unknown", "dynamic", "none before a job"],
)
def test_executors_that_are_still_registering_are_waited_for(monkeypatch: pytest.MonkeyPatch, sc: Any, found: int) -> None:
    monkeypatch.setattr(spark_engine, "slots", sc.slots)
    monkeypatch.setattr(spark_engine, "_SETTLED_S", 0.5)
    monkeypatch.setattr(spark_engine, "_POLL_S", 0.01)
    spark_engine.await_executors(sc)
    assert min(4, sc.asked // 3) == found


@pytest.mark.parametrize(("most", "tasks"), [("6", 12), (str(2**31 - 1), 1)])
def test_dynamic_allocation_counts_the_executors_that_it_may_add(
    monkeypatch: pytest.MonkeyPatch, most: str, tasks: int
) -> None:
    names = {"enabled": "true", "maxExecutors": most}
    settings = [(f"spark.dynamicAllocation.{name}", value) for name, value in names.items()]
    sc: Any = Registering("yarn", *settings, ("spark.executor.cores", "4"), ("spark.task.cpus", "2"))
    monkeypatch.setattr(spark_engine, "slots", sc.slots)
    assert concurrent_tasks(sc, sc.getConf()) == tasks


def test_a_failure_of_spark_is_one_line_with_its_cause(spark: SparkSession) -> None:
    with pytest.raises(CompactionError) as failed:
        SparkEngine(spark.sparkContext).run(Job("fails"), [1, 2], _fails)
    text = str(failed.value)
    assert text == (
        "Spark's job failed: OSError: [Errno 28] No space left on device; "
        "free space in spark.local.dir, or choose another directory"
    )


_ABORTED = "org.apache.spark.SparkException: Job aborted due to stage failure: "
_LOST = _ABORTED + "Task 0 in stage 0.0 failed 1 times, most recent failure: "
_RESULTS = "Total size of serialized results of 2 tasks (3.0 MiB) is bigger than spark.driver.maxResultSize (1024.0 KiB)"
_TRACE = "\n\tat org.apache.spark.Foo.bar(Foo.scala:1)"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            _LOST + "Lost task 0.0 in stage 0.0 (TID 0) (host executor driver): java.io.IOException: No space left" + _TRACE,
            "IOException: No space left",
        ),
        (
            _LOST + "Lost task 0.0 in stage 0.0 (TID 0) (h executor 1): org.apache.spark.api.python.PythonException: "
            "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
            '  File "a.py", line 1\n'
            "    raise KeyError(1)\nMemoryError\n SQLSTATE: 38000\n" + _TRACE,
            "MemoryError",
        ),
        (
            _LOST + "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: exit code 137",
            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: exit code 137",
        ),
        (
            _ABORTED + _RESULTS,
            f"SparkException: Job aborted due to stage failure: {_RESULTS}",
        ),
        (
            'Exception in thread "main" java.lang.ExceptionInInitializerError' + _TRACE + "\n"
            "Caused by: org.apache.hadoop.security.KerberosAuthException: failure to login" + _TRACE + "\n"
            "Caused by: javax.security.auth.login.LoginException: java.lang.NullPointerException: invalid null input: name"
            + _TRACE,
            "LoginException: java.lang.NullPointerException: invalid null input: name",
        ),
        ("", "no message"),
    ],
    ids=["java", "python", "lost", "result size", "no user", "nothing"],
)
def test_the_cause_is_found_in_the_text_of_spark(text: str, cause: str) -> None:
    assert cause_in(text) == cause


class Stages:
    """A session without executors."""

    master = "spark://host:7077"

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return {"spark.executor.cores": "64", "spark.executor.memory": "1g"}

    def statusTracker(self) -> Stages:  # noqa: N802
        return self

    def getExecutorInfos(self) -> list[str]:  # noqa: N802
        return ["driver"]


def test_resources_that_no_worker_has_are_named() -> None:
    sc: Any = Stages()
    assert why_stalled(sc) == (
        "no executor has registered with spark://host:7077. Each was requested with spark.executor.cores=64, "
        "spark.executor.memory=1g: does a worker have that free?"
    )


def test_a_job_without_a_started_task_says_why(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spark_engine, "STALLED_S", 0.2)
    monkeypatch.setattr(spark_engine, "why_stalled", lambda _: "for this reason")
    with SparkEngine(spark.sparkContext).running():
        time.sleep(1)
    assert "no task has started for 0 s: for this reason" in caplog.text
    caplog.clear()
    jobs = SparkEngine(spark.sparkContext)
    monkeypatch.setattr(spark_engine, "STALLED_S", 30)
    with jobs.running():
        spark.sparkContext.parallelize([1], 1).map(_number).collect()
        monkeypatch.setattr(spark_engine, "STALLED_S", 0.01)
        jobs.report_stall(threading.Event())
    assert not caplog.text
