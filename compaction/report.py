"""The outcome of each log of a run, as its report has it (``compaction.run_report``)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: notes at the end of reasons, if another process was at work in the log directory
CHANGED, IN_USE = "the log changed while it was read", "in use; figures are a snapshot"

#: in the metadata of a field: why the records that it counts were removed, as metrics name it
REASON = "reason"


class LogStatus(str, enum.Enum):
    """The outcome of one log. In a run of the delete policy, a log that loses segments is ``CLEANED``."""

    #: it was compacted, or lost segments to the delete policy
    CLEANED = "cleaned"
    #: there was nothing to do; ``reason`` says why
    SKIPPED = "skipped"
    #: an error, which ``reason`` describes; the log is unchanged
    FAILED = "failed"


class Since(str, enum.Enum):
    """How a log of a copy with ``--since`` was copied."""

    #: all of its segments are those of the previous copy
    UNCHANGED = "unchanged"
    #: it has new segments; the others are those of the previous copy
    GROWN = "grown"
    #: all of its segments are those of the source
    FULL = "full"


class RunStatus(str, enum.Enum):
    """The outcome of a run."""

    #: at least one log was changed, or would be
    DONE = "done"
    #: no log needed work
    NOTHING_TO_DO = "nothing_to_do"
    #: at least one log failed; the others are done
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
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
    superseded_records: int = field(default=0, metadata={REASON: "superseded"})
    #: tombstones dropped because their delete horizon has passed
    tombstones_removed: int = field(default=0, metadata={REASON: "tombstone"})
    #: records dropped because they have no key
    invalid_records: int = field(default=0, metadata={REASON: "keyless"})
    #: records dropped because their transaction was aborted
    aborted_records: int = field(default=0, metadata={REASON: "aborted"})
    #: transaction markers dropped
    markers_removed: int = field(default=0, metadata={REASON: "marker"})
    #: distinct keys of the dirty section
    keys: int = 0
    #: segments that the delete policy deleted, before the others were cleaned
    expired_segments: int = 0
    #: bytes of their ``.log`` files
    expired_bytes: int = 0
    #: ``task_seconds``, and the time of the replacement of its segments, during which other logs may be replaced, too: more
    #: than the run takes if its tasks run at the same time; 0 in a comparison, which reads a log once for all policies
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
    erased_records: int = field(default=0, metadata={REASON: "erased"})
    #: bytes that it was expected to free before it was read, of a log that was cleaned or deferred (see ``--order benefit``)
    estimated_freed_bytes: int = 0
    #: all records that the cleaned range has lost, whether their batches were read or not, with transaction markers
    removed_records: int = 0
    #: records that were stored in the cleaned range, whether their batches were read or not, with transaction markers
    stored_records_before: int = 0
    #: records that are stored in the cleaned range now, with transaction markers
    stored_records_after: int = 0
    #: time of the tasks that read and wrote the log, summed over tasks that run at the same time
    task_seconds: float = field(default=0.0, compare=False)
    #: records with such a key in the last segment, which was not erased from
    remaining_records: int = 0
    #: records of the expired segments, with transaction markers; ``null`` if there is none, if one of them is damaged, and in a
    #: run of the delete policy alone, which reads no segment
    expired_records: int | None = field(default=None, metadata={REASON: "expired"})
    #: ``unchanged``, ``grown`` or ``full``: how much of it is taken from the previous copy; empty without ``--since``
    since: str = ""
    #: why it was copied in full, although the run was given ``--since``
    since_reason: str = ""
    #: bytes of the ``.log`` files of the previous copy that were used in place of the source's
    previous_bytes: int = 0

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"

    @property
    def effects(self) -> str:
        """The changes to the log in words: one that only loses expired segments is not cleaned. Empty if there are none."""
        cleaned = "erased from" if self.erased_records else "cleaned"
        return " and ".join(word for word, holds in (("expired", self.expired_segments), (cleaned, self.compacted)) if holds)


@dataclass(frozen=True)
class WaveReport:
    """Logs that were cleaned together. Their results were in place before the next wave began. A run has several waves if the
    outputs of all logs do not fit into the free space at once."""

    #: the number of logs, with those that were not compacted in the first wave
    logs: int
    #: bytes of the files that replaced segments, with their indexes; 0 in a dry run
    bytes_written: int
    #: bytes of the files of replaced and expired segments that the run has removed; the others remain as ``.deleted`` files
    bytes_freed: int
    #: elapsed time
    seconds: float


@dataclass(frozen=True)
class VersionUsed:
    """A Kafka version whose rules applied to logs of the run."""

    #: the version, ``X.Y``
    version: str
    #: why its rules applied
    source: str
    #: the number of logs
    logs: int
    #: the values of the rules that differ between versions (``compaction.rules.kafka_rules``)
    rules: Mapping[str, str | int | bool]

    def __str__(self) -> str:
        """One line."""
        logs = f"{self.logs} log" if self.logs == 1 else f"{self.logs} logs"
        return f"rules of Kafka {self.version} for {logs}: {self.source}"
