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
| ``kafka_log_compaction_last_success_timestamp_seconds`` | when the last run ended that wrote this file and had exit code 0;
  a run that fails keeps the time that it finds in the file |
| ``kafka_log_compaction_logs`` | logs by ``status`` |
| ``kafka_log_compaction_outcome_logs`` | logs by ``outcome``: a cleaned log is ``cleaned``, ``expired`` or
  ``expired_and_cleaned``, or the same with ``erased_from`` |
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

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from compaction.printable import printable_lines
from compaction.report import REASON, LogReport, LogStatus, RunReport, outcome

_PREFIX = "kafka_log_compaction_"
_RUNNING = "running"
_END = "# EOF\n"
_LAST_SUCCESS = "last_success_timestamp_seconds"
#: outcomes that have a sample without any log, too
_OUTCOMES = ("cleaned", "expired", "expired and cleaned", "skipped", "failed")


class Metric(NamedTuple):
    """A metric family; ``unit`` is the last part of its name, or empty."""

    name: str
    help: str
    unit: str
    samples: Iterable[tuple[Mapping[str, str], int | float]]


class Family(NamedTuple):
    """A metric family of the fields of a report; of several the values of ``label`` name them. Fields that end with ``_ms`` are
    shown in seconds."""

    name: str
    help: str
    unit: str
    label: str
    fields: Mapping[str, str]

    def of(self, rows: Iterable[tuple[Mapping[str, str], Any]]) -> Metric:
        """The metric of rows of the report, each with its labels."""
        samples = [
            ({**labels, **({self.label: value} if self.label else {})}, _number(row, name))
            for labels, row in rows
            for value, name in self.fields.items()
        ]
        return Metric(self.name, self.help, self.unit, samples)


def _number(row: Any, name: str) -> int | float:
    value: int | float = getattr(row, name) or 0
    return value / 1000 if name.endswith("_ms") else round(value, 3) if isinstance(value, float) else int(value)


_BEFORE_AFTER = ("before", "after")
_OF_WAVE = (
    Family("wave_seconds", "Elapsed time of a wave.", "seconds", "", {"": "seconds"}),
    Family("wave_bytes", "Bytes that a wave wrote, and freed.", "bytes", "state",
           {state: f"bytes_{state}" for state in ("written", "freed")}),
)  # fmt: skip
_OF_CLEANED = (
    *(
        Family(f"log_{kind}", f"A cleaned log's {kind.replace('_', ' ')}, of the cleaned range.", unit, "state",
               {state: f"{kind}_{state}" for state in _BEFORE_AFTER})
        for kind, unit in (("bytes", "bytes"), ("records", ""), ("stored_records", ""), ("segments", ""))
    ),
    Family("log_removed_records", "Records removed, by reason.", "", REASON,
           {each.metadata[REASON]: each.name for each in fields(LogReport) if REASON in each.metadata}),
    Family("log_expired_bytes", "Bytes of segments that the delete policy deleted.", "bytes", "", {"": "expired_bytes"}),
    Family("log_expired_segments", "Segments that the delete policy deleted.", "", "", {"": "expired_segments"}),
    Family("log_keys", "Distinct keys of the dirty section.", "", "", {"": "keys"}),
)  # fmt: skip
_END_OFFSET = Family("log_end_offset", "Offset up to which a log is cleaned, exclusive.", "", "", {"": "end_offset"})
_UNKNOWN = Family("log_policy_unknown", "Whether a log's cleanup.policy is unknown.", "", "", {"": "policy_unknown"})


def open_metrics(report: RunReport) -> str:
    status = _RUNNING if report.remaining_logs else report.status.value
    return document(report, _of_run(report), status=status, dry_run=report.dry_run)


def document(result: Any, metrics: Iterable[Metric], *, status: str, dry_run: bool) -> str:
    """The OpenMetrics document of any command's result: what all of them have, then ``metrics``."""
    run = {"run_id": result.run_id, "status": status, "dry_run": str(dry_run).lower()}
    common = (
        Metric("run_seconds", "Elapsed time of the run.", "seconds", [({}, round(result.seconds, 3))]),
        Metric("as_of_timestamp_seconds", "The run's now.", "seconds", [({}, result.as_of_ms / 1000)]),
    )
    lines = [f"# TYPE {_PREFIX}run info", f"# HELP {_PREFIX}run The last run.", _sample("run_info", run, 1)]
    return "\n".join([*lines, *(line for metric in (*common, *metrics) for line in _lines(metric))]) + f"\n{_END}"


def with_last_success(text: str, previous: str, success_s: float | None) -> str:
    """A document with the time of the last success, seconds since the epoch.

    :param previous: the earlier document of the same file, or an empty text
    :param success_s: the time of this run; ``None`` if it failed or goes on: then that of the previous document is kept
    """
    if success_s is None:
        known = re.search(rf"^{_PREFIX}{_LAST_SUCCESS} ([0-9.]+)$", previous, re.MULTILINE)
        if known is None:
            return text
        success_s = float(known[1])
    metric = Metric(_LAST_SUCCESS, "When the last run without a failure ended.", "seconds", [({}, round(success_s, 3))])
    return text.removesuffix(_END) + "\n".join(_lines(metric)) + f"\n{_END}"


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# TYPE {_PREFIX}{metric.name} gauge"
    if metric.unit:
        yield f"# UNIT {_PREFIX}{metric.name} {metric.unit}"
    yield f"# HELP {_PREFIX}{metric.name} {metric.help}"
    yield from (_sample(metric.name, labels, value) for labels, value in metric.samples)


def outcomes(name: str, counts: Iterable[tuple[Mapping[str, str], Iterable[str]]]) -> Metric:
    """The numbers of logs by their outcomes in words, as reports show them; for each set of labels."""
    samples = []
    for labels, words in counts:
        known = {**dict.fromkeys(_OUTCOMES, 0), **Counter(words)}
        samples += [({**labels, "outcome": word.replace(" ", "_")}, number) for word, number in known.items()]
    return Metric(name, "Logs by outcome, in words.", "", samples)


def _of_run(report: RunReport) -> Iterator[Metric]:
    counts = [({"status": status.value}, sum(log.status is status for log in report.logs)) for status in LogStatus]
    yield Metric("logs", "Logs by outcome.", "", counts)
    yield outcomes("outcome_logs", [({}, (outcome(log).partition(": ")[0] for log in report.logs))])
    yield Metric("remaining_logs", "Logs that a run in progress has not done.", "", [({}, report.remaining_logs)])
    waves = [({"wave": str(number)}, wave) for number, wave in enumerate(report.waves, start=1)]
    yield from (family.of(waves) for family in _OF_WAVE)
    logs = [(labels_of(log), log) for log in report.logs]
    yield Metric("log_failed", "Whether a log failed.", "", [(each, int(log.status is LogStatus.FAILED)) for each, log in logs])
    yield _UNKNOWN.of(logs)
    cleaned = [(labels, log) for labels, log in logs if log.status is LogStatus.CLEANED]
    yield from (family.of(cleaned) for family in _OF_CLEANED)
    # an erasure does not clean the dirty section
    yield _END_OFFSET.of((labels, log) for labels, log in cleaned if log.end_offset is not None and not log.erased_records)


def labels_of(log: Any) -> dict[str, str]:
    """The labels of a log of any report."""
    return {"topic": log.topic, "partition": str(log.partition), "log_dir": log.log_dir}


def _sample(name: str, labels: Mapping[str, str], value: int | float) -> str:
    inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{_PREFIX}{name}{'{' + inner + '}' if inner else ''} {value}"


def _escaped(text: str) -> str:
    return printable_lines(text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
