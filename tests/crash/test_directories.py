"""Links, mounts and odd names: one directory under several names, partitions in other directories, the directory of a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from compaction.files.local import LocalFileSystem
from compaction.files.lock import lock_directory
from tests.crash.surroundings import cleaned_topics, forked, logs_of, make_logs, run, small_disk
from tests.damage.valid_logs import look_at, valid_log, write_log

NOTHING_KEPT = ("--set", "file.delete.delay.ms=0")


@pytest.fixture
def cleaned(tmp_path: Path) -> object:
    """The log's files after an undisturbed run."""
    undisturbed = make_logs(tmp_path / "undisturbed")
    assert run(undisturbed, *NOTHING_KEPT).code == 0
    return look_at(undisturbed / "subject-0")


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


def code_of_run(log_dir: Path) -> int:
    return run(log_dir, *NOTHING_KEPT).code


@pytest.mark.parametrize("runs", [10, pytest.param(80, marks=pytest.mark.crash)])
def test_a_directory_and_its_bind_mount_are_cleaned_once(
    root: None, log_dir: Path, tmp_path: Path, missing: Callable[[str], None], cleaned: object, runs: int
) -> None:
    """In one call, or in two at the same time."""
    twin = tmp_path / "twin"
    with bind_mount(log_dir, twin, missing):
        for number in range(runs):
            for path in log_dir.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            make_logs(log_dir)
            if number % 2:
                ended = run(log_dir, *NOTHING_KEPT, "--log-dir", twin)
                assert ended.code == 0, ended.err
                assert ended.out.count("\nsubject-0 ") == 1
            else:
                children = [forked(partial(code_of_run, place)) for place in (log_dir, twin)]
                codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
                assert codes in ([0, 0], [0, 2]), codes
            assert look_at(log_dir / "subject-0") == look_at(log_dir / "aside-0") == cleaned


def test_a_directory_and_a_link_to_it_in_one_call_are_cleaned_once(log_dir: Path, tmp_path: Path, cleaned: object) -> None:
    (tmp_path / "link").symlink_to(log_dir)
    ended = run(log_dir, *NOTHING_KEPT, "--log-dir", tmp_path / "link", tmp_path / "undisturbed" / ".." / "data")
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
    (log_dir / "aside-0").rename(tmp_path / "links/aside-0")
    before = look_at(log_dir / "subject-0")
    lock = lock_directory(str(log_dir)) if locked else None
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
            lock.close()
    assert look_at(real) == before


def test_a_partition_link_is_followed_with_its_real_directorys_lock(log_dir: Path, tmp_path: Path, cleaned: object) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links/subject-0").symlink_to(log_dir / "subject-0")
    with lock_directory(str(log_dir)):
        ended = run(tmp_path / "links", "--log-dir", log_dir)
        assert ended.code == 2
        assert "log directory is in use" in ended.err
    assert run(tmp_path / "links", *NOTHING_KEPT, "--log-dir", log_dir).code == 0
    assert look_at(log_dir / "subject-0") == cleaned


def test_links_to_directories_and_files_are_followed_and_kept(log_dir: Path, tmp_path: Path) -> None:
    run(log_dir)
    expected = look_at(log_dir / "aside-0")
    write_log(tmp_path / "elsewhere" / "linked-0", valid_log("none").files)
    linked = tmp_path / "links"
    linked.mkdir()
    (linked / "linked-0").symlink_to(tmp_path / "elsewhere" / "linked-0")
    active = tmp_path / "elsewhere" / "linked-0" / valid_log("none").log(2)
    active.rename(tmp_path / "active segment")
    active.symlink_to(tmp_path / "active segment")
    (tmp_path / "link to links").symlink_to(linked)
    assert run(tmp_path / "link to links", "--log-dir", tmp_path / "elsewhere").code == 0
    assert (linked / "linked-0").is_symlink()
    assert active.is_symlink()
    assert look_at(tmp_path / "elsewhere" / "linked-0") == expected


ODD_NAMES = ("no number", "x-99999999999", "sp ace-0", "größe-0", "line\nbreak-0", "-0", ".-0", "..-0", "a-0.deleted", "b-0-")


def test_odd_names_are_skipped_or_accepted_as_kafka_does(log_dir: Path) -> None:
    for name in ODD_NAMES:
        write_log(log_dir / name, valid_log("none").files)
    for name in ("a.b_c-1-0", "-x-0", f"{'t' * 200}-7"):
        write_log(log_dir / name, valid_log("none").files)
    (log_dir / "file-0").touch()
    for name in ("123.log", "x.log", "00000000000000000007.log.part", "lost+found", ".hidden"):
        (log_dir / "subject-0" / name).touch()
    before = logs_of(log_dir)
    assert run(log_dir).code == 0
    after = logs_of(log_dir)
    assert {name for name in after if after[name] == before[name]} == set(ODD_NAMES)
    for name in ("123.log", "x.log", "00000000000000000007.log.part", "lost+found", ".hidden"):
        assert (log_dir / "subject-0" / name).exists()


def test_a_directory_named_like_a_segment_fails_its_log(log_dir: Path) -> None:
    path = log_dir / "subject-0" / valid_log("none").log(1)
    path.unlink()
    path.mkdir()
    ended = run(log_dir)
    assert ended.code == 1
    assert ended.err.startswith(f"error: subject-0: {path}: cannot read: Is a directory; ")
    assert cleaned_topics(log_dir) == {"aside"}


# the directory of a copy


def test_a_mount_point_as_the_output_directory_is_refused_before_any_work(root: None, log_dir: Path, tmp_path: Path) -> None:
    begun: list[str] = []
    with small_disk(tmp_path / "out", 4) as place:
        ended = run(log_dir, "--output-dir", place, events={"before_scan": lambda: begun.append("scan")})
        assert list(place.iterdir()) == []
    assert ended.code == 2
    assert ended.err.startswith(f"error: {tmp_path}/out: --output-dir is a mount point; name a new directory below it")
    assert begun == []


def test_new_directories_above_the_output_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power loss removes the output that the run has reported as complete."""
    calls: list[tuple[str, str]] = []
    real_mkdir, real_fsync = os.mkdir, os.fsync

    def mkdir(path: str, mode: int = 0o777) -> None:
        real_mkdir(path, mode)
        calls.append(("mkdir", str(path)))

    def fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        calls.append(("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "fsync", fsync)
    LocalFileSystem().mkdir(str(tmp_path / "new/parents"))
    for made, above in ((tmp_path / "new", tmp_path), (tmp_path / "new/parents", tmp_path / "new")):
        assert ("fsync", str(above)) in calls[calls.index(("mkdir", str(made))) :]
