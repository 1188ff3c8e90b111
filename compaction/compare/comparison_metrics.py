"""A comparison's figures as OpenMetrics text; see ``compaction.metrics`` for the rules and labels.

| metric | meaning |
| --- | --- |
| ``kafka_log_compaction_run_info`` | 1, with ``run_id``, ``status`` and ``dry_run`` |
| ``kafka_log_compaction_run_seconds``, ``…_as_of_timestamp_seconds`` | its duration, and its present |
| ``kafka_log_compaction_log_failed`` | 1 if the log could not be read |
| ``kafka_log_compaction_policy_logs`` | readable logs by ``policy`` and ``status`` |
| ``kafka_log_compaction_policy_log_bytes``, ``…_records``, ``…_segments``, ``…_tombstones`` | the size of a log under a
  ``policy``, by ``state``: ``before``, ``after`` and ``expired`` |
| ``kafka_log_compaction_policy_log_broker_rounds`` | the rounds that a broker's cleaner needs |
"""

from __future__ import annotations

from collections.abc import Iterator

from compaction.compare.comparison import Comparison
from compaction.compare.figures import ComparedLog, LogTotals, Outcome
from compaction.metrics import Metric, document

_UNITS = (("bytes", "bytes"), ("records", ""), ("segments", ""), ("tombstones", ""))


def comparison_metrics(comparison: Comparison) -> str:
    run = {"run_id": comparison.run_id, "status": comparison.status.value, "dry_run": "true"}
    return document(run, (*_of_run(comparison), *_of_policies(comparison)))


def _of_run(comparison: Comparison) -> Iterator[Metric]:
    yield Metric("run_seconds", "Time the run took.", "seconds", [({}, round(comparison.seconds, 3))])
    yield Metric("as_of_timestamp_seconds", "The run's present.", "seconds", [({}, comparison.as_of_ms / 1000)])
    failed = [(_labels(log), int(log.error is not None)) for log in comparison.logs]
    yield Metric("log_failed", "Whether a log failed.", "", failed)


def _of_policies(comparison: Comparison) -> Iterator[Metric]:
    pairs = [(log, outcome) for log in comparison.logs if log.error is None for outcome in log.outcomes]
    totals = comparison.totals()
    by_status = ((total.policy, status, count) for total in totals for status, count in total.statuses.items())
    counts = [({"policy": policy, "status": status}, count) for policy, status, count in by_status]
    yield Metric("policy_logs", "Logs by their status under a policy.", "", counts)
    for name, unit in _UNITS:
        samples = [
            (_labels(log) | {"policy": outcome.policy, "state": state}, int(getattr(totals, name)))
            for log, outcome in pairs
            for state, totals in _states(log, outcome).items()
        ]
        yield Metric(f"policy_log_{name}", f"{name.capitalize()} of a log under a policy.", unit, samples)
    rounds = [(_labels(log) | {"policy": outcome.policy}, outcome.broker_rounds) for log, outcome in pairs]
    yield Metric("policy_log_broker_rounds", "Rounds of a broker's cleaner under a policy.", "", rounds)


def _states(log: ComparedLog, outcome: Outcome) -> dict[str, LogTotals]:
    if not outcome.changes:
        return {"before": log.before, "after": log.before, "expired": LogTotals()}
    return {"before": log.before, "after": outcome.after, "expired": outcome.expired}


def _labels(log: ComparedLog) -> dict[str, str]:
    return {"topic": log.topic, "partition": str(log.partition), "log_dir": log.log_dir}
