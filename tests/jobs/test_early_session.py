"""Spark starts ahead of its use where there is much to read, and no sooner than asked for where there is not."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from compaction.logdir.discover import Selector
from jobs import _cli

ALL = Selector()


def log_dir(place: Path, size_bytes: int) -> str:
    (place / "a-0").mkdir()
    with (place / "a-0" / f"{0:020d}.log").open("wb") as file:
        file.truncate(size_bytes)
    return str(place)


def test_little_data_starts_nothing(tmp_path: Path) -> None:
    def factory() -> Any:
        raise AssertionError

    assert _cli.ahead(factory, [log_dir(tmp_path, 1 << 20)], ALL) is factory


def test_much_data_starts_the_session_in_a_thread_and_once(tmp_path: Path) -> None:
    started = threading.Event()

    def factory() -> Any:
        assert not started.is_set()
        started.set()
        return session

    session: Any = object()
    usual = sys.getswitchinterval()
    found = _cli.ahead(factory, [log_dir(tmp_path, 1 << 30)], ALL)
    assert started.wait(10)
    assert found() is found() is session
    assert sys.getswitchinterval() == usual


def test_what_goes_wrong_is_told_to_whoever_asks_for_the_session(tmp_path: Path) -> None:
    def factory() -> Any:
        raise OSError("no Java")

    session = _cli.ahead(factory, [log_dir(tmp_path, 1 << 30)], ALL)
    with pytest.raises(OSError, match="no Java"):
        session()
