"""Compares policies: reads every log once for all policies, and writes nothing.

Each policy is planned as a run of its own. One ``Cleaner`` has all different plans, and its passes share the reading
(``compaction.policies.shared_passes``). So the figures of a policy are exactly those of its run.

Builds the figures of a comparison from the plans of each log and the results of the shared passes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from compaction.config.request import CompactionRequest, ComparisonRequest
from compaction.engine import Engine
from compaction.errors import CompactionError, as_log_error
from compaction.files.mixed import file_system
from compaction.files.overlay import OverlayFileSystem
from compaction.kernels.retention import BYTES, KEYLESS, RECORDS, TOMBSTONES, LogRange
from compaction.kernels.tables import ENTRY_BYTES
from compaction.log.access import Purpose, access
from compaction.log.settings import Settings, read_settings
from compaction.names import LogLocation
from compaction.policies.comparison import (
    ComparedLog,
    Comparison,
    Distribution,
    Explanation,
    KeyFigures,
    LogTotals,
    Outcome,
    OutcomeStatus,
    RepetitionRange,
)
from compaction.policies.shared_passes import AGE_BOUNDS_MS, LogCounts, Repetition, SharedMaps, Source, Tally
from compaction.report import LogReport
from compaction.rules.log_to_clean import Verdict
from compaction.rules.log_view import LogView
from compaction.rules.plan import LogPlan, PolicyPlan, explain_compaction, explain_deletion, freed_bytes, plan_policy
from compaction.run.cleaner import Cleaner, Limits, slices_of
from compaction.run.compact import keyless_refusal
from compaction.run.destination import Destination
from compaction.run.log import (
    Log,
    cleaned_report,
    deletion_report,
    failed_report,
    skipped_report,
    versions_used,
    warn_of_changes,
)
from compaction.run.prepare import read_logs
from compaction.run.run import smallest_broker
from compaction.run.sizing import Sizes
from compaction.screen.amounts import counted
from compaction.screen.steps import step


def compare_with(start: Callable[[], Engine], request: ComparisonRequest, task_sizes: Sizes | None = None) -> Comparison:
    """Compare the policies of ``request``.

    :param start: starts the task runner, if there is work
    :param task_sizes: sizes of the tasks, by default chosen by the amount of data; they do not change the result
    :raises ConfigError: a policy contradicts itself or the rest of the configuration
    """
    started = time.monotonic()
    with _planned(request, start) as logs:
        step(f"measuring {counted(len(logs), 'log')} under {counted(len(request.policies), 'policy')}")
        results = _run_passes(start, request, logs, task_sizes)
    compared_logs = tuple(compared(log, results) for log in logs)
    names = tuple(policy.name for policy in request.policies)
    seconds = time.monotonic() - started
    used = versions_used(log.cases[0].settings.kafka for log in logs if log.cases)
    return Comparison(uuid.uuid4().hex, request.base.as_of_ms, names, compared_logs, AGE_BOUNDS_MS, seconds, used)


def explain(request: ComparisonRequest) -> Explanation:
    """The effect of each policy on each log with its reasons. Reads only indexes and batch headers."""
    explained = []
    with _planned(request, None) as logs:
        for log in logs:
            cases = ((case, case.report) for case in log.cases)
            outcomes = tuple(Outcome(case.policy, case.status, run.reason, run, why=case.why) for case, run in cases)
            name, log_dir = log.location.topic_partition, log.location.log_dir
            explained.append(ComparedLog(*name, log_dir, outcomes=outcomes, error=log.error))
    return Explanation(explained, request.base.as_of_ms)


@contextmanager
def _planned(request: ComparisonRequest, start: Callable[[], Engine] | None) -> Iterator[list[LogCases]]:
    """All logs under each policy; at the end a warning for each log that has changed meanwhile."""
    log_dirs = request.base.log_dirs
    with access(file_system(log_dirs), log_dirs, Purpose.READ) as held:
        logs = _cases(request, _views_by_policy(request, start))
        yield logs
        warn_of_changes(held.in_use, (case.view for log in logs for case in log.cases))


class PolicyView(NamedTuple):
    """All logs as read with the settings of one policy."""

    fs: OverlayFileSystem
    logs: Sequence[Log]


def _views_by_policy(request: ComparisonRequest, start: Callable[[], Engine] | None) -> list[PolicyView]:
    """One view per policy. Policies share a view if their settings have no effect on reading, and a file system if no log
    needed recovery."""
    distinct: list[PolicyView] = []
    views = []
    for policy in request.policies:
        base = replace(request.base, resolver=request.base.resolver.with_policy(policy.settings))
        view = next((shared for candidate in distinct if (shared := _with_settings(candidate, base)) is not None), None)
        if view is None:
            fs = OverlayFileSystem(file_system(base.log_dirs))
            view = PolicyView(fs, read_logs(Destination(fs), base, start))
            distinct.append(view)
        views.append(view)
    first = views[0].fs
    return [view if view.fs.changed or first.changed else view._replace(fs=first) for view in views]


def _with_settings(view: PolicyView, request: CompactionRequest) -> PolicyView | None:
    """The view with another policy's settings, ``None`` if these have an effect on reading."""
    logs = []
    for log, settings in zip(view.logs, read_settings(view.fs, [log.location for log in view.logs], request), strict=True):
        found = None if isinstance(settings, CompactionError) else settings
        if _read_settings_of(log.settings) != _read_settings_of(found):
            return None
        other = replace(log, settings=found)
        logs.append(other.fail(settings) if isinstance(settings, CompactionError) else other)
    return PolicyView(view.fs, logs)


def _read_settings_of(settings: Settings | None) -> tuple[int, int] | None:
    if settings is None:
        return None
    return settings.topic.index_interval_bytes, settings.broker.producer_id_expiration_ms


def _cases(request: ComparisonRequest, views: Sequence[PolicyView]) -> list[LogCases]:
    names = [policy.name for policy in request.policies]
    logs = []
    for of_policies in zip(*(view.logs for view in views), strict=True):
        found = [_case(request, name, view.fs, log) for name, view, log in zip(names, views, of_policies, strict=True)]
        error = next((case for case in found if isinstance(case, str)), None)
        logs.append(LogCases(of_policies[0].location, [case for case in found if isinstance(case, PolicyCase)], error))
    return logs


def _case(request: ComparisonRequest, policy: str, fs: OverlayFileSystem, log: Log) -> PolicyCase | str:
    if log.settings is None or log.view is None:
        return str(log.error)
    now_ms, config, rules = request.base.as_of_ms, log.settings.topic, log.settings.kafka.rules
    try:
        active = request.base.include_active
        plan = plan_policy(log.view, config, now_ms=now_ms, include_active=active, rules=rules, expires=True)
    except Exception as error:
        return str(as_log_error(error, log.location.path))
    return PolicyCase(policy, now_ms, log.settings, fs, log.view, plan)


class CaseResult(NamedTuple):
    """What cleaning a log under a policy leaves: the measured log, the records that it drops, why a run would refuse without
    ``--allow-keyless``, and the rounds of a broker."""

    cleaned: Log
    dropped: Tally
    refusal: str | None
    rounds: int


class PassResults(NamedTuple):
    """The results of the shared passes: counts by partition directory; results by policy and partition directory."""

    counts: dict[str, LogCounts]
    cases: dict[tuple[str, str], CaseResult]


def _run_passes(
    start: Callable[[], Engine], request: ComparisonRequest, logs: Sequence[LogCases], task_sizes: Sizes | None
) -> PassResults:
    results, engine = PassResults({}, {}), None
    cases = [case for log in logs if log.error is None for case in log.cases]
    for fs in {id(case.fs): case.fs for case in cases}.values():
        engine = engine or start()
        _SharedRun(engine, request.base, [case for case in cases if case.fs is fs], task_sizes).run(results)
    return results


class _SharedRun:
    """Runs the shared passes over all logs as one file system shows them."""

    def __init__(self, engine: Engine, base: CompactionRequest, cases: Sequence[PolicyCase], task_sizes: Sizes | None) -> None:
        self._engine, self._base, self._cases = engine, base, cases
        self._views = {case.view.path: case.view for case in cases}
        total = sum(view.size_bytes for view in self._views.values())
        limits = Limits(smallest_broker(case.settings.broker for case in cases), task_sizes)
        # the dirty sections of policies differ: no filters of dirty keys
        self._sizes = replace(limits.sizes_for([total], engine.cores), key_filter_min_clean_bytes=total + 1)
        self._limits = replace(limits, sizes=self._sizes)

    def run(self, results: PassResults) -> None:
        sources = self._sources(results)
        passes = SharedMaps(self._engine, self._sizes, self._base.as_of_ms, sources)
        readable = {path for number, path in enumerate(self._views) if number in sources}
        to_clean = [case for case in self._cases if case.cleans and case.view.path in readable]
        plans = {case.key: case.plan.compaction for case in to_clean}
        logs = list(map(_to_measure, plans.values()))
        if logs:
            Cleaner(logs, self._cases[0].fs, self._engine, self._limits).run(passes)
        if not passes.described and sources:
            passes.build_offset_map([], {}, self._limits.map_settings(self._engine.cores))
        for number, path in enumerate(self._views):
            if number in passes.described:
                results.counts[path] = passes.described[number]
        numbers = {key: number for number, key in enumerate(plans)}
        keys = {number: log.keys for number, log in enumerate(logs) if log.error is None}
        pairs = {(numbers[case.key], case.most_keys) for case in to_clean}
        rounds = passes.broker_rounds([pair for pair in pairs if pair[0] in keys], keys)
        refusal = keyless_refusal(allow_keyless=self._base.allow_keyless)
        for case in to_clean:
            number = numbers[case.key]
            log, in_rounds = logs[number], rounds.get((number, case.most_keys), 1)
            refused = refusal(log.compaction, log.messages, log.keyless)
            results.cases[case.policy, case.view.path] = CaseResult(log, passes.dropped[number], refused, in_rounds)

    def _sources(self, results: PassResults) -> dict[int, Source]:
        """The logs to read; one that cannot be cut into slices has its error in ``results``."""
        sources = {}
        for number, (path, view) in enumerate(self._views.items()):
            try:
                slices = slices_of(self._cases[0].fs, number, view, view.segments, self._sizes.slice_bytes)
            except Exception as error:
                results.counts[path] = LogCounts({}, None, str(as_log_error(error, path)))
                continue
            records = sum(min(segment.next_offset - segment.base_offset, segment.size_bytes) for segment in view.segments)
            first = view.segments[0].base_offset if view.segments else view.log_start_offset
            frame = LogRange(first, max(view.log_end_offset, first + 1), self._base.as_of_ms)
            sources[number] = Source(frame, max(1, -(-records // self._sizes.shard_entries)), slices)
        return sources


def _to_measure(plan: LogPlan) -> Log:
    view = plan.view
    location = LogLocation(view.topic_partition, view.log_dir, view.path)
    return Log(location, planned=PolicyPlan(plan), directory=view.path)


def compared(log: LogCases, results: PassResults) -> ComparedLog:
    counts = results.counts.get(log.location.path)
    without_figures = ComparedLog(*log.location.topic_partition, log.location.log_dir)
    if counts is None or log.error is not None or counts.error is not None:
        return replace(without_figures, error=log.error or (counts.error if counts is not None else "the log was not read"))
    view = log.cases[0].view
    total = sum(counts.by_segment.values(), Tally.empty())
    return replace(
        without_figures,
        before=_log_totals(view.size_bytes, len(view.segments), total),
        spread=_distribution(total),
        keys=_key_figures(counts.repetition),
        outcomes=tuple(_outcome(case, results.cases.get((case.policy, view.path)), counts, total) for case in log.cases),
    )


def _outcome(case: PolicyCase, result: CaseResult | None, counts: LogCounts, total: Tally) -> Outcome:
    status, report = case.status, case.report
    expired, dropped = _expired(case, counts)
    if report.expired_segments:
        report = replace(report, expired_records=expired.records)
    expired_by_age = _distribution(dropped).by_age
    view = case.plan.compaction.view
    after_bytes, after_segments, rounds = view.size_bytes, len(view.segments), 0
    if result is not None:
        if result.cleaned.error is not None:
            failed = case.failed(result.cleaned.error)
            return Outcome(case.policy, OutcomeStatus.FAILED, failed.reason, failed, why=case.why)
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
        rounds = result.rounds
        if result.refusal is not None:
            status, report = OutcomeStatus.REFUSED, case.failed(result.refusal)
    after = _log_totals(after_bytes, after_segments, total - dropped)
    return Outcome(
        case.policy, status, report.reason, report, after=after, expired=expired, gone=_distribution(dropped),
        expired_by_age=expired_by_age, broker_rounds=rounds, why=case.why,
    )  # fmt: skip


def _expired(case: PolicyCase, counts: LogCounts) -> tuple[LogTotals, Tally]:
    removed, removals = Tally.empty(), case.plan.removals
    index_of = {segment.base_offset: number for number, segment in enumerate(case.view.segments)}
    for removal in removals:
        removed += counts.by_segment[index_of[removal.segment.base_offset]]
    return _log_totals(sum(removal.segment.size_bytes for removal in removals), len(removals), removed), removed


def _log_totals(size_bytes: int, segments: int, tally: Tally) -> LogTotals:
    records, record_bytes, tombstones, keyless = tally.ages.sum(axis=0)[[RECORDS, BYTES, TOMBSTONES, KEYLESS]].tolist()
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


@dataclass(frozen=True)
class PolicyCase:
    """One log under one policy; ``view`` is the log in ``fs`` before the run."""

    policy: str
    now_ms: int
    settings: Settings
    fs: OverlayFileSystem
    view: LogView
    plan: PolicyPlan

    @property
    def cleans(self) -> bool:
        return self.plan.compaction.verdict is Verdict.CLEAN

    @property
    def key(self) -> tuple[object, ...]:
        """Everything that determines the output of the plan."""
        plan = self.plan.compaction
        offsets = plan.first_dirty_offset, plan.first_uncleanable_offset, plan.view.log_start_offset
        horizons = plan.config.delete_retention_ms, plan.legacy_delete_horizon_ms
        return plan.view.path, *offsets, plan.groups, *horizons, plan.view.producers, plan.rules, plan.max_record_bytes

    @property
    def most_keys(self) -> int:
        """The number of keys that fit into the offset map of one cleaner thread of the broker (``Cleaner.buildOffsetMap``)."""
        broker = self.settings.broker
        slots = min(broker.dedupe_buffer_bytes // max(broker.cleaner_threads, 1), 2**31 - 1) // ENTRY_BYTES
        return int(slots * broker.load_factor)

    @property
    def why(self) -> tuple[str, ...]:
        config, deletion = self.settings.topic, self.plan.deletion
        lines = explain_compaction(self.plan.compaction, self.now_ms) if config.cleanup_compact or deletion is None else ()
        return tuple(map(str, (*(explain_deletion(deletion, self.now_ms) if deletion is not None else ()), *lines)))

    @property
    def status(self) -> OutcomeStatus:
        """The effect of a run on the log, unless it fails or is refused."""
        if self.settings.topic.policy_guess is not None:
            return OutcomeStatus.POLICY_UNKNOWN
        return OutcomeStatus.CLEANED if self.cleans or self.report.expired_segments else OutcomeStatus.SKIPPED

    @property
    def report(self) -> LogReport:
        """The report of a run, without figures of the data."""
        if not self.settings.topic.cleanup_compact and self.plan.deletion is not None:
            return deletion_report(self.plan.deletion)
        return skipped_report(self.plan)

    def failed(self, reason: str) -> LogReport:
        """The report of a run that fails the log."""
        view = self.view
        return failed_report(LogLocation(view.topic_partition, view.log_dir, view.path), reason, self.plan)


class LogCases(NamedTuple):
    """One log under every policy; ``error``: why it has no figures under any."""

    location: LogLocation
    cases: Sequence[PolicyCase]
    error: str | None
