"""The oracle against facts that no scenario shows; ``tests/scenarios`` compares it with Kafka's answers, ``tests/conformance``
with Kafka."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kafka.jars import REFERENCE
from tests.oracle.cleaner import NaiveConfig, NaiveResult, NaiveRound, after_round, clean_log_naively, group_segments, rules_in
from tests.oracle.logs import Batching, LogBuilder, Sent
from tests.oracle.random_logs import Flavour, random_log
from tests.oracle.segments import NaiveSegment, SegmentOverflows, write_segment

RETENTION_MS = 1_000


def clean(
    segments: Sequence[NaiveSegment], now_ms: int = 10_000, *, first_dirty: int = 0, release: str = REFERENCE
) -> NaiveResult:
    """Everything but the last segment, in one round."""
    config = NaiveConfig(delete_retention_ms=RETENTION_MS)
    round_ = NaiveRound(first_dirty, segments[-1].base_offset, now_ms, rules=rules_in(release))
    return clean_log_naively(segments, config, round_)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_message_sets_become_batches_since_4_0_that_begin_at_their_first_kept_record(magic: int, codec: int) -> None:
    log = LogBuilder()
    log.skip(5)
    log.legacy([Sent(b"a", b"1", 300), Sent(b"b", b"2", 400), Sent(b"c", b"3", 200)], magic, codec)
    log.legacy([Sent(b"a", b"4", 500)], magic)
    log.roll(1)
    segments = log.build(1)
    batches = after_round(segments, clean(segments))[0].batches
    spans = [(batch.base_offset, batch.last_offset, batch.codec) for batch in batches]
    assert spans == ([(6, 7, codec), (8, 8, 0)] if codec else [(6, 6, 0), (7, 7, 0), (8, 8, 0)])
    times = [record.timestamp for batch in batches for record in batch.records()]
    assert times == ([400, 200, 500] if magic else [-1, -1, -1])
    assert {batch.magic for batch in batches} == {2}
    before = after_round(segments, clean(segments, release="3.9.2"))[0].batches
    assert {batch.magic for batch in before} == {magic}
    assert [batch.records() for batch in before] == [batch.records() for batch in batches]


@pytest.mark.parametrize(
    ("release", "high_watermark", "retained"),
    [("3.9.1", 1, 0), ("3.9.2", 1, 1), ("4.3.1", 2, 1), ("4.4.0", 1, 1), ("4.4.0", 2, 0), ("4.4.0", None, 0)],
)
def test_the_end_of_the_round_keeps_an_empty_batch(release: str, high_watermark: int | None, retained: int) -> None:
    log = LogBuilder()
    log.batch([Sent(None, b"1")], Batching(leader_epoch=4))
    log.roll(1)
    log.batch([Sent(b"z", b"1")])
    segments = log.build(1)
    round_ = NaiveRound(0, 1, 0, rules=rules_in(release), high_watermark=high_watermark)
    batches = list(after_round(segments, clean_log_naively(segments, NaiveConfig(), round_))[0].batches)
    assert len(batches) == retained
    for batch in batches:
        assert (batch.count, batch.last_offset, batch.leader_epoch, batch.base_timestamp) == (0, 0, 4, -1)


def test_an_offset_out_of_the_segments_range_is_an_error() -> None:
    log = LogBuilder()
    log.batch([Sent(b"k", b"v")])
    (batch,) = log.build()[0].batches
    with pytest.raises(SegmentOverflows):
        write_segment(1, [batch.raw], 4096, 0)


def segment(base: int, log_bytes: int, index_bytes: int = 0, time_index_bytes: int = 0) -> NaiveSegment:
    return NaiveSegment(base, b"x" * log_bytes, b"x" * index_bytes, b"x" * time_index_bytes)


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        pytest.param([segment(0, 50), segment(1, 50), segment(2, 1)], [[0, 1], [2]], id="log bytes"),
        pytest.param([segment(0, 1, 16), segment(1, 1, 24), segment(2, 1, 8)], [[0, 1], [2]], id="offset index bytes"),
        pytest.param([segment(0, 1, 0, 36), segment(1, 1), segment(2, 1, 0, 12)], [[0, 1], [2]], id="time index bytes"),
        pytest.param([segment(0, 1), segment(1, 1), segment(2**31, 1)], [[0, 1], [2**31]], id="offset range"),
        pytest.param([segment(0, 1), segment(5, 1), segment(2**31 + 1, 1)], [[0], [5, 2**31 + 1]], id="sparse offsets"),
        pytest.param([segment(0, 1), segment(2**31, 0), segment(2**31 + 9, 1)], [[0, 2**31], [2**31 + 9]], id="empty segment"),
        pytest.param([segment(0, 500), segment(1, 1)], [[0], [1]], id="a segment over the bound stands alone"),
    ],
)
def test_groups_end_at_the_first_bound_reached(segments: list[NaiveSegment], expected: list[list[int]]) -> None:
    config = NaiveConfig(segment_bytes=100, segment_index_bytes=40)
    end_offset = segments[-1].base_offset + 1
    groups = group_segments(segments, config, end_offset)
    assert [[member.base_offset for member in group] for group in groups] == expected
    if any(not each.log for each in segments):
        assert group_segments(segments, config, end_offset, rules_in("2.8.2")) != groups, "KAFKA-12889"


#: neighbouring releases between which a rule changed that random logs show; ``test_groups_end_at_the_first_bound_reached`` has
#: that of 3.0
CHANGES = [("3.0.2", "3.1.2"), ("3.9.1", "3.9.2"), ("3.9.2", "4.0.2"), ("4.3.1", "4.4.0")]


@pytest.mark.parametrize(("older", "newer"), CHANGES)
def test_random_logs_show_each_change_of_the_rules(older: str, newer: str) -> None:
    flavour = Flavour(batches=40, keys=2, magics=(1, 2), codecs=(0, 1))
    for seed in range(20):
        log = random_log(seed, flavour).segments
        if after_round(log, clean(log, release=older)) != after_round(log, clean(log, release=newer)):
            return
    pytest.fail("20 random logs are the same by both")
