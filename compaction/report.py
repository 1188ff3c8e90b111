"""The report of a run, as JSON and as text. It never contains a record's key or value.

The JSON document has ``schema_version`` 1:

| field | meaning |
| --- | --- |
| ``run_id``, ``as_of_ms``, ``dry_run`` | the run, its "now" in milliseconds, whether nothing was written |
| ``status`` | ``done``, ``nothing_to_do`` (no log needed work), ``failed`` (at least one log failed; the others are done) |
| ``totals`` | logs by status, logs with an unknown policy, and the sums of the counts below; ``seconds`` is that of the run |
| ``kafka_versions`` | whose rules applied, and to how many logs: the fields of ``VersionUsed`` |
| ``logs`` | one object per log: the fields of ``LogReport`` |

``bytes_*`` and ``records_*`` count the cleaned range, as Kafka's ``CleanerStats`` does. The figures of a dry run equal those of
the real run. Bytes of a name that are not UTF-8 are escaped (``compaction.printable``).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TextIO

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from compaction.printable import printable, printable_json

SCHEMA_VERSION = 1


class LogStatus(str, enum.Enum):
    """The outcome of one log. In a run of the delete policy, a log that loses segments is ``CLEANED``."""

    #: it was compacted, or lost segments to the delete policy
    CLEANED = "cleaned"
    #: there was nothing to do; ``reason`` says why
    SKIPPED = "skipped"
    #: an error, which ``reason`` describes; the log is unchanged
    FAILED = "failed"


class RunStatus(str, enum.Enum):
    """The outcome of a run."""

    #: at least one log was changed, or would be
    DONE = "done"
    #: no log needed work
    NOTHING_TO_DO = "nothing_to_do"
    #: at least one log failed; the others are done
    FAILED = "failed"


@dataclass(frozen=True)
class LogReport:
    """The outcome of one log.

    ``reason`` says why the log was cleaned, skipped or failed; that of a failure has file and position. The cleaned range is
    ``[first_dirty_offset, end_offset)``, ``None`` if the log was not planned. ``keys`` counts the distinct keys of the dirty
    section. ``expired_*`` count the segments that the delete policy deleted first. In a run of the delete policy alone, the
    offsets are those of the deleted segments, bytes and segments those of the whole log, and records are not counted.
    ``policy_unknown``: the topic's ``cleanup.policy`` is not known, so the log was not changed; ``reason`` says what to do.
    """

    topic: str
    partition: int
    log_dir: str
    status: LogStatus
    reason: str
    first_dirty_offset: int | None = None
    end_offset: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    segments_before: int = 0
    segments_after: int = 0
    superseded_records: int = 0
    tombstones_removed: int = 0
    invalid_records: int = 0
    aborted_records: int = 0
    markers_removed: int = 0
    keys: int = 0
    expired_segments: int = 0
    expired_bytes: int = 0
    seconds: float = 0.0
    policy_unknown: bool = False

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True)
class VersionUsed:
    """A Kafka version whose rules applied to ``logs`` logs: ``source`` says why, ``rules`` are the values of the rules that
    differ between versions (``compaction.cleaning.kafka_rules``)."""

    version: str
    source: str
    logs: int
    rules: Mapping[str, str | int | bool]

    def __str__(self) -> str:
        """One line."""
        return f"rules of Kafka {self.version} for {self.logs} logs: {self.source}"


#: the fields of a log that are summed for the run
_COUNTS = tuple(each.name for each in fields(LogReport) if each.type == "int" and each.default == 0)


@dataclass(frozen=True)
class RunReport:
    """The outcome of one run; ``seconds`` is its elapsed time."""

    run_id: str
    as_of_ms: int
    dry_run: bool
    logs: tuple[LogReport, ...]
    seconds: float = 0.0
    kafka_versions: tuple[VersionUsed, ...] = ()

    @property
    def status(self) -> RunStatus:
        """Failed if any log failed, else done if any log was cleaned or lost segments to the delete policy."""
        if any(log.status is LogStatus.FAILED for log in self.logs):
            return RunStatus.FAILED
        changed = any(log.status is LogStatus.CLEANED or log.expired_segments for log in self.logs)
        return RunStatus.DONE if changed else RunStatus.NOTHING_TO_DO

    @property
    def exit_code(self) -> int:
        """0: done, or nothing to do. 1: at least one log failed."""
        return 1 if self.status is RunStatus.FAILED else 0

    @property
    def totals(self) -> dict[str, int | float]:
        """Logs by status, and the sums of their counts."""
        by_status = {status.value: sum(log.status is status for log in self.logs) for status in LogStatus}
        sums = {name: sum(getattr(log, name) for log in self.logs) for name in _COUNTS}
        unknown = sum(log.policy_unknown for log in self.logs)
        return {"logs": len(self.logs), **by_status, "policy_unknown": unknown, **sums, "seconds": round(self.seconds, 3)}

    def to_json(self) -> str:
        """The JSON document, indented, with a final newline."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "as_of_ms": self.as_of_ms,
            "dry_run": self.dry_run,
            "status": self.status.value,
            "totals": self.totals,
            "kafka_versions": [asdict(each) for each in self.kafka_versions],
            "logs": [{**asdict(log), "status": log.status.value, "seconds": round(log.seconds, 3)} for log in self.logs],
        }
        return printable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def print_report(report: RunReport, stream: TextIO) -> None:
    """Prints a table to a terminal, plain lines to any other stream."""
    if stream.isatty():
        Console(file=stream).print(_table(report), Text("\n".join([*_versions(report), summary(report)])))
    else:
        stream.write("\n".join([*_plain_lines(report.logs), *_versions(report), summary(report)]) + "\n")


def _plain_lines(logs: Iterable[LogReport]) -> list[str]:
    """One line per log; below it, indented, what was removed and the reason."""
    lines = []
    for log in logs:
        lines.append(f"{printable(log.name)} {log.status.value} {_sizes(log)}".rstrip())
        lines += [f"    {printable(text)}" for text in (_removed(log), log.reason) if text]
    return lines


def _versions(report: RunReport) -> list[str]:
    return [printable(str(each)) for each in report.kafka_versions]


def summary(report: RunReport) -> str:
    """The summary line of the run."""
    totals = report.totals
    would = "dry run, nothing written: " if report.dry_run else ""
    counts = ", ".join(f"{totals[status.value]} {status.value}" for status in LogStatus)
    sizes = f"{_size(totals['bytes_before'])} -> {_size(totals['bytes_after'])}"
    expired = f", {totals['expired_segments']} segments expired ({_size(totals['expired_bytes'])})"
    unknown = f", cleanup.policy of {totals['policy_unknown']} unknown" if totals["policy_unknown"] else ""
    tail = expired if totals["expired_segments"] else ""
    return f"{would}{totals['logs']} logs: {counts}{unknown}; {sizes}{tail} in {report.seconds:.1f} s"


def _table(report: RunReport) -> Table:
    table = Table("log", "status", "records", "bytes", "segments", "what was removed, and why")
    styles = {LogStatus.CLEANED: "green", LogStatus.SKIPPED: "dim", LogStatus.FAILED: "bold red"}
    for log in report.logs:
        cleaned = log.status is LogStatus.CLEANED
        why = "\n".join(printable(text) for text in (_removed(log), log.reason) if text)
        table.add_row(
            Text(printable(log.name)),
            Text(log.status.value, style=styles[log.status]),
            f"{log.records_before} -> {log.records_after}" if cleaned and log.records_before else "",
            f"{_size(log.bytes_before)} -> {_size(log.bytes_after)}" if cleaned else "",
            f"{log.segments_before} -> {log.segments_after}" if cleaned else "",
            Text(why),
        )
    return table


def _sizes(log: LogReport) -> str:
    if log.status is not LogStatus.CLEANED:
        return ""
    records = f"{log.records_before} -> {log.records_after} records, " if log.records_before else ""
    sizes = f"{_size(log.bytes_before)} -> {_size(log.bytes_after)}"
    segments = f"{log.segments_before} -> {log.segments_after} segments"
    return f"[{log.first_dirty_offset}, {log.end_offset}): {records}{sizes}, {segments}"


def _removed(log: LogReport) -> str:
    """What was removed, by cause; empty if nothing was."""
    parts = [
        (log.superseded_records, "superseded"),
        (log.tombstones_removed, "tombstones"),
        (log.aborted_records, "aborted"),
        (log.invalid_records, "without a key"),
        (log.markers_removed, "transaction markers"),
    ]
    removed = [f"{count} {what}" for count, what in parts if count]
    if log.expired_segments:
        removed.append(f"{log.expired_segments} expired segments of {_size(log.expired_bytes)}")
    return f"removed: {', '.join(removed)}" if removed else ""


def _size(count: float) -> str:
    return decimal(int(count))
