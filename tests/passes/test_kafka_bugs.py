"""Bugs that Kafka's cleaner has had, each under its number, that no scenario shows; the others are in ``tests/scenarios``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.report import LogReport, LogStatus
from tests.local_job import clean_locally, read_offsets, write_offsets
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.logs import LogBuilder, Sent
from tests.oracle.records import NaiveBatch
from tests.oracle.segments import NaiveSegment

NOW_MS = 5_000_000
TOPIC = "t"
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
Config = Mapping[str, str]


@pytest.fixture
def place() -> Iterator[Path]:
    """A log directory with room for the log ``t-0``."""
    with scratch() as root:
        yield root


def lay_out(place: Path, segments: Sequence[NaiveSegment], producers: Sequence[ProducerEntry] = ()) -> Path:
    """The log as after a clean shutdown, its producers active."""
    write_partition(place / "t-0", segments)
    active = (entry._replace(last_timestamp_ms=NOW_MS) for entry in producers)
    write_producers(place / "t-0", segments[-1].next_offset, active)
    return place / "t-0"


def clean(place: Path, config: Config = CONFIG, now_ms: int = NOW_MS, checkpoint: int | None = None) -> LogReport:
    """One run; ``checkpoint`` is where it begins."""
    write_offsets(place, cleaner_offsets={TOPIC: checkpoint})
    return clean_locally(place, now_ms, {TOPIC: config})[TOPIC]


def batches(place: Path) -> list[NaiveBatch]:
    """All batches of the log but those of the active segment."""
    return [batch for segment in read_partition(place / "t-0")[:-1] for batch in segment.batches]


def closed(log: LogBuilder) -> list[NaiveSegment]:
    """The log with one more batch in an active segment."""
    log.roll(1_000)
    log.batch([Sent(b"the active segment's", b"")])
    return log.build(2_000)


@pytest.mark.parametrize("content", ["", "0\n0\n"])
def test_kafka_6499_an_empty_cleaner_checkpoint_holds_nothing(place: Path, content: str) -> None:
    log = LogBuilder()
    log.batch([Sent(b"a", b"1"), Sent(b"a", b"2")])
    lay_out(place, closed(log))
    (place / "cleaner-offset-checkpoint").write_text(content, encoding="utf-8")
    report = clean_locally(place, NOW_MS, {TOPIC: CONFIG})[TOPIC]
    assert (report.status, report.first_dirty_offset) == (LogStatus.CLEANED, 0)
    assert read_offsets(place, "cleaner_offsets") == {TOPIC: 2}


def test_kafka_6264_a_segment_whose_offsets_overflow_it_is_split_and_cleaned(place: Path) -> None:
    log = LogBuilder()
    log.batch([Sent(b"a", b"1"), Sent(b"b", b"1")])
    low = log.build(1_000)[0]
    log = LogBuilder()
    log.skip(2**31 + 5)
    log.roll(1_000)
    log.batch([Sent(b"a", b"2")])
    high = closed(log)
    overflowed = NaiveSegment(0, low.log + high[1].log, mtime_ms=1_000)
    lay_out(place, [overflowed, high[2]])
    report = clean(place)
    assert report.status is LogStatus.CLEANED, report.reason
    left = read_partition(place / "t-0")
    assert [segment.base_offset for segment in left] == [0, 2**31 + 5, high[2].base_offset]
    assert [(r.offset, r.key, r.value) for b in batches(place) for r in b.records()] == [
        (1, b"b", b"1"),
        (2**31 + 5, b"a", b"2"),
    ]


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_kafka_5431_zeros_at_the_end_of_preallocated_files_are_nothing(place: Path, kind: str) -> None:
    """Neither the tail of any segment's index nor that of the active segment's log is taken for entries or batches."""
    log = LogBuilder(index_interval_bytes=1)
    for value in (b"1", b"2", b"3"):
        log.batch([Sent(b"a", value), Sent(b"b", value)])
    segments = closed(log)
    plain, padded = place / "plain", place / "padded"
    for directory in (plain, padded):
        directory.mkdir()
        lay_out(directory, segments)
    for segment in segments:
        file = padded / "t-0" / f"{segment.base_offset:020d}.{kind}"
        file.write_bytes(file.read_bytes() + bytes(24 * 100))
    active = padded / "t-0" / f"{segments[-1].base_offset:020d}.log"
    active.write_bytes(active.read_bytes() + bytes(4_096))
    reports = [clean(directory) for directory in (plain, padded)]
    assert [report.status for report in reports] == [LogStatus.CLEANED] * 2
    assert read_partition(padded / "t-0")[:-1] == read_partition(plain / "t-0")[:-1]
    assert active.stat().st_size == len(segments[-1].log) + 4_096
