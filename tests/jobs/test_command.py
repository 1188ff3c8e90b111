"""The Spark session starts early if there is much new data, and on demand otherwise."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from compaction.engine.protocol import has_started
from compaction.names import LogLocation, TopicPartition
from jobs import _command


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
