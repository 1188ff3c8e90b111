"""Compares policies: every log is read once, whatever the number of policies, and nothing is written.

Each policy is planned as the run that would carry it out. The plans that differ go through one ``Cleaner``, whose passes share
the reading (``compaction.compare.shared_passes``); the figures of a policy are therefore those of its run.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from compaction.cleaning.cleanup_policy import PolicyPlan, plan_wholly
from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import LogPlan
from compaction.compare.count import AGE_BOUNDS_MS, Source, Tally
from compaction.compare.figures import ComparedLog, Comparison
from compaction.compare.outcomes import Case, LogCases, Survey, Work, compared, explained
from compaction.compare.shared_passes import Described, Engine, SharedPasses
from compaction.config.request import CompactionRequest, ComparisonRequest
from compaction.engine.admission import keyless_refusal
from compaction.engine.clean import do_clean, smallest_broker
from compaction.engine.cleaner import Cleaner, CleanerOptions, map_settings, slices_of
from compaction.engine.log_cleaning import LogCleaning
from compaction.engine.log_reports import warn_of_changes
from compaction.engine.prepare import ParallelRead, PreparedLog, read_logs
from compaction.engine.sizing import Sizes, sizes
from compaction.errors import CompactionError, of_log
from compaction.fs.filesystem import FileSystem
from compaction.fs.overlay import OverlayFileSystem
from compaction.locking.access import Purpose, access
from compaction.logdir.discover import LogLocation
from compaction.logdir.settings.log_settings import Settings, read_settings
from compaction.passes.tasks import Slice
from compaction.stores.mixed import file_system


class Engines(NamedTuple):
    """Who does the work: makes the engine for work of given sizes, and how many tasks run at once."""

    engine: Callable[[Sizes], Engine]
    cores: int


def compare_with(
    start: Callable[[], Engines],
    request: ComparisonRequest,
    chosen: Sizes | None = None,
    parallel_read: ParallelRead | None = None,
) -> Comparison:
    """Compare the policies of ``request``.

    :param start: starts whoever does the work, when there is some
    :param chosen: sizes of the work, by the amount of data if not given; they change no result
    :param parallel_read: reads logs that have very many segments
    :raises UsageError: the selectors match nothing
    :raises ConfigError: a policy contradicts itself or the rest of the configuration
    """
    started = time.monotonic()
    with access(file_system(request.base.log_dirs), request.base.log_dirs, Purpose.LOOK) as held:
        logs = _cases(request, _readings(request, parallel_read))
        survey = _survey(start, request, logs, chosen)
        warn_of_changes(held.in_use, _views(logs))
    found = tuple(compared(log, survey) for log in logs)
    names = tuple(policy.name for policy in request.policies)
    seconds = time.monotonic() - started
    return Comparison(uuid.uuid4().hex, request.base.as_of_ms, names, found, AGE_BOUNDS_MS, seconds)


def explain(request: ComparisonRequest, parallel_read: ParallelRead | None = None) -> tuple[ComparedLog, ...]:
    """What each policy would do to each log, and why; only indexes and headers are read, and there are no figures."""
    with access(file_system(request.base.log_dirs), request.base.log_dirs, Purpose.LOOK) as held:
        logs = _cases(request, _readings(request, parallel_read))
        warn_of_changes(held.in_use, _views(logs))
    return tuple(map(explained, logs))


def _views(logs: Iterable[LogCases]) -> Iterator[LogView]:
    return (case.view for log in logs for case in log.cases)


class Reading(NamedTuple):
    """All logs as a policy finds them."""

    fs: OverlayFileSystem
    logs: tuple[PreparedLog[Any], ...]


def _readings(request: ComparisonRequest, parallel_read: ParallelRead | None) -> list[Reading]:
    """One for each policy; those that read alike share it, and a file system where recovery has nothing to do."""
    made: list[Reading] = []
    readings = []
    for policy in request.policies:
        base = replace(request.base, resolver=request.base.resolver.with_policy(policy.settings))
        reading = next((again for each in made if (again := _again(each, base)) is not None), None)
        if reading is None:
            fs = OverlayFileSystem(file_system(base.log_dirs))
            reading = Reading(fs, read_logs(fs, base, parallel_read))
            made.append(reading)
        readings.append(reading)
    first = readings[0].fs
    return [each if each.fs.changed or first.changed else each._replace(fs=first) for each in readings]


def _again(reading: Reading, request: CompactionRequest) -> Reading | None:
    """The same reading with another policy's settings, unless these change what is read."""
    settings = read_settings(reading.fs, [log.location for log in reading.logs], request)
    logs = tuple(_with_settings(log, new) for log, new in zip(reading.logs, settings, strict=True))
    alike = all(_read_by(old.settings) == _read_by(new.settings) for old, new in zip(reading.logs, logs, strict=True))
    return Reading(reading.fs, logs) if alike else None


def _with_settings(log: PreparedLog[Any], settings: Settings | CompactionError) -> PreparedLog[Any]:
    if isinstance(settings, CompactionError):
        return replace(log, settings=None, error=settings)
    return replace(log, settings=settings)


def _read_by(settings: Settings | None) -> tuple[int, int] | None:
    """The settings that recovering and reading a log look at."""
    if settings is None:
        return None
    return settings.topic.index_interval_bytes, settings.broker.producer_id_expiration_ms


def _cases(request: ComparisonRequest, readings: Sequence[Reading]) -> list[LogCases]:
    """Every log under every policy."""
    logs: dict[LogLocation, LogCases] = {}
    for policy, reading in zip(request.policies, readings, strict=True):
        for log in reading.logs:
            known = logs.get(log.location, LogCases(log.location))
            made = _case(request, policy.name, reading.fs, log)
            if isinstance(made, str):
                logs[log.location] = replace(known, error=known.error or made)
            else:
                logs[log.location] = replace(known, cases=(*known.cases, made))
    return list(logs.values())


def _case(request: ComparisonRequest, policy: str, fs: OverlayFileSystem, log: PreparedLog[Any]) -> Case | str:
    """A log under a policy, or what is wrong with it."""
    if log.settings is None or log.view is None:
        return str(log.error)
    now_ms, config = request.base.as_of_ms, log.settings.topic
    try:
        plan = plan_wholly(log.view, config, now_ms=now_ms, include_active=request.base.include_active)
    except Exception as error:
        return str(of_log(error, log.location.path))
    return Case(policy, now_ms, log.settings, fs, log.view, plan)


def _survey(
    start: Callable[[], Engines], request: ComparisonRequest, logs: Sequence[LogCases], chosen: Sizes | None
) -> Survey:
    """Read the logs, once for each file system that policies see them through: nearly always there is one."""
    survey, engines = Survey(), None
    sound = [log for log in logs if log.error is None]
    for fs in {id(case.fs): case.fs for log in sound for case in log.cases}.values():
        engines = engines or start()
        _OneReading(engines, request, fs, sound, chosen).run(survey)
    return survey


class _OneReading:
    """The logs as one file system shows them, read once."""

    def __init__(
        self,
        engines: Engines,
        request: ComparisonRequest,
        fs: FileSystem,
        logs: Sequence[LogCases],
        chosen: Sizes | None,
    ) -> None:
        self._engines, self._base, self._fs = engines, request.base, fs
        cases = [[case for case in log.cases if case.fs is fs] for log in logs]
        self._cases = [case for of_log in cases for case in of_log]
        self._views = {of_log[0].view.path: of_log[0].view for of_log in cases if of_log}
        self._broker = smallest_broker(case.settings.broker for case in self._cases)
        total = sum(view.size_bytes for view in self._views.values())
        self._sizes = chosen or sizes([total], engines.cores, self._broker.dedupe_buffer_bytes, self._broker.load_factor)
        self._refusals: dict[int, str | None] = {}

    def run(self, survey: Survey) -> None:
        """Add what is found to ``survey``."""
        sources = self._sources(survey)
        passes = SharedPasses(self._engines.engine(self._sizes), sources)
        readable = {path for number, path in enumerate(self._views) if number in sources}
        wanted = [case for case in self._cases if case.cleans and case.view.path in readable]
        plans = {case.key: case.plan.compaction for case in wanted}
        cleaned = self._clean(passes, list(plans.values()))
        if not passes.described and sources:
            rate = self._broker.io_max_bytes_per_second / self._engines.cores
            passes.build_offset_map([], {}, map_settings(self._broker, rate))
        for number, path in enumerate(self._views):
            if number in passes.described:
                survey.described[path] = passes.described[number]
        numbers = {key: number for number, key in enumerate(plans)}
        keys = {number: each.keys for number, each in enumerate(cleaned) if each.error is None}
        pairs = {(numbers[case.key], case.most_keys) for case in wanted}
        rounds = passes.broker_rounds([pair for pair in pairs if pair[0] in keys], keys)
        for key, number in numbers.items():
            own = {most: count for (log, most), count in rounds.items() if log == number}
            gone = passes.gone.get(number, Tally.empty())
            survey.works[key] = Work(cleaned[number], gone, self._refusals.get(id(plans[key])), own)

    def _clean(self, passes: SharedPasses, plans: Sequence[LogPlan]) -> list[LogCleaning]:
        logs = [_to_measure(plan) for plan in plans]
        if logs:
            options = CleanerOptions(
                now_ms=self._base.as_of_ms, dry_run=True, broker=self._broker, refuse=self._refuse, sizes=self._sizes
            )
            do_clean(Cleaner(logs, self._fs, lambda _: passes, self._engines.cores, options))
        return logs

    def _refuse(self, plan: LogPlan, messages: int, keyless: int) -> None:
        """Refuses nothing, so that there are figures, and notes what a run would."""
        refuse = keyless_refusal(allow_keyless=self._base.allow_keyless)
        self._refusals[id(plan)] = refuse(plan, messages, keyless)

    def _sources(self, survey: Survey) -> dict[int, tuple[Source, Sequence[Slice]]]:
        """What is to be read; a log whose slices cannot be made out is noted in ``survey``."""
        sources: dict[int, tuple[Source, Sequence[Slice]]] = {}
        for number, (path, view) in enumerate(self._views.items()):
            try:
                slices = slices_of(self._fs, number, view, view.segments, self._sizes.slice_bytes)
            except Exception as error:
                survey.described[path] = Described({}, None, str(of_log(error, path)))
                continue
            records = sum(min(each.next_offset - each.base_offset, each.size_bytes) for each in view.segments)
            shards = max(1, -(-records // self._sizes.shard_entries))
            first = view.segments[0].base_offset if view.segments else view.log_start_offset
            sources[number] = Source(first, view.log_end_offset, shards, self._base.as_of_ms), slices
        return sources


def _to_measure(plan: LogPlan) -> LogCleaning:
    view = plan.view
    return LogCleaning(LogLocation(view.topic_partition, view.log_dir, view.path), PolicyPlan(plan), view.path)
