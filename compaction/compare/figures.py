"""The figures of a comparison: each log before cleaning, and after cleaning under each policy.

Counts by age are nine numbers: records with a timestamp in the future, then by age from each of ``age_bounds_ms`` to the next,
then records without a timestamp. Counts by place are fifty numbers, one for each of fifty equal offset ranges from the first
base offset to the log end offset.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields

from compaction.config.policy import CONFIGURED
from compaction.report import LogReport


@dataclass(frozen=True)
class LogTotals:
    """The size of a log."""

    #: bytes of its ``.log`` files
    bytes: int = 0
    #: its segments
    segments: int = 0
    #: its records, with transaction markers, as in Kafka's own statistics
    records: int = 0
    #: bytes of its records when uncompressed
    record_bytes: int = 0
    #: its records with a key and without a value
    tombstones: int = 0
    #: its data records without a key
    keyless_records: int = 0

    def __add__(self, other: LogTotals) -> LogTotals:
        return LogTotals(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(LogTotals)))


@dataclass(frozen=True)
class Distribution:
    """Records by age and by place."""

    #: records by age, between the bounds of ``age_bounds_ms``
    by_age: tuple[int, ...] = ()
    #: their uncompressed bytes by age
    bytes_by_age: tuple[int, ...] = ()
    #: records by place, in equal ranges of offsets
    by_place: tuple[int, ...] = ()

    def __add__(self, other: Distribution) -> Distribution:
        return Distribution(*(_added(getattr(self, field.name), getattr(other, field.name)) for field in fields(Distribution)))


def _added(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    if not first or not second:
        return first or second
    return tuple(a + b for a, b in zip(first, second, strict=True))


@dataclass(frozen=True)
class RepetitionRange:
    """The keys whose number of records is in a range."""

    #: the least number of records that such a key has
    at_least: int
    #: the greatest number of records that such a key has
    at_most: int
    #: the number of such keys
    keys: int
    #: the number of their records
    records: int


@dataclass(frozen=True)
class KeyFigures:
    """The keys of a log's data records."""

    #: distinct keys
    distinct: int = 0
    #: the number of records of the most frequent key
    most_repeated: int = 0
    #: keys by the number of their records
    repetition: tuple[RepetitionRange, ...] = ()


class OutcomeStatus(str, enum.Enum):
    """The effect of a policy on a log.

    ``refused``: a run would fail and require ``--allow-keyless``. The log's figures assume this option; in totals the log is
    unchanged. ``policy_unknown``: the log's ``cleanup.policy`` is not known. A run would not change the log, and the figures
    are those of the unchanged log.
    """

    #: a run would clean it
    CLEANED = "cleaned"
    #: a run would not change it
    SKIPPED = "skipped"
    #: a run would fail it, because many records have no key
    REFUSED = "refused"
    #: a run would not change it, because nothing is deleted on a guess
    POLICY_UNKNOWN = "policy_unknown"
    #: it cannot be read, or a run would fail it
    FAILED = "failed"

    @property
    def would(self) -> str:
        """The status in a sentence about a run that has not been made."""
        return "would be cleaned" if self is OutcomeStatus.CLEANED else self.value.replace("_", " ")


@dataclass(frozen=True)
class Outcome:
    """One log after cleaning under one policy."""

    #: the policy
    policy: str
    #: the effect of a run on the log, see the reason codes
    status: OutcomeStatus
    #: why, in a sentence
    reason: str
    #: the report of a real run
    run: LogReport
    #: the log after the run
    after: LogTotals = LogTotals()
    #: the segments that the delete policy removes
    expired: LogTotals = LogTotals()
    #: the removed records
    gone: Distribution = Distribution()
    #: of the removed records, those that the delete policy removes, by age
    expired_by_age: tuple[int, ...] = ()
    #: the rounds that a broker's cleaner needs with its dedupe buffer, 0 if the log is not compacted
    broker_rounds: int = 0
    #: a line of text per condition
    why: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The outcome as shown to users: a log that only loses expired segments is not cleaned."""
        if self.status is not OutcomeStatus.CLEANED:
            return self.status.would
        return self.run.effects or "cleaned"

    @property
    def fails(self) -> bool:
        """Whether a run would fail the log. A refusal under a policy that is only compared is a result, not a failure."""
        refused = self.status is OutcomeStatus.REFUSED and self.policy == CONFIGURED
        return refused or self.status is OutcomeStatus.FAILED

    @property
    def changes(self) -> bool:
        """Whether a run would change the log."""
        return self.status in (OutcomeStatus.CLEANED, OutcomeStatus.SKIPPED)


@dataclass(frozen=True)
class ComparedLog:
    """One log under all policies."""

    #: name of the topic
    topic: str
    #: number of the partition
    partition: int
    #: the log directory that has the log
    log_dir: str
    #: the log as it is
    before: LogTotals = LogTotals()
    #: its records
    spread: Distribution = Distribution()
    #: its keys
    keys: KeyFigures = KeyFigures()
    #: the log under each policy, in the order of ``policies``; in the document this field is called ``policies``
    outcomes: tuple[Outcome, ...] = ()
    #: why it has no figures; ``null`` if it has
    error: str | None = None

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"

    @property
    def fails(self) -> bool:
        """Whether the log failed, or would fail in a run with one of the policies."""
        return self.error is not None or any(outcome.fails for outcome in self.outcomes)

    def remaining(self, policy: int) -> LogTotals:
        """The log after a run with a policy, by the policy's number: unchanged if the run fails or refuses it."""
        if self.error is not None or not self.outcomes[policy].changes:
            return self.before
        return self.outcomes[policy].after


@dataclass(frozen=True)
class PolicyTotals:
    """The sums over all logs with figures under one policy; a log that its run would not change counts as it is."""

    #: the policy; in the document this field is called ``name``
    policy: str
    #: the logs as they are
    before: LogTotals
    #: the logs after the run
    after: LogTotals
    #: the segments that the delete policy removes
    expired: LogTotals
    #: the removed records
    gone: Distribution
    #: the number of logs by status, ``cleaned``, ``skipped``, ``refused``, ``policy_unknown`` and ``failed``; in the document
    #: this field is called ``logs``
    statuses: dict[str, int]
