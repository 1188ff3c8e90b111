"""The Spark session starts early if there is much new data, and on demand otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from compaction.engine.protocol import has_started
from compaction.names import LogLocation, TopicPartition
from compaction.task_runner import Job
from jobs import _command

ROOT = Path(__file__).resolve().parents[2]


def logs(parent: Path, size_bytes: int) -> list[LogLocation]:
    (parent / "a-0").mkdir()
    with (parent / "a-0" / f"{0:020d}.log").open("wb") as file:
        file.truncate(size_bytes)
    return [LogLocation(TopicPartition("a", 0), str(parent), str(parent / "a-0"))]


def test_little_data_starts_no_session(tmp_path: Path) -> None:
    def factory() -> Any:
        raise AssertionError

    assert _command.start_early(factory, logs(tmp_path, 1 << 20)) is factory


def test_much_data_starts_the_session_once_and_in_a_thread(tmp_path: Path) -> None:
    started = threading.Event()

    def factory() -> Any:
        assert not started.is_set()
        started.set()
        return session

    session: Any = object()
    usual = sys.getswitchinterval()
    found = _command.start_early(factory, logs(tmp_path, 1 << 30))
    assert started.wait(10)
    assert found() is found() is session
    assert sys.getswitchinterval() == usual


def test_an_error_of_the_start_is_raised_on_the_first_use(tmp_path: Path) -> None:
    def factory() -> Any:
        raise OSError("no Java")

    session = _command.start_early(factory, logs(tmp_path, 1 << 30))
    with pytest.raises(OSError, match="no Java"):
        session()


def test_the_passes_know_whether_an_early_session_has_started(tmp_path: Path) -> None:
    may_start = threading.Event()

    def factory() -> Any:
        assert may_start.wait(10)
        return object()

    early = _command.start_early(factory, logs(tmp_path, 1 << 30))
    assert not has_started(_command.passes(early))
    may_start.set()
    early()
    assert has_started(_command.passes(early))
    assert not has_started(_command.passes(factory))


def test_many_logs_start_a_session_for_less_data(tmp_path: Path) -> None:
    def factory() -> Any:
        return object()

    one = logs(tmp_path, 64 << 10)
    assert isinstance(_command.start_early(factory, one * 1_000), _command.EarlySession)
    assert _command.start_early(factory, one * 100) is factory


@pytest.mark.parametrize("command", ["compact", "dump-log", "count", "doctor"])
def test_a_removed_working_directory_is_one_line(tmp_path: Path, command: str) -> None:
    options = {"dump-log": ["--files", "a-0"], "doctor": []}.get(command, ["--log-dir", "logs"])
    (tmp_path / "gone").mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    called = ["/bin/sh", "-c", script, "sh", str(tmp_path / "gone"), sys.executable, "-m", "jobs", command, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(called, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the working directory has been removed; change to another one, e.g. cd /\n"


def test_worker_processes_end_with_the_part_of_a_command_that_needs_them() -> None:
    """Those of a compaction are not there while its result is verified."""
    with _command.passes(_command.Engine("test", is_local=True, to_store=True)) as start:
        (worker,) = start().run(Job("test"), ["/proc/self"], os.readlink)
        assert Path(f"/proc/{worker}").exists()
    assert not Path(f"/proc/{worker}").exists()
