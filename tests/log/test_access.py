"""Locks and claims of a run, by its access to the log directories."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.errors import LockedError, UsageError
from compaction.files.local import LocalFileSystem
from compaction.log.access import NO_OWNER, Purpose, access, is_claim, require_still_unlocked
from compaction.names import LOCK
from tests.crash.surroundings import small_disk
from tests.files.test_lock import held_elsewhere, try_elsewhere

FS = LocalFileSystem()


def names(log_dir: Path) -> list[str]:
    return sorted(path.name for path in log_dir.iterdir())


def test_a_changing_run_holds_the_lock_and_a_claim(tmp_path: Path) -> None:
    (tmp_path / f"cleaner-offset-checkpoint.{'0' * 32}.tmp").touch()
    with access(FS, [str(tmp_path)], Purpose.CHANGE) as held:
        held.owner(str(tmp_path)).require()
        assert held.owner(str(tmp_path)).token
        assert "in use" in try_elsewhere(tmp_path)
        assert [is_claim(name) for name in names(tmp_path)] == [True, False]
    assert names(tmp_path) == [LOCK]


def test_a_copying_run_keeps_a_broker_out_and_lets_readers_in(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    with access(FS, [str(tmp_path)], Purpose.COPY) as held:
        assert held.owner(str(tmp_path)) is NO_OWNER
        assert "in use" in try_elsewhere(tmp_path)
    assert try_elsewhere(tmp_path) == "free\n"


def test_a_run_that_began_after_a_copy_does_not_win(tmp_path: Path) -> None:
    """There was no lock file to share: a copy makes one, as a broker does."""
    with access(FS, [str(tmp_path)], Purpose.COPY), access(FS, [str(tmp_path)], Purpose.COPY):
        assert "in use" in try_elsewhere(tmp_path)
        with pytest.raises(LockedError), access(FS, [str(tmp_path)], Purpose.CHANGE):
            pass
    assert try_elsewhere(tmp_path) == "free\n" and names(tmp_path) == [LOCK]


def test_a_run_that_only_reads_creates_no_file(tmp_path: Path) -> None:
    with access(FS, [str(tmp_path)], Purpose.SHARE):
        assert names(tmp_path) == []


def test_a_copying_run_detects_a_broker_that_started_since(tmp_path: Path) -> None:
    """There was no lock file to share, and the run may not make one."""
    with access(FS, [str(tmp_path)], Purpose.SHARE), held_elsewhere(tmp_path):
        with pytest.raises(LockedError, match="locked this directory while the logs were copied"):
            require_still_unlocked(FS, [str(tmp_path)])


def test_a_copying_run_works_on_a_read_only_mount(tmp_path: Path, missing: Callable[[str], None]) -> None:
    if os.geteuid() != 0:
        missing("root, which may mount,")
    with small_disk(tmp_path / "disk", 1) as place:
        (place / LOCK).touch()
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        with access(FS, [str(place)], Purpose.COPY):
            assert names(place) == [LOCK]


def test_a_dry_run_holds_nothing_and_reports_the_holder(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path), access(FS, [str(tmp_path)], Purpose.READ) as held:
        assert held.in_use == {str(tmp_path)}
        assert names(tmp_path) == [LOCK]


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / LOCK).symlink_to(tmp_path / "victim")
    for purpose in (Purpose.CHANGE, Purpose.COPY, Purpose.SHARE):
        with pytest.raises(UsageError, match="cannot lock the log directory"), access(FS, [str(tmp_path / "logs")], purpose):
            pass
    assert not (tmp_path / "victim").exists()


def test_all_locks_are_released_if_one_cannot_be_taken(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with held_elsewhere(tmp_path / "two"), pytest.raises(LockedError):
        with access(FS, [str(tmp_path / "one"), str(tmp_path / "two")], Purpose.CHANGE):
            pass
    assert try_elsewhere(tmp_path / "one") == "free\n"
    assert names(tmp_path / "one") == [LOCK]
