"""Full disks and missing permissions: no record is lost, and the error is clear."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.names import CLEANER_OFFSETS, LOCK, LOG, segment_file
from compaction.run import waves
from tests.crash.surroundings import (
    NOBODY,
    cleaned_topics,
    logs_of,
    only_the_subject_failed,
    open_up,
    run,
    run_as_nobody,
    small_disk,
)
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.kafka.encode import Batch, Record
from tests.log.logs import build

pytestmark = pytest.mark.crash

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


def test_an_output_directory_on_a_small_disk_is_refused_and_does_not_appear(disk: Path, tmp_path: Path) -> None:
    before = logs_of(disk)
    with small_disk(tmp_path / "small", 9) as small:
        ended = run(disk, "--output-dir", small / "out", "--topic", "stays")
        assert ended.code == 1
        assert "are free besides" in ended.err
        assert not list((small / "out").glob("stays-0/*"))
    assert logs_of(disk) == before


def run_by_nobody_fails(log_dir: Path, message: str) -> None:
    open_up(log_dir)
    before = look_at(log_dir / "subject-0")
    only_the_subject_failed(run_as_nobody(log_dir), log_dir, before, message, log_dir)


@pytest.mark.usefixtures("root")
def test_a_log_that_may_not_be_written_fails_and_the_others_are_cleaned(log_dir: Path) -> None:
    for path in (log_dir, log_dir / "aside-0", *(log_dir / "aside-0").iterdir()):
        os.chown(path, NOBODY, NOBODY)
    run_by_nobody_fails(log_dir, r"\S+subject-0/0{20}\.log\.clean\.\w+: cannot write \(Permission denied\); .*")


@pytest.mark.usefixtures("root")
def test_a_log_that_may_not_be_read_fails_and_the_others_are_cleaned(log_dir: Path) -> None:
    for path in (log_dir, *log_dir.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    secret = log_dir / "subject-0" / valid_log("none").log(0)
    os.chown(secret, 0, 0)
    secret.chmod(0o600)
    run_by_nobody_fails(log_dir, rf"{secret}: cannot read: Permission denied; run as the user that owns .*")


@pytest.mark.usefixtures("root")
def test_a_directory_that_may_not_be_locked_is_a_usage_error(log_dir: Path) -> None:
    open_up(log_dir)
    before = logs_of(log_dir)
    ended = run_as_nobody(log_dir)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {log_dir / LOCK}: cannot lock the log directory: Permission denied; run as")
    assert logs_of(log_dir) == before


@pytest.mark.usefixtures("root")
def test_a_read_only_mount_is_a_usage_error(tmp_path: Path) -> None:
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
