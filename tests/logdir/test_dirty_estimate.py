"""The guess whether a log directory has got much since it was last cleaned."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction.logdir.dirty_estimate import has_dirty_bytes
from compaction.names import CLEANER_OFFSETS, LogLocation, TopicPartition


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two logs of 3,000 bytes each, written at second 1,000 and 2,000; other files count for nothing."""
    for name, written_s in (("a-0", 1_000), ("b-0", 2_000)):
        (tmp_path / name).mkdir()
        for base in (0, 10, 20):
            file = tmp_path / name / f"{base:020d}.log"
            file.write_bytes(b"x" * 1_000)
            os.utime(file, (written_s, written_s))
        (tmp_path / name / f"{0:020d}.index").write_bytes(b"x" * 9_000)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "x.log").write_bytes(b"x" * 9_000)
    return tmp_path


def logs(log_dir: Path | str) -> list[LogLocation]:
    return [LogLocation(TopicPartition(topic, 0), str(log_dir), f"{log_dir}/{topic}-0") for topic in "ab"]


def cleaned_at(log_dir: Path, second: int) -> None:
    (log_dir / CLEANER_OFFSETS).touch()
    os.utime(log_dir / CLEANER_OFFSETS, (second, second))


def test_without_a_checkpoint_all_bytes_are_dirty(log_dir: Path) -> None:
    assert has_dirty_bytes(logs(log_dir), 6_000)
    assert not has_dirty_bytes(logs(log_dir), 6_001)


def test_bytes_written_before_the_checkpoint_are_not_dirty(log_dir: Path) -> None:
    cleaned_at(log_dir, 1_500)
    assert has_dirty_bytes(logs(log_dir), 3_000)
    assert not has_dirty_bytes(logs(log_dir), 3_001)
    cleaned_at(log_dir, 2_500)
    assert not has_dirty_bytes(logs(log_dir), 1)


def test_only_selected_logs_count(log_dir: Path) -> None:
    assert has_dirty_bytes(logs(log_dir)[:1], 3_000)
    assert not has_dirty_bytes(logs(log_dir)[:1], 3_001)


def test_directories_are_summed_and_uris_and_missing_ones_ignored(log_dir: Path, tmp_path: Path) -> None:
    others = [*logs("s3://bucket/logs"), *logs(tmp_path / "none")]
    assert has_dirty_bytes([*others, *logs(log_dir)], 6_000)
    assert not has_dirty_bytes(others, 1)
