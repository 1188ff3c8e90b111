"""What a comparison adds up to, its status, and its documents: JSON and metrics."""

from __future__ import annotations

import json

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from compaction.policies.comparison import (
    ComparedLog,
    Distribution,
    LogTotals,
    OutcomeStatus,
    comparison_metrics,
)
from compaction.report import RunStatus
from tests.policies.made import AS_OF_MS, POLICIES, comparison, failed, log


def test_totals_are_sums_of_the_logs_with_figures() -> None:
    found = comparison(log("a-0", 100), log("b-0", 300, left=(10, 100), expired=0), failed("c-0", "broken"))
    compacted, deleted = found.totals()
    assert compacted.before == deleted.before == LogTotals(400_000, 18, 4000, 320_000, 400, 80)
    assert (compacted.after.bytes, deleted.after.bytes) == (50_000 + 30_000, 80_000 + 300_000)
    assert deleted.expired.bytes == 20_000
    assert sum(compacted.gone.by_age) == 500 + 2700
    assert compacted.statuses == {"cleaned": 2, "skipped": 0, "refused": 0, "policy_unknown": 0, "failed": 0}


def test_an_empty_comparison_has_totals_and_metrics_too() -> None:
    assert [totals.before for totals in comparison().totals()] == [LogTotals(), LogTotals()]
    assert comparison().status is RunStatus.NOTHING_TO_DO
    assert comparison_metrics(comparison()).endswith("# EOF\n")


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


def test_distributions_add_up_and_an_empty_one_adds_nothing() -> None:
    one = Distribution((1, 2), (3, 4), (5,))
    assert one + Distribution() == Distribution() + one == one
    assert one + one == Distribution((2, 4), (6, 8), (10,))


def test_the_document_has_every_figure() -> None:
    document = json.loads(comparison(log("a-b-7", 100), failed("c-0", "broken")).to_json())
    assert (document["schema_version"], document["dry_run"], document["status"]) == (1, True, "failed")
    assert (document["as_of_ms"], document["places"], len(document["age_bounds_ms"])) == (AS_OF_MS, 50, 7)
    assert [policy["name"] for policy in document["policies"]] == list(POLICIES)
    assert document["policies"][0]["logs"]["cleaned"] == 1
    first, second = document["logs"]
    assert (first["topic"], first["partition"], first["before"]["bytes"]) == ("a-b", 7, 100_000)
    assert first["policies"][0]["after"]["records"] == 500
    assert first["policies"][0]["run"]["status"] == "cleaned"
    assert first["policies"][0]["broker_rounds"] == 2
    assert first["keys"]["repetition"][2] == {"at_least": 5, "at_most": 8, "keys": 100, "records": 500}
    assert (second["error"], second["policies"]) == ("broken", [])


def test_every_log_has_its_figures_before_and_under_each_policy() -> None:
    compared = log("a-0", 100)
    text = comparison_metrics(comparison(compared, failed("b-0", "broken")))
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    prefix = "kafka_log_compaction_"
    found = {(each.name.removeprefix(prefix), tuple(sorted(each.labels.items()))): each.value for each in samples}
    assert len(found) == len(samples)
    where = {"topic": "a", "partition": "0", "log_dir": compared.log_dir}
    for outcome in compared.outcomes:
        states = {"before": compared.before, "after": outcome.after, "expired": outcome.expired}
        for state, holdings in states.items():
            labels = tuple(sorted({**where, "policy": outcome.policy, "state": state}.items()))
            for what in ("bytes", "records", "segments", "tombstones"):
                assert found[f"policy_log_{what}", labels] == getattr(holdings, what)
    assert {dict(labels)["policy"] for name, labels in found if name == "policy_log_bytes"} == set(POLICIES)
    assert {dict(labels)["topic"]: value for (name, labels), value in found.items() if name == "log_failed"} == {"a": 0, "b": 1}
    outcomes = {labels: value for (name, labels), value in found.items() if name == "policy_outcome_logs"}
    counted = {(dict(labels)["policy"], dict(labels)["outcome"]): value for labels, value in outcomes.items()}
    assert {key for key, value in counted.items() if value} == {(POLICIES[0], "cleaned"), (POLICIES[1], "expired")}
    assert found["as_of_timestamp_seconds", ()] == AS_OF_MS / 1000
