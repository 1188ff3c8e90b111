"""Settings of a session: those of the user are kept, those of the command are added, and nothing else is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compaction.spark.session import DEFAULTS, build_session
from compaction.startup.archive import C1_ONLY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]

#: a job that prints its session as one line of JSON
JOB = """
import json, os, sys
sys.path.insert(0, {root!r})
from compaction.spark.session import build_session
session = build_session("asked name", extra={extra!r})
sc = session.sparkContext
def worker(_):
    return [sys.executable, os.environ.get("NUMBA_CACHE_DIR")]
found = dict(sc.getConf().getAll())
print(json.dumps({{"conf": found, "app": sc.appName, "worker": sc.parallelize([0], 1).map(worker).first()}}))
session.stop()
"""

#: a job that prints which kernel cache its workers use
WORKERS_CACHE = """
import os, sys
sys.path.insert(0, {root!r})
from compaction.spark.session import build_session, ship_package
place = os.environ["TEST_PLACE"]
extra = {{"spark.ui.enabled": "false", "spark.executorEnv.NUMBA_CACHE_DIR": place, "spark.master": "local[1]"}}
session = build_session("test", extra=extra)
ship_package(session)
def worker(_):
    from compaction.kernels.compiling.cache import process_cache_dir
    return str(process_cache_dir())
print(session.sparkContext.parallelize([0], 1).map(worker).first())
session.stop()
"""


def run_job(tmp_path: Path, *command: str, extra: dict[str, str] | None = None, **env: str) -> tuple[dict[str, object], str]:
    """The job's line, and standard error of the run."""
    script = tmp_path / "job.py"
    script.write_text(JOB.format(root=str(ROOT), extra={"spark.ui.enabled": "false", **(extra or {})}))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "NUMBA"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    done = subprocess.run(
        [*command, str(script)],
        env={**kept, "PATH": path, **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told, done.stderr


@pytest.mark.spark
def test_plain_python_starts_a_quiet_local_session_with_the_default_settings(tmp_path: Path) -> None:
    told, noise = run_job(tmp_path, sys.executable, XDG_CACHE_HOME=str(tmp_path / "cache"))
    conf = told["conf"]
    assert isinstance(conf, dict)
    assert conf["spark.master"] == "local[*]"
    assert {name: conf[name] for name in DEFAULTS} == dict(DEFAULTS)
    assert told["app"] == "asked name"
    assert told["worker"] == [sys.executable, str(tmp_path / "cache/kafka-log-compaction/numba")]
    assert noise == ""


@pytest.mark.spark
def test_spark_submit_settings_are_kept_and_those_of_the_run_override_them(tmp_path: Path) -> None:
    kernels = str(tmp_path / "kernels")
    told, _ = run_job(
        tmp_path,
        *("spark-submit", "--master", "local[1]"),
        *("--conf", "spark.shuffle.compress=true", "--conf", "spark.ui.showConsoleProgress=true"),
        *("--conf", "spark.task.maxFailures=7", "--conf", f"spark.executorEnv.NUMBA_CACHE_DIR={kernels}"),
        extra={"spark.task.maxFailures": "2"},
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
    assert worker[1] == kernels


@pytest.mark.spark
def test_a_running_session_is_returned_unchanged(spark: SparkSession) -> None:
    assert build_session("another", extra={"spark.task.maxFailures": "9"}) is spark
    assert spark.sparkContext.appName == "tests"
    assert not spark.sparkContext.getConf().contains("spark.task.maxFailures")


@pytest.mark.spark
@pytest.mark.parametrize(("build", "quick"), [("build_plain_session", True), ("build_session", False)])
def test_only_the_jvm_of_a_plain_session_does_not_use_its_second_compiler(build: str, quick: bool, tmp_path: Path) -> None:
    asks = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from compaction.spark import session
built = session.{build}("asked")
beans = built.sparkContext._jvm.java.lang.management.ManagementFactory
print(list(beans.getRuntimeMXBean().getInputArguments()))
built.stop()
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    command = [sys.executable, "-c", asks]
    done = subprocess.run(command, env=kept, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    assert (C1_ONLY in done.stdout) is quick
    assert "log4j2" in done.stdout


@pytest.mark.spark
@pytest.mark.parametrize("choice", ["shared", "own"])
def test_local_workers_do_not_use_a_kernel_cache_that_others_can_write_to(tmp_path: Path, choice: str) -> None:
    place = tmp_path / "kernels"
    place.mkdir(mode=0o700)
    if choice == "shared":
        place.chmod(0o777)
    told, noise = run_job(tmp_path, sys.executable, NUMBA_CACHE_DIR=str(place), TMPDIR=str(tmp_path))
    own = tmp_path / f"kafka-log-compaction-{os.geteuid()}"
    assert told["worker"] == [sys.executable, str(place if choice == "own" else own)]
    # once, by the driver
    assert noise.count("can be written by others") == (1 if choice == "shared" else 0)


@pytest.mark.spark
def test_workers_check_themselves_whether_others_can_write_to_a_configured_kernel_cache(tmp_path: Path) -> None:
    """On other machines the directory may have other permissions."""
    place = tmp_path / "kernels"
    place.mkdir()
    place.chmod(0o777)
    script = tmp_path / "worker.py"
    script.write_text(WORKERS_CACHE.format(root=str(ROOT)))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TEST_PLACE": str(place), "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / f"kafka-log-compaction-{os.geteuid()}")
