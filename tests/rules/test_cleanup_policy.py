"""Each cleanup policy deletes and compacts what it names, deletion first, and nothing on a guess."""

from __future__ import annotations

import pytest

from compaction.config.resolver import Resolver
from compaction.config.sources import read_properties, read_sets
from compaction.formats.java_text import parse_properties
from compaction.rules.log_to_clean import SkipCause, Verdict
from compaction.rules.log_view import LogView
from compaction.rules.plan import PolicyPlan, plan_policy
from tests.rules.views import DAY_MS, NOW_MS, log, segment


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
