"""The results of a verification, as JSON and as text. They never contain a key or a value of a record.

The JSON document has ``schema_version`` 1:

| field | meaning |
| --- | --- |
| ``as_of_ms`` | the time against which delete horizons were checked |
| ``status`` | the worst of logs and directories: ``violated``, ``failed`` (cannot be verified), ``incomplete``, ``holds`` |
| ``totals`` | logs by status, and sums of the record counts |
| ``kafka_versions`` | versions whose rules applied, with the reason: the number of logs of each |
| ``logs`` | one object a log: the fields of ``LogCertificate`` |
| ``directories`` | of the copied log directories with a violation, ``log_dir`` and ``violations`` (text) |
| ``certificate`` | only with one of an erasure: its ``path``, and whether all logs match it (``matches``) |
| ``elsewhere`` | only of an erasure: files that it did not reach, with the records of its keys |
| ``tool``, ``command``, ``options``, ``settings`` | the call and its environment (``compaction.commands.runs``) |
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.names import TopicPartition
from compaction.printable import printable
from compaction.results import PageResult
from compaction.screen.amounts import counted, elapsed
from compaction.screen.text_table import Line, Style, wrapped

SCHEMA_VERSION = 1
#: the reason of records that are missing because their keys were erased
ERASED = "erased"
#: why a record may be missing
REASONS = ("superseded", "tombstone", "aborted", "marker", "invalid", "below_log_start", "expired", ERASED)
_WORDS = {"tombstone": "tombstones", "marker": "markers", "invalid": "without a key", "below_log_start": "below the log start"}
#: retained records that could have been dropped
RETAINED_COUNTS = ("superseded_left", "aborted_left", "invalid_left")
#: violations of a log that are named
MOST_NAMED = 20
#: records of erased keys in places that are not erased from
REMAINING = "remaining"
#: precedes the base offset of a segment in counts
ERASED_IN = "erased in "


@dataclass(frozen=True, order=True)
class Violation:
    """A broken rule and the offset at which it is broken."""

    offset: int
    what: str


@dataclass
class Findings:
    """``named`` are the ``MOST_NAMED`` violations with the lowest offsets of ``count``."""

    named: list[Violation] = field(default_factory=list)
    count: int = 0

    def add(self, offset: int, message: str) -> None:
        self.count += 1
        self._name([Violation(offset, message)])

    def add_all(self, offsets: NDArray[np.int64], message: str) -> None:
        """Add the same violation at each of ``offsets``, int64[n]."""
        self.count += len(offsets)
        self._name([Violation(offset, message) for offset in np.sort(offsets)[:MOST_NAMED].tolist()])

    def join(self, other: Findings) -> None:
        """Add the violations found in another part of the log."""
        self.count += other.count
        self._name(other.named)

    def _name(self, more: list[Violation]) -> None:
        self.named = sorted([*self.named, *more])[:MOST_NAMED]


class Status(str, enum.Enum):
    """The result for one log, and for all."""

    #: nothing was lost or changed
    HOLDS = "holds"
    #: at least one rule is broken
    VIOLATED = "violated"
    #: the log cannot be verified
    FAILED = "failed"
    #: in place: the last run replaced no segments of the log, or the replaced ones were removed
    NOT_COMPARED = "not_compared"
    #: nothing was lost or changed, but records of erased keys remain in places that the run does not erase from
    INCOMPLETE = "incomplete"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


def worst(statuses: Iterable[Status], elsewhere: Iterable[Remains]) -> Status:
    """The worst of the results of logs, which are incomplete if a file elsewhere has erased records."""
    found = {*statuses, *(Status.INCOMPLETE for file in elsewhere if file.records)}
    return next((status for status in (Status.VIOLATED, Status.FAILED, Status.INCOMPLETE) if status in found), Status.HOLDS)


@dataclass(frozen=True)
class LogCertificate:
    """The result for one log.

    ``missing``: records of ``before`` that ``after`` lacks, by reason; ``lost``: those without a reason. ``left``: retained
    records that could have been dropped, which is no violation. ``violations`` are the first of ``violation_count``, by offset.
    ``reason``: why a log cannot be verified, or was not compared. ``erased``: the number of records erased because of their
    keys, by base offset of the segment; ``remaining``: records of such keys in places that are not erased from, for example the
    last segment.
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
    remaining: int = 0

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @classmethod
    def failed(cls, name: TopicPartition, reason: str) -> LogCertificate:
        return cls(*name, Status.FAILED, reason)

    @classmethod
    def violated(cls, name: TopicPartition, offset: int, message: str) -> LogCertificate:
        return cls(*name, Status.VIOLATED, violation_count=1, violations=(Violation(offset, message),))

    @classmethod
    def of(cls, name: TopicPartition, findings: Findings, counts: Counter[str]) -> LogCertificate:
        missing = {reason: counts[reason] for reason in REASONS}
        without_violation = Status.INCOMPLETE if counts[REMAINING] else Status.HOLDS
        return cls(
            *name,
            Status.VIOLATED if findings.count else without_violation,
            records_before=counts["records_before"],
            records_after=counts["records_after"],
            missing=missing,
            lost=counts["missing"] - sum(missing.values()),
            left={kind: counts[kind] for kind in RETAINED_COUNTS},
            violation_count=findings.count,
            violations=tuple(findings.named),
            erased={int(kind[len(ERASED_IN) :]): n for kind, n in counts.items() if kind.startswith(ERASED_IN) and n},
            remaining=counts[REMAINING],
        )

    @property
    def left_text(self) -> str:
        """The number of remaining records of erased keys, in a sentence."""
        remain = "remains" if self.remaining == 1 else "remain"
        return f"{counted(self.remaining, 'record')} of the erased keys {remain}, where the run did not erase"

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.value}

    def lines(self) -> list[str]:
        """The result as text, with the violations by topic, partition and offset."""
        if self.status in (Status.FAILED, Status.NOT_COMPARED):
            return [f"{self.name} {self.status.words}: {self.reason}"]
        why = ", ".join(f"{count:,} {_WORDS.get(reason, reason)}" for reason, count in self.missing.items() if count)
        lost = f", {self.lost:,} LOST" if self.lost else ""
        lines = [f"{self.name} {self.status.value}: {self.records_before:,} -> {self.records_after:,} records{lost}"]
        lines += [f"    missing: {why}"] if why else []
        lines += [f"    {self.left_text}"] if self.remaining else []
        lines += [f"    {self.name}:{violation.offset}: {violation.what}" for violation in self.violations]
        more = self.violation_count - len(self.violations)
        return lines + ([f"    and {more:,} more violations"] if more else [])


@dataclass(frozen=True)
class DirectoryCertificate:
    """The violations in the broker's files of a log directory of ``after``."""

    log_dir: str
    violations: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "violations": list(self.violations)}

    def lines(self) -> list[str]:
        return [f"{self.log_dir}: {violation}" for violation in self.violations]


class Remains(NamedTuple):
    """A file, or a directory (with ``/``), that an erasure did not reach. ``records``: the number of its records with erased
    keys, ``None`` if it cannot be read as record batches."""

    path: str
    records: int | None = None

    def __str__(self) -> str:
        if self.records is None:
            return f"{self.path} was not erased from, and cannot be searched"
        return f"{self.path} was not erased from, and has {counted(self.records, 'record')} of the keys"


@dataclass(frozen=True)
class VerifyReport(PageResult):
    """The results for all logs; ``elsewhere``: the files that an erasure did not reach; ``certificate``: the file with which
    its results were compared; ``kafka_versions``: the number of logs by version whose rules applied; ``origin``: see
    ``compaction.commands.runs``; ``directories``: the log directories with a violation."""

    page = "verify"
    not_on_page: ClassVar[frozenset[str]] = frozenset({"options"})

    as_of_ms: int
    logs: tuple[LogCertificate, ...]
    seconds: float = 0.0
    kafka_versions: Mapping[str, int] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    directories: tuple[DirectoryCertificate, ...] = ()
    elsewhere: tuple[Remains, ...] = ()
    certificate: str | None = None

    @property
    def status(self) -> Status:
        """The worst of all logs and directories; an erasure is also incomplete if a file elsewhere has its keys."""
        return worst([*(log.status for log in self.logs), *(Status.VIOLATED for _ in self.directories)], self.elsewhere)

    @property
    def exit_code(self) -> int:
        """0 if all logs that were compared hold, else 1."""
        return 0 if self.status is Status.HOLDS else 1

    def to_dict(self) -> dict[str, Any]:
        sums = {
            "records_before": sum(log.records_before for log in self.logs),
            "records_after": sum(log.records_after for log in self.logs),
            "lost": sum(log.lost for log in self.logs),
            "violations": sum([log.violation_count for log in self.logs] + [len(each.violations) for each in self.directories]),
            "missing": {reason: sum(log.missing.get(reason, 0) for log in self.logs) for reason in REASONS},
        }
        return {
            "schema_version": SCHEMA_VERSION,
            "as_of_ms": self.as_of_ms,
            "status": self.status.value,
            **self.origin,
            "totals": {"logs": len(self.logs), **self._by_status(), **sums, "seconds": round(self.seconds, 3)},
            "kafka_versions": dict(self.kafka_versions),
            "logs": [log.document() for log in self.logs],
            "directories": [directory.document() for directory in self.directories],
            **({} if self.certificate is None else {"certificate": {"path": self.certificate, "matches": self.matches}}),
            **({"elsewhere": [file._asdict() for file in self.elsewhere]} if self.elsewhere else {}),
        }

    def lines(self, style: Style | None = None) -> Iterable[Line]:
        """See ``Result``: each log with its violations by topic, partition and offset, then directories and totals."""
        logs = [line for log in self.logs for line in log.lines()]
        directories = [line for directory in self.directories for line in directory.lines()]
        # files with records of the keys come first
        files = sorted(self.elsewhere, key=lambda file: (not file.records, file.path))
        elsewhere = [f"    {printable(str(file))}" for file in files[:MOST_NAMED]]
        elsewhere += [f"    and {counted(len(files) - MOST_NAMED, 'more file')}"] if files[MOST_NAMED:] else []
        versions = [f"rules of {version} for {counted(count, 'log')}" for version, count in self.kafka_versions.items()]
        matches = f"certificate {'matches' if self.matches else 'does not match'}: {printable(self.certificate or '')}"
        certificate = [] if self.certificate is None else [matches]
        for text in [*logs, *directories, *elsewhere, *versions, *certificate, self.summary()]:
            indent = len(text) - len(text.lstrip())
            yield from wrapped(text.strip(), style or Style(), indent=indent, hanging=4)

    def errors(self) -> Iterator[str]:
        """See ``Result``: the first violation of each log and directory."""
        failed = (Status.VIOLATED, Status.FAILED, Status.INCOMPLETE)
        yield from (error_line(log) for log in self.logs if log.status in failed)
        yield from (directory.lines()[0] for directory in self.directories)

    @property
    def matches(self) -> bool:
        return all(log.status in (Status.HOLDS, Status.INCOMPLETE) for log in self.logs)

    def summary(self) -> str:
        counts = {Status(name): count for name, count in self._by_status().items() if count}
        words = {Status.HOLDS: "hold" if counts.get(Status.HOLDS, 0) > 1 else "holds"}
        parts = [f"{count:,} {words.get(status, status.words)}" for status, count in counts.items()]
        if self.directories:
            parts.append(f"files of {counted(len(self.directories), 'log directory', 'log directories')} violated")
        if any(file.records for file in self.elsewhere):
            parts.append("records of erased keys in other files")
        return f"{counted(len(self.logs), 'log')}: {', '.join(parts)} ({elapsed(self.seconds)})"

    def _by_status(self) -> dict[str, int]:
        return {status.value: sum(log.status is status for log in self.logs) for status in Status}


def error_line(log: LogCertificate) -> str:
    """Why a log does not hold, in one line."""
    if log.status is Status.INCOMPLETE:
        return f"{log.name}: {log.left_text}"
    if not log.violations:
        return f"{log.name} cannot be verified: {log.reason}"
    first = log.violations[0]
    return f"{log.name}:{first.offset}: {first.what} (the first of {log.violation_count} violations)"
