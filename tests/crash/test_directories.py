"""One directory under several names, and partitions in other directories: the lock belongs to the log, not to its name."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compaction.files.lock import LogDirLock
from tests.crash.surroundings import run
from tests.damage.valid_logs import look_at, valid_log, write_log

VALID = valid_log("none")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write_log(tmp_path / "data/subject-0", VALID.files)
    return tmp_path / "data"


@pytest.fixture
def cleaned(tmp_path: Path) -> object:
    """The log's files after an undisturbed run."""
    write_log(tmp_path / "undisturbed/subject-0", VALID.files)
    assert run(tmp_path / "undisturbed").code == 0
    return look_at(tmp_path / "undisturbed/subject-0")


@contextmanager
def bind_mount(source: Path, target: Path, missing: Callable[[str], None]) -> Iterator[None]:
    target.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "--bind", str(source), str(target)], capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"the right to mount ({done.stderr.strip()})")
    try:
        yield
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_a_directory_and_its_bind_mount_in_one_call_are_cleaned_once(
    root: None, log_dir: Path, tmp_path: Path, missing: Callable[[str], None], cleaned: object
) -> None:
    with bind_mount(log_dir, tmp_path / "again", missing):
        ended = run(log_dir, "--log-dir", tmp_path / "again")
        assert ended.code == 0, ended.err
        assert ended.out.count("\nsubject-0 ") == 1
    assert look_at(log_dir / "subject-0") == cleaned


def test_a_directory_and_a_link_to_it_in_one_call_are_cleaned_once(log_dir: Path, tmp_path: Path, cleaned: object) -> None:
    (tmp_path / "link").symlink_to(log_dir)
    ended = run(log_dir, "--log-dir", tmp_path / "link", tmp_path / "undisturbed" / ".." / "data")
    assert ended.code == 0, ended.err
    assert ended.out.count("\nsubject-0 ") == 1
    assert look_at(log_dir / "subject-0") == cleaned


def test_a_second_run_over_a_bind_mount_finds_the_lock_of_the_first(
    root: None, log_dir: Path, tmp_path: Path, missing: Callable[[str], None]
) -> None:
    ends = []
    with bind_mount(log_dir, tmp_path / "again", missing):
        ended = run(log_dir, events={"before_rewrite": lambda: ends.append(run(tmp_path / "again"))})
    assert ended.code == 0, ended.err
    assert [second.code for second in ends] == [2]
    assert "log directory is in use" in ends[0].err


def test_a_partition_that_is_a_mount_point_is_not_changed_without_its_directorys_lock(
    root: None, log_dir: Path, tmp_path: Path, missing: Callable[[str], None]
) -> None:
    before = look_at(log_dir / "subject-0")
    (tmp_path / "other").mkdir()
    with bind_mount(log_dir / "subject-0", tmp_path / "other/subject-0", missing):
        ended = run(tmp_path / "other")
        assert ended.code == 1
        assert "is a mount point, beyond the lock of this log directory" in ended.err
        assert run(tmp_path / "other", "--dry-run").code == 0
    assert look_at(log_dir / "subject-0") == before


@pytest.mark.parametrize("locked", [True, False], ids=["its directory is locked", "its directory is free"])
def test_a_partition_link_that_leaves_the_log_directory_is_refused(log_dir: Path, tmp_path: Path, locked: bool) -> None:
    """The run holds the lock of the link's directory: a broker may hold that of the log's directory."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links/subject-0").symlink_to(log_dir / "subject-0")
    write_log(tmp_path / "links/aside-0", VALID.files)
    before = look_at(log_dir / "subject-0")
    lock = LogDirLock.acquire(str(log_dir)) if locked else None
    try:
        ended = run(tmp_path / "links")
        assert ended.code == 1
        real = log_dir / "subject-0"
        message = f"error: subject-0: {tmp_path}/links/subject-0: is a link to {real}, beyond the lock of this log directory; "
        assert ended.err == f"{message}give --log-dir {log_dir} too: its lock protects this log\n"
        assert re.search(r"\naside-0 .* cleaned\n", ended.out)
        assert look_at(real) == before
        assert run(tmp_path / "links", "--dry-run").code == 0
    finally:
        if lock is not None:
            lock.release()
    assert look_at(real) == before


def test_a_partition_link_is_followed_with_its_real_directorys_lock(log_dir: Path, tmp_path: Path, cleaned: object) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links/subject-0").symlink_to(log_dir / "subject-0")
    with LogDirLock.acquire(str(log_dir)):
        ended = run(tmp_path / "links", "--log-dir", log_dir)
        assert ended.code == 2
        assert "log directory is in use" in ended.err
    assert run(tmp_path / "links", "--log-dir", log_dir).code == 0
    assert look_at(log_dir / "subject-0") == cleaned
