"""Full disks, missing permissions, and mounts: no record is lost, the error is clear, and no directory is cleaned twice.
``tests/commands/calls/places.txt`` has links and odd names."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from compaction.files.local import LocalFileSystem
from compaction.names import CLEANER_OFFSETS, LOCK, LOG, segment_file
from compaction.run import waves
from tests.crash.surroundings import (
    NOBODY,
    cleaned_topics,
    forked,
    logs_of,
    make_logs,
    only_the_subject_failed,
    open_up,
    run,
    run_as_nobody,
    small_disk,
)
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.kafka.encode import Batch, Record
from tests.log.logs import build

NOTHING_KEPT = ("--set", "file.delete.delay.ms=0")
ACTIVE = 1_000_000
#: replaced segments remain longer than a run waits
KEPT = ("--set", "file.delete.delay.ms=1d")


def big_batches(base: int, mebibytes: int, *, keys: int) -> list[bytes]:
    """Batches of incompressible values of 256 KiB, with this number of keys."""
    rng = random.Random(base)
    return [
        Batch([Record(base + i, NOW_MS - 10**6, b"key-%d" % (i % keys), rng.randbytes(256 * 1024))]).encode()
        for i in range(4 * mebibytes)
    ]


@pytest.fixture
def disk(root: None, tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB with two logs of 8 MiB: cleaning removes nothing from one and almost everything from the other."""
    with small_disk(tmp_path / "disk", 24) as place:
        for topic, keys in (("stays", 10**6), ("shrinks", 1)):
            files = {segment_file(0, LOG): b"".join(big_batches(0, 8, keys=keys))}
            files.update({segment_file(ACTIVE, kind): data for kind, data in build(ACTIVE, []).files.items()})
            write_log(place / f"{topic}-0", files)
        yield place


@pytest.mark.crash
def test_a_log_that_does_not_fit_is_refused_with_figures_before_anything_is_written(disk: Path) -> None:
    before = look_at(disk / "stays-0")
    ended = run(disk, *KEPT)
    assert ended.code == 1
    line = re.search(
        rf"^error: stays-0: {disk}/stays-0: its cleaned segments take ([\d.]+) MB, ([\d.]+) MB are free besides a margin"
        r" of 4\.2 MB for checkpoints and journals; free some space and run again, or use --output-dir;"
        r" nothing was written$",
        ended.err,
        re.MULTILINE,
    )
    assert line is not None, ended.err
    needed, free = (float(each) * 1e6 for each in line.groups())
    assert 8 << 20 < needed < 9 << 20
    assert free < 8 << 20
    assert look_at(disk / "stays-0") == before
    assert cleaned_topics(disk) == {"shrinks"}


@pytest.mark.crash
def test_a_disk_that_fills_up_while_outputs_are_written_leaves_the_log_unchanged(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waves.SpaceBudget, "fits", lambda *_: True)
    (disk / "other files").write_bytes(bytes(4 << 20))
    before = logs_of(disk)
    ended = run(disk)
    assert ended.code == 1
    message = r"error: {}: \S+: cannot write \(No space left on device\); the log is unchanged"
    assert re.search(message.format("stays-0"), ended.err)
    assert look_at(disk / "stays-0") == before["stays-0"]
    # the other log, which is cleaned beside it, fails if it needs space while the disk is full
    if not cleaned_topics(disk):
        assert re.search(message.format("shrinks-0"), ended.err)
        assert look_at(disk / "shrinks-0") == before["shrinks-0"]
    (disk / "other files").unlink()
    monkeypatch.undo()
    assert run(disk, "--topic", "shrinks").code == 0
    shutil.rmtree(disk / "shrinks-0")
    (disk / CLEANER_OFFSETS).unlink()
    assert run(disk).code == 0
    assert cleaned_topics(disk) == {"stays"}


@pytest.mark.crash
def test_an_output_directory_on_a_small_disk_is_refused_and_does_not_appear(disk: Path, tmp_path: Path) -> None:
    before = logs_of(disk)
    with small_disk(tmp_path / "small", 9) as small:
        ended = run(disk, "--output-dir", small / "out", "--topic", "stays")
        assert ended.code == 1
        assert "are free besides" in ended.err
        assert not list((small / "out").glob("stays-0/*"))
    assert logs_of(disk) == before


@pytest.mark.crash
@pytest.mark.parametrize(
    ("denied", "message"),
    [
        ("write", r"\S+subject-0/0{20}\.log\.clean\.\w+: cannot write \(Permission denied\); .*"),
        ("read", r"\S+subject-0/0{20}\.log: cannot read: Permission denied; run as the user that owns .*"),
    ],
)
def test_a_log_that_is_another_users_fails_and_the_others_are_cleaned(
    root: None, log_dir: Path, denied: str, message: str
) -> None:
    for path in (log_dir, *log_dir.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    if denied == "write":
        os.chown(log_dir / "subject-0", 0, 0)
    else:
        secret = log_dir / "subject-0" / valid_log("none").log(0)
        os.chown(secret, 0, 0)
        secret.chmod(0o600)
    open_up(log_dir)
    before = look_at(log_dir / "subject-0")
    only_the_subject_failed(run_as_nobody(log_dir), log_dir, before, message, log_dir)


@pytest.mark.crash
def test_a_directory_that_may_not_be_locked_is_a_usage_error(root: None, log_dir: Path) -> None:
    open_up(log_dir)
    before = logs_of(log_dir)
    ended = run_as_nobody(log_dir)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {log_dir / LOCK}: cannot lock the log directory: Permission denied; run as")
    assert logs_of(log_dir) == before


@pytest.mark.crash
def test_a_read_only_mount_is_a_usage_error(root: None, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as place:
        write_log(place / "subject-0", valid_log("none").files)
        (place / LOCK).touch()
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        before = logs_of(place)
        ended = run(place)
        assert ended.code == 2
        assert "Read-only file system; mount it for writing, or use --output-dir" in ended.err
        assert run(place, "--dry-run").code == 0
        assert run(place, "--output-dir", tmp_path / "out").code == 0
        assert logs_of(place) == before
        assert cleaned_topics(tmp_path / "out") == {"subject"}


# mounts


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
