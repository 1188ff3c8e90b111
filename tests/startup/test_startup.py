"""Checks before Spark starts: Java, open files, directories and settings that keep other users out."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from compaction import startup as java_version
from compaction.engines.spark_session import private_dirs
from compaction.errors import UsageError
from compaction.files.local import LocalFileSystem
from compaction.startup import (
    AUTHENTICATE,
    LOCAL,
    LOCAL_MASTER,
    LOOPBACK,
    MASTER,
    UI,
    added,
    configured,
    exposures,
    in_effect,
    require_own_directory,
)
from tests.golden import unpack_sample
from tests.log.logs import data_segment
from tests.processes import ROOT, output_of, run, started


def make_java(home: Path, release: str | None, says: str = "") -> Path:
    """A Java of some version: with a file that has it, or one that says so itself."""
    java = home / "bin/java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\nOS_NAME="Linux"\n')
    return java


@pytest.mark.parametrize(
    ("release", "says", "version"),
    [
        ("17.0.15", "", (17, 0, 15)),
        ("1.8.0_392", "", (8, 0)),
        ("25", "", (25,)),
        (None, 'openjdk version "11.0.2" 2019-01-15', (11, 0, 2)),
        (None, 'java version "1.8.0_392"', (8, 0)),
        (None, "Segmentation fault", None),
    ],
)
def test_the_version_is_that_of_the_release_file_or_what_java_says(
    tmp_path: Path, release: str | None, says: str, version: tuple[int, ...] | None
) -> None:
    assert java_version.version_of(make_java(tmp_path / "jdk", release, says)) == version


@pytest.mark.parametrize(
    ("release", "safe"),
    [("25", False), ("25.0.1", False), ("25.0.2", False), ("25-ea", False), ("17.0.15", True), ("21.0.9", True),
     ("24.0.2", True), ("25.0.3", True), ("26", True)],
)  # fmt: skip
def test_a_java_whose_collector_corrupts_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, safe: bool
) -> None:
    """Before a JVM starts, and of one that runs."""
    java = make_java(tmp_path / "jdk", release)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    told = f"Java {release.removesuffix('-ea')} at {java} can corrupt data.*JDK-8377811.*use Java 25.0.3 or newer"
    with nullcontext() if safe else pytest.raises(UsageError, match=told):
        java_version.require_java()
    with nullcontext() if safe else pytest.raises(UsageError, match="of Spark's JVM can corrupt data"):
        java_version.require_safe_jvm(release)
    for other in ("1.8.0_392", "unknown"):
        java_version.require_safe_jvm(other)


#: variables of a process that finds a Java, or whose JVM runs
JAVA = ("JAVA_HOME", "PYSPARK_GATEWAY_PORT")


def log_dir(parent: Path) -> Path:
    """A log of two segments."""
    log = parent / "data" / "orders-0"
    log.mkdir(parents=True)
    for segment in (data_segment(0, [5, 10]), data_segment(100, [105])):
        segment.put(LocalFileSystem(), str(log))
    return log.parent


@pytest.mark.parametrize(
    ("home", "release", "told"),
    [
        (None, "", "found none: JAVA_HOME is not set, and no java is on PATH"),
        ("gone", "", "found none: JAVA_HOME is HOME, which has no bin/java"),
        ("jdk-11", "11.0.2", "found 11 at HOME/bin/java"),
        ("mute", None, "found one of unknown version at HOME/bin/java"),
    ],
)
def test_a_missing_or_old_java_is_one_line_and_nothing_is_changed(
    tmp_path: Path, home: str | None, release: str | None, told: str
) -> None:
    logs = log_dir(tmp_path)
    if release != "":
        make_java(tmp_path / str(home), release)
    before = sorted(logs.rglob("*"))
    variables: dict[str, Any] = {"PATH": str(tmp_path / "data")} | ({} if home is None else {"JAVA_HOME": str(tmp_path / home)})
    for command in ("compact", "dry-run") if home == "jdk-11" else ("compact",):
        done = run(command, "--log-dir", logs, "--engine", "spark", without=JAVA, **variables)
        found = told.replace("HOME/", f"{tmp_path}/{home}/").replace("is HOME", f"is {tmp_path}/{home}")
        hint = "install Java 17 or newer and set JAVA_HOME to its directory"
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"error: needs Java 17 or newer, {found}; {hint}\n"
    assert sorted(logs.rglob("*")) == before


@pytest.mark.slow
def test_every_command_runs_without_java(tmp_path: Path) -> None:
    """In worker processes, into which each job is forced here."""
    logs, copy, empty = unpack_sample(tmp_path), tmp_path / "copy", tmp_path / "empty"
    empty.mkdir()
    certificate, keys = tmp_path / "erased.json", ["--where", "prefix=order"]
    selected = ["--topic", "orders", "--set", "min.cleanable.dirty.ratio=0", "cleanup.policy=compact"]
    program = (
        "import sys\nfrom compaction.engines import local\nfrom compaction.cli.console import main\n"
        "local.INLINE_BYTES = 0\ncode = main(sys.argv[1:])\nsys.exit(99 if 'pyspark' in sys.modules else code)"
    )
    for command in (
        ["compact", "--log-dir", logs, "--output-dir", copy, "--verify", "--include-active", *selected],
        ["verify", "--before", logs, "--after", copy, "--include-active", *selected],
        ["verify", "--before", logs, "--after", copy, "--why", "orders-0:3", "--include-active", *selected],
        ["count", "--log-dir", logs],
        ["erase", "--log-dir", copy, *keys, "--certificate", certificate, "--include-active", "--topic", "orders"],
        ["verify", "--in-place", copy, *keys, "--certificate", certificate, "--include-active", "--topic", "orders"],
    ):
        without_java = {"PATH": str(empty), "JAVA_HOME": str(tmp_path / "gone")}
        output_of([sys.executable, "-c", program, *command], PYTHONPATH=str(ROOT), **without_java)


def test_a_limit_of_open_files_below_what_spark_needs_is_one_line(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "jobs", "compact", "--log-dir", log_dir(tmp_path), "--engine", "spark"]
    done = started(["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *call])
    assert (done.returncode, done.stdout) == (2, "")
    what = "a process may open 256 files here, and Spark's JVM opens more than 400 at its start"
    assert done.stderr == f"error: {what}; raise the limit: ulimit -n 4096\n"


def test_commands_that_need_no_spark_run_without_java(tmp_path: Path) -> None:
    logs = log_dir(tmp_path)
    segment = next((logs / "orders-0").glob("*.log"))
    calls = [
        ["expire", "--log-dir", logs, "--dry-run", "--set", "cleanup.policy=delete"],
        ["dry-run", "--log-dir", logs, "--explain", "orders-0"],
        ["dump-log", "--files", segment],
    ]
    for call in calls:
        done = run(*call, without=JAVA, PATH="", JAVA_HOME=str(tmp_path))
        assert (done.returncode, done.stderr) == (0, "")


_PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from compaction.engines.spark_session import private_dirs
print(private_dirs({parent!r}), flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a private directory that holds a file, until its standard input is closed or it is killed."""
    program = _PROGRAM.format(root=str(ROOT), parent=str(parent))
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        (directory / "blockmgr-1").mkdir()
        (directory / "blockmgr-1" / "shuffle_0_0_0.data").write_bytes(b"key")
        yield process, directory


def test_nobody_else_may_enter_and_the_end_of_the_run_removes_it(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, directory):
        assert directory.parent == tmp_path
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        process.communicate()
    assert list(tmp_path.iterdir()) == []


def test_runs_that_have_not_ended_keep_theirs_and_remove_that_of_a_killed_one(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, killed):
        process.kill()
    assert (killed / "blockmgr-1").is_dir()
    with holder(tmp_path) as (_, first), holder(tmp_path) as (_, second):
        assert set(tmp_path.iterdir()) == {first, second}
        assert (first / "blockmgr-1" / "shuffle_0_0_0.data").is_file()


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    """Directories that others may enter, links, other names, directories of other users."""
    parent, target = tmp_path / "parent", tmp_path / "target"
    for directory in (parent, target, parent / "kafka-log-compaction-local-open", parent / "blockmgr-1"):
        directory.mkdir()
    (parent / "kafka-log-compaction-local-open").chmod(0o755)
    target.chmod(0o700)
    (parent / "kafka-log-compaction-local-link").symlink_to(target)
    (parent / "kafka-log-compaction-local-file").touch(0o600)
    if os.geteuid() == 0:
        (parent / "kafka-log-compaction-local-other").mkdir(0o700)
        os.chown(parent / "kafka-log-compaction-local-other", 65534, 65534)
    before = sorted(tmp_path.rglob("*"))
    with holder(parent) as (process, _):
        process.communicate()
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_removed_where_others_could_have_renamed_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    renamed = shared / "kafka-log-compaction-local-renamed"
    renamed.mkdir(parents=True)
    renamed.chmod(0o700)
    shared.chmod(0o777)
    with holder(shared):
        assert renamed.is_dir()
    shared.chmod(0o1777)
    with holder(shared):
        assert not renamed.exists()


def test_each_of_several_places_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atexit.register", lambda *_: None)
    found = [Path(each) for each in private_dirs(f"{tmp_path / 'a'}, {tmp_path / 'b'}").split(",")]
    assert [each.parent.name for each in found] == ["a", "b"]


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[4,2]"])
def test_a_local_session_is_closed_to_others(master: str) -> None:
    settings = {MASTER: master, **added(master)}
    assert settings[AUTHENTICATE] == "true"
    assert settings[UI] == "false"
    assert {settings["spark.driver.host"], settings["spark.driver.bindAddress"]} == {LOOPBACK}
    assert list(exposures(settings, None)) == []


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,1024]"])
def test_a_cluster_has_its_own_secret_and_addresses(master: str) -> None:
    assert not set(added(master)) & set(LOCAL)
    assert added(master)["spark.executorEnv.PYTHONSAFEPATH"] == "1"
    (found,) = exposures({MASTER: master}, None)
    assert found.risk.startswith(f"{master} without authentication: ")
    assert list(exposures({MASTER: master, AUTHENTICATE: "true"}, None)) == []


def test_a_user_who_switched_authentication_off_or_opened_pages_is_told_so() -> None:
    (found,) = exposures(in_effect({AUTHENTICATE: "false"}), None)
    assert found.risk.startswith("local[*] without authentication")
    settings = in_effect({UI: "true"})
    assert list(exposures(settings, LOOPBACK)) == []
    (found,) = exposures(settings, None)
    assert found.remedy == "set SPARK_LOCAL_IP=127.0.0.1"
    assert settings["spark.ui.killEnabled"] == "false"


def test_the_settings_are_known_before_a_jvm_starts(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master   spark://file:7077\nspark.authenticate true\n")
    environment = {"SPARK_CONF_DIR": str(tmp_path)}
    assert configured(environment) == {MASTER: "spark://file:7077", AUTHENTICATE: "true"}
    submit = {**environment, "PYSPARK_SUBMIT_ARGS": "--master=yarn --conf spark.ui.enabled=true -c a=b=c pyspark-shell"}
    assert configured(submit) == {MASTER: "yarn", AUTHENTICATE: "true", UI: "true", "a": "b=c"}
    (tmp_path / "own.conf").write_text("spark.master local[3]\n")
    own = {**environment, "PYSPARK_SUBMIT_ARGS": f"--properties-file {tmp_path / 'own.conf'} pyspark-shell"}
    assert configured(own) == {MASTER: "local[3]"}
    assert configured({"SPARK_CONF_DIR": str(tmp_path / "none")}) == {}
    assert in_effect({})[AUTHENTICATE] == "true"
    assert LOCAL_MASTER == "local[*]"


def test_python_3_10_does_not_start_workers_where_others_can_plant_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    require_own_directory((3, 10))
    tmp_path.chmod(0o777)
    require_own_directory((3, 11))
    with pytest.raises(UsageError, match="written by others, and Python 3.10 would run modules .*; change to a directory"):
        require_own_directory((3, 10))


def test_no_process_is_started_with_a_module_by_name() -> None:
    """The directory in which it is started would be searched first."""
    files = [file for package in ("compaction", "jobs") for file in (ROOT / package).rglob("*.py")]
    assert [file for file in files if re.search(r"""["']-m["']""", file.read_text())] == []
