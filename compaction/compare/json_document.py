"""A comparison as JSON, ``schema_version`` 1. It never contains a key or a value of a record.

| field | meaning |
| --- | --- |
| ``schema_version``, ``run_id``, ``as_of_ms``, ``status`` | as in the report of a run; ``dry_run`` is always true |
| ``seconds`` | the elapsed time of the comparison |
| ``kafka_versions``, ``tool``, ``command``, ``options``, ``settings`` | as in the report of a run |
| ``age_bounds_ms``, ``places`` | the bounds of counts by age, the number of counts by place (``compaction.compare.figures``) |
| ``policies`` | one object per policy, in the order given: the sums over all logs |
| ``logs`` | one object per log: ``before``, ``spread``, ``keys``, and ``policies``, one object per policy in the same order |
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from compaction.compare.figures import ComparedLog, Outcome, PolicyTotals
from compaction.printable import printable_json

if TYPE_CHECKING:
    from compaction.compare.comparison import Comparison

SCHEMA_VERSION = 1


def json_document(comparison: Comparison) -> dict[str, Any]:
    places = max((len(log.spread.by_place) for log in comparison.logs), default=0)
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": comparison.run_id,
        "as_of_ms": comparison.as_of_ms,
        "dry_run": True,
        "status": comparison.status.value,
        "seconds": round(comparison.seconds, 3),
        **comparison.origin,
        "age_bounds_ms": list(comparison.age_bounds_ms),
        "places": places,
        "kafka_versions": [asdict(kafka_version) for kafka_version in comparison.kafka_versions],
        "policies": [_totals(totals) for totals in comparison.totals()],
        "logs": [_log(log) for log in comparison.logs],
    }


def explanations_to_json(logs: Sequence[ComparedLog], as_of_ms: int, origin: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The logs of ``--explain`` without figures: for each policy ``status``, ``reason`` and ``why``."""
    explained = [
        {
            "topic": log.topic,
            "partition": log.partition,
            "log_dir": log.log_dir,
            "error": log.error,
            "policies": [
                {"policy": outcome.policy, "status": outcome.status.value, "reason": outcome.reason, "why": list(outcome.why)}
                for outcome in log.outcomes
            ],
        }
        for log in logs
    ]
    head = {"schema_version": SCHEMA_VERSION, "as_of_ms": as_of_ms, "dry_run": True, **origin}
    return printable_json(json.dumps({**head, "logs": explained}, indent=1, ensure_ascii=False)) + "\n"


def _totals(totals: PolicyTotals) -> dict[str, Any]:
    values = asdict(totals)
    statuses = values.pop("statuses")
    return {"name": values.pop("policy"), "logs": statuses, **values}


def _log(log: ComparedLog) -> dict[str, Any]:
    values = asdict(log)
    del values["outcomes"]
    return {**values, "policies": [_outcome(outcome) for outcome in log.outcomes]}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    values = asdict(outcome)
    values["status"] = outcome.status.value
    values["run"] = {**asdict(outcome.run), "status": outcome.run.status.value, "seconds": round(outcome.run.seconds, 3)}
    return values
