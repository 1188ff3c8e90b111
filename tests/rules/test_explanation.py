"""Explanations have every condition, its source, and a change that changes the verdict."""

from __future__ import annotations

import re

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import read_sets
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.rules.log_to_clean import Verdict
from compaction.rules.log_view import LogView
from compaction.rules.plan import Answer, explain_compaction, explain_deletion, plan_log
from compaction.rules.segment_retention import plan_deletion
from tests.rules.views import DAY_MS, NOW_MS, log, segment

COMPACT = "cleanup.policy=compact"
DELETE = "cleanup.policy=delete"


def answers(view: LogView, *sets: str) -> dict[str, Answer]:
    """The answers by text."""
    plan = plan_log(view, Resolver(read_sets((COMPACT, *sets))).topic("orders"), now_ms=NOW_MS)
    return {each.text: each for each in explain_compaction(plan, NOW_MS)}


def one(found: dict[str, Answer], words: str) -> Answer:
    matching = [each for text, each in found.items() if words in text]
    assert len(matching) == 1, list(found)
    return matching[0]


def verdict(view: LogView, *sets: str) -> Verdict:
    return plan_log(view, Resolver(read_sets((COMPACT, *sets))).topic("orders"), now_ms=NOW_MS).verdict


def mostly_clean(**given: object) -> LogView:
    """2,200 bytes clean, 1,000 bytes dirty, 10 bytes active."""
    return log(
        segment(0, 2200), segment(10, 1000), segment(20, 10, timestamp_ms=NOW_MS), end=30, cleaner_checkpoint=10, **given
    )


def test_every_condition_that_was_checked_is_answered() -> None:
    assert [(each.text, each.holds) for each in answers(mostly_clean()).values() if each.holds is not None] == [
        ("cleanup policy compact includes compact (--set cleanup.policy)", True),
        ("bytes 3210 > 0", True),
        ("dirty bytes 1000 > 0", True),
        ("cleanable ratio 0.3125 > 0.5 (min.cleanable.dirty.ratio, Kafka's default)", False),
        ("age past max.compaction.lag.ms 0 > 0 (max.compaction.lag.ms, Kafka's default)", False),
    ]
    assert [*answers(mostly_clean(), DELETE)] == [
        "cleanup policy delete includes compact (--set cleanup.policy)",
        "bytes 3210 > 0",
    ]


def test_the_ratio_has_its_value_bound_source_and_two_remedies() -> None:
    found = answers(mostly_clean())
    ratio = one(found, "cleanable ratio")
    assert ratio.text == "cleanable ratio 0.3125 > 0.5 (min.cleanable.dirty.ratio, Kafka's default)"
    assert (ratio.holds, ratio.remedy) == (
        False, "becomes cleanable after 1.2 kB more, or with min.cleanable.dirty.ratio=0.3",
    )  # fmt: skip
    assert verdict(mostly_clean()) is Verdict.SKIP
    assert verdict(mostly_clean(), "min.cleanable.dirty.ratio=0.3") is Verdict.CLEAN


def test_the_policy_has_its_source() -> None:
    policy = one(answers(mostly_clean(), "cleanup.policy=delete"), "cleanup policy")
    assert policy.text == "cleanup policy delete includes compact (--set cleanup.policy)"
    assert policy.remedy == "set cleanup.policy=compact, or compact,delete"


def test_a_lag_that_has_not_passed_has_the_remaining_time() -> None:
    lag = one(answers(mostly_clean(), f"max.compaction.lag.ms={3 * DAY_MS}"), "max.compaction.lag.ms")
    assert (lag.holds, lag.remedy) == (False, "in 2 days, or with max.compaction.lag.ms=23h")
    assert verdict(mostly_clean(), f"max.compaction.lag.ms={DAY_MS - 1}") is Verdict.CLEAN
    assert verdict(mostly_clean(), f"max.compaction.lag.ms={DAY_MS}") is Verdict.SKIP


def test_a_lag_that_is_not_set_has_the_age_of_the_oldest_dirty_segment() -> None:
    lag = one(answers(mostly_clean()), "max.compaction.lag.ms")
    remedy = "it is not limited; the oldest dirty segment is 1 day old: with max.compaction.lag.ms=23h"
    assert lag.remedy == remedy
    clean = segment(0, timestamp_ms=NOW_MS - 9 * DAY_MS)
    view = log(clean, segment(10), segment(20, 10), end=30, cleaner_checkpoint=10)
    assert one(answers(view), "max.compaction.lag.ms").remedy == remedy


def test_a_segment_that_is_too_young_has_the_remaining_time() -> None:
    view = log(segment(0, 1000), segment(10, 10, timestamp_ms=NOW_MS), end=20)
    young = one(answers(view, f"min.compaction.lag.ms={5 * DAY_MS}"), "from offset 0 on: min.compaction.lag.ms")
    name = "min.compaction.lag.ms"
    assert young.remedy == f"{name} is {5 * DAY_MS} (--set {name}): in 4 days, or with {name}=24h"
    assert verdict(view, f"min.compaction.lag.ms={5 * DAY_MS}") is Verdict.SKIP
    assert verdict(view, f"min.compaction.lag.ms={DAY_MS}") is Verdict.CLEAN


def test_an_open_transaction_is_explained_with_its_producer() -> None:
    waiting = ProducerEntry(4001, 0, 3, 12, 0, NOW_MS, -1, 12)
    later = ProducerEntry(7, 0, 3, 15, 0, NOW_MS, -1, 15)
    idle = ProducerEntry(3, 0, 3, 11, 0, NOW_MS, -1, -1)
    found = answers(mostly_clean(producers=(later, waiting, idle), last_stable_offset=12))
    held = one(found, "producer")
    assert held.text == "nothing is cleaned from offset 12 on: open transaction of producer 4001"
    assert held.holds is None
    assert "commits or aborts" in held.remedy


def test_the_reason_of_a_plan_names_the_producer_too() -> None:
    waiting = ProducerEntry(4001, 0, 3, 12, 0, NOW_MS, -1, 12)
    view = mostly_clean(producers=(waiting,), last_stable_offset=12)
    plan = plan_log(view, Resolver(read_sets([COMPACT])).topic("orders"), now_ms=NOW_MS)
    assert "held back by open transaction of producer 4001 since offset 12" in plan.reason


def test_a_transaction_that_ends_above_the_high_watermark_is_not_called_open() -> None:
    found = answers(mostly_clean(last_stable_offset=12, high_watermark=15))
    assert one(found, "from offset 12 on: transaction that ends").holds is None
    assert "the last 15 offsets" in one(found, "offset 15 on: high watermark").remedy


def test_a_high_watermark_at_the_log_end_is_no_bound() -> None:
    assert not [text for text in answers(mostly_clean()) if "high watermark" in text]


def test_the_active_segment_has_its_uncleaned_bytes() -> None:
    active = one(answers(mostly_clean()), "offset 20 on: active segment")
    assert active.remedy.startswith("its 10 bytes are not cleaned until a broker rolls it")


def deletion(view: LogView, *sets: str) -> list[Answer]:
    config = Resolver(read_sets((DELETE, *sets))).topic("orders")
    return list(explain_deletion(plan_deletion(view, config, now_ms=NOW_MS), NOW_MS))


def goes(view: LogView, *sets: str) -> int:
    return len(plan_deletion(view, Resolver(read_sets((DELETE, *sets))).topic("orders"), now_ms=NOW_MS).removals)


def daily() -> LogView:
    """100 bytes a day, the oldest of 5 days ago."""
    return log(*(segment(day * 10, timestamp_ms=NOW_MS - (5 - day) * DAY_MS) for day in range(5)), end=50)


def test_time_and_size_have_remedies_that_delete_the_oldest_segment() -> None:
    size, age = deletion(daily(), f"retention.ms={6 * DAY_MS}", "retention.bytes=450")
    assert size.text == "400 bytes left without segment 0 >= 450 (retention.bytes, --set retention.bytes)"
    assert size.remedy == "deleted after 50 bytes more, or with retention.bytes=400"
    assert age.text == f"age of segment 0 5 days > 6 days (retention.ms={6 * DAY_MS}, --set retention.ms)"
    assert age.remedy == f"deleted in 1 day, or with retention.ms={5 * DAY_MS - 1}"


@pytest.mark.parametrize(
    "limits", [("retention.ms=-1", "retention.bytes=-1"), ("retention.ms=999999999", "retention.bytes=501")]
)
def test_the_remedies_change_the_plan(limits: tuple[str, str]) -> None:
    assert goes(daily(), *limits) == 0
    for answer in deletion(daily(), *limits):
        changed = re.search(r"retention\.(?:ms|bytes)=\d+", answer.remedy)
        assert changed is not None
        assert goes(daily(), *limits, changed[0]) == 1


def test_deleted_segments_are_listed_before_the_oldest_remaining_one() -> None:
    first, second, *rest = deletion(daily(), f"retention.ms={4 * DAY_MS - 1}")
    assert (first.holds, second.holds) == (True, True)
    assert first.text.startswith("segment 0 (100 bytes) is deleted by time")
    assert "age of segment 20 3 days > " in rest[-1].text


def test_a_policy_without_delete_is_the_only_answer() -> None:
    (only,) = deletion(daily(), COMPACT)
    assert (only.text, only.holds) == ("cleanup policy compact includes delete (--set cleanup.policy)", False)


def test_a_policy_that_is_a_guess_has_a_remedy() -> None:
    config = Resolver().topic("orders")
    (only,) = explain_deletion(plan_deletion(daily(), config, now_ms=NOW_MS), NOW_MS)
    first = explain_compaction(plan_log(daily(), config, now_ms=NOW_MS), NOW_MS)[0]
    for answer in (only, first):
        assert (answer.text, answer.holds) == ("cleanup policy is known", False)
        assert "--metadata DIR" in answer.remedy


def test_a_high_watermark_that_prevents_deletion_is_explained() -> None:
    view = log(segment(0), segment(10), end=20, high_watermark=5)
    assert deletion(view, "retention.ms=1")[-1].text == "high watermark 5 is before the end of segment 0"
    assert deletion(view, "retention.ms=1")[-2].holds is True


def test_an_empty_active_segment_is_the_only_answer() -> None:
    (only,) = deletion(log(segment(0, 0), end=0), "retention.ms=1")
    assert only.text == "segment 0 is empty and active: it is retained"


def test_deleted_segments_beyond_the_first_ten_are_summed_up() -> None:
    view = log(*(segment(at, timestamp_ms=NOW_MS - DAY_MS) for at in range(25)), segment(25, 0), end=25)
    told = deletion(view, "retention.ms=1")
    assert len(told) == 12
    assert told[10].text == "15 more segments (1.5 kB) are deleted by time"


def test_a_record_with_a_timestamp_in_the_future_is_explained() -> None:
    view = log(segment(0, timestamp_ms=NOW_MS + DAY_MS), segment(10), end=20)
    assert deletion(view, f"retention.ms={DAY_MS}")[-1].remedy == "deleted in 2 days: its newest record is in the future"
    assert deletion(view, "retention.ms=-1")[-1].remedy == "its newest record is in the future"
    # no bound is lower than the age 0, as -1 is none
    view = log(segment(0, timestamp_ms=NOW_MS), segment(10), end=20)
    assert "retention.ms=" not in deletion(view, "retention.ms=-1")[-1].remedy
