"""Puts the figures of a comparison together from plans and from what the shared passes found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from compaction.cleaning.cleanup_policy import PolicyPlan
from compaction.cleaning.explanation import explain_compaction, explain_deletion
from compaction.cleaning.grouping import Group
from compaction.cleaning.log_view import LogView, ProducerEntry
from compaction.cleaning.segment_retention import DeletionPlan
from compaction.cleaning.skip_reasons import Verdict
from compaction.compare.count import Tally
from compaction.compare.figures import (
    ComparedLog,
    Holdings,
    KeyFigures,
    Outcome,
    OutcomeStatus,
    Repeated,
    Spread,
)
from compaction.compare.measure import Repetition
from compaction.compare.shared_passes import Described
from compaction.engine.log_cleaning import LogCleaning
from compaction.engine.log_reports import cleaned_report, deletion_report, skipped_report
from compaction.fs.filesystem import FileSystem
from compaction.kernels.reading.tables import ENTRY_BYTES
from compaction.kernels.rewriting.tally import BYTES, KEYLESS, RECORDS, TOMBSTONES
from compaction.logdir.discover import LogLocation
from compaction.logdir.settings.log_settings import Settings
from compaction.report import LogReport, LogStatus

#: what decides over a plan's output and figures, apart from the log itself
PlanKey = tuple[str, int, int, tuple[Group, ...], int, int, int, tuple[ProducerEntry, ...]]


@dataclass(frozen=True)
class Case:
    """One log under one policy. ``fs`` is how the log is seen, ``view`` is the log before anything is done."""

    policy: str
    now_ms: int
    settings: Settings
    fs: FileSystem
    view: LogView
    plan: PolicyPlan

    @property
    def cleans(self) -> bool:
        """Whether the log would be compacted."""
        return self.plan.compaction.verdict is Verdict.CLEAN

    @property
    def key(self) -> PlanKey:
        """Equal for cases of the same output."""
        plan = self.plan.compaction
        return (
            plan.view.path,
            plan.first_dirty_offset,
            plan.end_offset,
            plan.groups,
            plan.config.delete_retention_ms,
            plan.legacy_delete_horizon_ms,
            plan.view.log_start_offset,
            plan.view.producers,
        )

    @property
    def most_keys(self) -> int:
        """How many keys the map of the broker's cleaner takes (``Cleaner.buildOffsetMap``)."""
        broker = self.settings.broker
        slots = min(broker.dedupe_buffer_bytes // max(broker.cleaner_threads, 1), 2**31 - 1) // ENTRY_BYTES
        return int(slots * broker.load_factor)

    @property
    def why(self) -> tuple[str, ...]:
        """Every condition, a line each."""
        config, expiry = self.settings.topic, self.plan.expiry
        lines = explain_compaction(self.plan.compaction, self.now_ms) if config.cleanup_compact or expiry is None else ()
        return tuple(map(str, (*(explain_deletion(expiry, self.now_ms) if expiry is not None else ()), *lines)))

    @property
    def report(self) -> LogReport:
        """The report of a run, as far as the plan alone tells."""
        if not self.settings.topic.cleanup_compact and self.plan.expiry is not None:
            return deletion_report(self.plan.expiry)
        return skipped_report(self.plan)


@dataclass(frozen=True)
class LogCases:
    """One log under every policy, or what is wrong with it whatever the policy."""

    location: LogLocation
    cases: tuple[Case, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Work:
    """What a plan was found to make of its log. ``refusal`` is why a run would ask first, ``rounds`` are a broker's, by the
    keys that its map takes."""

    cleaned: LogCleaning
    gone: Tally
    refusal: str | None
    rounds: Mapping[int, int]


@dataclass
class Survey:
    """What was found of the logs: described by partition directory, and what each plan makes of them."""

    described: dict[str, Described] = field(default_factory=dict)
    works: dict[PlanKey, Work] = field(default_factory=dict)


def explained(log: LogCases) -> ComparedLog:
    """A log without figures."""
    name = log.location.topic_partition
    outcomes = (
        Outcome(case.policy, _status(case), case.report.reason, case.report, why=case.why) for case in log.cases
    )
    return ComparedLog(name.topic, name.partition, log.location.log_dir, outcomes=tuple(outcomes), error=log.error)


def compared(log: LogCases, survey: Survey) -> ComparedLog:
    """A log with all figures."""
    name, described = log.location.topic_partition, survey.described.get(log.location.path)
    blank = ComparedLog(name.topic, name.partition, log.location.log_dir)
    if described is None or log.error is not None or described.error is not None:
        return replace(blank, error=log.error or (described.error if described is not None else "the log was not read"))
    view = log.cases[0].view
    whole = sum(described.by_segment.values(), Tally.empty())
    return replace(
        blank,
        before=_holdings(view.size_bytes, len(view.segments), whole),
        spread=_spread(whole),
        keys=_key_figures(described.repetition),
        outcomes=tuple(_outcome(case, survey.works.get(case.key), described, whole) for case in log.cases),
    )


def _outcome(case: Case, work: Work | None, described: Described, whole: Tally) -> Outcome:
    report = case.report
    expired, gone_first = _expired(case, described)
    left, lost = case.plan.compaction.view, gone_first
    after_bytes, after_segments, rounds = left.size_bytes, len(left.segments), 0
    status, reason = _status(case), report.reason
    if case.cleans and work is not None:
        if work.cleaned.error is not None:
            failed = replace(report, status=LogStatus.FAILED, reason=work.cleaned.error)
            return Outcome(case.policy, OutcomeStatus.FAILED, failed.reason, _bare(failed), why=case.why)
        # the plan of another policy with the same output gave the figures; the words are this policy's own
        report = cleaned_report(case.plan, work.cleaned)
        reason, lost = report.reason, gone_first + work.gone
        stats, plan = work.cleaned.stats, case.plan.compaction
        after_bytes -= stats.bytes_read - stats.bytes_kept
        after_segments -= len(plan.segments) - len(plan.groups)
        rounds = work.rounds.get(case.most_keys, 1)
        if work.refusal is not None:
            status, reason = OutcomeStatus.REFUSED, work.refusal
            report = _bare(replace(report, status=LogStatus.FAILED, reason=work.refusal))
    return Outcome(
        case.policy,
        status,
        reason,
        report,
        after=_holdings(after_bytes, after_segments, whole - lost),
        expired=expired,
        gone=_spread(lost),
        broker_rounds=rounds,
        why=case.why,
    )


def _bare(report: LogReport) -> LogReport:
    """A failed log's report, as a run gives it: without figures."""
    return LogReport(report.topic, report.partition, report.log_dir, report.status, report.reason)


def _status(case: Case) -> OutcomeStatus:
    if case.settings.topic.policy_guess is not None:
        return OutcomeStatus.POLICY_UNKNOWN
    works = case.cleans or case.report.expired_segments
    return OutcomeStatus.CLEANED if works else OutcomeStatus.SKIPPED


def _expired(case: Case, described: Described) -> tuple[Holdings, Tally]:
    """What the delete policy takes."""
    plan: DeletionPlan | None = case.plan.expiry
    if plan is None:
        return Holdings(), Tally.empty()
    index_of = {segment.base_offset: number for number, segment in enumerate(case.view.segments)}
    tallies = [described.by_segment[index_of[removal.segment.base_offset]] for removal in plan.removals]
    gone = sum(tallies, Tally.empty())
    return _holdings(plan.removed_bytes, len(plan.removals), gone), gone


def _holdings(size_bytes: int, segments: int, tally: Tally) -> Holdings:
    totals = tally.totals
    records, record_bytes, tombstones, keyless = totals[[RECORDS, BYTES, TOMBSTONES, KEYLESS]].tolist()
    return Holdings(size_bytes, segments, records, record_bytes, tombstones, keyless)


def _spread(tally: Tally) -> Spread:
    return Spread(
        tuple(tally.ages[:, RECORDS].tolist()),
        tuple(tally.ages[:, BYTES].tolist()),
        tuple(tally.positions[:, RECORDS].tolist()),
    )


def _key_figures(repetition: Repetition | None) -> KeyFigures:
    if repetition is None:
        return KeyFigures()
    keys, records = repetition.keys.tolist(), repetition.records.tolist()
    powers = [power for power, count in enumerate(keys) if count]
    repeated = (Repeated((1 << power >> 1) + 1, 1 << power, keys[power], records[power]) for power in powers)
    return KeyFigures(sum(keys), repetition.most, tuple(repeated))
