"""The report of a run, as JSON. It never contains a record's key or value. ``compaction.screen.run_table`` prints it.

The JSON document has ``schema_version`` 1:

| field | meaning |
| --- | --- |
| ``run_id``, ``as_of_ms``, ``dry_run`` | the run, its "now" in milliseconds, whether nothing was written |
| ``status`` | ``done``, ``nothing_to_do`` (no log needed work), ``failed`` (at least one log failed; the others are done) |
| ``schema_version`` | 1; fields are added, never renamed or removed |
| ``totals`` | ``logs`` is their number, ``cleaned``, ``skipped`` and ``failed`` those of each status, ``policy_unknown`` those
    with an unknown policy; the others are the sums of the counts below; ``seconds`` is the elapsed time of the run |
| ``kafka_versions`` | whose rules applied, and to how many logs: the fields of ``VersionUsed`` |
| ``erasure`` | only of a run that erased keys: what was given and found, by salted hashes |
| ``logs`` | one object per log: the fields of ``LogReport`` |
| ``tool``, ``command``, ``options``, ``settings`` | what ran, and how it was called (``jobs._provenance``) |

There are two kinds of bytes and of records. ``disk_bytes_*`` are those of all segments of a log, ``removed_records`` all that
it has lost; what people read has these. ``bytes_*`` and ``records_*`` count what was read in the cleaned range, and kept, as
Kafka's ``CleanerStats`` does. The figures of a dry run equal those of the real run.
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

    In a run of the delete policy alone, the offsets are those of the deleted segments, ``bytes_*`` and ``segments_*`` those of
    the whole log, and records are not counted.
    """

    #: name of the topic
    topic: str
    #: number of the partition
    partition: int
    #: the log directory that has the log
    log_dir: str
    #: ``cleaned``, ``skipped`` or ``failed``
    status: LogStatus
    #: why it was cleaned, skipped or failed; that of a failure has file and position
    reason: str
    #: first offset of the cleaned range, ``null`` if the log was not planned
    first_dirty_offset: int | None = None
    #: end of the cleaned range, exclusive, ``null`` if the log was not planned
    end_offset: int | None = None
    #: bytes of the batches that were read in the cleaned segments, as Kafka's ``CleanerStats``
    bytes_before: int = 0
    #: bytes of the batches in the output, as Kafka's ``CleanerStats``
    bytes_after: int = 0
    #: records of the batches that were read, as Kafka's ``CleanerStats``: aborted data and markers are dropped unread
    records_before: int = 0
    #: records in the output, as Kafka's ``CleanerStats``
    records_after: int = 0
    #: cleaned segments
    segments_before: int = 0
    #: segments in the output
    segments_after: int = 0
    #: records dropped because a later one has their key
    superseded_records: int = 0
    #: tombstones dropped because their delete horizon has passed
    tombstones_removed: int = 0
    #: records dropped because they have no key
    invalid_records: int = 0
    #: records dropped because their transaction was aborted
    aborted_records: int = 0
    #: transaction markers dropped
    markers_removed: int = 0
    #: distinct keys of the dirty section
    keys: int = 0
    #: segments that the delete policy deleted, before the others were cleaned
    expired_segments: int = 0
    #: bytes of their ``.log`` files
    expired_bytes: int = 0
    #: time of the tasks that read and wrote the log, summed over tasks that run at the same time, and of the replacement of its
    #: segments, during which other logs may be replaced, too; 0 in a comparison, which reads a log once for all policies
    seconds: float = 0.0
    #: whether the topic's ``cleanup.policy`` is not known, so that the log was not changed; ``reason`` says what to do
    policy_unknown: bool = False
    #: why it was skipped or failed, in a word (see the reason codes); empty if it was cleaned
    reason_code: str = ""
    #: whether it was cleaned, not only shortened by the delete policy
    compacted: bool = False
    #: bytes of all ``.log`` files before the run, 0 if the log could not be read
    disk_bytes_before: int = 0
    #: bytes of all ``.log`` files after the run, without ``.deleted`` ones
    disk_bytes_after: int = 0
    #: bytes that remain in ``.deleted`` files, with their indexes, until the next run or a broker's start removes them
    deleted_bytes: int = 0
    #: the topic-level entries that are not Kafka's defaults, each with its ``value`` and its ``source``
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: records that were dropped, or became tombstones, because their keys were to be erased
    erased_records: int = 0
    #: all records that the cleaned range has lost, whether their batches were read or not, with transaction markers. Records of
    #: expired segments are not counted: no broker and no run reads these segments, and a count would read a page of each batch,
    #: and decompress those of v0 and v1
    removed_records: int = 0
    #: records with such a key in the last segment, which was not erased from
    remaining_records: int = 0

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True)
class VersionUsed:
    """A Kafka version whose rules applied to logs of the run."""

    #: the version, ``X.Y``
    version: str
    #: why its rules applied
    source: str
    #: the number of logs
    logs: int
    #: the values of the rules that differ between versions (``compaction.cleaning.kafka_rules``)
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
    that does not hold, the exit code is 1. ``copied``: the result is, or would be, a copy beside the unchanged source.
    """

    run_id: str
    as_of_ms: int
    dry_run: bool
    logs: tuple[LogReport, ...]
    seconds: float = 0.0
    kafka_versions: tuple[VersionUsed, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)
    erasure: Mapping[str, Any] = field(default_factory=dict)
    copied: bool = False

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
