"""Bugs that Kafka's cleaner has had, each under its number: the job is given the situation and must not have them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from compaction.config.resolver import TopicConfig
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.names import TopicPartition
from compaction.report import LogReport, LogStatus
from compaction.rules.log_view import LogView
from compaction.rules.segment_retention import plan_deletion
from tests.local_job import clean_locally, read_offsets, write_offsets
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.logs import ABORT, COMMIT, Batching, LogBuilder, Sent
from tests.oracle.records import NaiveBatch
from tests.oracle.segments import NaiveSegment
from tests.oracle.tables import as_segment

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


def transaction(log: LogBuilder, producer: int, kind: int, *keys: bytes) -> None:
    log.batch([Sent(key, b"v") for key in keys], Batching(producer=producer, transactional=True))
    log.marker(producer, kind)


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_kafka_14055_a_user_key_like_a_markers_key_neither_removes_the_marker_nor_goes_with_it(place: Path, kind: int) -> None:
    key = struct.pack(">hh", 0, kind)
    log = LogBuilder()
    log.batch([Sent(key, b"before")])
    log.batch([Sent(b"a", b"1")], Batching(producer=1, transactional=True))
    log.marker(1, kind)
    log.batch([Sent(b"b", b"2")])
    lay_out(place, closed(log))
    clean(place)
    assert [r.value for b in batches(place) for r in b.records() if r.key == key and not b.control] == [b"before"]
    assert [b.control_type() for b in batches(place) if b.control] == [kind]


def test_kafka_14055_a_markers_key_is_not_superseded_by_a_later_record(place: Path) -> None:
    log = LogBuilder()
    transaction(log, 1, COMMIT, b"a")
    log.batch([Sent(struct.pack(">hh", 0, COMMIT), b"after")])
    lay_out(place, closed(log))
    clean(place)
    assert [b.control_type() for b in batches(place) if b.control] == [COMMIT]


@pytest.mark.parametrize("gap", [0, 1])
def test_kafka_13727_an_abort_marker_stays_as_long_as_its_data_was_there(place: Path, gap: int) -> None:
    """The data ends one segment, its marker begins another: the marker outlives the round that removes the data, however short
    the retention, and only a later one removes it."""
    log = LogBuilder()
    log.batch([Sent(b"a", b"1")])
    log.batch([Sent(b"a", b"aborted")], Batching(producer=1, transactional=True))
    log.roll(1_000)
    log.skip(gap)
    log.marker(1, ABORT)
    log.batch([Sent(b"b", b"2")])
    lay_out(place, closed(log))
    seen = []
    for _ in range(3):
        clean(place, checkpoint=0)
        seen.append((any(b.transactional and not b.control for b in batches(place)), any(b.control for b in batches(place))))
    assert seen == [(False, True), (False, True), (False, False)]


def test_kafka_13727_a_round_that_ends_within_a_transaction_leaves_its_marker_for_later(place: Path) -> None:
    log = LogBuilder()
    log.batch([Sent(b"a", b"1")])
    log.roll(1_000)
    log.batch([Sent(b"a", b"aborted")], Batching(producer=1, transactional=True))
    log.roll(1_000)
    log.batch([Sent(b"young", b"")])
    log.marker(1, ABORT)
    log.roll(4_999_999)
    segments = closed(log)
    lay_out(place, segments)
    held_back = {**CONFIG, "min.compaction.lag.ms": "3999999"}
    young = segments[2].base_offset
    segments[2] = NaiveSegment(young, segments[2].log, b"", struct.pack(">qi", 2_000_000, 1), segments[2].txn_index, 1_000)
    lay_out(place, segments)
    assert clean(place, held_back).end_offset == young
    assert [r for b in batches(place) if b.transactional and not b.control and b.base_offset < young for r in b.records()] == []
    clean(place)
    assert any(b.control for b in batches(place))


def test_kafka_8335_markers_and_emptied_batches_of_a_busy_producer_do_not_pile_up(place: Path) -> None:
    """One key, one producer, many transactions, as in ``__consumer_offsets``: what stays does not grow with their number."""
    log = LogBuilder()
    for _ in range(50):
        transaction(log, 1, COMMIT, b"group")
    segments = closed(log)
    lay_out(place, segments, log.producers())
    for _ in range(3):
        clean(place, checkpoint=0)
    left = batches(place)
    assert len(left) <= 3
    assert [r.key for b in left if not b.control for r in b.records()] == [b"group"]


def test_kafka_8335_the_sequence_of_an_active_producer_outlives_its_records(place: Path) -> None:
    log = LogBuilder()
    log.batch([Sent(b"a", b"1"), Sent(b"b", b"1")], Batching(producer=1))
    log.batch([Sent(b"a", b"2"), Sent(b"b", b"2")])
    lay_out(place, closed(log), log.producers())
    clean(place)
    first = batches(place)[0]
    assert (first.producer_id, first.base_sequence, first.last_offset, first.count) == (1, 0, 1, 0)


@pytest.mark.parametrize("how", ["aborted", "without a key", "expired tombstone"])
def test_kafka_17076_the_end_of_the_round_is_kept_by_an_empty_batch(place: Path, how: str) -> None:
    """Where the active segment is empty, the last closed batch alone tells where the log ends."""
    log = LogBuilder()
    log.batch([Sent(b"a", b"1")])
    if how == "aborted":
        log.batch([Sent(b"b", b"2"), Sent(b"c", b"3")], Batching(producer=1, transactional=True))
        log.marker(1, ABORT, Batching(horizon_ms=1))
    elif how == "without a key":
        log.batch([Sent(None, b"2"), Sent(None, b"3")])
    else:
        log.batch([Sent(b"b", None)], Batching(horizon_ms=1))
    log.roll(1_000)
    segments = log.build(1_000)
    end_offset = segments[-1].base_offset
    lay_out(place, segments)
    for _ in range(3):
        clean(place, checkpoint=0)
    last = batches(place)[-1]
    assert (last.next_offset, last.count) == (end_offset, 0)


@pytest.mark.parametrize("content", ["", "0\n0\n"])
def test_kafka_6499_an_empty_cleaner_checkpoint_holds_nothing(place: Path, content: str) -> None:
    log = LogBuilder()
    log.batch([Sent(b"a", b"1"), Sent(b"a", b"2")])
    lay_out(place, closed(log))
    (place / "cleaner-offset-checkpoint").write_text(content, encoding="utf-8")
    report = clean_locally(place, NOW_MS, {TOPIC: CONFIG})[TOPIC]
    assert (report.status, report.first_dirty_offset) == (LogStatus.CLEANED, 0)
    assert read_offsets(place, "cleaner_offsets") == {TOPIC: 2}


@pytest.mark.parametrize("checkpoint", [3, 4, 1_000])
def test_kafka_8724_a_checkpoint_within_or_past_the_active_segment_is_no_failure(place: Path, checkpoint: int) -> None:
    """The first dirty offset lies past the first uncleanable one: nothing can be cleaned, or the checkpoint starts over."""
    log = LogBuilder()
    log.batch([Sent(b"a", b"1"), Sent(b"a", b"2")])
    log.roll(1_000)
    for value in (b"3", b"4", b"5"):
        log.batch([Sent(b"a", value)])
    segments = log.build(1_000)
    lay_out(place, segments)
    report = clean(place, checkpoint=checkpoint)
    if checkpoint <= segments[-1].next_offset:
        assert report.status is LogStatus.SKIPPED
        assert read_partition(place / "t-0") == segments
    else:
        assert (report.status, report.first_dirty_offset) == (LogStatus.CLEANED, 0)


def test_kafka_8724_a_checkpoint_below_the_log_start_starts_over_there(place: Path) -> None:
    log = LogBuilder()
    log.skip(10)
    log.roll(1_000)
    log.batch([Sent(b"a", b"1"), Sent(b"a", b"2")])
    segments = closed(log)[1:]
    lay_out(place, segments)
    write_offsets(place, log_starts={TOPIC: 10})
    report = clean(place, checkpoint=3)
    assert (report.status, report.first_dirty_offset) == (LogStatus.CLEANED, 10)


@pytest.mark.parametrize(("high_watermark", "end_offset"), [(1, None), (2, 2), (3, 2), (4, 4)])
def test_kafka_13194_nothing_at_or_past_the_high_watermark_is_cleaned(
    place: Path, high_watermark: int, end_offset: int | None
) -> None:
    log = LogBuilder()
    for _ in range(2):
        log.batch([Sent(b"a", b"1"), Sent(b"a", b"2")])
        log.roll(1_000)
    segments = log.build(1_000)
    lay_out(place, segments)
    write_offsets(place, high_watermarks={TOPIC: high_watermark})
    report = clean(place)
    assert report.end_offset == end_offset
    past = [segment for segment in segments if segment.base_offset >= (end_offset or 0)]
    assert read_partition(place / "t-0")[-len(past) :] == past


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


def test_kafka_7400_segments_of_a_compacted_log_below_its_start_are_the_delete_policys(place: Path) -> None:
    """Compaction cleans such a log all the same; the delete policy takes the segments although it is off for the topic."""
    log = LogBuilder()
    for value in (b"1", b"2", b"3"):
        log.batch([Sent(b"a", value), Sent(b"b", value)])
        log.roll(1_000)
    segments = closed(log)
    view = LogView(TopicPartition(TOPIC, 0), "", "", tuple(map(as_segment, segments)), 4, 7, 7, 7, None)
    deletion = plan_deletion(view, TopicConfig(cleanup_compact=True, cleanup_delete=False), now_ms=NOW_MS)
    assert [removal.segment.base_offset for removal in deletion.removals] == [0, 2]
    lay_out(place, segments)
    write_offsets(place, log_starts={TOPIC: 4})
    report = clean(place)
    assert (report.status, report.first_dirty_offset) == (LogStatus.CLEANED, 4)
    assert [(r.offset, r.value) for b in batches(place) for r in b.records()] == [(4, b"3"), (5, b"3")]
