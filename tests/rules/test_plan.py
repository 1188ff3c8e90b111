"""Whether a log is cleaned, why, in which groups, and in which order logs are cleaned; what a policy deletes and compacts, and
what that is expected to free.

The cases of groups are those of Kafka's ``CleanerTest.testSegmentGrouping*``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compaction.config.resolver import Resolver, TopicConfig
from compaction.config.sources import read_properties, read_sets
from compaction.formats.indexes import MAX_RELATIVE_OFFSET
from compaction.formats.java_text import parse_properties
from compaction.names import TopicPartition
from compaction.rules.log_to_clean import SkipCause, Verdict
from compaction.rules.log_view import LogView, Segment
from compaction.rules.plan import (
    LogPlan,
    PolicyPlan,
    benefit,
    dirtiest_first,
    freed_bytes,
    group_segments,
    plan_log,
    plan_policy,
    rewritten_bytes,
)
from tests.rules.views import DAY_MS, NOW_MS, log, segment


def half_dirty(**given: Any) -> LogView:
    """1000 clean bytes, then 1000 dirty ones, then the active segment."""
    return log(segment(0, 1000), segment(10, 1000), segment(20, 50), end=30, **{"cleaner_checkpoint": 10, **given})


def planned(view: LogView, *sets: str, include_active: bool = False) -> LogPlan:
    config = Resolver(sets=read_sets(["cleanup.policy=compact", *sets])).topic(view.topic_partition.topic)
    return plan_log(view, config, now_ms=NOW_MS, include_active=include_active)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [("0.49", Verdict.CLEAN), ("0.5", Verdict.SKIP), ("0.51", Verdict.SKIP), ("0", Verdict.CLEAN), ("1", Verdict.SKIP)],
)
def test_a_log_is_cleaned_when_its_ratio_is_over_the_bound(ratio: str, verdict: Verdict) -> None:
    plan = planned(half_dirty(), f"min.cleanable.dirty.ratio={ratio}")
    assert plan.verdict is verdict
    assert plan.cleanable_ratio == 0.5


def test_a_completely_dirty_log_is_not_over_a_bound_of_one() -> None:
    assert planned(half_dirty(cleaner_checkpoint=None), "min.cleanable.dirty.ratio=1").verdict is Verdict.SKIP


def test_nothing_dirty_is_not_over_a_bound_of_zero() -> None:
    plan = planned(half_dirty(cleaner_checkpoint=20), "min.cleanable.dirty.ratio=0", "max.compaction.lag.ms=1")
    assert (plan.verdict, plan.skip_cause) == (Verdict.SKIP, SkipCause.ACTIVE)
    assert "nothing to clean from first dirty offset 20 on, held back by active segment 20" in plan.reason


@pytest.mark.parametrize(
    ("view", "cause"),
    [
        (log(segment(0, 100), end=10), SkipCause.ACTIVE),
        (half_dirty(cleaner_checkpoint=30), SkipCause.CLEAN),
        (half_dirty(last_stable_offset=10), SkipCause.HELD),
        (half_dirty(high_watermark=10, last_stable_offset=10), SkipCause.HELD),
    ],
)
@pytest.mark.parametrize("ratio", ["0", "0.5"])
def test_a_log_without_anything_to_clean_is_not_said_to_be_below_the_ratio(view: LogView, cause: SkipCause, ratio: str) -> None:
    plan = planned(view, f"min.cleanable.dirty.ratio={ratio}")
    assert (plan.verdict, plan.skip_cause) == (Verdict.SKIP, cause)
    assert plan.reason.startswith(f"{cause.value}: nothing to clean ")
    assert ("--include-active" in plan.reason) == (cause is SkipCause.ACTIVE)


def test_max_compaction_lag_overrules_the_ratio() -> None:
    plan = planned(half_dirty(), "min.cleanable.dirty.ratio=1", f"max.compaction.lag.ms={DAY_MS - 1}")
    assert plan.verdict is Verdict.CLEAN
    assert "max.compaction.lag.ms passed 1 ms ago" in plan.reason


def test_max_compaction_lag_has_no_effect_if_nothing_can_be_cleaned() -> None:
    assert planned(half_dirty(last_stable_offset=10), "max.compaction.lag.ms=1").verdict is Verdict.SKIP


@pytest.mark.parametrize(
    ("policy", "shown"), [("delete", "delete"), ("", "none")], ids=["a policy of delete", "a policy of none"]
)
def test_a_log_that_is_not_to_be_compacted_is_skipped(policy: str, shown: str) -> None:
    config = Resolver(sets=read_sets([f"cleanup.policy={policy}"])).topic("orders")
    plan = plan_log(half_dirty(), config, now_ms=NOW_MS)
    assert (plan.verdict, plan.skip_cause) == (Verdict.SKIP, SkipCause.POLICY)
    assert plan.reason == f"policy: cleanup.policy is {shown} (--set cleanup.policy), only compact is cleaned"


def test_a_policy_of_both_is_compacted() -> None:
    config = TopicConfig(cleanup_compact=True, cleanup_delete=True, min_cleanable_dirty_ratio=0)
    assert plan_log(half_dirty(), config, now_ms=NOW_MS).verdict is Verdict.CLEAN


@pytest.mark.parametrize(
    "view",
    [log(segment(0, 0), end=0), log(segment(5, 0), segment(9, 0), end=9), log(end=0)],
    ids=["one empty segment", "two empty segments", "no segment"],
)
def test_an_empty_log_is_skipped(view: LogView) -> None:
    plan = planned(view, "min.cleanable.dirty.ratio=0", include_active=True)
    assert (plan.verdict, plan.skip_cause, plan.reason) == (Verdict.SKIP, SkipCause.EMPTY, "empty: the log has no bytes")


def test_the_checkpoint_of_an_empty_log_is_reset_if_it_is_outside_the_log() -> None:
    plan = planned(log(segment(8, 0), end=8, cleaner_checkpoint=3))
    assert (plan.skip_cause, plan.first_dirty_offset, plan.checkpoint_reset) == (SkipCause.EMPTY, 8, True)
    assert plan.reason.endswith("the cleaner checkpoint 3 is outside the log [8, 8] and is reset")


def test_the_cluster_metadata_log_is_refused_whatever_its_policy() -> None:
    view = half_dirty(topic_partition=TopicPartition("__cluster_metadata", 0))
    plan = planned(view, "min.cleanable.dirty.ratio=0")
    assert (plan.verdict, plan.skip_cause) == (Verdict.SKIP, SkipCause.REFUSED)


def test_a_log_held_back_by_min_compaction_lag_says_so() -> None:
    plan = planned(half_dirty(), f"min.compaction.lag.ms={DAY_MS + 1}")
    assert (plan.verdict, plan.skip_cause) == (Verdict.SKIP, SkipCause.LAG)
    assert plan.reason.endswith("held back by min.compaction.lag.ms since offset 10")


def test_a_skip_for_the_ratio_has_its_numbers_and_the_source_of_the_bound() -> None:
    plan = planned(half_dirty(), "min.cleanable.dirty.ratio=0.75")
    assert plan.skip_cause is SkipCause.RATIO
    assert plan.reason == (
        "ratio: 1000 of 2000 bytes dirty, ratio 0.5, not over 0.75 "
        "(--set min.cleanable.dirty.ratio), and max.compaction.lag.ms has not passed; held back by active segment 20; "
        "becomes cleanable after 2.0 kB more, or with min.cleanable.dirty.ratio=0.4"
    )


def test_a_checkpoint_outside_the_log_is_reset_even_if_nothing_is_cleaned() -> None:
    plan = planned(half_dirty(cleaner_checkpoint=31), "min.cleanable.dirty.ratio=1")
    assert (plan.verdict, plan.checkpoint_reset, plan.first_dirty_offset) == (Verdict.SKIP, True, 0)
    assert plan.reason.endswith("the cleaner checkpoint 31 is outside the log [0, 30] and is reset")


def test_clean_segments_are_grouped_too() -> None:
    plan = planned(half_dirty(), "min.cleanable.dirty.ratio=0")
    assert [[each.base_offset for each in group.segments] for group in plan.groups] == [[0, 10]]
    assert str(plan).startswith("orders-0: clean [10, 20), 2 segments into 1, 1000 of 2000 bytes dirty, ratio 0.5: over 0")


def test_groups_respect_the_topics_segment_sizes() -> None:
    plan = planned(half_dirty(), "min.cleanable.dirty.ratio=0", "internal.segment.bytes=1999")
    assert [group.base_offset for group in plan.groups] == [0, 10]
    plan = planned(half_dirty(), "min.cleanable.dirty.ratio=0", "segment.index.bytes=23")
    assert [group.base_offset for group in plan.groups] == [0, 10]


def test_a_skipped_log_has_no_groups() -> None:
    assert planned(half_dirty()).groups == ()


def test_the_last_segment_of_an_export_is_cleaned() -> None:
    plan = planned(half_dirty(), include_active=True)
    assert (plan.verdict, plan.first_uncleanable_offset, len(plan.segments)) == (Verdict.CLEAN, 30, 3)


@pytest.mark.parametrize(
    ("checkpoint", "horizon_ms"),
    [
        pytest.param(None, 0, id="no clean segment"),
        pytest.param(10, NOW_MS - DAY_MS - 500, id="the last clean segment"),
        pytest.param(15, NOW_MS - DAY_MS - 500, id="a segment that is partly clean counts"),
    ],
)
def test_the_legacy_delete_horizon_depends_on_the_last_clean_segment(checkpoint: int | None, horizon_ms: int) -> None:
    plan = planned(half_dirty(cleaner_checkpoint=checkpoint), "delete.retention.ms=500")
    assert plan.legacy_delete_horizon_ms == horizon_ms


def test_the_dirtiest_log_is_first_and_skipped_logs_are_last() -> None:
    def at(partition: int, checkpoint: int | None) -> LogPlan:
        view = half_dirty(topic_partition=TopicPartition("orders", partition), cleaner_checkpoint=checkpoint)
        return planned(view, "min.cleanable.dirty.ratio=0.4")

    plans = dirtiest_first([at(0, 20), at(3, 10), at(2, 10), at(1, None)])
    assert [each.view.topic_partition.partition for each in plans] == [1, 2, 3, 0]
    assert str(plans[-1]).startswith("orders-0: skip, active: nothing to clean")


UNBOUNDED = 2**31 - 1


def bases(
    segments: list[Segment],
    *,
    max_bytes: int = UNBOUNDED,
    max_index_bytes: int = UNBOUNDED,
    first_uncleanable_offset: int = 1 << 40,
) -> list[list[int]]:
    config = TopicConfig(segment_bytes=max_bytes, segment_index_bytes=max_index_bytes)
    groups = group_segments(segments, config, first_uncleanable_offset)
    return [[each.base_offset for each in group.segments] for group in groups]


TEN = [segment(base, 100, index_bytes=8, time_index_bytes=12) for base in range(0, 100, 10)]


def test_no_segments_make_no_group() -> None:
    assert bases([]) == []


@pytest.mark.parametrize(
    ("max_bytes", "max_index_bytes", "sizes"),
    [
        pytest.param(UNBOUNDED, UNBOUNDED, [10], id="everything fits into one group"),
        pytest.param(1, UNBOUNDED, [1] * 10, id="a segment over the bound has its own group"),
        pytest.param(UNBOUNDED, 1, [1] * 10, id="an index over the bound has its own group"),
        pytest.param(300, UNBOUNDED, [3, 3, 3, 1], id="bytes up to the bound, inclusive"),
        pytest.param(299, UNBOUNDED, [2] * 5, id="one byte short of three segments"),
        pytest.param(UNBOUNDED, 36, [3, 3, 3, 1], id="time indexes up to the bound, inclusive"),
        pytest.param(UNBOUNDED, 35, [2] * 5, id="one byte short of three time indexes"),
    ],
)
def test_a_group_takes_segments_up_to_the_bounds(max_bytes: int, max_index_bytes: int, sizes: list[int]) -> None:
    grouped = bases(TEN, max_bytes=max_bytes, max_index_bytes=max_index_bytes, first_uncleanable_offset=100)
    assert [len(group) for group in grouped] == sizes
    assert [base for group in grouped for base in group] == list(range(0, 100, 10))


def test_offset_indexes_bound_a_group_as_time_indexes_do() -> None:
    wide = [replace(each, index_bytes=24) for each in TEN]
    assert [len(group) for group in bases(wide, max_index_bytes=72, first_uncleanable_offset=100)] == [3, 3, 3, 1]


FAR = MAX_RELATIVE_OFFSET


@pytest.mark.parametrize(
    ("segments", "first_uncleanable_offset", "expected"),
    [
        pytest.param(
            [segment(0), segment(1), segment(FAR + 1), segment(FAR + 2)], FAR + 3, [[0, 1], [FAR + 1, FAR + 2]],
            id="up to the base of the next segment: the second one fits, the third does not",
        ),
        pytest.param(
            [segment(0), segment(1), segment(FAR + 1)], FAR + 2, [[0, 1], [FAR + 1]], id="the last one does not fit"
        ),
        pytest.param([segment(0), segment(4)], FAR + 1, [[0, 4]], id="the last one up to the first uncleanable offset"),
        pytest.param([segment(0), segment(4)], FAR + 2, [[0], [4]], id="which is one past what an index can hold"),
        pytest.param(
            [segment(0), segment(10, 0), segment(FAR + 100)], 1 << 40, [[0, 10], [FAR + 100]], id="an empty one is exempt"
        ),
        pytest.param(
            [segment(0, 0), segment(FAR, 10), segment(FAR + 2, 10)], FAR + 3, [[0], [FAR, FAR + 2]],
            id="the first of a group is not checked, though it is empty",
        ),
    ],
)  # fmt: skip
def test_a_group_ends_before_a_segment_whose_offsets_may_not_fit(
    segments: list[Segment], first_uncleanable_offset: int, expected: list[list[int]]
) -> None:
    assert bases(segments, first_uncleanable_offset=first_uncleanable_offset) == expected


def test_a_group_is_named_by_its_first_segment_and_as_old_as_its_last() -> None:
    (group,) = group_segments([segment(5, 10, mtime_ns=7_000_000), segment(9, 20, mtime_ns=8_999_999)], TopicConfig(), 12)
    assert (group.base_offset, group.mtime_ms, group.size_bytes) == (5, 8, 30)
    assert str(group) == "[5, 9] 30 bytes"


def one_old_segment() -> LogView:
    """A segment that is older than the retention time, two younger ones, and the active segment."""
    ages_days = {0: 9, 10: 1, 20: 1, 30: 0}
    return log(*(segment(base, timestamp_ms=NOW_MS - days * DAY_MS) for base, days in ages_days.items()), end=40)


def outcome(plan: PolicyPlan) -> tuple[int | None, list[int]]:
    """How many segments are deleted (``None``: the run does not delete), and the bases of those that are cleaned."""
    deleted = None if plan.deletion is None else len(plan.deletion.removals)
    return deleted, [each.base_offset for each in plan.compaction.segments]


@pytest.mark.parametrize(
    ("policy", "compact_run", "cleanup_policy"),
    [
        ("compact", (None, [0, 10, 20]), (None, [0, 10, 20])),
        ("compact,delete", (1, [10, 20]), (1, [10, 20])),
        ("delete", (None, []), (1, [])),
        ("", (None, []), (0, [])),
    ],
)
def test_a_policy_deletes_and_compacts_what_it_names(
    policy: str, compact_run: tuple[int | None, list[int]], cleanup_policy: tuple[int | None, list[int]]
) -> None:
    config = Resolver(sets=read_sets([f"cleanup.policy={policy}", f"retention.ms={7 * DAY_MS}"])).topic("orders")
    assert outcome(plan_policy(one_old_segment(), config, now_ms=NOW_MS)) == compact_run
    assert outcome(plan_policy(one_old_segment(), config, now_ms=NOW_MS, expires=True)) == cleanup_policy


@pytest.mark.parametrize("default", ["compact", "compact,delete", "delete"])
def test_nothing_is_removed_on_a_guess(default: str) -> None:
    properties = read_properties(parse_properties(f"log.cleanup.policy={default}", "s"), "s")
    config = Resolver(properties=properties).topic("orders")
    for expires in (False, True):
        found = plan_policy(one_old_segment(), config, now_ms=NOW_MS, expires=expires)
        assert (found.compaction.verdict, found.compaction.skip_cause) == (Verdict.SKIP, SkipCause.REFUSED)
        assert found.compaction.reason.startswith("refused: cleanup.policy is unknown: ")
        assert found.deletion is None or found.deletion.removals == ()


def policy_planned(view: LogView, *sets: str) -> PolicyPlan:
    sets = ("cleanup.policy=compact", "min.cleanable.dirty.ratio=0", *sets)
    return plan_policy(view, Resolver(sets=read_sets(sets)).topic("t"), now_ms=NOW_MS)


def sections(clean_offsets: int, clean_bytes: int, dirty_offsets: int = 100, dirty_bytes: int = 1000) -> LogView:
    """A clean segment, a dirty one, and an active one."""
    end = clean_offsets + dirty_offsets
    dirty = segment(clean_offsets, dirty_bytes)
    return log(segment(0, clean_bytes), dirty, segment(end, 50), end=end + 5, cleaner_checkpoint=clean_offsets)


@pytest.mark.parametrize(
    ("clean_offsets", "clean_bytes", "freed"),
    [
        pytest.param(100, 1000, 0, id="earlier rounds have retained everything"),
        pytest.param(100, 2000, 0, id="records of the clean section are larger"),
        pytest.param(1000, 1000, 900, id="a tenth was retained"),
        pytest.param(200, 1000, 500, id="half was retained"),
    ],
)
def test_the_dirty_section_is_expected_to_lose_the_share_that_the_clean_one_has_lost(
    clean_offsets: int, clean_bytes: int, freed: int
) -> None:
    plan = policy_planned(sections(clean_offsets, clean_bytes))
    assert rewritten_bytes(plan.compaction) == clean_bytes + 1000
    assert freed_bytes(plan) == freed
    assert benefit(plan) == freed / (clean_bytes + 1000)


def test_a_log_that_was_never_cleaned_may_lose_everything() -> None:
    view = log(segment(0, 500), segment(10, 500), segment(20, 50), end=25)
    assert freed_bytes(policy_planned(view)) == 1000
    assert benefit(policy_planned(view)) == 1.0


def test_expired_segments_are_freed_without_being_rewritten() -> None:
    old = replace(segment(0, 700), largest_timestamp_ms=NOW_MS - 10 * DAY_MS)
    view = log(old, segment(10, 400), segment(20, 50), end=25)
    plan = policy_planned(view, "cleanup.policy=compact,delete", "retention.ms=1d")
    assert plan.deletion is not None and plan.deletion.removed_bytes == 700
    assert freed_bytes(plan) == 700 + 400
    assert rewritten_bytes(plan.compaction) == 400
