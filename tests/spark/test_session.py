"""Sessions: settings of the user are kept, those of the command added; a caller's session is left as it was, work is sized by
the tasks that run, progress is theirs, and failures are one line."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import compaction
from compaction.engine import Job
from compaction.engines import spark as spark_engine
from compaction.engines.spark import SparkEngine, cause_in, concurrent_tasks, watched, why_stalled
from compaction.engines.spark_session import C1_ONLY, DEFAULTS, build_session, ship_package
from compaction.errors import CompactionError
from compaction.files import read_counter
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentReader
from compaction.options.table import SPARK
from compaction.screen.progress import Progress
from tests.commands.test_api import examine, write_log
from tests.dumping.segments import write_segment
from tests.golden import unpack_sample
from tests.processes import ROOT, started
from tests.waiting import wait_until

#: a job that prints its session as one line of JSON
JOB = """
import json, os, sys
sys.path.insert(0, {root!r})
from compaction.engines.spark_session import {build}, ship_package
session = {build}("asked name", extra={extra!r})
ship_package(session)
sc = session.sparkContext
def worker(_):
    from compaction.kernels.cache import cache_dir
    return [sys.executable, os.environ.get("NUMBA_CACHE_DIR"), str(cache_dir())]
print(json.dumps({{
    "conf": dict(sc.getConf().getAll()),
    "app": sc.appName,
    "worker": sc.parallelize([0], 1).map(worker).first(),
    "jvm": list(sc._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()),
    "left": os.environ.get("SPARK_SUBMIT_OPTS"),
}}))
session.stop()
"""


def run_job(
    tmp_path: Path, *command: str, extra: dict[str, str] | None = None, build: str = "build_session", **env: str
) -> tuple[dict[str, Any], str]:
    """The job's line, and standard error of the run."""
    script = tmp_path / "job.py"
    script.write_text(JOB.format(root=str(ROOT), build=build, extra={"spark.ui.enabled": "false", **(extra or {})}))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = started([*command, script], cwd=tmp_path, without=("PYSPARK", "SPARK", "NUMBA"), PATH=path, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.spark
def test_plain_python_starts_a_quiet_local_session_with_the_default_settings(tmp_path: Path) -> None:
    told, noise = run_job(tmp_path, sys.executable, XDG_CACHE_HOME=str(tmp_path / "cache"))
    conf = told["conf"]
    assert conf["spark.master"] == "local[*]"
    assert {name: conf[name] for name in DEFAULTS} == dict(DEFAULTS)
    assert told["app"] == "asked name"
    kernels = str(tmp_path / "cache/kafka-log-compaction/numba")
    assert told["worker"] == [sys.executable, kernels, kernels]
    assert noise == ""
    assert "log4j2" in str(told["jvm"]) and C1_ONLY not in str(told["jvm"])
    # other JVMs that this process starts have their own
    assert told["left"] is None


@pytest.mark.slow
@pytest.mark.spark
def test_spark_submit_settings_are_kept_and_those_of_the_run_override_them(tmp_path: Path) -> None:
    """The workers check the directory of their kernels themselves: on other machines it may have other permissions."""
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    kernels.chmod(0o777)
    told, _ = run_job(
        tmp_path,
        *("spark-submit", "--master", "local[1]"),
        *("--conf", "spark.shuffle.compress=true", "--conf", "spark.ui.showConsoleProgress=true"),
        *("--conf", "spark.task.maxFailures=7", "--conf", f"spark.executorEnv.NUMBA_CACHE_DIR={kernels}"),
        extra={"spark.task.maxFailures": "2"},
        TMPDIR=str(tmp_path),
    )
    conf = told["conf"]
    assert conf["spark.master"] == "local[1]"
    assert conf["spark.shuffle.compress"] == "true"
    assert conf["spark.ui.showConsoleProgress"] == "true"
    assert conf["spark.task.maxFailures"] == "2"
    assert conf["spark.log.level"] == "ERROR"
    assert told["worker"][1:] == [str(kernels), str(tmp_path / f"kafka-log-compaction-{os.geteuid()}")]


def test_a_running_session_is_returned_unchanged(spark: SparkSession) -> None:
    assert build_session("another", extra={"spark.task.maxFailures": "9"}) is spark
    assert spark.sparkContext.appName == "tests"
    assert not spark.sparkContext.getConf().contains("spark.task.maxFailures")


@pytest.mark.slow
@pytest.mark.spark
def test_a_plain_session_has_no_second_compiler_and_no_kernels_that_others_can_write(tmp_path: Path) -> None:
    place = tmp_path / "kernels"
    place.mkdir()
    place.chmod(0o777)
    cache, build = str(place), "build_plain_session"
    told, noise = run_job(tmp_path, sys.executable, build=build, NUMBA_CACHE_DIR=cache, TMPDIR=str(tmp_path))
    own = str(tmp_path / f"kafka-log-compaction-{os.geteuid()}")
    assert told["worker"] == [sys.executable, own, own]
    # by the driver, not by every worker
    assert noise.count("can be written by others") == 1
    assert "log4j2" in str(told["jvm"]) and C1_ONLY in str(told["jvm"])


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


class Context:
    """A Spark context of a cluster whose executors register one after the other, and none of whose tasks has completed."""

    def __init__(self, master: str, *settings: tuple[str, str], **environment: str) -> None:
        self.master, self._settings, self.environment = master, dict(settings), environment
        self.asked = 0

    @property
    def startTime(self) -> float:  # noqa: N802
        return time.time() * 1000

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return self._settings

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return "pass 1"

    def statusTracker(self) -> Context:  # noqa: N802
        return self

    def getExecutorInfos(self) -> list[str]:  # noqa: N802
        return ["driver"]

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return []

    def slots(self, _: Any) -> int:
        self.asked += 1
        return min(4, self.asked // 3)


@pytest.mark.parametrize(
    ("sc", "found"),
    [
        (Context("local-cluster[4,1,1024]"), 4),
        (Context("spark://h:7077", ("spark.cores.max", "4")), 4),
        (Context("yarn", ("spark.executor.instances", "2"), ("spark.executor.cores", "2")), 4),
        (Context("yarn", ("spark.executor.instances", "3")), 3),
        (Context("spark://h:7077"), 4),
        (Context("yarn", ("spark.dynamicAllocation.enabled", "true"), ("spark.dynamicAllocation.minExecutors", "2")), 2),
        (Context("yarn", ("spark.dynamicAllocation.enabled", "true")), 0),
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
    sc: Any = Context("yarn", *settings, ("spark.executor.cores", "4"), ("spark.task.cpus", "2"))
    monkeypatch.setattr(spark_engine, "slots", sc.slots)
    assert concurrent_tasks(sc, sc.getConf()) == tasks


def test_a_failure_of_spark_is_one_line_with_its_cause(spark: SparkSession) -> None:
    with pytest.raises(CompactionError) as failed:
        SparkEngine(spark.sparkContext).run(Job("fails"), [1, 2], _fails)
    hint = "free space in spark.local.dir, or choose another directory"
    assert str(failed.value) == f"Spark's job failed: OSError: [Errno 28] No space left on device; {hint}"


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
        (_ABORTED + _RESULTS, f"SparkException: Job aborted due to stage failure: {_RESULTS}"),
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


def test_resources_that_no_worker_has_are_named() -> None:
    sc: Any = Context("spark://host:7077", ("spark.executor.cores", "64"), ("spark.executor.memory", "1g"))
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


class Recorder(Progress):
    """Remembers what it was told, besides showing it."""

    def __init__(self) -> None:
        super().__init__(str)
        self.advanced: list[int] = []
        self.before_the_gate = 0

    def advance(self, done_bytes: int) -> None:
        self.advanced.append(done_bytes)
        super().advance(done_bytes)

    @contextmanager
    def opens(self, gate: Path, done_bytes: int) -> Iterator[None]:
        """Opens a gate once so many bytes are counted, or after half a minute; notes what was counted by then."""

        def open_it() -> None:
            deadline = time.monotonic() + 30
            while sum(self.advanced) < done_bytes and time.monotonic() < deadline:
                time.sleep(0.02)
            self.before_the_gate = sum(self.advanced)
            gate.touch()

        opener = threading.Thread(target=open_it)
        opener.start()
        yield
        opener.join()


def test_a_pass_advances_before_any_of_its_tasks_has_completed(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    # of an earlier pass
    (counts / "a").write_bytes((1000).to_bytes(8, "little"))
    progress = Recorder()
    progress.start("pass 1", 200)

    def read_so_far(done_bytes: int) -> None:
        (counts / "a").write_bytes((1000 + done_bytes).to_bytes(8, "little"))
        wait_until(lambda: sum(progress.advanced) >= done_bytes, 30)
        assert sum(progress.advanced) == done_bytes

    sc: Any = Context("local", **{read_counter.VARIABLE: str(counts)})
    with watched(sc, "pass 1", [100, 100], progress.advance):
        read_so_far(30)
        read_so_far(70)
        # what is read again does not count twice
        (counts / "a").write_bytes((9000).to_bytes(8, "little"))
    assert sum(progress.advanced) == 200


def test_tasks_of_a_session_count_what_they_read(spark: SparkSession, tmp_path: Path) -> None:
    sc = spark.sparkContext
    ship_package(spark)
    made = write_segment(tmp_path / "long-0", batches=100)
    size, gate = made.path.stat().st_size, tmp_path / "gate"
    progress = Recorder()

    def read_and_wait(path: str) -> int:
        with SegmentReader(LocalFileSystem(), path, 0, size) as reader:
            blocks = len(list(reader.blocks(check_crc=True)))
        wait_until(gate.exists)
        return blocks

    progress.start("pass 1", size)
    with progress.opens(gate, size), watched(sc, "reads", [size], progress.advance):
        assert sc.parallelize([str(made.path)], 1).map(read_and_wait).collect() == [1]
    assert progress.before_the_gate == size


def last_one_waits(gate: Path) -> Callable[[int, Iterable[Any]], Iterator[Any]]:
    """A task that returns its rows; the last of four once the gate is open."""

    def rows_of(task: int, rows: Iterable[Any]) -> Iterator[Any]:
        if task == 3:
            wait_until(gate.exists)
        yield from rows

    return rows_of


def test_finished_tasks_count_while_later_ones_still_run(spark: SparkSession, tmp_path: Path) -> None:
    gate, progress = tmp_path / "gate", Recorder()
    rows = spark.sparkContext.range(4, numSlices=4)
    progress.start("offset map", 150)
    with progress.opens(gate, 70), watched(spark.sparkContext, "counts-while-running", [10, 20, 40, 80], progress.advance):
        pairs = rows.mapPartitionsWithIndex(last_one_waits(gate)).map(lambda row: (row, 1))
        assert pairs.reduceByKey(lambda a, b: a + b, 2).count() == 4
    assert progress.before_the_gate == 70
    assert sum(progress.advanced) == 150


def test_a_stage_of_the_same_size_that_an_earlier_job_has_run_does_not_hide_the_one_that_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    gate, progress = tmp_path / "gate", Recorder()
    rows = spark.sparkContext.range(40, numSlices=4)
    scanned = rows.map(lambda row: (row % 2, 1)).reduceByKey(lambda a, b: a + b, 2)
    assert scanned.count() == 2
    progress.start("pass 2", 150)
    with progress.opens(gate, 70), watched(spark.sparkContext, "after-an-earlier-job", [10, 20, 40, 80], progress.advance):
        found = scanned.partitionBy(4).mapPartitionsWithIndex(last_one_waits(gate)).collect()
    assert sorted(found) == [(0, 20), (1, 20)]
    assert progress.before_the_gate == 70


def test_a_second_job_in_the_same_group_starts_from_nothing(spark: SparkSession) -> None:
    for _ in range(2):
        progress = Recorder()
        with watched(spark.sparkContext, "twice", [5, 6], progress.advance):
            spark.sparkContext.range(2, numSlices=2).count()
        assert sum(progress.advanced) == 11


def test_a_failed_job_does_not_count_as_done_and_its_error_passes_through(spark: SparkSession) -> None:
    sc = spark.sparkContext
    progress = Recorder()

    def fail(_: int) -> int:
        raise ValueError("no")

    with pytest.raises(Exception, match="ValueError: no"), watched(sc, "fails", [5, 6], progress.advance):
        sc.range(2, numSlices=2).map(fail).count()
    assert sum(progress.advanced) == 0
