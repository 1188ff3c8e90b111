"""Which segments the delete policy removes; situations as in Kafka's ``UnifiedLogTest``."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.cleaning.log_view import LogView
from compaction.cleaning.segment_retention import DeletionCause, DeletionPlan, plan_deletion
from compaction.cleaning.skip_reasons import Verdict
from compaction.config import Resolver, read_sets
from compaction.names import TopicPartition
from tests.cleaning.views import NOW_MS, log, segment

LOG_START, SIZE, TIME = DeletionCause.LOG_START, DeletionCause.SIZE, DeletionCause.TIME


def three(**given: Any) -> LogView:
    """Segments of 100 bytes that are 300, 200 and 100 ms old."""
    ages = {0: 300, 10: 200, 20: 100}
    return log(*(segment(base, 100, timestamp_ms=NOW_MS - age) for base, age in ages.items()), end=30, **given)


def expired(view: LogView, *sets: str) -> DeletionPlan:
    config = Resolver(sets=read_sets(["cleanup.policy=delete", "retention.ms=-1", *sets])).topic(view.topic_partition.topic)
    return plan_deletion(view, config, now_ms=NOW_MS)


def gone(plan: DeletionPlan) -> list[tuple[int, DeletionCause]]:
    return [(removal.segment.base_offset, removal.cause) for removal in plan.removals]


@pytest.mark.parametrize(
    ("retention_ms", "expected"),
    [
        pytest.param(300, [], id="as old as the bound stays"),
        pytest.param(299, [0], id="older than the bound goes"),
        pytest.param(150, [0, 10], id="two are older"),
        pytest.param(0, [0, 10, 20], id="all are older"),
        pytest.param(-1, [], id="no bound"),
    ],
)
def test_segments_go_when_their_largest_timestamp_is_too_old(retention_ms: int, expected: list[int]) -> None:
    plan = expired(three(), f"retention.ms={retention_ms}")
    assert gone(plan) == [(base, TIME) for base in expected]


def test_time_stops_at_the_first_segment_that_is_young_enough() -> None:
    stamps = [NOW_MS - 300, NOW_MS - 10, NOW_MS - 300]
    view = log(*(segment(base * 10, timestamp_ms=stamp) for base, stamp in enumerate(stamps)), end=30)
    assert gone(expired(view, "retention.ms=100")) == [(0, TIME)]


def test_a_timestamp_in_the_future_keeps_a_segment_and_those_after_it() -> None:
    view = log(segment(0, timestamp_ms=NOW_MS + 1), segment(10, timestamp_ms=1), segment(20), end=30)
    plan = expired(view, "retention.ms=100")
    assert gone(plan) == []
    assert plan.reason.startswith(f"future: segment 0 has a timestamp {NOW_MS + 1} after {NOW_MS}")


@pytest.mark.parametrize(
    ("retention_bytes", "expected"),
    [
        pytest.param(301, [], id="larger than the log"),
        pytest.param(300, [], id="as large as the log"),
        pytest.param(201, [], id="less than a segment over"),
        pytest.param(200, [0], id="a segment over, exactly"),
        pytest.param(199, [0], id="more than one segment over, less than two"),
        pytest.param(100, [0, 10], id="two segments over"),
        pytest.param(0, [0, 10, 20], id="nothing may stay"),
        pytest.param(-1, [], id="no bound"),
    ],
)
def test_segments_go_while_the_rest_is_still_as_large_as_the_bound(retention_bytes: int, expected: list[int]) -> None:
    plan = expired(three(), f"retention.bytes={retention_bytes}")
    assert gone(plan) == [(base, SIZE) for base in expected]
    assert plan.removed_bytes == 100 * len(expected)


@pytest.mark.parametrize(
    ("log_start", "expected"),
    [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 10]), (30, [0, 10])],
)
def test_segments_go_that_lie_wholly_below_log_start(log_start: int, expected: list[int]) -> None:
    for policy in ("delete", "compact", ""):
        plan = expired(three(log_start_offset=log_start), f"cleanup.policy={policy}")
        assert gone(plan) == [(base, LOG_START) for base in expected]
        assert plan.new_log_start_offset == log_start


@pytest.mark.parametrize("policy", ["compact", ""], ids=["a policy of compact", "a policy of none"])
def test_without_delete_neither_time_nor_size_count(policy: str) -> None:
    plan = expired(three(), f"cleanup.policy={policy}", "retention.ms=1", "retention.bytes=1")
    assert (gone(plan), plan.verdict) == ([], Verdict.SKIP)
    assert plan.reason.startswith("policy: cleanup.policy is")


def test_compact_and_delete_together_delete() -> None:
    assert gone(expired(three(), "cleanup.policy=compact,delete", "retention.ms=250")) == [(0, TIME)]


def test_log_start_goes_before_size_and_size_before_time() -> None:
    view = log(
        *(segment(base * 10, 100, timestamp_ms=NOW_MS - age) for base, age in enumerate((900, 800, 700, 10))),
        end=40,
        log_start_offset=12,
    )
    plan = expired(view, "retention.bytes=200", "retention.ms=500")
    assert gone(plan) == [(0, LOG_START), (10, SIZE), (20, TIME)]
    assert plan.new_log_start_offset == 30
    assert plan.reason.startswith("3 of 4 segments go (1 by log start, 1 by size, 1 by time)")


@pytest.mark.parametrize(
    ("high_watermark", "expected"), [(9, []), (10, [0]), (19, [0]), (20, [0, 10]), (29, [0, 10]), (30, [0, 10, 20])]
)
def test_no_segment_goes_that_reaches_past_the_high_watermark(high_watermark: int, expected: list[int]) -> None:
    for bound in ("retention.ms=0", "retention.bytes=0"):
        plan = expired(three(high_watermark=high_watermark), bound)
        assert [base for base, _ in gone(plan)] == expected


def test_where_all_segments_go_an_empty_one_takes_over_at_the_log_end() -> None:
    plan = expired(three(), "retention.ms=1")
    assert (plan.rolled_base_offset, plan.new_log_start_offset) == (30, 30)
    assert [(each.base_offset, each.size_bytes) for each in plan.after.segments] == [(30, 0)]
    assert plan.after.log_end_offset == 30


def test_segments_that_go_by_two_causes_together_are_all_of_them() -> None:
    plan = expired(three(), "retention.bytes=100", "retention.ms=1")
    assert gone(plan) == [(0, SIZE), (10, SIZE), (20, TIME)]
    assert plan.rolled_base_offset == 30


def test_an_empty_last_segment_stays() -> None:
    view = log(segment(0, timestamp_ms=1), segment(10, 0, timestamp_ms=1), end=10)
    plan = expired(view, "retention.ms=1", "retention.bytes=0")
    assert gone(plan) == [(0, SIZE)]
    assert (plan.rolled_base_offset, plan.new_log_start_offset) == (None, 10)


def test_an_empty_segment_in_the_middle_goes_like_any_other() -> None:
    view = log(segment(0, timestamp_ms=1), segment(10, 0, timestamp_ms=1), segment(15, timestamp_ms=NOW_MS), end=20)
    assert gone(expired(view, "retention.ms=9999")) == [(0, TIME), (10, TIME)]


def test_a_log_start_inside_the_first_segment_left_stays_where_it_is() -> None:
    plan = expired(three(log_start_offset=15))
    assert (gone(plan), plan.new_log_start_offset) == ([(0, LOG_START)], 15)


def test_the_log_afterwards_can_be_planned_on() -> None:
    plan = expired(three(cleaner_checkpoint=5), "retention.ms=250")
    assert [each.base_offset for each in plan.after.segments] == [10, 20]
    assert (plan.after.log_start_offset, plan.after.cleaner_checkpoint) == (10, 5)
    again = plan_deletion(plan.after, plan.config, now_ms=NOW_MS)
    assert (again.removals, again.after) == ((), plan.after)


def test_every_removal_says_why_with_its_numbers() -> None:
    plan = expired(three(), "retention.ms=250")
    assert str(plan.removals[0]) == (
        "segment 0 (100 bytes) goes by time: it is 300 ms old, retention.ms is 250 (--set retention.ms)"
    )
    assert str(plan).splitlines()[0].startswith("orders-0: 1 of 3 segments go (1 by time)")


def test_a_tiered_topic_keeps_everything() -> None:
    plan = expired(three(), "remote.storage.enable=true", "retention.ms=1")
    assert gone(plan) == []
    assert plan.reason.startswith("tiered: remote.storage.enable is true")


def test_a_log_whose_policy_is_a_guess_keeps_everything() -> None:
    view = three(log_start_offset=15)
    plan = plan_deletion(view, Resolver(read_sets(["retention.ms=1", "retention.bytes=0"])).topic("orders"), now_ms=NOW_MS)
    assert (gone(plan), plan.after, plan.verdict) == ([], view, Verdict.SKIP)
    assert plan.reason.startswith("refused: cleanup.policy is unknown: no metadata log is in the directories of this call; ")


def test_a_default_that_is_assumed_takes_segments_and_is_told() -> None:
    resolver = Resolver(read_sets(["retention.ms=250"]), assume_default_policy=True)
    plan = plan_deletion(three(), resolver.topic("orders"), now_ms=NOW_MS)
    assert gone(plan) == [(0, TIME)]
    assert plan.reason.endswith("cleanup.policy is delete (Kafka's default, assumed by --assume-default-policy)")


def test_the_cluster_metadata_log_keeps_everything() -> None:
    plan = expired(three(topic_partition=TopicPartition("__cluster_metadata", 0)), "retention.ms=1")
    assert gone(plan) == []


def test_a_log_without_segments_keeps_its_nothing() -> None:
    plan = expired(log(end=0), "retention.ms=1", "retention.bytes=0")
    assert (gone(plan), plan.rolled_base_offset) == ([], None)


def test_what_has_not_expired_says_under_which_bounds() -> None:
    reason = expired(three(), "retention.ms=1000").reason
    assert reason == (
        "nothing has expired: retention.ms is 1000 (--set retention.ms), retention.bytes is no limit (Kafka's default); "
        "cleanup.policy is delete (--set cleanup.policy)"
    )
