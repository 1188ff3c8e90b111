"""Whether a log is cleaned, in which groups, by the rules of each version of Kafka, and in which order logs are; what that is
expected to free.

``tests/scenarios/planning.txt`` has how far a log is cleaned, ``tests/commands/calls/explain.txt`` every reason and remedy. The
cases of groups are those of Kafka's ``CleanerTest.testSegmentGrouping*``.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compaction.config.resolver import Resolver, TopicConfig
from compaction.config.sources import read_properties, read_sets
from compaction.errors import UsageError
from compaction.formats.indexes import MAX_RELATIVE_OFFSET
from compaction.formats.java_text import parse_properties
from compaction.names import TopicPartition
from compaction.rules.kafka_rules import RULES, KafkaRules, LastBatch, OldFormat, Retention, rules_of
from compaction.rules.log_to_clean import SkipCause, Verdict, bytes_missing, ratio_below, segments_between
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


def planned(view: LogView, *sets: str, **options: Any) -> LogPlan:
    config = Resolver(sets=read_sets(["cleanup.policy=compact", *sets])).topic(view.topic_partition.topic)
    return plan_log(view, config, now_ms=NOW_MS, **options)


@pytest.mark.parametrize(
    ("given", "first_dirty", "reset"),
    [
        ({"cleaner_checkpoint": None, "log_start_offset": 7}, 7, False),
        ({"cleaner_checkpoint": 5, "log_start_offset": 5}, 5, False),
        ({"cleaner_checkpoint": 4, "log_start_offset": 5}, 5, True),
        ({"cleaner_checkpoint": 30}, 30, False),
        ({"cleaner_checkpoint": 31}, 0, True),
    ],
    ids=["none", "at the log start", "below it (KAFKA-8724)", "at the log end", "above it (KAFKA-6499)"],
)
def test_cleaning_starts_at_the_checkpoint_if_it_is_inside_the_log(
    given: dict[str, Any], first_dirty: int, reset: bool
) -> None:
    plan = planned(half_dirty(**given), "delete.retention.ms=500")
    assert (plan.first_dirty_offset, plan.checkpoint_reset) == (first_dirty, reset)
    # of the last segment that is clean, even if only in part
    assert plan.legacy_delete_horizon_ms == (NOW_MS - DAY_MS - 500 if first_dirty else 0)


def test_a_last_stable_offset_below_the_first_dirty_offset_does_not_lower_it() -> None:
    plan = planned(half_dirty(last_stable_offset=5))
    assert (plan.first_dirty_offset, plan.first_uncleanable_offset, plan.dirty_bytes) == (10, 10, 0)


@pytest.mark.parametrize("stamp", [0, -1, 2**63 - 1], ids=["zero", "no timestamp", "empty segment"])
def test_max_compaction_lag_ignores_segments_without_a_timestamp(stamp: int) -> None:
    view = log(segment(0, first_batch_timestamp_ms=stamp), segment(10), end=20)
    assert planned(view, "max.compaction.lag.ms=1").overdue_ms == 0


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(5, 11, [0, 10]), (10, 20, [10]), (-1, 10, [0]), (7, 7, []), (99, 100, [20])],
)
def test_segments_between_two_offsets_start_with_the_holder_of_the_first(start: int, end: int, expected: list[int]) -> None:
    assert [each.base_offset for each in segments_between(half_dirty().segments, start, end)] == expected


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1))
# which is found quickly
@example(1_000_000, 5, 1 - 2**-53)
def test_the_missing_bytes_are_the_fewest_that_suffice(clean: int, dirty: int, ratio: float) -> None:
    more = bytes_missing(clean, dirty, ratio)
    if more is None:
        assert ratio == 1
        return
    assert (dirty + more) / max(clean + dirty + more, 1) > ratio
    if more:
        assert not (dirty + more - 1) / max(clean + dirty + more - 1, 1) > ratio


@pytest.mark.parametrize(("ratio", "bound"), [(0.31, 0.3), (0.3, 0.2), (0.05, 0.04), (1.0, 0.9), (0.1, 0.09), (1e-9, 0.0)])
def test_the_lower_bound_has_the_fewest_digits(ratio: float, bound: float) -> None:
    assert ratio_below(ratio) == bound


@given(st.floats(0.0001, 1))
def test_the_lower_bound_is_below_the_ratio_and_short(ratio: float) -> None:
    bound = ratio_below(ratio)
    assert 0 <= bound < ratio
    assert len(f"{bound:g}") <= 7


@pytest.mark.parametrize(
    ("view", "cause"),
    [
        (log(segment(5, 0), segment(9, 0), end=9), SkipCause.EMPTY),
        (log(end=0), SkipCause.EMPTY),
        (half_dirty(topic_partition=TopicPartition("__cluster_metadata", 0)), SkipCause.REFUSED),
    ],
    ids=["empty segments", "no segment", "the metadata log"],
)
def test_a_log_is_skipped_whatever_its_settings(view: LogView, cause: SkipCause) -> None:
    plan = planned(view, "min.cleanable.dirty.ratio=0", include_active=True)
    assert (plan.verdict, plan.skip_cause, plan.groups) == (Verdict.SKIP, cause, ())


def test_the_dirtiest_log_is_first_and_skipped_logs_are_last() -> None:
    def at(partition: int, checkpoint: int | None) -> LogPlan:
        view = half_dirty(topic_partition=TopicPartition("orders", partition), cleaner_checkpoint=checkpoint)
        return planned(view, "min.cleanable.dirty.ratio=0.4")

    plans = dirtiest_first([at(0, 20), at(3, 10), at(2, 10), at(1, None)])
    assert [each.view.topic_partition.partition for each in plans] == [1, 2, 3, 0]
    assert str(plans[-1]).startswith("orders-0: skip, active: nothing to clean")
    assert str(plans[1]).startswith("orders-2: clean [10, 20), 2 segments into 1, 1000 of 2000 bytes dirty, ratio")


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


@pytest.mark.parametrize(
    ("max_bytes", "index_bytes", "max_index_bytes", "sizes"),
    [
        pytest.param(UNBOUNDED, 8, UNBOUNDED, [10], id="everything fits into one group"),
        pytest.param(1, 8, UNBOUNDED, [1] * 10, id="a segment over the bound has its own group"),
        pytest.param(UNBOUNDED, 8, 1, [1] * 10, id="an index over the bound has its own group"),
        pytest.param(300, 8, UNBOUNDED, [3, 3, 3, 1], id="bytes up to the bound, inclusive"),
        pytest.param(299, 8, UNBOUNDED, [2] * 5, id="one byte short of three segments"),
        pytest.param(UNBOUNDED, 8, 36, [3, 3, 3, 1], id="time indexes up to the bound, inclusive"),
        pytest.param(UNBOUNDED, 8, 35, [2] * 5, id="one byte short of three time indexes"),
        pytest.param(UNBOUNDED, 24, 72, [3, 3, 3, 1], id="offset indexes up to the bound"),
    ],
)
def test_a_group_takes_segments_up_to_the_bounds(
    max_bytes: int, index_bytes: int, max_index_bytes: int, sizes: list[int]
) -> None:
    ten = [segment(base, 100, index_bytes=index_bytes, time_index_bytes=12) for base in range(0, 100, 10)]
    grouped = bases(ten, max_bytes=max_bytes, max_index_bytes=max_index_bytes, first_uncleanable_offset=100)
    assert [len(group) for group in grouped] == sizes
    assert [base for group in grouped for base in group] == list(range(0, 100, 10))


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


def test_the_rules_change_with_the_versions_as_documented() -> None:
    versions = [(version, rules.described()) for version, rules in RULES.items()]
    changes = [
        (new, sorted(name for name, rule in rules.items() if rule != before[name]))
        for (_, before), (new, rules) in itertools.pairwise(versions)
    ]
    assert [change for change in changes if change[1]] == [
        ("3.0", ["groups_empty_segments"]),
        ("3.1", ["tombstone_retention"]),
        ("3.4", ["producer_expiration", "producer_expiration_default_ms"]),
        ("3.9.2", ["last_batch"]),
        ("4.0", ["old_format"]),
        ("4.2", ["limits_decompressed_records"]),
        ("4.3", ["limits_decompressed_records"]),
        ("4.4", ["last_batch", "limits_decompressed_records"]),
    ]
    newest = KafkaRules(
        Retention.DELETE_HORIZON, LastBatch.RETAINED_AT_HIGH_WATERMARK, OldFormat.BECOMES_V2,
        groups_empty_segments=True, limits_decompressed_records=True,
        producer_expiration="producer.id.expiration.ms", producer_expiration_default_ms=DAY_MS,
    )  # fmt: skip
    assert RULES["4.4"] == newest
    for patch, version in (("3.0.2", "3.0"), ("3.9", "3.9.2"), ("3.9.7", "3.9.2"), ("4.0.0", "4.0"), ("4.3", "4.1")):
        assert rules_of(patch) == RULES[version]


@pytest.mark.parametrize("version", ["2.7", "2.7.2", "4.5", "4.5.0", "5.0", "4", "4.4.x", "4.4.0.1", "", "auto", "4.4-IV0"])
def test_a_version_whose_rules_are_unknown_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match=r"are not known, only those of 2\.8 to 4\.4"):
        rules_of(version)


@pytest.mark.parametrize(
    ("version", "high_watermark", "expected"),
    [("3.9.1", 20, -1), ("4.3", 20, 20), ("4.3", 30, 20), ("4.4", 20, 20), ("4.4", 30, -1)],
)
def test_the_last_batch_of_a_round_is_retained_by_version(version: str, high_watermark: int, expected: int) -> None:
    plan = planned(half_dirty(high_watermark=high_watermark), rules=rules_of(version))
    assert (plan.first_uncleanable_offset, plan.retain_end_offset) == (20, expected)


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
    end = clean_offsets + 100
    sections = segment(0, clean_bytes), segment(clean_offsets, 1000), segment(end, 50)
    plan = policy_planned(log(*sections, end=end + 5, cleaner_checkpoint=clean_offsets))
    assert rewritten_bytes(plan.compaction) == clean_bytes + 1000
    assert freed_bytes(plan) == freed
    assert benefit(plan) == freed / (clean_bytes + 1000)


def test_a_log_that_was_never_cleaned_may_lose_everything() -> None:
    plan = policy_planned(half_dirty(cleaner_checkpoint=None))
    assert (freed_bytes(plan), benefit(plan)) == (2000, 1.0)


def test_expired_segments_are_freed_without_being_rewritten() -> None:
    old = replace(segment(0, 700), largest_timestamp_ms=NOW_MS - 10 * DAY_MS)
    view = log(old, segment(10, 400), segment(20, 50), end=25)
    plan = policy_planned(view, "cleanup.policy=compact,delete", "retention.ms=1d")
    assert plan.deletion is not None and plan.deletion.removed_bytes == 700
    assert freed_bytes(plan) == 700 + 400
    assert rewritten_bytes(plan.compaction) == 400
