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

from collections.abc import Callable, Iterator, Mapping

from compaction.metrics import Metric, document
from compaction.simulation.figures import Effect
from compaction.simulation.result import OverTime

_BY_STATE: tuple[tuple[str, str, str, Mapping[str, Callable[[Effect], float]]], ...] = (
    ("policy_log_bytes", "Size of a log under a policy through time.", "bytes", {
        "least": lambda effect: effect.least_bytes, "mean": lambda effect: effect.mean_bytes,
        "peak": lambda effect: effect.peak_bytes, "end": lambda effect: effect.end_bytes,
    }),
    ("policy_cleaner_bytes", "Bytes that the cleaner reads and writes under a policy.", "bytes", {
        "read": lambda effect: effect.bytes_read, "written": lambda effect: effect.bytes_written,
    }),
    ("policy_oldest_seconds", "Time that records remain at most once they are superseded or deleted.", "seconds", {
        "superseded": lambda effect: effect.oldest_superseded_ms / 1000,
        "deleted": lambda effect: effect.oldest_deleted_ms / 1000,
    }),
)  # fmt: skip


def simulation_metrics(result: OverTime) -> str:
    run = {"run_id": result.run_id, "status": result.status.value, "dry_run": "true"}
    return document(run, _metrics(result))


def _metrics(result: OverTime) -> Iterator[Metric]:
    logs = [(log, {"topic": log.topic, "partition": str(log.partition), "log_dir": log.log_dir}) for log in result.logs]
    yield Metric("run_seconds", "Time the run took.", "seconds", [({}, round(result.seconds, 3))])
    yield Metric("as_of_timestamp_seconds", "The run's present.", "seconds", [({}, result.as_of_ms / 1000)])
    yield Metric("log_failed", "Whether a log failed.", "", [(labels, int(log.error is not None)) for log, labels in logs])
    effects = [
        (labels | {"policy": effect.policy}, effect) for log, labels in logs for effect in log.effects if effect.error is None
    ]
    for name, text, unit, states in _BY_STATE:
        samples = [(labels | {"state": state}, of(effect)) for labels, effect in effects for state, of in states.items()]
        yield Metric(name, text, unit, samples)
    yield Metric("policy_cleanings", "Cleanings of a log under a policy.", "", [(labels, e.cleanings) for labels, e in effects])
