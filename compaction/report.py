"""What a run did, as JSON for machines and as text for people. No key or value of a record ever gets in.

The JSON document has ``schema_version`` 1:

| field | meaning |
| --- | --- |
| ``run_id``, ``as_of_ms``, ``dry_run`` | which run, its present in milliseconds, whether it only looked |
| ``status`` | ``done``, ``nothing_to_do`` (no log needed work), ``failed`` (at least one log failed; the others are done) |
| ``totals`` | logs by status, how many have an unknown policy, and the sums of the counts below; ``seconds`` is the time of the
  whole run |
| ``logs`` | one object a log: the fields of ``LogReport`` |

``bytes_*`` and ``records_*`` speak of the cleaned range, as Kafka's ``CleanerStats`` does. A dry run's figures are those of the
real run. Bytes of a name that are not UTF-8 are shown as in ``compaction.printable``.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TextIO

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from compaction.printable import printable, printable_json

SCHEMA_VERSION = 1


class LogStatus(str, enum.Enum):
    """What became of one log; of a dry run, what would have. The delete policy alone cleans a log that loses segments."""

    CLEANED = "cleaned"
    SKIPPED = "skipped"
    FAILED = "failed"


class RunStatus(str, enum.Enum):
    """What became of the run."""

    DONE = "done"
    NOTHING_TO_DO = "nothing_to_do"
    FAILED = "failed"


@dataclass(frozen=True)
class LogReport:
    """What became of one log.

    ``reason`` says why it was cleaned, skipped or failed; a failure's has file and position. Offsets are ``None`` where it did
    not come to them; ``end_offset`` is exclusive. ``keys`` counts the distinct keys of the dirty section. ``expired_*`` is what
    the delete policy took before. Where nothing but the delete policy was asked for, the offsets are those that went, bytes and
    segments those of the whole log, and records are not counted. ``policy_unknown``: nothing says the topic's
    ``cleanup.policy``, so the log was left as it is; ``reason`` says what to do.
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


#: the fields of a log that add up to those of a run
COUNTS = (
    "bytes_before",
    "bytes_after",
    "records_before",
    "records_after",
    "segments_before",
    "segments_after",
    "superseded_records",
    "tombstones_removed",
    "invalid_records",
    "aborted_records",
    "markers_removed",
    "keys",
    "expired_segments",
    "expired_bytes",
)


@dataclass(frozen=True)
class RunReport:
    """What one run did; ``seconds`` is its time from start to end."""

    run_id: str
    as_of_ms: int
    dry_run: bool
    logs: tuple[LogReport, ...]
    seconds: float = 0.0

    @property
    def status(self) -> RunStatus:
        """Failed when any log is, else done when any log was cleaned or lost segments to the delete policy."""
        if any(log.status is LogStatus.FAILED for log in self.logs):
            return RunStatus.FAILED
        worked = any(log.status is LogStatus.CLEANED or log.expired_segments for log in self.logs)
        return RunStatus.DONE if worked else RunStatus.NOTHING_TO_DO

    @property
    def exit_code(self) -> int:
        """0: done, or nothing to do. 1: at least one log failed; the others are still done."""
        return 1 if self.status is RunStatus.FAILED else 0

    @property
    def totals(self) -> dict[str, int | float]:
        """Logs by status and the sums of their counts."""
        by_status = {status.value: sum(log.status is status for log in self.logs) for status in LogStatus}
        sums = {name: sum(getattr(log, name) for log in self.logs) for name in COUNTS}
        unknown = sum(log.policy_unknown for log in self.logs)
        return {"logs": len(self.logs), **by_status, "policy_unknown": unknown, **sums, "seconds": round(self.seconds, 3)}

    def to_json(self) -> str:
        """The document, indented, ending in a newline."""
        document = {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "as_of_ms": self.as_of_ms,
            "dry_run": self.dry_run,
            "status": self.status.value,
            "totals": self.totals,
            "logs": [{**asdict(log), "status": log.status.value, "seconds": round(log.seconds, 3)} for log in self.logs],
        }
        return printable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def print_report(report: RunReport, stream: TextIO) -> None:
    """Shows what was there, what is left, what went and why: a table on a terminal, plain lines anywhere else."""
    if stream.isatty():
        Console(file=stream).print(_table(report), Text(summary(report)))
    else:
        stream.write("\n".join([*plain_lines(report.logs), summary(report)]) + "\n")


def plain_lines(logs: Iterable[LogReport]) -> list[str]:
    """One line a log, and a second one, indented, with what went and why."""
    lines = []
    for log in logs:
        lines.append(f"{printable(log.name)} {log.status.value} {_left(log)}".rstrip())
        lines += [f"    {printable(text)}" for text in (_went(log), log.reason) if text]
    return lines


def summary(report: RunReport) -> str:
    """The run in one line."""
    totals = report.totals
    would = "dry run, nothing written: " if report.dry_run else ""
    counts = ", ".join(f"{totals[status.value]} {status.value}" for status in LogStatus)
    sizes = f"{_size(totals['bytes_before'])} -> {_size(totals['bytes_after'])}"
    expired = f", {totals['expired_segments']} segments expired ({_size(totals['expired_bytes'])})"
    unknown = f", cleanup.policy of {totals['policy_unknown']} unknown" if totals["policy_unknown"] else ""
    tail = expired if totals["expired_segments"] else ""
    return f"{would}{totals['logs']} logs: {counts}{unknown}; {sizes}{tail} in {report.seconds:.1f} s"


def _table(report: RunReport) -> Table:
    table = Table("log", "status", "records", "bytes", "segments", "what went, and why")
    styles = {LogStatus.CLEANED: "green", LogStatus.SKIPPED: "dim", LogStatus.FAILED: "bold red"}
    for log in report.logs:
        worked = log.status is LogStatus.CLEANED
        why = "\n".join(printable(text) for text in (_went(log), log.reason) if text)
        table.add_row(
            Text(printable(log.name)),
            Text(log.status.value, style=styles[log.status]),
            f"{log.records_before} -> {log.records_after}" if worked and log.records_before else "",
            f"{_size(log.bytes_before)} -> {_size(log.bytes_after)}" if worked else "",
            f"{log.segments_before} -> {log.segments_after}" if worked else "",
            Text(why),
        )
    return table


def _left(log: LogReport) -> str:
    if log.status is not LogStatus.CLEANED:
        return ""
    records = f"{log.records_before} -> {log.records_after} records, " if log.records_before else ""
    sizes = f"{_size(log.bytes_before)} -> {_size(log.bytes_after)}"
    segments = f"{log.segments_before} -> {log.segments_after} segments"
    return f"[{log.first_dirty_offset}, {log.end_offset}): {records}{sizes}, {segments}"


def _went(log: LogReport) -> str:
    """What went, by cause; empty where nothing did."""
    parts = [
        (log.superseded_records, "superseded"),
        (log.tombstones_removed, "tombstones"),
        (log.aborted_records, "aborted"),
        (log.invalid_records, "without a key"),
        (log.markers_removed, "transaction markers"),
    ]
    went = [f"{count} {what}" for count, what in parts if count]
    if log.expired_segments:
        went.append(f"{log.expired_segments} expired segments of {_size(log.expired_bytes)}")
    return f"went: {', '.join(went)}" if went else ""


def _size(count: float) -> str:
    return decimal(int(count))
