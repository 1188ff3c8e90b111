"""The rules of each version of Kafka are values; plans follow them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import read_sets
from compaction.errors import UsageError
from compaction.formats.indexes import MAX_RELATIVE_OFFSET
from compaction.rules.kafka_rules import NEWEST, RULES, KafkaRules, LastBatch, OldFormat, Retention, rules_of
from compaction.rules.log_view import LogView
from compaction.rules.plan import plan_log
from tests.rules.views import NOW_MS, log, segment

CONFIG = Resolver(read_sets(["cleanup.policy=compact", "min.cleanable.dirty.ratio=0"])).topic("orders")


@pytest.mark.parametrize(
    ("version", "retention", "last_batch", "old_format"),
    [
        ("2.8", Retention.SEGMENT_MTIME, LastBatch.DROPPED, OldFormat.KEEPS_MAGIC),
        ("3.0.2", Retention.SEGMENT_MTIME, LastBatch.DROPPED, OldFormat.KEEPS_MAGIC),
        ("3.1", Retention.DELETE_HORIZON, LastBatch.DROPPED, OldFormat.KEEPS_MAGIC),
        ("3.9.1", Retention.DELETE_HORIZON, LastBatch.DROPPED, OldFormat.KEEPS_MAGIC),
        ("3.9.2", Retention.DELETE_HORIZON, LastBatch.RETAINED, OldFormat.KEEPS_MAGIC),
        ("3.9", Retention.DELETE_HORIZON, LastBatch.RETAINED, OldFormat.KEEPS_MAGIC),
        ("4.0.0", Retention.DELETE_HORIZON, LastBatch.RETAINED, OldFormat.BECOMES_V2),
        ("4.3", Retention.DELETE_HORIZON, LastBatch.RETAINED, OldFormat.BECOMES_V2),
        ("4.4", Retention.DELETE_HORIZON, LastBatch.RETAINED_AT_HIGH_WATERMARK, OldFormat.BECOMES_V2),
    ],
)
def test_each_version_has_its_rules(version: str, retention: Retention, last_batch: LastBatch, old_format: OldFormat) -> None:
    rules = rules_of(version)
    assert (rules.tombstone_retention, rules.last_batch, rules.old_format) == (retention, last_batch, old_format)


@pytest.mark.parametrize("version", ["2.7", "2.7.2", "4.5", "4.5.0", "5.0", "4", "4.4.x", "4.4.0.1", "", "auto", "4.4-IV0"])
def test_a_version_whose_rules_are_unknown_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match=r"are not known, only those of 2\.8 to 4\.4"):
        rules_of(version)


def test_neighbouring_rule_sets_differ_as_documented() -> None:
    versions = list(RULES)
    changes = [(old, new) for old, new in zip(versions, versions[1:], strict=False) if RULES[old] != RULES[new]]
    assert changes == [
        ("2.8", "3.0"), ("3.0", "3.1"), ("3.3", "3.4"), ("3.9.1", "3.9.2"), ("3.9", "4.0"),
        ("4.1", "4.2"), ("4.2", "4.3"), ("4.3", "4.4"),
    ]  # fmt: skip


def test_rules_print_every_field() -> None:
    text = str(RULES[NEWEST])
    assert "tombstone retention: delete horizon of the batch" in text
    assert text.count(": ") == len(RULES[NEWEST].described())


def dirty_log() -> LogView:
    return log(segment(0, 100), segment(10, 100), segment(20, 100), end=30)


@pytest.mark.parametrize(
    ("version", "high_watermark", "expected"),
    [("3.9.1", 20, -1), ("4.3", 20, 20), ("4.3", 30, 20), ("4.4", 20, 20), ("4.4", 30, -1)],
)
def test_the_last_batch_of_a_round_is_retained_by_version(version: str, high_watermark: int, expected: int) -> None:
    view = replace(dirty_log(), high_watermark=high_watermark, last_stable_offset=high_watermark)
    plan = plan_log(view, CONFIG, now_ms=NOW_MS, rules=rules_of(version))
    assert (plan.first_uncleanable_offset, plan.retain_end_offset) == (20, expected)


@pytest.mark.parametrize(("rules", "groups"), [(RULES["2.8"], 2), (RULES["3.0"], 1), (RULES["4.4"], 1)])
def test_empty_segments_join_any_group_since_3_0(rules: KafkaRules, groups: int) -> None:
    far = MAX_RELATIVE_OFFSET + 10
    view = log(segment(0, 100), segment(10, 0), segment(far, 100), end=far + 10)
    view = replace(view, high_watermark=far, last_stable_offset=far)
    plan = plan_log(view, CONFIG, now_ms=NOW_MS, rules=rules)
    assert [len(group.segments) for group in plan.groups] == ([2] if groups == 1 else [1, 1])
