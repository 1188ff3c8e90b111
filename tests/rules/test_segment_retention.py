"""Which segments the delete policy deletes, why, and what it says of it; ``tests/scenarios/deletion.txt`` has the bounds."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import read_sets
from compaction.names import TopicPartition
from compaction.rules.log_view import LogView
from compaction.rules.segment_retention import DeletionCause, DeletionPlan, plan_deletion
from tests.rules.views import NOW_MS, log, segment

LOG_START, SIZE, TIME = DeletionCause.LOG_START, DeletionCause.SIZE, DeletionCause.TIME


def three(**given: Any) -> LogView:
    """Segments of 100 bytes that are 300, 200 and 100 ms old."""
    ages = {0: 300, 10: 200, 20: 100}
    return log(*(segment(base, 100, timestamp_ms=NOW_MS - age) for base, age in ages.items()), end=30, **given)


def planned(view: LogView, *sets: str) -> DeletionPlan:
    config = Resolver(sets=read_sets(["cleanup.policy=delete", "retention.ms=-1", *sets])).topic(view.topic_partition.topic)
    return plan_deletion(view, config, now_ms=NOW_MS)


def deleted(plan: DeletionPlan) -> list[tuple[int, DeletionCause]]:
    return [(removal.segment.base_offset, removal.cause) for removal in plan.removals]


def test_a_timestamp_in_the_future_retains_the_segment_and_all_later_ones() -> None:
    view = log(segment(0, timestamp_ms=NOW_MS + 1), segment(10, timestamp_ms=1), segment(20), end=30)
    plan = planned(view, "retention.ms=100")
    assert deleted(plan) == []
    assert plan.reason.startswith(f"future: segment 0 has a timestamp {NOW_MS + 1} after {NOW_MS}")


@pytest.mark.parametrize("policy", ["compact", ""], ids=["a policy of compact", "a policy of none"])
def test_without_delete_neither_time_nor_size_matters(policy: str) -> None:
    plan = planned(three(), f"cleanup.policy={policy}", "retention.ms=1", "retention.bytes=1")
    assert deleted(plan) == []
    assert plan.reason.startswith("policy: cleanup.policy is")


def test_the_passes_are_log_start_then_size_then_time() -> None:
    view = log(
        *(segment(base * 10, 100, timestamp_ms=NOW_MS - age) for base, age in enumerate((900, 800, 700, 10))),
        end=40,
        log_start_offset=12,
    )
    plan = planned(view, "retention.bytes=200", "retention.ms=500")
    assert deleted(plan) == [(0, LOG_START), (10, SIZE), (20, TIME)]
    assert plan.after.log_start_offset == 30
    assert plan.reason.startswith("3 of 4 segments expired (1 by log start, 1 by size, 1 by time)")


def test_an_empty_segment_before_the_last_is_deleted_like_any_other() -> None:
    view = log(segment(0, timestamp_ms=1), segment(10, 0, timestamp_ms=1), segment(15, timestamp_ms=NOW_MS), end=20)
    assert deleted(planned(view, "retention.ms=9999")) == [(0, TIME), (10, TIME)]


def test_the_log_afterwards_can_be_planned() -> None:
    plan = planned(three(cleaner_checkpoint=5), "retention.ms=250")
    assert [each.base_offset for each in plan.after.segments] == [10, 20]
    assert (plan.after.log_start_offset, plan.after.cleaner_checkpoint) == (10, 5)
    again = plan_deletion(plan.after, plan.config, now_ms=NOW_MS)
    assert (again.removals, again.after) == ((), plan.after)


def test_the_reason_of_a_deletion_has_its_numbers() -> None:
    plan = planned(three(), "retention.ms=250")
    assert str(plan.removals[0]) == (
        "segment 0 (100 bytes) is deleted by time: it is 300 ms old, retention.ms is 250 (--set retention.ms)"
    )
    assert str(plan).splitlines()[0].startswith("orders-0: 1 of 3 segments expired (1 by time)")


def test_nothing_is_deleted_from_a_tiered_topic() -> None:
    plan = planned(three(), "remote.storage.enable=true", "retention.ms=1")
    assert deleted(plan) == []
    assert plan.reason.startswith("tiered: remote.storage.enable is true")


def test_nothing_is_deleted_if_the_policy_is_a_guess() -> None:
    view = three(log_start_offset=15)
    plan = plan_deletion(view, Resolver(read_sets(["retention.ms=1", "retention.bytes=0"])).topic("orders"), now_ms=NOW_MS)
    assert (deleted(plan), plan.after) == ([], view)
    assert plan.reason.startswith("refused: cleanup.policy is unknown: no metadata log is in the directories of this call; ")


def test_an_assumed_default_deletes_segments_and_is_the_source() -> None:
    resolver = Resolver(read_sets(["retention.ms=250"]), assume_default_policy=True)
    plan = plan_deletion(three(), resolver.topic("orders"), now_ms=NOW_MS)
    assert deleted(plan) == [(0, TIME)]
    assert plan.reason.endswith("cleanup.policy is delete (Kafka's default, assumed by --assume-default-policy)")


def test_nothing_is_deleted_from_the_cluster_metadata_log() -> None:
    plan = planned(three(topic_partition=TopicPartition("__cluster_metadata", 0)), "retention.ms=1")
    assert deleted(plan) == []


def test_nothing_is_deleted_from_a_log_without_segments() -> None:
    plan = planned(log(end=0), "retention.ms=1", "retention.bytes=0")
    assert (deleted(plan), plan.after.segments) == ([], ())


def test_the_reason_of_an_empty_plan_has_the_bounds() -> None:
    reason = planned(three(), "retention.ms=1000").reason
    assert reason == (
        "nothing has expired: retention.ms is 1000 (--set retention.ms), retention.bytes is no limit (Kafka's default); "
        "cleanup.policy is delete (--set cleanup.policy)"
    )
