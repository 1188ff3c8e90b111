"""The report of a run, as JSON. It never contains a record's key or value. ``compaction.screen.run_table`` prints it.

The JSON document has ``schema_version`` 1:

| field | meaning |
| --- | --- |
| ``run_id``, ``as_of_ms``, ``dry_run`` | the run, its "now" in milliseconds, whether nothing was written |
| ``status`` | ``done``, ``nothing_to_do`` (no log needed work), ``failed`` (at least one log failed; the others are done) |
| ``totals`` | logs by status, logs with an unknown policy, and the sums of the counts below; ``seconds`` is that of the run |
| ``kafka_versions`` | whose rules applied, and to how many logs: the fields of ``VersionUsed`` |
| ``erasure`` | only of a run that erased keys: what was given and found, by salted hashes |
| ``logs`` | one object per log: the fields of ``LogReport`` |
| ``tool``, ``command``, ``options``, ``settings`` | what ran, and how it was called (``jobs._provenance``) |

There are two kinds of bytes. ``disk_bytes_*`` are those of all segments of a log; what people read has these. ``bytes_*`` and
``records_*`` count the cleaned range, as Kafka's ``CleanerStats`` does. The figures of a dry run equal those of the real run.
Bytes of a name that are not UTF-8 are escaped (``compaction.printable``).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from compaction.printable import printable_json

SCHEMA_VERSION = 1
#: the status of the certificate of an erasure that has done what it was asked to
HOLDS = "holds"
#: notes that reasons of logs end with if something else was at work in their directory
CHANGED, IN_USE = "the log changed while it was read", "in use; figures are a snapshot"


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

    ``reason_code`` is why a log was skipped or failed, in a word (``compaction.cleaning.skip_reasons``); empty if it was
    cleaned. ``compacted``: the log was cleaned, not only shortened by the delete policy. ``disk_bytes_*`` are the bytes of all
    ``.log`` files of the log, 0 if the log could not be read. ``deleted_bytes`` remain in ``.deleted`` files, with their
    indexes, until the next run or a broker's start removes them. ``settings`` are the topic-level entries that are not Kafka's
    defaults: each with its ``value`` and its ``source``. ``erased_records`` were dropped, or became tombstones, because their
    keys were to be erased; ``remaining_records`` have such a key, but are in the last segment, which was not erased from.
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
    reason_code: str = ""
    compacted: bool = False
    disk_bytes_before: int = 0
    disk_bytes_after: int = 0
    deleted_bytes: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    erased_records: int = 0
    remaining_records: int = 0

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
        logs = f"{self.logs} log" if self.logs == 1 else f"{self.logs} logs"
        return f"rules of Kafka {self.version} for {logs}: {self.source}"


#: the fields of a log that are summed for the run
_COUNTS = tuple(each.name for each in fields(LogReport) if each.type == "int" and each.default == 0)


@dataclass(frozen=True)
class RunReport:
    """The outcome of one run.

    ``seconds`` is its elapsed time. ``origin`` says how it was called and what it ran on, see ``jobs._provenance``.
    ``erasure`` is that of a run that erased keys, see ``compaction.erasure.erasure_report``: if it has a ``certificate``
    that does not hold, the exit code is 1.
    """

    run_id: str
    as_of_ms: int
    dry_run: bool
    logs: tuple[LogReport, ...]
    seconds: float = 0.0
    kafka_versions: tuple[VersionUsed, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)
    erasure: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> RunStatus:
        """Failed if any log failed, else done if any log was cleaned or lost segments to the delete policy."""
        if any(log.status is LogStatus.FAILED for log in self.logs):
            return RunStatus.FAILED
        changed = any(log.status is LogStatus.CLEANED or log.expired_segments for log in self.logs)
        return RunStatus.DONE if changed else RunStatus.NOTHING_TO_DO

    @property
    def exit_code(self) -> int:
        """0: done, or nothing to do. 1: at least one log failed, or the certificate of an erasure does not hold."""
        certified = self.erasure.get("certificate", {}).get("status", HOLDS) == HOLDS
        return 1 if self.status is RunStatus.FAILED or not certified else 0

    @property
    def totals(self) -> dict[str, int | float]:
        """Logs by status, and the sums of their counts."""
        by_status = {status.value: sum(log.status is status for log in self.logs) for status in LogStatus}
        sums = {name: sum(getattr(log, name) for log in self.logs) for name in _COUNTS}
        unknown = sum(log.policy_unknown for log in self.logs)
        return {"logs": len(self.logs), **by_status, "policy_unknown": unknown, **sums, "seconds": round(self.seconds, 3)}

    def document(self) -> dict[str, Any]:
        """The JSON document as a dictionary."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "as_of_ms": self.as_of_ms,
            "dry_run": self.dry_run,
            "status": self.status.value,
            **self.origin,
            "totals": self.totals,
            "kafka_versions": [asdict(each) for each in self.kafka_versions],
            **({"erasure": dict(self.erasure)} if self.erasure else {}),
            "logs": [{**asdict(log), "status": log.status.value, "seconds": round(log.seconds, 3)} for log in self.logs],
        }

    def to_json(self) -> str:
        """The JSON document, indented, with a final newline."""
        return printable_json(json.dumps(self.document(), indent=2, ensure_ascii=False)) + "\n"
