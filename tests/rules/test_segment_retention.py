"""Which segments the delete policy deletes, where no broker shows it; ``tests/scenarios/deletion.txt`` has the bounds, and
``tests/commands/calls/explain.txt`` the reasons."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import read_sets
from compaction.names import TopicPartition
from compaction.rules.log_view import LogView
from compaction.rules.segment_retention import DeletionPlan, plan_deletion
from tests.rules.views import NOW_MS, log, segment


def three(**given: Any) -> LogView:
    """Segments of 100 bytes that are 300, 200 and 100 ms old."""
    ages = {0: 300, 10: 200, 20: 100}
    return log(*(segment(base, 100, timestamp_ms=NOW_MS - age) for base, age in ages.items()), end=30, **given)


def planned(view: LogView, *sets: str) -> DeletionPlan:
    config = Resolver(sets=read_sets(["cleanup.policy=delete", "retention.ms=-1", *sets])).topic(view.topic_partition.topic)
    return plan_deletion(view, config, now_ms=NOW_MS)


def test_the_log_afterwards_can_be_planned() -> None:
    plan = planned(three(cleaner_checkpoint=5), "retention.ms=250")
    assert [each.base_offset for each in plan.after.segments] == [10, 20]
    assert (plan.after.log_start_offset, plan.after.cleaner_checkpoint) == (10, 5)
    again = plan_deletion(plan.after, plan.config, now_ms=NOW_MS)
    assert (again.removals, again.after) == ((), plan.after)
    assert str(plan) == (
        "orders-0: 1 of 3 segments expired (1 by time); cleanup.policy is delete (--set cleanup.policy)\n"
        "  segment 0 (100 bytes) is deleted by time: it is 300 ms old, retention.ms is 250 (--set retention.ms)"
    )


def test_an_empty_segment_before_the_last_is_deleted_like_any_other() -> None:
    view = log(segment(0, timestamp_ms=1), segment(10, 0, timestamp_ms=1), segment(15), end=20)
    assert [each.base_offset for each in planned(view, "retention.ms=86400000").after.segments] == [15]


@pytest.mark.parametrize(
    ("view", "more", "reason"),
    [
        (three(), ["remote.storage.enable=true"], "tiered: remote.storage.enable is true"),
        (three(topic_partition=TopicPartition("__cluster_metadata", 0)), [], "refused: __cluster_metadata is pruned by"),
        (log(end=0), [], "nothing has expired"),
    ],
    ids=["tiered", "the metadata log", "no segments"],
)
def test_nothing_is_deleted_from(view: LogView, more: list[str], reason: str) -> None:
    plan = planned(view, "retention.ms=1", "retention.bytes=0", *more)
    assert (plan.removals, plan.after) == ((), view)
    assert plan.reason.startswith(reason)
