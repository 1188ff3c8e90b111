"""A run of root in a directory that others can write to: it follows no planted link, and permissions are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction.files.local import LocalFileSystem
from compaction.names import CLEANER_OFFSETS, LOCK
from compaction.output.journal import JOURNAL
from tests.crash.surroundings import NOBODY, run
from tests.damage.valid_logs import look_at, valid_log, write_log
from tests.trust.watched import Operation, WatchedFileSystem

VALID = valid_log("none")
VICTIM = b"root's own"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write_log(tmp_path / "data/subject-0", VALID.files)
    (tmp_path / "victim").write_bytes(VICTIM)
    (tmp_path / "victim").chmod(0o600)
    return tmp_path / "data"


def state(path: Path) -> tuple[bytes, int, int, int]:
    found = path.stat()
    return path.read_bytes(), found.st_mode & 0o7777, found.st_uid, found.st_ino


#: file names of the job, now or in the past -> the exit code of a run with a link there
NAMES = {
    f"{CLEANER_OFFSETS}.tmp": 0,
    f"subject-0/{JOURNAL}.tmp": 0,
    "subject-0/00000000000000000000.log.clean": 0,
    "subject-0/00000000000000000000.log.swap.tmp": 0,
    ".compaction-run.00000001.tmp": 0,
    LOCK: 2,
    "../.out.partial": 0,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [(), ("--output-dir", "out")], ids=["in place", "to a copy"])
def test_a_link_planted_at_a_file_name_of_the_job_is_not_written_through(
    log_dir: Path, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    victim = tmp_path / "victim"
    before = state(victim)
    (log_dir / name).symlink_to(victim)
    ended = run(log_dir, *(str(tmp_path / each) if each == "out" else each for each in options))
    assert ended.code == NAMES[name], ended.err
    assert state(victim) == before


def test_a_link_planted_as_the_staging_directory_is_not_emptied(log_dir: Path, tmp_path: Path) -> None:
    """The hidden directory of a killed run is removed only if it is a directory that this user owns."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_bytes(VICTIM)
    for name in (".out.partial", f".out.{'0' * 32}.partial"):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    assert run(log_dir, "--output-dir", tmp_path / "out").code == 0
    assert (tmp_path / "precious/file").read_bytes() == VICTIM


@pytest.mark.parametrize("kind", ["write_file", "create"])
def test_a_link_planted_at_the_next_file_to_be_written_fails_the_log(log_dir: Path, tmp_path: Path, kind: str) -> None:
    """As if somebody had guessed the name or won a race for it."""
    victim = tmp_path / "victim"
    before, logs = state(victim), look_at(log_dir / "subject-0")
    planted: list[str] = []

    def plant(found: Operation) -> None:
        if found.name == kind and not planted:
            planted.append(found.path)
            Path(found.path).symlink_to(victim)

    ended = run(log_dir, files=WatchedFileSystem(LocalFileSystem(), plant))
    assert planted
    assert ended.code == 1
    assert "File exists" in ended.err
    assert state(victim) == before
    Path(planted[0]).unlink(missing_ok=True)
    assert look_at(log_dir / "subject-0") == logs


def test_a_link_planted_as_a_claim_is_not_written_through(log_dir: Path, tmp_path: Path) -> None:
    before = state(tmp_path / "victim")
    (log_dir / ".compaction-run.00000001").symlink_to(tmp_path / "victim")
    ended = run(log_dir)
    assert ended.code == 2
    assert "claim of another run is malformed" in ended.err
    assert state(tmp_path / "victim") == before


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
    for path in (log_dir, log_dir / "subject-0", *(log_dir / "subject-0").iterdir()):
        os.chown(path, NOBODY, NOBODY)
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
