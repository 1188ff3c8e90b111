"""Spark's local directories are private, and are removed by their run, or by the next one if it was killed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compaction.engines.spark_session import private_dirs

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from compaction.engines.spark_session import private_dirs
print(private_dirs({parent!r}), flush=True)
sys.stdin.read()
"""


@contextmanager
def run(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a private directory that holds a file, until its standard input is closed or it is killed."""
    program = _PROGRAM.format(root=str(ROOT), parent=str(parent))
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        (directory / "blockmgr-1").mkdir()
        (directory / "blockmgr-1" / "shuffle_0_0_0.data").write_bytes(b"key")
        yield process, directory


def test_nobody_else_may_enter_and_the_end_of_the_run_removes_it(tmp_path: Path) -> None:
    with run(tmp_path) as (process, directory):
        assert directory.parent == tmp_path
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        process.communicate()
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_removes_it_if_the_run_was_killed(tmp_path: Path) -> None:
    with run(tmp_path) as (process, directory):
        process.kill()
    assert (directory / "blockmgr-1").is_dir()
    with run(tmp_path) as (_, other):
        assert list(tmp_path.iterdir()) == [other]


def test_the_directories_of_runs_that_have_not_ended_are_kept(tmp_path: Path) -> None:
    with run(tmp_path) as (_, first), run(tmp_path) as (_, second):
        assert (first / "blockmgr-1" / "shuffle_0_0_0.data").is_file()
        assert second.is_dir()


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    """Directories that others may enter, links, other names, directories of other users."""
    parent, target = tmp_path / "parent", tmp_path / "target"
    for directory in (parent, target, parent / "kafka-log-compaction-local-open", parent / "blockmgr-1"):
        directory.mkdir()
    (parent / "kafka-log-compaction-local-open").chmod(0o755)
    target.chmod(0o700)
    (parent / "kafka-log-compaction-local-link").symlink_to(target)
    (parent / "kafka-log-compaction-local-file").touch(0o600)
    if os.geteuid() == 0:
        (parent / "kafka-log-compaction-local-other").mkdir(0o700)
        os.chown(parent / "kafka-log-compaction-local-other", 65534, 65534)
    before = sorted(tmp_path.rglob("*"))
    with run(parent) as (process, _):
        process.communicate()
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_removed_where_others_could_have_renamed_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    renamed = shared / "kafka-log-compaction-local-renamed"
    renamed.mkdir(parents=True)
    renamed.chmod(0o700)
    shared.chmod(0o777)
    with run(shared):
        assert renamed.is_dir()
    shared.chmod(0o1777)
    with run(shared):
        assert not renamed.exists()


def test_each_of_several_places_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atexit.register", lambda *_: None)
    found = [Path(each) for each in private_dirs(f"{tmp_path / 'a'}, {tmp_path / 'b'}").split(",")]
    assert [each.parent.name for each in found] == ["a", "b"]
