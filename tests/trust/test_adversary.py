"""A user who owns a log directory, or can write near it, cannot make a run of root change any other file."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
import xxhash

from compaction.files.local import LocalFileSystem
from compaction.names import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS
from compaction.output.journal import JOURNAL
from compaction.run.compact import clean_logs
from compaction.run.expire import delete_old_segments
from compaction.run.run import Environment
from tests.crash.surroundings import NOBODY, become_nobody, forked, make_logs, run
from tests.damage.valid_logs import NOW_MS, look_at, valid_log
from tests.disk import Operation, WatchedFileSystem
from tests.local_job import request_for
from tests.local_passes import LocalPasses

_CREATES = frozenset(("create", "write_file", "link", "copy", "rename", "second name", "mkdir"))
_TOKEN = re.compile(r"[0-9a-f]{32}")
SETTINGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


class Seen(NamedTuple):
    """All properties that change with a file."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    inode: int
    content: bytes | tuple[str, ...]


def seen(path: Path) -> dict[str, Seen]:
    """The state of a file, or of a directory tree."""
    found = {}
    for each in [path, *sorted(path.rglob("*"))]:
        stat = each.lstat()
        content = tuple(sorted(os.listdir(each))) if each.is_dir() else each.read_bytes()  # noqa: PTH208
        found[str(each)] = Seen(stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime_ns, stat.st_ino, content)
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


def run_quietly(log_dir: Path, options: Sequence[object]) -> int:
    """Run the job; returns its exit code. A stack trace is a failure."""
    ended = run(log_dir, *options)
    assert "Traceback" not in ended.err + ended.out, ended.err
    assert "unforeseen" not in ended.err + ended.out, ended.err
    return ended.code


@pytest.fixture
def victims(tmp_path: Path) -> Path:
    return make_victims(tmp_path / "victims")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return make_logs(tmp_path / "data")


def names_of_a_run(place: Path, kind: str) -> list[str]:
    """The predictable names that a run of a kind creates, relative to ``place``, where the logs are in ``data``."""
    files, logs = WatchedFileSystem(LocalFileSystem()), make_logs(place / "data")
    request = request_for(logs, NOW_MS, {"aside": SETTINGS, "subject": SETTINGS})
    if kind == "expire":
        deleting = {"cleanup.policy": "delete", "retention.ms": "1"}
        expiry = request_for(logs, NOW_MS * 2, {"aside": deleting, "subject": deleting})
        delete_old_segments(LocalPasses, expiry, Environment(files))
    elif kind == "copy":
        clean_logs(LocalPasses, replace(request, output_dir=str(place / "out")), Environment(files))
    else:
        clean_logs(LocalPasses, request, Environment(files))
    return predictable(files.log, place)


@pytest.mark.parametrize("kind", ["in place", "copy", "expire"])
def test_a_link_at_a_name_that_a_run_creates_is_not_followed(kind: str, tmp_path: Path, victims: Path) -> None:
    names = names_of_a_run(tmp_path / "rehearsal", kind)
    assert len(names) > 5 or names == ["data/.lock", "out"]
    before = seen(victims)
    options = ["--output-dir", tmp_path / "case" / "out"] if kind == "copy" else []
    for name in names:
        # a link given as --output-dir is the user's choice of its target, which may be a new directory
        for target in (victims / "secret", victims, *([victims / "nothing"] if name != "out" else [])):
            make_logs(tmp_path / "case" / "data")
            place = tmp_path / "case" / name
            if not place.is_dir() or place.is_symlink():
                plant(place, target)
                run_quietly(tmp_path / "case" / "data", options)
                assert seen(victims) == before, (name, target)
            shutil.rmtree(tmp_path / "case")


def test_a_planted_staging_directory_or_link_is_neither_used_nor_emptied(tmp_path: Path, log_dir: Path, victims: Path) -> None:
    before = seen(victims)
    for name in (".out.partial", ".out." + "a" * 32 + ".partial"):
        plant(tmp_path / name, victims)
    assert run_quietly(log_dir, ["--output-dir", tmp_path / "out"]) == 0
    assert seen(victims) == before
    assert (tmp_path / "out" / "subject-0").is_dir()


ABSURD = {
    "no JSON": b"\x00\xff",
    "deep": b"[" * 200_000,
    "a list": b"[]",
    "no fields": b"{}",
    "huge": b'{"version": ' + b"9" * 100_000 + b"}",
}


def journal_of(base_offset: int, kind: str = ".log") -> bytes:
    """A journal with a valid checksum."""
    source = {"base_offset": base_offset, "size_bytes": 1, "mtime_ns": 1, "inode": 1}
    group = {"base_offset": base_offset, "files": [[kind, 1, "0"]], "sources": [source]}
    body: dict[str, object] = {"groups": [group], "previous_checkpoint": None, "end_offset": 5, "owner": ""}
    checksum = xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())
    return json.dumps({"version": 2, "checksum": checksum, **body}).encode()


JOURNALS = {
    **ABSURD,
    "a path for a kind": journal_of(0, "/../../victims/secret"),
    "huge offsets": journal_of(2**80),
    "negative offsets": journal_of(-1),
    "nothing of it there": journal_of(7),
}


@pytest.mark.parametrize("kind", JOURNALS)
def test_a_planted_journal_is_its_logs_error_at_most(kind: str, log_dir: Path, victims: Path) -> None:
    before, log = seen(victims), look_at(log_dir / "subject-0")
    (log_dir / "subject-0" / JOURNAL).write_bytes(JOURNALS[kind])
    code = run_quietly(log_dir, [])
    assert code in (0, 1)
    assert (log_dir / CLEANER_OFFSETS).read_text().count("aside") == 1
    if code == 1:
        (log_dir / "subject-0" / JOURNAL).unlink()
        assert look_at(log_dir / "subject-0") == log
    assert seen(victims) == before


@pytest.mark.parametrize("name", [CLEANER_OFFSETS, LOG_STARTS, HIGH_WATERMARKS])
@pytest.mark.parametrize("content", [*ABSURD.values(), b"0\n999999999999999999999\n", b"0\n1\nsubject 0 -5\n"])
def test_a_planted_checkpoint_is_its_directorys_error_at_most(name: str, content: bytes, log_dir: Path, victims: Path) -> None:
    before = seen(victims)
    (log_dir / name).write_bytes(content)
    assert run_quietly(log_dir, []) in (0, 1)
    assert seen(victims) == before


@pytest.mark.parametrize("name", ["subject\n-0", "\x1b[2J-0", "x" * 253 + "-0", "..-0", "-0", "subject-99999999999999999999"])
def test_a_hostile_name_of_a_directory_changes_no_other_log(name: str, log_dir: Path) -> None:
    shutil.copytree(log_dir / "subject-0", log_dir / name)
    ended = run(log_dir)
    assert ended.code in (0, 1)
    assert "\x1b" not in ended.err
    assert "Traceback" not in ended.err
    assert (log_dir / CLEANER_OFFSETS).read_text().count("aside") == 1


# twin mounts


@pytest.fixture
def twin(root: None, tmp_path: Path, log_dir: Path) -> Iterator[Path]:
    """The log directory under a second name."""
    place = tmp_path / "twin"
    place.mkdir()
    subprocess.run(["mount", "--bind", str(log_dir), str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def logs_of(log_dir: Path) -> list[object]:
    return [{name: data for name, (data, *_) in look_at(log).items()} for log in sorted(log_dir.glob("*-0"))]


def twin_runs(log_dir: Path, twin: Path, runs: int, tmp_path: Path) -> None:
    undisturbed, options = make_logs(tmp_path / "undisturbed"), ["--set", "file.delete.delay.ms=0"]
    assert run_quietly(undisturbed, options) == 0
    for number in range(runs):
        for log in log_dir.glob("*"):
            shutil.rmtree(log) if log.is_dir() else log.unlink()
        make_logs(log_dir)
        if number % 2:
            assert run_quietly(log_dir, [*options, "--log-dir", twin]) == 0
        else:
            children = [forked(partial(run_quietly, place, options)) for place in (log_dir, twin)]
            codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
            assert codes in ([0, 0], [0, 2]), codes
        assert logs_of(log_dir) == logs_of(undisturbed)


def test_a_directory_under_two_names_is_cleaned_once(log_dir: Path, twin: Path, tmp_path: Path) -> None:
    twin_runs(log_dir, twin, 10, tmp_path)


@pytest.mark.crash
def test_a_directory_under_two_names_is_cleaned_once_in_many_runs(log_dir: Path, twin: Path, tmp_path: Path) -> None:
    twin_runs(log_dir, twin, 80, tmp_path)


# a hostile user during a run of root


def be_hostile(log_dir: Path, victims: Path) -> NoReturn:
    """As the directory's owner, until killed: replace the files that root's run has, or will create, by links to victims."""
    become_nobody()
    chance = random.Random(1)
    while True:
        directory = chance.choice([log_dir, log_dir / "aside-0", log_dir / "subject-0"])
        with suppress(OSError):
            names = [each for each in directory.iterdir() if not each.is_dir() or each.is_symlink()]
            fixed = [CLEANER_OFFSETS, CLEANER_OFFSETS + ".tmp", ".lock", JOURNAL, ".compaction-run.00000001"]
            path = chance.choice([*names, *(directory / name for name in fixed)])
            act = chance.randrange(4)
            if act == 0:
                path.unlink()
            elif act == 1:
                path.rename(directory / f"{chance.randrange(10**9)}.moved")
            else:
                path.unlink(missing_ok=True)
                path.symlink_to(chance.choice([victims / "secret", victims]))


def give_to_nobody(log_dir: Path) -> None:
    for each in [log_dir, *log_dir.rglob("*")]:
        os.lchown(each, NOBODY, NOBODY)


def beside_a_hostile_user(tmp_path: Path, victims: Path, runs: int) -> None:
    # the hostile user must be able to reach the directory
    for above in (tmp_path, *tmp_path.parents):
        if above != Path("/") and above.stat().st_uid == 0:
            above.chmod(above.stat().st_mode | 0o011)
    before = seen(victims)
    log_dir = make_logs(tmp_path / "hostile")
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


def test_a_hostile_owner_cannot_redirect_root_outside_the_directory(root: None, tmp_path: Path, victims: Path) -> None:
    beside_a_hostile_user(tmp_path, victims, 10)


@pytest.mark.crash
def test_a_hostile_owner_who_tries_more_often_cannot_redirect_root(root: None, tmp_path: Path, victims: Path) -> None:
    beside_a_hostile_user(tmp_path, victims, 100)
