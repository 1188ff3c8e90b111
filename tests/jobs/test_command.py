"""The Spark session starts early if there is much new data, and on demand otherwise."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

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
