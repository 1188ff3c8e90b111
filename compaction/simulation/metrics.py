"""The figures of policies through time as OpenMetrics text; see ``compaction.metrics`` for the rules and labels.

| metric | meaning |
| --- | --- |
| ``kafka_log_compaction_run_info``, ``…_run_seconds``, ``…_as_of_timestamp_seconds``, ``…_log_failed`` | as of a run |
| ``kafka_log_compaction_policy_log_bytes`` | the size of a log under a ``policy``, by ``state``: ``least``, ``mean``, ``peak``,
  ``end`` |
| ``kafka_log_compaction_policy_cleaner_bytes`` | what the cleaner does, by ``state``: ``read``, ``written`` |
| ``kafka_log_compaction_policy_cleanings`` | how often the log is cleaned |
| ``kafka_log_compaction_policy_oldest_seconds`` | how long records remain at most, by ``state``: once they are ``superseded``,
  or ``deleted`` by a tombstone |
"""

from __future__ import annotations

from collections.abc import Iterator

from compaction.metrics import Family, Metric, document, labels_of, of_run
from compaction.simulation.result import OverTime

_OF_EFFECT = (
    Family("policy_log_bytes", "Size of a log under a policy through time.", "bytes", "state",
           {state: f"{state}_bytes" for state in ("least", "mean", "peak", "end")}),
    Family("policy_cleaner_bytes", "Bytes that the cleaner reads and writes under a policy.", "bytes", "state",
           {state: f"bytes_{state}" for state in ("read", "written")}),
    Family("policy_oldest_seconds", "Time that records remain at most once they are superseded or deleted.", "seconds", "state",
           {state: f"oldest_{state}_ms" for state in ("superseded", "deleted")}),
    Family("policy_cleanings", "Cleanings of a log under a policy.", "", "", {"": "cleanings"}),
)  # fmt: skip


def simulation_metrics(result: OverTime) -> str:
    run = {"run_id": result.run_id, "status": result.status.value, "dry_run": "true"}
    return document(run, (*of_run(result.seconds, result.as_of_ms), *_metrics(result)))


def _metrics(result: OverTime) -> Iterator[Metric]:
    failed = [(labels_of(log), int(log.error is not None)) for log in result.logs]
    yield Metric("log_failed", "Whether a log failed.", "", failed)
    effects = [
        (labels_of(log) | {"policy": effect.policy}, effect)
        for log in result.logs
        for effect in log.effects
        if effect.error is None
    ]
    yield from (family.of(effects) for family in _OF_EFFECT)
