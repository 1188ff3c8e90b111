"""A user who owns a log directory, or can write near it, cannot make a run of root change any other file; permissions are
kept."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from compaction.errors import CompactionError
from compaction.files.filesystem import DiskFileSystem
from compaction.files.local import LocalFileSystem
from compaction.names import CLEANER_OFFSETS, LOCK
from compaction.output.journal import JOURNAL
from compaction.run.expire import delete_old_segments
from tests.crash.surroundings import NOBODY, become_nobody, forked, make_logs, open_up, run
from tests.damage.valid_logs import NOW_MS, look_at, valid_log
from tests.disk import Operation, WatchedFileSystem
from tests.local_job import request_for
from tests.local_passes import LocalPasses

_CREATES = frozenset(("create", "write_file", "link", "copy", "rename", "second name", "mkdir"))
_TOKEN = re.compile(r"[0-9a-f]{32}")


def seen(path: Path) -> dict[str, object]:
    """The state of a file, or of a directory tree: all properties that change with a file."""
    found: dict[str, object] = {}
    for each in [path, *sorted(path.rglob("*"))]:
        stat = each.lstat()
        content = sorted(os.listdir(each)) if each.is_dir() else each.read_bytes()  # noqa: PTH208
        found[str(each)] = stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime_ns, stat.st_ino, content
    return found


def make_victims(place: Path) -> Path:
    """Another user's directory: a secret, and files named like a log's."""
    place.mkdir(mode=0o750)
    (place / "secret").write_text("of somebody else")
    (place / "secret").chmod(0o600)
    for name, data in valid_log("none").files.items():
        (place / name).write_bytes(data)
    (place / "00000000000000000000.log.clean").write_text("looks like a leftover")
    return place


def predictable(operations: Sequence[Operation], below: Path) -> list[str]:
    """The predictable names that were created, relative to a directory."""
    names = {each.target or each.path for each in operations if each.name in _CREATES}
    return sorted({os.path.relpath(name, below) for name in names if not _TOKEN.search(name) and Path(name) != below})


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
    return make_victims(tmp_path / "victims")


@pytest.mark.parametrize("kind", ["in place", "copy", "expire"])
def test_a_link_at_a_name_that_a_run_creates_is_not_followed(kind: str, tmp_path: Path, victims: Path) -> None:
    files, rehearsal = WatchedFileSystem(LocalFileSystem()), tmp_path / "rehearsal"
    make_logs(rehearsal / "data")
    run_kind(kind, rehearsal, files)
    names = predictable(files.log, rehearsal)
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


CLAIM = ".compaction-run.00000001"
#: file names of a run, now or in the past, or like them
NAMES = (
    f"{CLEANER_OFFSETS}.tmp", f"subject-0/{JOURNAL}.tmp", "subject-0/00000000000000000000.log.clean",
    "subject-0/00000000000000000000.log.swap.tmp", f"{CLAIM}.tmp", CLAIM, LOCK, "../.out.partial",
    f"../.out.{'a' * 32}.partial",
)  # fmt: skip


@pytest.mark.parametrize("target", ["secret", "."])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copies", [False, True], ids=["in place", "to a copy"])
def test_a_link_planted_at_a_name_of_any_run_is_neither_used_nor_emptied(
    log_dir: Path, victims: Path, name: str, target: str, copies: bool
) -> None:
    before, out = seen(victims), log_dir.with_name("out")
    plant(log_dir / name, victims / target)
    refused = name == LOCK or (name == CLAIM and not copies)
    assert run_quietly(log_dir, ["--output-dir", out] if copies else []) == (2 if refused else 0)
    assert seen(victims) == before
    assert (out / "subject-0").is_dir() == (copies and not refused)


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


def give_to_nobody(log_dir: Path) -> None:
    for each in [log_dir, *log_dir.rglob("*")]:
        os.lchown(each, NOBODY, NOBODY)


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
            fixed = [CLEANER_OFFSETS, CLEANER_OFFSETS + ".tmp", LOCK, JOURNAL, CLAIM]
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
