"""The totals and the status of a comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.config.sources import CONFIGURED
from compaction.policies.comparison import ComparedLog, Distribution, LogTotals, OutcomeStatus
from compaction.report import RunStatus
from tests.policies.made import comparison, failed, log


def test_totals_are_sums_of_the_logs_with_figures() -> None:
    found = comparison(log("a-0", 100), log("b-0", 300, left=(10, 100), expired=0), failed("c-0", "broken"))
    compacted, deleted = found.totals()
    assert compacted.before == deleted.before == LogTotals(400_000, 18, 4000, 320_000, 400, 80)
    assert (compacted.after.bytes, deleted.after.bytes) == (50_000 + 30_000, 80_000 + 300_000)
    assert deleted.expired.bytes == 20_000
    assert sum(compacted.gone.by_age) == 500 + 2700
    assert compacted.statuses == {"cleaned": 2, "skipped": 0, "refused": 0, "policy_unknown": 0, "failed": 0}


def test_an_empty_comparison_has_totals_too() -> None:
    assert [totals.before for totals in comparison().totals()] == [LogTotals(), LogTotals()]
    assert comparison().status is RunStatus.NOTHING_TO_DO


@pytest.mark.parametrize(
    ("logs", "status", "code"),
    [
        ((log("a-0", 1),), RunStatus.DONE, 0),
        ((log("a-0", 1, status=OutcomeStatus.FAILED),), RunStatus.FAILED, 1),
        ((log("a-0", 1), failed("b-0", "broken")), RunStatus.FAILED, 1),
    ],
)
def test_one_failed_log_decides_the_exit_code(logs: tuple[ComparedLog, ...], status: RunStatus, code: int) -> None:
    found = comparison(*logs)
    assert (found.status, found.exit_code) == (status, code)


def test_a_refusal_is_a_failure_only_under_the_configured_policy() -> None:
    considered = comparison(log("a-0", 1, status=OutcomeStatus.REFUSED), log("b-0", 1))
    assert (considered.status, considered.exit_code, considered.refused) == (RunStatus.DONE, 0, 1)
    (refused, _) = considered.logs
    configured = replace(refused, outcomes=tuple(replace(each, policy=CONFIGURED) for each in refused.outcomes))
    found = comparison(configured)
    assert (found.status, found.exit_code, found.refused) == (RunStatus.FAILED, 1, 1)


def test_distributions_add_up_and_an_empty_one_adds_nothing() -> None:
    one = Distribution((1, 2), (3, 4), (5,))
    assert one + Distribution() == Distribution() + one == one
    assert one + one == Distribution((2, 4), (6, 8), (10,))
