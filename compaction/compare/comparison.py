"""A comparison of policies over logs, as ``dry_run`` returns it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from compaction.compare.figures import ComparedLog, Distribution, LogTotals, OutcomeStatus, PolicyTotals
from compaction.compare.json_document import json_document
from compaction.compare.terminal import comparison_lines, comparison_summary
from compaction.report import LogStatus, RunStatus, VersionUsed
from compaction.results import PageResult
from compaction.screen.text_table import Line, Style

#: with more logs the page omits the conditions
MOST_EXPLAINED = 300


@dataclass(frozen=True)
class Comparison(PageResult):
    """All logs under all policies, named in the order given; ``kafka_versions`` and ``origin`` as in ``RunReport``."""

    page = "compare"
    not_on_page: ClassVar[frozenset[str]] = frozenset({"run", "bytes_by_age", "settings", "options"})

    run_id: str
    as_of_ms: int
    policies: tuple[str, ...]
    logs: tuple[ComparedLog, ...]
    age_bounds_ms: tuple[int, ...]
    seconds: float = 0.0
    kafka_versions: tuple[VersionUsed, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> RunStatus:
        """Failed if any log fails; else done if any policy would change any log."""
        if any(log.fails for log in self.logs):
            return RunStatus.FAILED
        outcomes = [outcome for log in self.logs for outcome in log.outcomes]
        worked = any(outcome.run.status is LogStatus.CLEANED or outcome.run.expired_segments for outcome in outcomes)
        return RunStatus.DONE if worked else RunStatus.NOTHING_TO_DO

    @property
    def exit_code(self) -> int:
        """1 if a log failed, or would fail in a run; else 0."""
        return 1 if self.status is RunStatus.FAILED else 0

    @property
    def refused(self) -> int:
        """The number of logs that a run with one of the policies would refuse."""
        return sum(any(outcome.status is OutcomeStatus.REFUSED for outcome in log.outcomes) for log in self.logs)

    def totals(self) -> tuple[PolicyTotals, ...]:
        """The sums per policy, in the order of ``policies``."""
        return tuple(self._totals(number, policy) for number, policy in enumerate(self.policies))

    def _totals(self, number: int, policy: str) -> PolicyTotals:
        pairs = [(log, log.outcomes[number]) for log in self.logs if log.error is None]
        statuses = {status.value: sum(outcome.status is status for _, outcome in pairs) for status in OutcomeStatus}
        changed = [outcome for _, outcome in pairs if outcome.changes]
        return PolicyTotals(
            policy,
            _sum(log.before for log, _ in pairs),
            _sum(log.remaining(number) for log, _ in pairs),
            _sum(outcome.expired for outcome in changed),
            sum((outcome.gone for outcome in changed), Distribution()),
            statuses,
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON document as a dictionary (``compaction.compare.json_document``)."""
        return json_document(self)

    def page_document(self) -> Mapping[str, Any]:
        """See ``PageResult``; with very many logs without the conditions of each."""
        if len(self.logs) <= MOST_EXPLAINED:
            return self.to_dict()
        logs = (replace(log, outcomes=tuple(replace(outcome, why=()) for outcome in log.outcomes)) for log in self.logs)
        return replace(self, logs=tuple(logs)).to_dict()

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> Iterable[Line]:
        """See ``Result``."""
        return comparison_lines(self, style or Style(), all_rows=all_rows, details=details)

    def summary(self) -> str:
        """The number of logs and failures, and the bytes that each policy frees."""
        return comparison_summary(self)


def _sum(totals: Iterable[LogTotals]) -> LogTotals:
    return sum(totals, LogTotals())
