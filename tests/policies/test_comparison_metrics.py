"""A comparison's metrics, read back by Prometheus's own parser of OpenMetrics."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from compaction.policies.comparison_metrics import comparison_metrics
from tests.policies.made import AS_OF_MS, POLICIES, comparison, failed, log


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


def test_a_comparison_of_nothing_has_a_document_too() -> None:
    assert comparison_metrics(comparison()).endswith("# EOF\n")
