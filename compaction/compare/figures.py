"""The figures of a comparison: what each log holds, and what each policy would leave of it.

Counts by age are nine numbers: records whose time lies after now, then by age from each of ``age_bounds_ms`` up to the next,
then records without a time. Counts by place are fifty: a log's offsets from its first segment's base to its end in equal parts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, fields

from compaction.report import LogReport, LogStatus, RunStatus


@dataclass(frozen=True)
class LogTotals:
    """What a log holds. ``bytes`` are those of the ``.log`` files, ``record_bytes`` those of the records alone, uncompressed.

    Transaction markers count as records, as in Kafka's own statistics; ``keyless_records`` are data records without a key.
    """

    bytes: int = 0
    segments: int = 0
    records: int = 0
    record_bytes: int = 0
    tombstones: int = 0
    keyless_records: int = 0

    def __add__(self, other: LogTotals) -> LogTotals:
        return LogTotals(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(LogTotals)))


@dataclass(frozen=True)
class Distribution:
    """Records by age, their uncompressed bytes by age, and records by place."""

    by_age: tuple[int, ...] = ()
    bytes_by_age: tuple[int, ...] = ()
    by_place: tuple[int, ...] = ()

    def __add__(self, other: Distribution) -> Distribution:
        return Distribution(*(_added(getattr(self, each.name), getattr(other, each.name)) for each in fields(Distribution)))


def _added(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    if not left or not right:
        return left or right
    return tuple(a + b for a, b in zip(left, right, strict=True))


@dataclass(frozen=True)
class RepetitionRange:
    """So many ``keys`` occur from ``at_least`` to ``at_most`` times, in so many ``records``."""

    at_least: int
    at_most: int
    keys: int
    records: int


@dataclass(frozen=True)
class KeyFigures:
    """The keys of all data records of a log; ``most_repeated`` is how often the most frequent one occurs."""

    distinct: int = 0
    most_repeated: int = 0
    repetition: tuple[RepetitionRange, ...] = ()


class OutcomeStatus(str, enum.Enum):
    """What a policy would do to a log.

    ``refused``: a run would ask for ``--allow-keyless``; the figures are those with it. ``policy_unknown``: nothing says the
    log's ``cleanup.policy``, a run would leave the log as it is, and so do the figures.
    """

    CLEANED = "cleaned"
    SKIPPED = "skipped"
    REFUSED = "refused"
    POLICY_UNKNOWN = "policy_unknown"
    FAILED = "failed"

    @property
    def words(self) -> str:
        """The status for people."""
        return self.value.replace("_", " ")


@dataclass(frozen=True)
class Outcome:
    """What one policy would leave of one log.

    ``after`` and ``gone`` speak of the whole log; ``run`` is the report that a real run would give. ``expired`` went by the
    delete policy. ``broker_rounds`` is how often a broker's cleaner would have to go over the log with its dedupe buffer, 0
    where it is not compacted. ``why`` has a line for every condition.
    """

    policy: str
    status: OutcomeStatus
    reason: str
    run: LogReport
    after: LogTotals = LogTotals()
    expired: LogTotals = LogTotals()
    gone: Distribution = Distribution()
    broker_rounds: int = 0
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparedLog:
    """One log under all policies; ``error`` says why there are no figures."""

    topic: str
    partition: int
    log_dir: str
    before: LogTotals = LogTotals()
    spread: Distribution = Distribution()
    keys: KeyFigures = KeyFigures()
    outcomes: tuple[Outcome, ...] = ()
    error: str | None = None

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True)
class PolicyTotals:
    """The sums of one policy over all logs that have figures."""

    policy: str
    before: LogTotals
    after: LogTotals
    expired: LogTotals
    gone: Distribution
    statuses: dict[str, int]


@dataclass(frozen=True)
class Comparison:
    """Policies side by side; ``policies`` are their names in the order given, ``seconds`` the time it took."""

    run_id: str
    as_of_ms: int
    policies: tuple[str, ...]
    logs: tuple[ComparedLog, ...]
    age_bounds_ms: tuple[int, ...]
    seconds: float = 0.0

    @property
    def status(self) -> RunStatus:
        """Failed when any log is, else done when any policy would do anything."""
        outcomes = [outcome for log in self.logs for outcome in log.outcomes]
        if any(log.error for log in self.logs) or any(each.status is OutcomeStatus.FAILED for each in outcomes):
            return RunStatus.FAILED
        worked = any(each.run.status is LogStatus.CLEANED or each.run.expired_segments for each in outcomes)
        return RunStatus.DONE if worked else RunStatus.NOTHING_TO_DO

    @property
    def exit_code(self) -> int:
        """1 when a log failed, else 0."""
        return 1 if self.status is RunStatus.FAILED else 0

    def totals(self) -> tuple[PolicyTotals, ...]:
        """The sums of each policy, in the order of ``policies``."""
        return tuple(self._totals(number, policy) for number, policy in enumerate(self.policies))

    def _totals(self, number: int, policy: str) -> PolicyTotals:
        pairs = [(log, log.outcomes[number]) for log in self.logs if log.error is None]
        statuses = {status.value: sum(outcome.status is status for _, outcome in pairs) for status in OutcomeStatus}
        good = [(log, outcome) for log, outcome in pairs if outcome.status is not OutcomeStatus.FAILED]
        return PolicyTotals(
            policy,
            _sum(log.before for log, _ in good),
            _sum(outcome.after for _, outcome in good),
            _sum(outcome.expired for _, outcome in good),
            sum((outcome.gone for _, outcome in good), Distribution()),
            statuses,
        )


def _sum(holdings: Iterable[LogTotals]) -> LogTotals:
    return sum(holdings, LogTotals())
