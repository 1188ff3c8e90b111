"""Full disks, missing permissions, files that vanish, links and odd names: no record is lost, and the error is clear."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.names import CLEANER_OFFSETS, LOCK, LOG, segment_file
from compaction.run import waves
from tests.crash.surroundings import NOBODY, big_batches, run, run_as_nobody, small_disk
from tests.damage.valid_logs import look_at, valid_log, write_log
from tests.log.logs import build

pytestmark = pytest.mark.crash

ACTIVE = 1_000_000
#: replaced segments remain longer than a run waits
KEPT = ("--set", "file.delete.delay.ms=1d")


@pytest.fixture
def disk(root: None, tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB with two logs of 8 MiB: cleaning removes nothing from one and almost everything from the other."""
    with small_disk(tmp_path / "disk", 24) as place:
        for topic, keys in (("stays", 10**6), ("shrinks", 1)):
            files = {segment_file(0, LOG): b"".join(big_batches(0, 8, keys=keys))}
            files.update({segment_file(ACTIVE, kind): data for kind, data in build(ACTIVE, []).files.items()})
            write_log(place / f"{topic}-0", files)
        yield place


def logs_of(log_dir: Path) -> dict[str, object]:
    return {path.name: look_at(path) for path in sorted(log_dir.iterdir()) if path.is_dir()}


def cleaned(log_dir: Path, topic: str) -> bool:
    """Whether a log was cleaned, by its checkpoint."""
    path = log_dir / CLEANER_OFFSETS
    return path.exists() and any(line.startswith(f"{topic} 0 ") for line in path.read_text().splitlines())


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
    assert cleaned(disk, "shrinks")


def test_a_refused_log_fits_once_other_logs_have_freed_space(disk: Path) -> None:
    assert run(disk, *KEPT).code == 1
    assert not cleaned(disk, "stays")
    assert run(disk).code == 0
    assert cleaned(disk, "stays")


@pytest.mark.parametrize("options", [("--release-early",), ("--set", "file.delete.delay.ms=300")])
def test_one_run_cleans_logs_that_fit_one_after_the_other(disk: Path, options: tuple[str, ...]) -> None:
    ended = run(disk, *options)
    assert ended.code == 0, ended.err
    assert cleaned(disk, "stays") and cleaned(disk, "shrinks")
    assert "2 waves, one after the other: " in ended.out


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
    if not cleaned(disk, "shrinks"):
        assert re.search(message.format("shrinks-0"), ended.err)
        assert look_at(disk / "shrinks-0") == before["shrinks-0"]
    (disk / "other files").unlink()
    monkeypatch.undo()
    assert run(disk, "--topic", "shrinks").code == 0
    shutil.rmtree(disk / "shrinks-0")
    (disk / CLEANER_OFFSETS).unlink()
    assert run(disk).code == 0
    assert cleaned(disk, "stays")


def test_an_output_directory_on_a_small_disk_is_refused_and_does_not_appear(disk: Path, tmp_path: Path) -> None:
    before = logs_of(disk)
    with small_disk(tmp_path / "small", 9) as small:
        ended = run(disk, "--output-dir", small / "out", "--topic", "stays")
        assert ended.code == 1
        assert "are free besides" in ended.err
        assert not list((small / "out").glob("stays-0/*"))
    assert logs_of(disk) == before


def only_the_subject_fails(log_dir: Path, message: str) -> None:
    """A run as user nobody reports the error of one log, does not change it, and cleans the other."""
    before = look_at(log_dir / "subject-0")
    ended = run_as_nobody(log_dir)
    assert ended.code == 1
    # a line about the cache of compiled kernels is allowed: this user has no cache yet
    (error,) = (line for line in ended.err.splitlines() if line.startswith("error: "))
    assert re.fullmatch(f"error: subject-0: {message}", error), ended.err
    assert look_at(log_dir / "subject-0") == before
    assert cleaned(log_dir, "aside")


@pytest.mark.usefixtures("root")
def test_a_log_that_may_not_be_written_fails_and_the_others_are_cleaned(log_dir: Path) -> None:
    os.chown(log_dir, NOBODY, NOBODY)
    for path in (log_dir / "aside-0", *(log_dir / "aside-0").iterdir()):
        os.chown(path, NOBODY, NOBODY)
    _open_up(log_dir)
    only_the_subject_fails(log_dir, r"\S+subject-0/0{20}\.log\.clean\.\w+: cannot write \(Permission denied\); .*")


@pytest.mark.usefixtures("root")
def test_a_log_that_may_not_be_read_fails_and_the_others_are_cleaned(log_dir: Path) -> None:
    for path in (log_dir, *log_dir.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    _open_up(log_dir)
    secret = log_dir / "subject-0" / valid_log("none").log(0)
    os.chown(secret, 0, 0)
    secret.chmod(0o600)
    only_the_subject_fails(log_dir, rf"{secret}: cannot read: Permission denied; run as the user that owns .*")


@pytest.mark.usefixtures("root")
def test_a_directory_that_may_not_be_locked_is_a_usage_error(log_dir: Path) -> None:
    _open_up(log_dir)
    before = logs_of(log_dir)
    ended = run_as_nobody(log_dir)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {log_dir / LOCK}: cannot lock the log directory: Permission denied; run as")
    assert logs_of(log_dir) == before


@pytest.mark.usefixtures("root")
def test_a_read_only_mount_is_a_usage_error(tmp_path: Path) -> None:
    import subprocess

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
        assert cleaned(tmp_path / "out", "subject")


def _open_up(log_dir: Path) -> None:
    """Let other users reach the directory."""
    for parent in log_dir.parents:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)


VANISHING = {
    "before it is scanned": ("before_scan", r"cannot open: No such file or directory"),
    "between the passes": ("before_rewrite", r"cannot (open: |write \()No such file or directory"),
    "before the swap": ("after_rewrite", r"segment has changed since it was read"),
}


@pytest.mark.parametrize(("event", "message"), VANISHING.values(), ids=VANISHING)
def test_a_segment_that_vanishes_fails_its_log(log_dir: Path, event: str, message: str) -> None:
    gone = log_dir / "subject-0" / valid_log("none").log(0)
    before = look_at(log_dir / "subject-0")
    ended = run(log_dir, events={event: gone.unlink})
    assert ended.code == 1
    assert re.search(message, ended.err), ended.err
    assert ended.err.count("\n") == 1
    del before[gone.name]
    assert look_at(log_dir / "subject-0") == before
    assert cleaned(log_dir, "aside")


def test_a_directory_that_replaces_another_is_not_changed(log_dir: Path, tmp_path: Path) -> None:
    before = look_at(log_dir / "subject-0")
    other = {**valid_log("none").files, valid_log("none").log(2): b""}

    def swap() -> None:
        (log_dir / "subject-0").rename(tmp_path / "moved away")
        write_log(log_dir / "subject-0", other)
        for path in (log_dir / "subject-0").iterdir():
            os.utime(path, ns=(1, 1))

    ended = run(log_dir, events={"after_rewrite": swap})
    assert ended.code == 1
    assert "segment has changed since it was read" in ended.err
    assert {name: found[0] for name, found in look_at(log_dir / "subject-0").items()} == other
    moved = look_at(tmp_path / "moved away")
    assert {name: found for name, found in moved.items() if ".clean." not in name} == before
    assert cleaned(log_dir, "aside")


def test_a_segment_that_changes_during_the_run_is_not_replaced(log_dir: Path) -> None:
    path = log_dir / "subject-0" / valid_log("none").log(1)

    def write() -> None:
        path.write_bytes(path.read_bytes())

    ended = run(log_dir, events={"after_rewrite": write})
    assert ended.code == 1
    assert "segment has changed since it was read" in ended.err
    assert path.read_bytes() == valid_log("none").files[path.name]


def test_links_to_directories_and_files_are_followed_and_kept(log_dir: Path, tmp_path: Path) -> None:
    run(log_dir)
    expected = {name: found[0] for name, found in look_at(log_dir / "aside-0").items()}
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
    assert {name: found[0] for name, found in look_at(tmp_path / "elsewhere" / "linked-0").items()} == expected


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
    assert cleaned(log_dir, "aside")
