"""Full disks, missing permissions, mounts, and a user who owns a log directory or can write near it: no record is lost, the
error is clear, no directory is cleaned twice, and a run of root changes no other file. ``tests/commands/calls/places.txt`` has
links and odd names."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from compaction.errors import CompactionError
from compaction.files.filesystem import DiskFileSystem
from compaction.files.local import LocalFileSystem
from compaction.names import CLEANER_OFFSETS, LOCK, LOG, segment_file
from compaction.output.journal import JOURNAL
from compaction.run import waves
from compaction.run.expire import delete_old_segments
from tests.crash.surroundings import (
    NOBODY,
    become_nobody,
    cleaned_topics,
    forked,
    make_logs,
    mounted,
    only_the_subject_failed,
    open_up,
    run,
    run_as_nobody,
    small_disk,
)
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.disk import Operation, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.local_job import request_for
from tests.local_passes import LocalPasses
from tests.log.logs import build

_CREATES = frozenset(("create", "write_file", "link", "copy", "rename", "second name", "mkdir"))
_TOKEN = re.compile(r"[0-9a-f]{32}")
ACTIVE = 1_000_000


def big_batches(base: int, mebibytes: int, *, keys: int) -> list[bytes]:
    """Batches of incompressible values of 256 KiB, with this number of keys."""
    rng = random.Random(base)
    return [
        Batch([Record(base + i, NOW_MS - 10**6, b"key-%d" % (i % keys), rng.randbytes(256 * 1024))]).encode()
        for i in range(4 * mebibytes)
    ]


def give_to_nobody(log_dir: Path) -> None:
    for each in [log_dir, *log_dir.rglob("*")]:
        os.lchown(each, NOBODY, NOBODY)


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
def test_a_disk_that_fills_up_while_outputs_are_written_leaves_the_log_unchanged(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waves.SpaceBudget, "fits", lambda *_: True)
    (disk / "other files").write_bytes(bytes(4 << 20))
    stays, shrinks = look_at(disk / "stays-0"), look_at(disk / "shrinks-0")
    ended = run(disk)
    assert ended.code == 1
    message = r"error: {}: \S+: cannot write \(No space left on device\); the log is unchanged"
    assert re.search(message.format("stays-0"), ended.err)
    assert look_at(disk / "stays-0") == stays
    # the other log, which is cleaned beside it, fails if it needs space while the disk is full
    if not cleaned_topics(disk):
        assert re.search(message.format("shrinks-0"), ended.err)
        assert look_at(disk / "shrinks-0") == shrinks
    (disk / "other files").unlink()
    monkeypatch.undo()
    assert run(disk, "--topic", "shrinks").code == 0
    shutil.rmtree(disk / "shrinks-0")
    (disk / CLEANER_OFFSETS).unlink()
    assert run(disk).code == 0
    assert cleaned_topics(disk) == {"stays"}


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
    give_to_nobody(log_dir)
    if denied == "write":
        os.chown(log_dir / "subject-0", 0, 0)
    else:
        secret = log_dir / "subject-0" / valid_log("none").log(0)
        os.chown(secret, 0, 0)
        secret.chmod(0o600)
    open_up(log_dir)
    before = look_at(log_dir / "subject-0")
    only_the_subject_failed(run_as_nobody(log_dir), log_dir, before, message, log_dir)


# mounts


@pytest.mark.parametrize("runs", [10, pytest.param(80, marks=pytest.mark.crash)])
def test_a_directory_and_its_bind_mount_are_cleaned_once(root: None, log_dir: Path, tmp_path: Path, runs: int) -> None:
    """In one call, or in two at the same time."""
    undisturbed, nothing_kept = make_logs(tmp_path / "undisturbed"), ("--set", "file.delete.delay.ms=0")
    assert run(undisturbed, *nothing_kept).code == 0
    cleaned = look_at(undisturbed / "subject-0")
    with mounted(tmp_path / "twin", "--bind", str(log_dir)) as twin:
        for number in range(runs):
            for path in log_dir.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            make_logs(log_dir)
            if number % 2:
                ended = run(log_dir, *nothing_kept, "--log-dir", twin)
                assert ended.code == 0, ended.err
                assert ended.out.count("\nsubject-0 ") == 1
            else:
                children = [forked(partial(lambda at: run(at, *nothing_kept).code, place)) for place in (log_dir, twin)]
                codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
                assert codes in ([0, 0], [0, 2]), codes
            assert look_at(log_dir / "subject-0") == look_at(log_dir / "aside-0") == cleaned


def test_a_second_run_over_a_bind_mount_finds_the_lock_of_the_first(root: None, log_dir: Path, tmp_path: Path) -> None:
    ends = []
    with mounted(tmp_path / "again", "--bind", str(log_dir)) as again:
        ended = run(log_dir, events={"before_rewrite": lambda: ends.append(run(again))})
    assert ended.code == 0, ended.err
    assert [second.code for second in ends] == [2]
    assert "log directory is in use" in ends[0].err


def test_a_partition_that_is_a_mount_point_is_not_changed_without_its_directorys_lock(
    root: None, log_dir: Path, tmp_path: Path
) -> None:
    before = look_at(log_dir / "subject-0")
    (tmp_path / "other").mkdir()
    with mounted(tmp_path / "other/subject-0", "--bind", str(log_dir / "subject-0")):
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


# a hostile user


def seen(path: Path) -> dict[str, object]:
    """The state of a file, or of a directory tree: all properties that change with a file."""
    found: dict[str, object] = {}
    for each in [path, *sorted(path.rglob("*"))]:
        stat = each.lstat()
        content = sorted(os.listdir(each)) if each.is_dir() else each.read_bytes()  # noqa: PTH208
        found[str(each)] = stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime_ns, stat.st_ino, content
    return found


def plant(place: Path, target: Path) -> None:
    """Replace a path by a link to ``target``."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        place.unlink()
    place.symlink_to(target)


def run_quietly(log_dir: Path, options: Sequence[object], files: DiskFileSystem | None = None) -> int:
    """Run the job; returns its exit code. A stack trace is a failure."""
    ended = run(log_dir, *options, files=files)
    assert "Traceback" not in ended.err + ended.out, ended.err
    assert "unforeseen" not in ended.err + ended.out, ended.err
    return ended.code


def run_kind(kind: str, place: Path, files: DiskFileSystem | None = None) -> None:
    """A run of a kind over the logs in ``data`` of a directory."""
    if kind != "expire":
        run_quietly(place / "data", ["--output-dir", place / "out"] if kind == "copy" else [], files)
        return
    deleting = {"cleanup.policy": "delete", "retention.ms": "1"}
    with suppress(CompactionError):
        request = request_for(place / "data", NOW_MS * 2, {"aside": deleting, "subject": deleting})
        report = delete_old_segments(LocalPasses, request, files)
        assert not [log.reason for log in report.logs if "unforeseen" in log.reason]


@pytest.fixture
def victims(tmp_path: Path) -> Path:
    """Another user's directory: a secret, and files named like a log's."""
    place = tmp_path / "victims"
    write_log(
        place, {**valid_log("none").files, "00000000000000000000.log.clean": b"looks like a leftover", "secret": b"secret"}
    )
    place.chmod(0o750)
    (place / "secret").chmod(0o600)
    return place


@pytest.mark.parametrize("kind", ["in place", "copy", "expire"])
def test_a_link_at_a_name_that_a_run_creates_is_not_followed(kind: str, tmp_path: Path, victims: Path) -> None:
    files, rehearsal = WatchedFileSystem(LocalFileSystem()), tmp_path / "rehearsal"
    make_logs(rehearsal / "data")
    run_kind(kind, rehearsal, files)
    created = {each.target or each.path for each in files.log if each.name in _CREATES} - {str(rehearsal)}
    # others cannot be predicted
    names = sorted({os.path.relpath(name, rehearsal) for name in created if not _TOKEN.search(name)})
    assert len(names) > 5 or names == ["data/.lock", "out"]
    before = seen(victims)
    for name in names:
        # a link given as --output-dir is the user's choice of its target, which may be a new directory
        for target in (victims / "secret", victims, *([victims / "nothing"] if name != "out" else [])):
            make_logs(tmp_path / "case" / "data")
            place = tmp_path / "case" / name
            if not place.is_dir() or place.is_symlink():
                plant(place, target)
                run_kind(kind, tmp_path / "case")
                assert seen(victims) == before, (name, target)
            shutil.rmtree(tmp_path / "case")


@pytest.mark.parametrize("kind", ["write_file", "create"])
def test_a_link_planted_at_the_next_file_to_be_written_fails_the_log(log_dir: Path, victims: Path, kind: str) -> None:
    """As if somebody had guessed the name or won a race for it."""
    shutil.rmtree(log_dir / "aside-0")
    before, logs = seen(victims), look_at(log_dir / "subject-0")
    planted: list[Path] = []

    def plant_there(found: Operation) -> None:
        if found.name == kind and not planted:
            planted.append(Path(found.path))
            plant(planted[0], victims / "secret")

    ended = run(log_dir, files=WatchedFileSystem(LocalFileSystem(), plant_there))
    assert planted
    assert ended.code == 1
    assert "File exists" in ended.err
    assert seen(victims) == before
    planted[0].unlink(missing_ok=True)
    assert look_at(log_dir / "subject-0") == logs


# permissions


def test_modes_owners_and_attributes_survive_the_replacement_of_files(root: None, log_dir: Path, tmp_path: Path) -> None:
    """A SELinux label or an ACL is an extended attribute, too."""
    checkpoint = log_dir / CLEANER_OFFSETS
    checkpoint.write_text("0\n0\n")
    log = log_dir / "subject-0"
    for path in (checkpoint, *log.iterdir()):
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o640)
        os.setxattr(path, "user.label", b"kept")
    assert run(log_dir).code == 0
    assert run(log_dir, "--output-dir", tmp_path / "out").code == 0
    replaced = [checkpoint, *(log / f"{0:020d}{kind}" for kind in (".log", ".index", ".timeindex"))]
    replaced += [tmp_path / "out/subject-0" / f"{0:020d}.log", tmp_path / "out" / CLEANER_OFFSETS]
    for path in replaced:
        found = path.stat()
        assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (0o640, NOBODY, NOBODY), path
        assert os.getxattr(path, "user.label") == b"kept", path


def test_after_a_kill_under_umask_077_the_brokers_user_can_read_and_remove_everything(root: None, log_dir: Path) -> None:
    give_to_nobody(log_dir)
    seen: dict[str, tuple[int, int]] = {}

    def look(found: Operation) -> None:
        if found.name not in ("rename", "unlink"):
            return
        for path in log_dir.rglob("*"):
            if path.is_file() and not path.name.endswith(".tmp"):
                stat = path.stat()
                seen[path.name.split(".clean")[0]] = (stat.st_uid, stat.st_mode & 0o400)

    old = os.umask(0o077)
    try:
        ended = run(log_dir, files=WatchedFileSystem(LocalFileSystem(), look))
    finally:
        os.umask(old)
    assert ended.code == 0, ended.err
    assert JOURNAL in seen and CLEANER_OFFSETS in seen and LOCK in seen
    assert {name: found for name, found in seen.items() if found != (NOBODY, 0o400)} == {}


# a hostile user during a run of root


def be_hostile(log_dir: Path, victims: Path) -> NoReturn:
    """As the directory's owner, until killed: replace the files that root's run has, or will create, by links to victims."""
    become_nobody()
    chance = random.Random(1)
    while True:
        directory = chance.choice([log_dir, log_dir / "aside-0", log_dir / "subject-0"])
        with suppress(OSError):
            names = [each for each in directory.iterdir() if not each.is_dir() or each.is_symlink()]
            fixed = [CLEANER_OFFSETS, CLEANER_OFFSETS + ".tmp", LOCK, JOURNAL, ".compaction-run.00000001"]
            path = chance.choice([*names, *(directory / name for name in fixed)])
            act = chance.randrange(4)
            if act == 0:
                path.unlink()
            elif act == 1:
                path.rename(directory / f"{chance.randrange(10**9)}.moved")
            else:
                path.unlink(missing_ok=True)
                path.symlink_to(chance.choice([victims / "secret", victims]))


@pytest.mark.parametrize("runs", [10, pytest.param(100, marks=pytest.mark.crash)])
def test_a_hostile_owner_cannot_redirect_root_outside_the_directory(
    root: None, tmp_path: Path, victims: Path, runs: int
) -> None:
    before, log_dir = seen(victims), make_logs(tmp_path / "hostile")
    open_up(log_dir)
    give_to_nobody(log_dir)
    child = forked(lambda: be_hostile(log_dir, victims))
    try:
        for _ in range(runs):
            assert run_quietly(log_dir, []) in (0, 1, 2)
            for topic in ("aside", "subject"):
                shutil.rmtree(log_dir / f"{topic}-0", ignore_errors=True)
            with suppress(OSError):
                make_logs(log_dir)
                give_to_nobody(log_dir)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert seen(victims) == before
