"""The lock of a log directory, against another process that holds it as a broker does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compaction.errors import LockedError, StorageError
from compaction.files.lock import lock_directory, lock_holder, require_unlocked

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
TRY = """
import sys
from compaction.errors import LockedError
from compaction.files.lock import lock_directory
try:
    lock_directory(sys.argv[1]).close()
except LockedError as error:
    print(error)
else:
    print("free")
"""


@contextmanager
def held_elsewhere(log_dir: Path) -> Iterator[int]:
    """Another process holds the lock, as a broker's JVM does; gives its pid."""
    command = [sys.executable, "-c", HOLD, str(log_dir / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process.pid
        finally:
            process.stdin.close()
            process.wait()


def try_elsewhere(log_dir: Path) -> str:
    command = [sys.executable, "-c", TRY, str(log_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout


def test_a_lock_keeps_other_processes_out_until_it_is_released(tmp_path: Path) -> None:
    with lock_directory(str(tmp_path)):
        assert f"process {os.getpid()}" in try_elsewhere(tmp_path)
    assert try_elsewhere(tmp_path) == "free\n"


@pytest.mark.parametrize("attempt", [lock_directory, require_unlocked])
def test_the_error_names_directory_holder_and_remedy(tmp_path: Path, attempt: Callable[[str], object]) -> None:
    with held_elsewhere(tmp_path) as pid, pytest.raises(LockedError) as caught:
        attempt(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path}: log directory is in use: process {pid} (python")
    assert "stop the broker" in str(caught.value)


def test_a_second_attempt_by_the_same_process_fails_and_keeps_the_lock(tmp_path: Path) -> None:
    with lock_directory(str(tmp_path)):
        with pytest.raises(LockedError):
            lock_directory(str(tmp_path))
        assert lock_holder(str(tmp_path)) is None
        assert "in use" in try_elsewhere(tmp_path)


def test_the_holder_is_found_without_writing(tmp_path: Path) -> None:
    assert lock_holder(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []
    with held_elsewhere(tmp_path) as pid:
        holder = lock_holder(str(tmp_path))
        assert holder is not None and holder.startswith(f"process {pid} (python")
        assert "in use" in try_elsewhere(tmp_path)
    assert lock_holder(str(tmp_path)) is None


def test_a_lock_can_be_taken_again_after_release(tmp_path: Path) -> None:
    for _ in range(3):
        lock = lock_directory(str(tmp_path))
        lock.close()
        lock.close()


def test_a_missing_directory_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot look at the directory: No such file"):
        lock_directory(str(tmp_path / "nowhere"))
