"""A run's figures as OpenMetrics text, for a collector that reads files (Prometheus: node_exporter's textfile collector).

Every metric is a gauge: the file describes the last run only. It is also written after each wave of a run. Labels are
``topic``, ``partition`` and ``log_dir``; never a record's key or value.

| metric | meaning |
| --- | --- |
| ``kafka_log_compaction_run_info`` | 1, with ``run_id``, ``status`` (``running``: of a run in progress) and ``dry_run`` |
| ``kafka_log_compaction_run_seconds`` | elapsed time of the run |
| ``kafka_log_compaction_wave_seconds`` | elapsed time of a ``wave``, by its number |
| ``kafka_log_compaction_wave_bytes`` | a wave, by ``state``: ``written``, and ``freed`` by removing replaced segments |
| ``kafka_log_compaction_as_of_timestamp_seconds`` | the run's "now" |
| ``kafka_log_compaction_logs`` | logs by ``status`` |
| ``kafka_log_compaction_remaining_logs`` | logs that a run in progress has not done; later 0 |
| ``kafka_log_compaction_log_failed`` | a log: 1 if it failed |
| ``kafka_log_compaction_log_policy_unknown`` | a log: 1 if its ``cleanup.policy`` is unknown, so that it was not changed |
| ``kafka_log_compaction_log_bytes``, ``…_records``, ``…_segments`` | a cleaned log, by ``state``: ``before``, ``after`` |
| ``kafka_log_compaction_log_stored_records`` | the same of all records, also those that the cleaner drops unread |
| ``kafka_log_compaction_log_removed_records`` | a cleaned log, by ``reason`` |
| ``kafka_log_compaction_log_expired_bytes``, ``…_expired_segments`` | a cleaned log's segments deleted by the delete policy |
| ``kafka_log_compaction_log_keys`` | distinct keys of a cleaned log's dirty section |
| ``kafka_log_compaction_log_end_offset`` | the offset up to which a log is cleaned, exclusive |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from compaction.printable import printable_lines
from compaction.report import LogReport, LogStatus
from compaction.run_report import RunReport

_PREFIX = "kafka_log_compaction_"
_RUNNING = "running"


class Metric(NamedTuple):
    """A metric family; ``unit`` is the last part of its name, or empty."""

    name: str
    help: str
    unit: str
    samples: Iterable[tuple[Mapping[str, str], int | float]]


def open_metrics(report: RunReport) -> str:
    status = _RUNNING if report.remaining_logs else report.status.value
    run = {"run_id": report.run_id, "status": status, "dry_run": str(report.dry_run).lower()}
    return document(run, (*_of_run(report), *_of_waves(report), *_of_logs(report)))


def document(run: Mapping[str, str], metrics: Iterable[Metric]) -> str:
    """An OpenMetrics document; ``run`` are the labels of ``run_info``."""
    lines = [f"# TYPE {_PREFIX}run info", f"# HELP {_PREFIX}run The last run."]
    lines.append(_sample("run_info", run, 1))
    for metric in metrics:
        lines.append(f"# TYPE {_PREFIX}{metric.name} gauge")
        if metric.unit:
            lines.append(f"# UNIT {_PREFIX}{metric.name} {metric.unit}")
        lines.append(f"# HELP {_PREFIX}{metric.name} {metric.help}")
        lines += [_sample(metric.name, labels, value) for labels, value in metric.samples]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _of_run(report: RunReport) -> Iterator[Metric]:
    yield Metric("run_seconds", "Elapsed time of the run.", "seconds", [({}, round(report.seconds, 3))])
    yield Metric("as_of_timestamp_seconds", "The run's now.", "seconds", [({}, report.as_of_ms / 1000)])
    counts = [({"status": status.value}, sum(log.status is status for log in report.logs)) for status in LogStatus]
    yield Metric("logs", "Logs by outcome.", "", counts)
    yield Metric("remaining_logs", "Logs that a run in progress has not done.", "", [({}, report.remaining_logs)])


def _of_waves(report: RunReport) -> Iterator[Metric]:
    waves = [({"wave": str(number)}, wave) for number, wave in enumerate(report.waves, start=1)]
    seconds = [(label, round(wave.seconds, 3)) for label, wave in waves]
    yield Metric("wave_seconds", "Elapsed time of a wave.", "seconds", seconds)
    states = [
        (label | {"state": state}, int(getattr(wave, f"bytes_{state}")))
        for label, wave in waves
        for state in ("written", "freed")
    ]
    yield Metric("wave_bytes", "Bytes that a wave wrote, and freed.", "bytes", states)


def _of_logs(report: RunReport) -> Iterator[Metric]:
    cleaned = [log for log in report.logs if log.status is LogStatus.CLEANED]
    failed = [(_labels(log), int(log.status is LogStatus.FAILED)) for log in report.logs]
    yield Metric("log_failed", "Whether a log failed.", "", failed)
    unknown = [(_labels(log), int(log.policy_unknown)) for log in report.logs]
    yield Metric("log_policy_unknown", "Whether a log's cleanup.policy is unknown.", "", unknown)
    for kind, unit in (("bytes", "bytes"), ("records", ""), ("stored_records", ""), ("segments", "")):
        states = [
            (_labels(log) | {"state": state}, int(getattr(log, f"{kind}_{state}")))
            for log in cleaned
            for state in ("before", "after")
        ]
        text = kind.replace("_", " ")
        yield Metric(f"log_{kind}", f"A cleaned log's {text}, of the cleaned range.", unit, states)
    removed = [(_labels(log) | {"reason": reason}, count) for log in cleaned for reason, count in _removed(log).items()]
    yield Metric("log_removed_records", "Records removed, by reason.", "", removed)
    expired = [(_labels(log), log.expired_bytes) for log in cleaned]
    yield Metric("log_expired_bytes", "Bytes of segments that the delete policy deleted.", "bytes", expired)
    segments = [(_labels(log), log.expired_segments) for log in cleaned]
    yield Metric("log_expired_segments", "Segments that the delete policy deleted.", "", segments)
    yield Metric("log_keys", "Distinct keys of the dirty section.", "", [(_labels(log), log.keys) for log in cleaned])
    # an erasure does not clean the dirty section
    ends = [(_labels(log), log.end_offset) for log in cleaned if log.end_offset is not None and not log.erased_records]
    yield Metric("log_end_offset", "Offset up to which a log is cleaned, exclusive.", "", ends)


def _removed(log: LogReport) -> dict[str, int]:
    return {
        "superseded": log.superseded_records,
        "tombstone": log.tombstones_removed,
        "keyless": log.invalid_records,
        "aborted": log.aborted_records,
        "marker": log.markers_removed,
        "erased": log.erased_records,
        "expired": log.expired_records or 0,
    }


def _labels(log: LogReport) -> dict[str, str]:
    return {"topic": log.topic, "partition": str(log.partition), "log_dir": log.log_dir}


def _sample(name: str, labels: Mapping[str, str], value: int | float) -> str:
    inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{_PREFIX}{name}{'{' + inner + '}' if inner else ''} {value}"


def _escaped(text: str) -> str:
    return printable_lines(text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
