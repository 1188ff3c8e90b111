"""A comparison's figures as OpenMetrics text; see ``compaction.metrics`` for the rules and labels.

| metric | meaning |
| --- | --- |
| ``kafka_log_compaction_run_info`` | 1, with ``run_id``, ``status`` and ``dry_run`` |
| ``kafka_log_compaction_run_seconds``, ``…_as_of_timestamp_seconds``,
  ``…_last_success_timestamp_seconds`` | as of a run |
| ``kafka_log_compaction_log_failed`` | 1 if the log could not be read |
| ``kafka_log_compaction_policy_logs`` | readable logs by ``policy`` and ``status`` |
| ``kafka_log_compaction_policy_outcome_logs`` | the same by ``policy`` and ``outcome``, as of a run |
| ``kafka_log_compaction_policy_log_bytes``, ``…_records``, ``…_segments``, ``…_tombstones`` | the size of a log under a
  ``policy``, by ``state``: ``before``, ``after`` and ``expired`` |
| ``kafka_log_compaction_policy_log_broker_rounds`` | the rounds that a broker's cleaner needs |
"""

from __future__ import annotations

from collections.abc import Iterator

from compaction.metrics import Family, Metric, document, labels_of, of_run, outcomes
from compaction.policies.comparison import ComparedLog, Comparison, LogTotals, Outcome

_OF_TOTALS = tuple(
    Family(f"policy_log_{name}", f"{name.capitalize()} of a log under a policy.", unit, "", {"": name})
    for name, unit in (("bytes", "bytes"), ("records", ""), ("segments", ""), ("tombstones", ""))
)
_ROUNDS = Family("policy_log_broker_rounds", "Rounds of a broker's cleaner under a policy.", "", "", {"": "broker_rounds"})


def comparison_metrics(comparison: Comparison) -> str:
    run = {"run_id": comparison.run_id, "status": comparison.status.value, "dry_run": "true"}
    return document(run, (*of_run(comparison.seconds, comparison.as_of_ms), *_of_policies(comparison)))


def _of_policies(comparison: Comparison) -> Iterator[Metric]:
    failed = [(labels_of(log), int(log.error is not None)) for log in comparison.logs]
    yield Metric("log_failed", "Whether a log failed.", "", failed)
    readable = [log for log in comparison.logs if log.error is None]
    totals = comparison.totals()
    by_status = ((total.policy, status, count) for total in totals for status, count in total.statuses.items())
    counts = [({"policy": policy, "status": status}, count) for policy, status, count in by_status]
    yield Metric("policy_logs", "Logs by their status under a policy.", "", counts)
    words = {policy: [log.outcomes[number].words for log in readable] for number, policy in enumerate(comparison.policies)}
    yield outcomes("policy_outcome_logs", [({"policy": policy}, each) for policy, each in words.items()])
    pairs = [(log, outcome) for log in readable for outcome in log.outcomes]
    states = [
        (labels_of(log) | {"policy": outcome.policy, "state": state}, totals)
        for log, outcome in pairs
        for state, totals in _states(log, outcome).items()
    ]
    yield from (family.of(states) for family in _OF_TOTALS)
    yield _ROUNDS.of((labels_of(log) | {"policy": outcome.policy}, outcome) for log, outcome in pairs)


def _states(log: ComparedLog, outcome: Outcome) -> dict[str, LogTotals]:
    if not outcome.changes:
        return {"before": log.before, "after": log.before, "expired": LogTotals()}
    return {"before": log.before, "after": outcome.after, "expired": outcome.expired}
