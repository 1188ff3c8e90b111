"""Settings of a session: those of the user are kept, those of the command are added, and nothing else is printed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compaction.engines.spark_session import C1_ONLY, DEFAULTS, build_session
from tests.processes import ROOT, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
) -> tuple[dict[str, object], str]:
    """The job's line, and standard error of the run."""
    script = tmp_path / "job.py"
    script.write_text(JOB.format(root=str(ROOT), build=build, extra={"spark.ui.enabled": "false", **(extra or {})}))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = started([*command, script], cwd=tmp_path, without=("PYSPARK", "SPARK", "NUMBA"), PATH=path, **env)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told, done.stderr


def test_no_setting_enlarges_a_buffer_that_each_core_has_for_every_partition() -> None:
    """Eight cores and the 200 partitions of Spark SQL, each with 1 MiB, do not fit into the heap of 1 GiB."""
    settings = {line.split()[0] for line in (ROOT / "conf/spark-defaults.conf").read_text().splitlines() if line.strip()}
    for part in ("file.buffer", "unsafe.file.output.buffer", "spill.diskWriteBufferSize"):
        name = f"spark.shuffle.{part}"
        assert name not in DEFAULTS
        assert name not in settings


@pytest.mark.spark
def test_plain_python_starts_a_quiet_local_session_with_the_default_settings(tmp_path: Path) -> None:
    told, noise = run_job(tmp_path, sys.executable, XDG_CACHE_HOME=str(tmp_path / "cache"))
    conf = told["conf"]
    assert isinstance(conf, dict)
    assert conf["spark.master"] == "local[*]"
    assert {name: conf[name] for name in DEFAULTS} == dict(DEFAULTS)
    assert told["app"] == "asked name"
    kernels = str(tmp_path / "cache/kafka-log-compaction/numba")
    assert told["worker"] == [sys.executable, kernels, kernels]
    assert noise == ""
    jvm = str(told["jvm"])
    assert "log4j2" in jvm
    assert C1_ONLY not in jvm
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
    assert isinstance(conf, dict)
    assert conf["spark.master"] == "local[1]"
    assert conf["spark.shuffle.compress"] == "true"
    assert conf["spark.ui.showConsoleProgress"] == "true"
    assert conf["spark.task.maxFailures"] == "2"
    assert conf["spark.log.level"] == "ERROR"
    worker = told["worker"]
    assert isinstance(worker, list)
    assert worker[1:] == [str(kernels), str(tmp_path / f"kafka-log-compaction-{os.geteuid()}")]


@pytest.mark.spark
def test_a_running_session_is_returned_unchanged(spark: SparkSession) -> None:
    assert build_session("another", extra={"spark.task.maxFailures": "9"}) is spark
    assert spark.sparkContext.appName == "tests"
    assert not spark.sparkContext.getConf().contains("spark.task.maxFailures")


@pytest.mark.slow
@pytest.mark.spark
def test_the_jvm_of_a_plain_session_does_not_use_its_second_compiler(tmp_path: Path) -> None:
    told, _ = run_job(tmp_path, sys.executable, build="build_plain_session")
    assert C1_ONLY in str(told["jvm"])
    assert "log4j2" in str(told["jvm"])


@pytest.mark.slow
@pytest.mark.spark
def test_local_workers_do_not_use_a_kernel_cache_that_others_can_write_to(tmp_path: Path) -> None:
    place = tmp_path / "kernels"
    place.mkdir()
    place.chmod(0o777)
    told, noise = run_job(tmp_path, sys.executable, NUMBA_CACHE_DIR=str(place), TMPDIR=str(tmp_path))
    own = str(tmp_path / f"kafka-log-compaction-{os.geteuid()}")
    assert told["worker"] == [sys.executable, own, own]
    # by the driver, not by every worker
    assert noise.count("can be written by others") == 1
