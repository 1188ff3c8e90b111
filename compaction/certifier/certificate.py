"""The results of a verification, as JSON and as text. They never contain a key or a value of a record.

The JSON document has ``schema_version`` 1:

| field | meaning |
| --- | --- |
| ``as_of_ms`` | the time against which delete horizons were checked |
| ``status`` | ``holds``, ``violated``, or ``failed`` (at least one log could not be judged, and none is violated) |
| ``totals`` | logs by status, and sums of the record counts |
| ``kafka_versions`` | how many logs were judged by the rules of which version, and why by that one |
| ``logs`` | one object a log: the fields of ``LogCertificate`` |
| ``tool``, ``command``, ``options``, ``settings`` | what ran, and how it was called (``jobs._provenance``) |
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from compaction.certifier.checks.violations import ERASED, ERASED_IN, Findings, Violation
from compaction.names import TopicPartition
from compaction.printable import printable_json
from compaction.screen.amounts import counted

SCHEMA_VERSION = 1
#: why a record may be missing
REASONS = ("superseded", "tombstone", "aborted", "marker", "invalid", "below_log_start", "expired", ERASED)
_WORDS = {"tombstone": "tombstones", "marker": "markers", "invalid": "without a key", "below_log_start": "below the log start"}
#: retained records that could have been dropped
LEFT = ("superseded_left", "aborted_left", "invalid_left")


class Status(str, enum.Enum):
    """The result for one log, and for all."""

    #: nothing was lost or changed
    HOLDS = "holds"
    #: at least one rule is broken
    VIOLATED = "violated"
    #: the log cannot be verified
    FAILED = "failed"


@dataclass(frozen=True)
class LogCertificate:
    """The result for one log.

    ``missing``: records of ``before`` that ``after`` lacks, by reason; ``lost``: those without a reason. ``left``: retained
    records that could have been dropped, which is no violation. ``violations`` are the first of ``violation_count``, by offset.
    ``reason``: why a failed log could not be judged. ``erased``: by base offset of the segment, the records that were erased
    because of their keys.
    """

    topic: str
    partition: int
    status: Status
    reason: str = ""
    records_before: int = 0
    records_after: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)
    lost: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    violation_count: int = 0
    violations: tuple[Violation, ...] = ()
    erased: Mapping[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"

    @property
    def topic_partition(self) -> TopicPartition:
        """The log's name in its parts."""
        return TopicPartition(self.topic, self.partition)

    @classmethod
    def failed(cls, name: TopicPartition, reason: str) -> LogCertificate:
        """The certificate of a log that could not be judged."""
        return cls(name.topic, name.partition, Status.FAILED, reason)

    @classmethod
    def violated(cls, name: TopicPartition, offset: int, what: str) -> LogCertificate:
        """The certificate of a log with one violation."""
        return cls(name.topic, name.partition, Status.VIOLATED, violation_count=1, violations=(Violation(offset, what),))

    @classmethod
    def of(cls, name: TopicPartition, findings: Findings, counts: Counter[str]) -> LogCertificate:
        """The certificate of a log that was compared."""
        missing = {reason: counts[reason] for reason in REASONS}
        return cls(
            name.topic,
            name.partition,
            Status.VIOLATED if findings.count else Status.HOLDS,
            records_before=counts["records_before"],
            records_after=counts["records_after"],
            missing=missing,
            lost=counts["missing"] - sum(missing.values()),
            left={kind: counts[kind] for kind in LEFT},
            violation_count=findings.count,
            violations=tuple(findings.named),
            erased={int(name.removeprefix(ERASED_IN)): n for name, n in counts.items() if name.startswith(ERASED_IN) and n},
        )

    def document(self) -> dict[str, Any]:
        """The log's object in the JSON document."""
        return {**asdict(self), "status": self.status.value}

    def lines(self) -> list[str]:
        """The result as lines of text, with the violations by topic, partition and offset."""
        if self.status is Status.FAILED:
            return [f"{self.name} failed: {self.reason}"]
        why = ", ".join(f"{n} {_WORDS.get(reason, reason)}" for reason, n in self.missing.items() if n)
        lost = f", {self.lost} LOST" if self.lost else ""
        lines = [f"{self.name} {self.status.value}: {self.records_before} -> {self.records_after} records{lost}"]
        lines += [f"    missing: {why}"] if why else []
        lines += [f"    {self.name}:{each.offset}: {each.what}" for each in self.violations]
        more = self.violation_count - len(self.violations)
        return lines + ([f"    and {more} more violations"] if more else [])


@dataclass(frozen=True)
class VerifyReport:
    """The results for all logs; ``kafka_versions``: the number of logs that were judged by the rules of each version;
    ``origin``: how the command was called, see ``jobs._provenance``."""

    as_of_ms: int
    logs: tuple[LogCertificate, ...]
    seconds: float = 0.0
    kafka_versions: Mapping[str, int] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """Violated if any log is, else failed if any is."""
        found = {log.status for log in self.logs}
        return next((status for status in (Status.VIOLATED, Status.FAILED) if status in found), Status.HOLDS)

    @property
    def exit_code(self) -> int:
        """0 if all logs hold, else 1."""
        return 0 if self.status is Status.HOLDS else 1

    def to_json(self) -> str:
        """The JSON document, indented, with a final newline."""
        sums = {
            "records_before": sum(log.records_before for log in self.logs),
            "records_after": sum(log.records_after for log in self.logs),
            "lost": sum(log.lost for log in self.logs),
            "violations": sum(log.violation_count for log in self.logs),
            "missing": {reason: sum(log.missing.get(reason, 0) for log in self.logs) for reason in REASONS},
        }
        document = {
            "schema_version": SCHEMA_VERSION,
            "as_of_ms": self.as_of_ms,
            "status": self.status.value,
            **self.origin,
            "totals": {"logs": len(self.logs), **self._by_status(), **sums, "seconds": round(self.seconds, 3)},
            "kafka_versions": dict(self.kafka_versions),
            "logs": [log.document() for log in self.logs],
        }
        return printable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"

    def versions(self) -> list[str]:
        """Whose rules applied, as lines of text."""
        return [f"rules of {version} for {counted(n, 'log')}" for version, n in self.kafka_versions.items()]

    def summary(self) -> str:
        """The totals in one line."""
        counts = ", ".join(f"{n} {status}" for status, n in self._by_status().items())
        return f"{counted(len(self.logs), 'log')}: {counts}; {self.status.value} ({self.seconds:.1f} s)"

    def _by_status(self) -> dict[str, int]:
        return {status.value: sum(log.status is status for log in self.logs) for status in Status}
