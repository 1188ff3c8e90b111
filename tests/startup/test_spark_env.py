"""What ``spark-submit`` of an environment starts its JVM with, once ``spark-env.sh`` is written there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from compaction.startup import spark_env
from compaction.startup.archive import Versions
from compaction.startup.spark_env import State


@pytest.fixture
def found(tmp_path: Path) -> Versions:
    java = tmp_path / "jdk/bin/java"
    java.parent.mkdir(parents=True)
    java.touch(mode=0o755)
    (tmp_path / "spark").mkdir()
    return Versions(java, tmp_path / "spark")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    file = tmp_path / "with a space.jsa"
    file.touch()
    return file


def sourced(found: Versions, *arguments: str, **environment: str) -> dict[str, str]:
    """The environment of a JVM that Spark's scripts start."""
    conf = found.spark_home / "conf"
    script = 'set -a; . "$SPARK_CONF_DIR/spark-env.sh"; set +a; env -0'
    done = subprocess.run(
        ["bash", "-c", script, "spark-class", "org.apache.spark.deploy.SparkSubmit", *arguments],
        env={"PATH": f"{found.java.parent}:{os.environ['PATH']}", "SPARK_CONF_DIR": str(conf), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)


def test_every_command_that_names_spark_submit_is_one() -> None:
    jobs = Path(__file__).resolve().parents[2] / "jobs"
    submitted = [each.stem for each in sorted(jobs.glob("[a-z]*.py")) if f"spark-submit jobs/{each.name}" in each.read_text()]
    assert submitted == list(spark_env.COMMANDS)


@pytest.mark.parametrize("command", spark_env.COMMANDS)
def test_a_command_gets_the_archive_and_the_settings_of_its_jvm(found: Versions, archive: Path, command: str) -> None:
    assert spark_env.write(found, archive) is State.WRITTEN
    told = sourced(found, f"jobs/{command}.py", "--log-dir", "/x", SPARK_SUBMIT_OPTS="-Dusers=1")
    options = told["SPARK_SUBMIT_OPTS"]
    assert f'"-XX:SharedArchiveFile={archive}"' in options
    assert "-XX:TieredStopAtLevel=1" in options
    assert options.endswith(" -Dusers=1")
    assert told["SPARK_DRIVER_MEMORY"] == "2g"
    assert not Path(told["SPARK_CONF_DIR"]).exists()
    assert "_java" not in told


@pytest.mark.parametrize("application", ["pyspark-shell", "jobs/own.py"])
def test_other_applications_only_get_the_archive(found: Versions, archive: Path, application: str) -> None:
    spark_env.write(found, archive)
    told = sourced(found, application)
    assert told["SPARK_SUBMIT_OPTS"].split() == [*f'"-XX:SharedArchiveFile={archive}"'.split(), "-Xlog:cds*=off"]
    assert "SPARK_DRIVER_MEMORY" not in told


def test_an_archive_and_a_memory_of_the_user_are_kept(found: Versions, archive: Path) -> None:
    spark_env.write(found, archive)
    own = "-XX:SharedArchiveFile=/own.jsa"
    told = sourced(found, "jobs/compact.py", SPARK_SUBMIT_OPTS=own, SPARK_DRIVER_MEMORY="5g")
    assert told["SPARK_SUBMIT_OPTS"].count("SharedArchiveFile") == 1
    assert own in told["SPARK_SUBMIT_OPTS"]
    assert told["SPARK_DRIVER_MEMORY"] == "5g"


@pytest.mark.parametrize("reason", ["no archive", "another Java", "settings of the user"])
def test_without_a_fitting_archive_the_jvm_starts_as_before(
    found: Versions, archive: Path, reason: str, tmp_path: Path
) -> None:
    """A JVM whose archive is missing loses its own, too; one with files on its class path rejects it."""
    spark_env.write(found, archive)
    environment = {}
    if reason == "no archive":
        archive.unlink()
    elif reason == "another Java":
        environment["JAVA_HOME"] = str(tmp_path / "another")
    else:
        (found.spark_home / "conf/spark-defaults.conf").write_text("spark.driver.memory 3g\n")
    told = sourced(found, "pyspark-shell", **environment)
    assert "SharedArchiveFile" not in told.get("SPARK_SUBMIT_OPTS", "")
    assert told["SPARK_CONF_DIR"] == str(found.spark_home / "conf")


def test_a_file_of_the_user_is_not_replaced(found: Versions, archive: Path) -> None:
    own = spark_env.file_of(found)
    own.parent.mkdir()
    own.write_text("export MINE=1\n")
    assert spark_env.write(found, archive) is State.FOREIGN
    assert own.read_text() == "export MINE=1\n"
    assert list(own.parent.iterdir()) == [own]


def test_a_file_for_another_archive_is_outdated_and_replaced(found: Versions, archive: Path) -> None:
    assert spark_env.state(found, archive) is State.MISSING
    spark_env.write(found, archive.with_name("old.jsa"))
    assert spark_env.state(found, archive) is State.OUTDATED
    assert spark_env.write(found, archive) is State.WRITTEN


def test_a_run_with_a_temporary_cache_directory_leaves_the_file_as_it_is(
    found: Versions, archive: Path, tmp_path: Path
) -> None:
    spark_env.write(found, archive)
    temporary = tmp_path / "temporary" / archive.name
    temporary.parent.mkdir()
    temporary.touch()
    assert spark_env.state(found, temporary) is State.WRITTEN
    archive.unlink()
    assert spark_env.state(found, temporary) is State.OUTDATED


def test_the_scripts_of_the_installed_spark_read_the_file() -> None:
    """``spark-class`` reads it before it starts the launcher, with the application's arguments."""
    import pyspark

    scripts = Path(pyspark.__file__).parent / "bin"
    assert '. "${SPARK_HOME}"/bin/load-spark-env.sh' in (scripts / "spark-class").read_text()
    assert ". ${SPARK_ENV_SH}" in (scripts / "load-spark-env.sh").read_text()
