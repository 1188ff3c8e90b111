"""Bugs that Kafka's cleaner has had, each under its number, that no scenario shows; the others are in ``tests/scenarios``."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.report import LogReport, LogStatus
from tests.local_job import clean_locally, read_offsets
from tests.oracle.disk import read_partition
from tests.scenarios.language import Scenario, parse
from tests.scenarios.plain import as_broker
from tests.scenarios.runner import files


def scenario(*segments: str) -> Scenario:
    """A log of these segments, and an active one."""
    settings = "set delete.retention.ms 0", "set index.interval.bytes 1"
    return parse([*settings, *(f"segment {each}" for each in segments), "segment batch z", "clean"])


def clean(log_dir: Path, log: Scenario) -> LogReport:
    return clean_locally(log_dir, log.rounds[0].now_ms, {"t": log.topic_config})["t"]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    path = tmp_path / "t-0"
    path.mkdir()
    return path


@pytest.mark.parametrize("content", ["", "0\n0\n"])
def test_kafka_6499_an_empty_cleaner_checkpoint_holds_nothing(partition: Path, content: str) -> None:
    log = scenario("batch aa")
    as_broker(partition, log, 0)
    (partition.parent / "cleaner-offset-checkpoint").write_text(content, encoding="utf-8")
    report = clean(partition.parent, log)
    assert (report.status, report.first_dirty_offset) == (LogStatus.CLEANED, 0)
    assert read_offsets(partition.parent, "cleaner_offsets") == {"t": 2}


def test_kafka_6264_a_segment_whose_offsets_overflow_it_is_split_and_cleaned(partition: Path) -> None:
    far = 2**31 + 5
    log = scenario(f"batch ab | gap {far - 2} | batch a")
    files(partition, log, 0)
    report = clean(partition.parent, log)
    assert report.status is LogStatus.CLEANED, report.reason
    left = read_partition(partition)
    assert [segment.base_offset for segment in left] == [0, far, far + 1]
    records = [(r.offset, r.key) for segment in left[:-1] for batch in segment.batches for r in batch.records()]
    assert records == [(1, b"b"), (far, b"a")]


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_kafka_5431_zeros_at_the_end_of_preallocated_files_are_nothing(tmp_path: Path, kind: str) -> None:
    """Neither the tail of any segment's index nor that of the active segment's log is taken for entries or batches."""
    log = scenario("batch ab | batch ab | batch ab")
    plain, padded = tmp_path / "plain/t-0", tmp_path / "padded/t-0"
    for partition in (plain, padded):
        partition.mkdir(parents=True)
        as_broker(partition, log, 0)
    for file in padded.glob(f"*.{kind}"):
        file.write_bytes(file.read_bytes() + bytes(24 * 100))
    active = max(padded.glob("*.log"))
    written = active.read_bytes()
    active.write_bytes(written + bytes(4_096))
    assert [clean(partition.parent, log).status for partition in (plain, padded)] == [LogStatus.CLEANED] * 2
    assert read_partition(padded)[:-1] == read_partition(plain)[:-1]
    assert active.stat().st_size == len(written) + 4_096
