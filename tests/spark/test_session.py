"""What a job's session is made of: the user's settings stand, the job's needs are added, and it starts without noise."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compaction.spark.session import DEFAULTS, build_session, numba_cache_dir

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]

#: a job that tells what session it got, as one line of JSON
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


def run_job(tmp_path: Path, *command: str, extra: dict[str, str] | None = None, **env: str) -> tuple[dict[str, object], str]:
    """What the job told and what else the run wrote on standard error."""
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
def test_plain_python_gets_a_quiet_local_session_with_the_jobs_settings(tmp_path: Path) -> None:
    told, noise = run_job(tmp_path, sys.executable, XDG_CACHE_HOME=str(tmp_path / "cache"))
    conf = told["conf"]
    assert isinstance(conf, dict)
    assert conf["spark.master"] == "local[*]"
    assert {name: conf[name] for name in DEFAULTS} == dict(DEFAULTS)
    assert told["app"] == "asked name"
    assert told["worker"] == [sys.executable, str(tmp_path / "cache/kafka-log-compaction/numba")]
    # the JVM itself says this of the modules that Spark asks for; no setting stops it
    assert [line for line in noise.splitlines() if "incubator modules" not in line] == []


@pytest.mark.spark
def test_spark_submit_settings_stand_and_the_runs_own_win(tmp_path: Path) -> None:
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
def test_a_running_session_is_taken_as_it_is(spark: SparkSession) -> None:
    assert build_session("another", extra={"spark.task.maxFailures": "9"}) is spark
    assert spark.sparkContext.appName == "tests"
    assert not spark.sparkContext.getConf().contains("spark.task.maxFailures")


class TestNumbaCacheDir:
    @pytest.fixture(autouse=True)
    def _nothing_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(sys, "platform", "linux")

    def test_is_the_users_own_choice_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", "/somewhere/kernels")
        assert numba_cache_dir() == "/somewhere/kernels"

    def test_is_made_in_the_users_cache_for_that_user_only(self, tmp_path: Path) -> None:
        cache = Path(numba_cache_dir(tmp_path))
        assert cache == tmp_path / ".cache/kafka-log-compaction/numba"
        assert cache.stat().st_mode & 0o777 == 0o700
        assert numba_cache_dir(tmp_path) == str(cache)
        assert list(cache.iterdir()) == []

    def test_follows_the_cache_home_if_that_is_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
        assert numba_cache_dir() == str(tmp_path / "caches/kafka-log-compaction/numba")

    def test_is_a_private_temporary_one_where_the_cache_cannot_be_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        home = tmp_path / "home"
        home.write_text("a file, so that no directory can be made below it")
        with caplog.at_level(logging.WARNING):
            cache = Path(numba_cache_dir(home))
        assert cache.parent == tmp_path
        assert cache.stat().st_mode & 0o777 == 0o700
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert str(home) in caplog.text
        assert str(cache) in caplog.text
