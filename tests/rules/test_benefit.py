"""What a log is expected to free, by the densities of its sections."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import read_sets
from compaction.rules.log_view import LogView
from compaction.rules.plan import PolicyPlan, benefit, freed_bytes, plan_policy, rewritten_bytes
from tests.rules.views import DAY_MS, NOW_MS, log, segment


def planned(view: LogView, *sets: str) -> PolicyPlan:
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
    plan = planned(sections(clean_offsets, clean_bytes))
    assert rewritten_bytes(plan.compaction) == clean_bytes + 1000
    assert freed_bytes(plan) == freed
    assert benefit(plan) == freed / (clean_bytes + 1000)


def test_a_log_that_was_never_cleaned_may_lose_everything() -> None:
    view = log(segment(0, 500), segment(10, 500), segment(20, 50), end=25)
    assert freed_bytes(planned(view)) == 1000
    assert benefit(planned(view)) == 1.0


def test_expired_segments_are_freed_without_being_rewritten() -> None:
    old = replace(segment(0, 700), largest_timestamp_ms=NOW_MS - 10 * DAY_MS)
    view = log(old, segment(10, 400), segment(20, 50), end=25)
    plan = planned(view, "cleanup.policy=compact,delete", "retention.ms=1d")
    assert plan.deletion is not None and plan.deletion.removed_bytes == 700
    assert freed_bytes(plan) == 700 + 400
    assert rewritten_bytes(plan.compaction) == 400
