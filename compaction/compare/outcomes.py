"""Builds the figures of a comparison from the plans of each log and the results of the shared passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from compaction.cleaning.benefit import freed_bytes
from compaction.compare.count import Tally
from compaction.compare.figures import ComparedLog, Distribution, KeyFigures, LogTotals, Outcome, OutcomeStatus, RepetitionRange
from compaction.compare.measure import Repetition
from compaction.compare.policy_case import LogCases, PlanKey, PolicyCase
from compaction.compare.shared_passes import LogCounts
from compaction.kernels.rewriting.tally import BYTES, KEYLESS, RECORDS, TOMBSTONES
from compaction.report import LogReport, LogStatus
from compaction.run.log_cleaning import LogCleaning
from compaction.run.log_reports import cleaned_report


@dataclass(frozen=True)
class PlanResult:
    """The result of one plan in the shared passes.

    ``dropped``: the records that it drops. ``refusal``: why a run would refuse without ``--allow-keyless``. ``rounds``: a
    broker's rounds, by the number of keys that its offset map takes.
    """

    cleaned: LogCleaning
    dropped: Tally
    refusal: str | None
    rounds: Mapping[int, int]


@dataclass
class PassResults:
    """The results of the shared passes: counts by partition directory, and results by plan."""

    counts: dict[str, LogCounts] = field(default_factory=dict)
    plans: dict[PlanKey, PlanResult] = field(default_factory=dict)


def explained(log: LogCases) -> ComparedLog:
    """The log under every policy, without figures."""
    name = log.location.topic_partition
    outcomes = (Outcome(case.policy, case.status, case.report.reason, case.report, why=case.why) for case in log.cases)
    return ComparedLog(name.topic, name.partition, log.location.log_dir, outcomes=tuple(outcomes), error=log.error)


def compared(log: LogCases, results: PassResults) -> ComparedLog:
    name, counts = log.location.topic_partition, results.counts.get(log.location.path)
    without_figures = ComparedLog(name.topic, name.partition, log.location.log_dir)
    if counts is None or log.error is not None or counts.error is not None:
        return replace(without_figures, error=log.error or (counts.error if counts is not None else "the log was not read"))
    view = log.cases[0].view
    total = sum(counts.by_segment.values(), Tally.empty())
    return replace(
        without_figures,
        before=_log_totals(view.size_bytes, len(view.segments), total),
        spread=_distribution(total),
        keys=_key_figures(counts.repetition),
        outcomes=tuple(_outcome(case, results.plans.get(case.key), counts, total) for case in log.cases),
    )


def _outcome(case: PolicyCase, result: PlanResult | None, counts: LogCounts, total: Tally) -> Outcome:
    status = case.status
    expired, dropped = _expired(case, counts)
    report = replace(case.report, expired_records=expired.records) if case.report.expired_segments else case.report
    expired_by_age = _distribution(dropped).by_age
    view = case.plan.compaction.view
    after_bytes, after_segments, rounds = view.size_bytes, len(view.segments), 0
    if case.cleans and result is not None:
        if result.cleaned.error is not None:
            failed = replace(report, status=LogStatus.FAILED, reason=result.cleaned.error)
            return Outcome(case.policy, OutcomeStatus.FAILED, failed.reason, _failed_report(failed), why=case.why)
        # policies with the same output share the result, but each has its own reason
        report = replace(
            cleaned_report(case.plan, result.cleaned),
            expired_records=report.expired_records,
            estimated_freed_bytes=freed_bytes(case.plan),
        )
        dropped += result.dropped
        stats, plan = result.cleaned.stats, case.plan.compaction
        after_bytes -= stats.bytes_read - stats.bytes_kept
        after_segments -= len(plan.segments) - len(plan.groups)
        rounds = result.rounds.get(case.most_keys, 1)
        if result.refusal is not None:
            status = OutcomeStatus.REFUSED
            report = _failed_report(replace(report, status=LogStatus.FAILED, reason=result.refusal))
    return Outcome(
        case.policy,
        status,
        report.reason,
        report,
        after=_log_totals(after_bytes, after_segments, total - dropped),
        expired=expired,
        gone=_distribution(dropped),
        expired_by_age=expired_by_age,
        broker_rounds=rounds,
        why=case.why,
    )


def _failed_report(report: LogReport) -> LogReport:
    """The report without figures, as a run makes it for a failed log."""
    size_bytes = report.disk_bytes_before
    return LogReport(
        report.topic,
        report.partition,
        report.log_dir,
        report.status,
        report.reason,
        reason_code="error",
        disk_bytes_before=size_bytes,
        disk_bytes_after=size_bytes,
        settings=report.settings,
    )


def _expired(case: PolicyCase, counts: LogCounts) -> tuple[LogTotals, Tally]:
    plan = case.plan.deletion
    if plan is None:
        return LogTotals(), Tally.empty()
    index_of = {segment.base_offset: number for number, segment in enumerate(case.view.segments)}
    tallies = (counts.by_segment[index_of[removal.segment.base_offset]] for removal in plan.removals)
    removed = sum(tallies, Tally.empty())
    return _log_totals(plan.removed_bytes, len(plan.removals), removed), removed


def _log_totals(size_bytes: int, segments: int, tally: Tally) -> LogTotals:
    records, record_bytes, tombstones, keyless = tally.totals[[RECORDS, BYTES, TOMBSTONES, KEYLESS]].tolist()
    return LogTotals(size_bytes, segments, records, record_bytes, tombstones, keyless)


def _distribution(tally: Tally) -> Distribution:
    return Distribution(
        tuple(tally.ages[:, RECORDS].tolist()),
        tuple(tally.ages[:, BYTES].tolist()),
        tuple(tally.positions[:, RECORDS].tolist()),
    )


def _key_figures(repetition: Repetition | None) -> KeyFigures:
    if repetition is None:
        return KeyFigures()
    keys, records = repetition.keys.tolist(), repetition.records.tolist()
    powers = [power for power, count in enumerate(keys) if count]
    ranges = (RepetitionRange((1 << power >> 1) + 1, 1 << power, keys[power], records[power]) for power in powers)
    return KeyFigures(sum(keys), repetition.most, tuple(ranges))
