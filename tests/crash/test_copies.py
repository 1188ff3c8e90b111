"""Runs with --output-dir: an impossible target is refused at once, and damage fails its log instead of being copied."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.files.local import LocalFileSystem
from compaction.names import CLEAN_SHUTDOWN
from tests.crash.surroundings import run, small_disk
from tests.damage.valid_logs import valid_log
from tests.trust.watched import Operation, WatchedFileSystem

VALID = valid_log("none")


def damage(path: Path) -> None:
    """Flip one bit of a value; size and mtime are unchanged."""
    stat, data = path.stat(), path.read_bytes()
    at = data.rindex(b"value-")
    path.write_bytes(data[:at] + b"w" + data[at + 1 :])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_mount_point_as_the_output_directory_is_refused_before_any_work(
    log_dir: Path, tmp_path: Path, missing: Callable[[str], None]
) -> None:
    if os.geteuid() != 0:
        missing("root, which may mount,")
    begun: list[str] = []
    with small_disk(tmp_path / "out", 4) as place:
        ended = run(log_dir, "--output-dir", place, events={"before_scan": lambda: begun.append("scan")})
        assert list(place.iterdir()) == []
    assert ended.code == 2
    assert ended.err.startswith(f"error: {tmp_path}/out: --output-dir is a mount point; name a new directory below it")
    assert begun == []


def test_new_directories_above_the_output_are_durable_before_it_appears(log_dir: Path, tmp_path: Path) -> None:
    """Otherwise a power loss removes the output that the run has reported as complete."""
    synced: list[str] = []
    made: list[str] = []

    def note(found: Operation) -> None:
        if found.name == "fsync_dir":
            synced.append(found.path)
        if found.name == "rename" and found.target.endswith("/out"):
            made.append(found.path)

    calls: list[tuple[str, str]] = []
    real_mkdir, real_fsync = os.mkdir, os.fsync

    def mkdir(path: str, mode: int = 0o777) -> None:
        real_mkdir(path, mode)
        calls.append(("mkdir", str(path)))

    def fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        calls.append(("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "mkdir", mkdir)
        patch.setattr(os, "fsync", fsync)
        files = WatchedFileSystem(LocalFileSystem(), note)
        assert run(log_dir, "--output-dir", tmp_path / "new/parents/out", files=files).code == 0
    for made_dir, above in ((tmp_path / "new", tmp_path), (tmp_path / "new/parents", tmp_path / "new")):
        at = calls.index(("mkdir", str(made_dir)))
        assert ("fsync", str(above)) in calls[at:]
    assert made and str(tmp_path / "new/parents") in synced


def test_a_damaged_active_segment_fails_its_log_instead_of_being_copied(log_dir: Path, tmp_path: Path) -> None:
    (log_dir / CLEAN_SHUTDOWN).touch()
    damage(log_dir / "subject-0" / VALID.log(2))
    ended = run(log_dir, "--output-dir", tmp_path / "out")
    assert ended.code == 1
    assert "error: subject-0: " in ended.err and "CRC" in ended.err
    assert not (tmp_path / "out/subject-0").exists()
    assert (tmp_path / "out/aside-0").is_dir()


def test_a_last_batch_that_a_killed_broker_has_not_finished_is_left_out_with_a_warning(
    log_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(log_dir / "subject-0" / VALID.log(2))
    ended = run(log_dir, "--output-dir", tmp_path / "out")
    assert ended.code == 0
    assert "after the last complete batch, as a broker does without a clean shutdown: batch fails its CRC" in caplog.text
    copy, source = ((path / "subject-0" / VALID.log(2)).read_bytes() for path in (tmp_path / "out", log_dir))
    assert source.startswith(copy) and len(copy) < len(source)


def test_a_skipped_log_with_damage_fails_instead_of_being_copied(log_dir: Path, tmp_path: Path) -> None:
    assert run(log_dir).code == 0
    (path,) = [each for each in (log_dir / "subject-0").glob("*.log") if each.name == VALID.log(0)]
    damage(path)
    ended = run(log_dir, "--output-dir", tmp_path / "out")
    assert ended.code == 1
    assert "error: subject-0: " in ended.err and "CRC" in ended.err
    assert not (tmp_path / "out/subject-0").exists()


def test_a_source_that_changes_while_it_is_copied_fails_its_log(log_dir: Path, tmp_path: Path) -> None:
    """The tail was replaced between the passes: the copy lacked keys that the source still had."""
    path = log_dir / "subject-0" / VALID.log(2)

    def replace() -> None:
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[: len(data) // 2])

    ended = run(log_dir, "--output-dir", tmp_path / "out", events={"before_rewrite": replace})
    assert ended.code == 1
    assert "error: subject-0: " in ended.err
    assert not (tmp_path / "out/subject-0").exists()
