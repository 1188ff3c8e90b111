"""Simulates policies on logs at rest: reads every log once, and writes nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from compaction.cleaning.log_view import LogView
from compaction.cleaning.txn_tables import aborted_of
from compaction.config import Policy
from compaction.config.request import CompactionRequest, ComparisonRequest, Span
from compaction.errors import CompactionError, UnsupportedLogError
from compaction.formats.record_batch import HEADER_SIZE
from compaction.locking.access import Purpose, access
from compaction.logdir.settings.log_settings import Settings, read_settings
from compaction.names import LogLocation
from compaction.run.cleaner import map_settings, slices_of
from compaction.run.log_reports import warn_of_changes
from compaction.run.passes import Passes
from compaction.run.prepare import LogAccess, read_logs
from compaction.run.run import parallel_read
from compaction.run.sizing import sizes
from compaction.screen.amounts import counted, size
from compaction.screen.steps import step
from compaction.simulation.ahead import continued
from compaction.simulation.arrivals import (
    BATCHES,
    CONTROLS,
    FIRST_OFFSET,
    LAST_OFFSET,
    PLAIN,
    RECORDS,
    STORED,
    Arrivals,
    Int64s,
    read_arrivals,
)
from compaction.simulation.figures import Effect, Known, SimulatedLog, total
from compaction.simulation.fit import Fit, fit
from compaction.simulation.replay import Replay
from compaction.simulation.result import OverTime
from compaction.simulation.times import arrival_times, clock, period
from compaction.storage.mixed import file_system
from compaction.storage.overlay import OverlayFileSystem


class _Log(NamedTuple):
    location: LogLocation
    view: LogView
    arrivals: Arrivals
    arrivals_ms: Int64s
    file_times: bool


def simulate(start: Callable[[], Passes], request: ComparisonRequest, span: Span) -> OverTime:
    """What each policy of ``request``, had it been in force, would have made of the logs.

    :param start: starts the task runner, if there is work
    :raises ConfigError: a policy contradicts itself or the rest of the configuration
    """
    started, base = time.monotonic(), request.base
    fs = OverlayFileSystem(file_system(base.log_dirs))
    with access(file_system(base.log_dirs), base.log_dirs, Purpose.READ) as dir_access:
        prepared = read_logs(LogAccess(fs, fs), base, parallel_read(start))
        errors = {log.location: str(log.error) for log in prepared if log.view is None}
        views = {log.location: log.view for log in prepared if log.view is not None}
        logs = _read(start, request, fs, views, errors)
        warn_of_changes(dir_access.in_use, iter(views.values()))
    known = {log.location: _known(log) for log in logs if len(log.arrivals_ms)}
    simulation = _Simulation(base, fs, logs, span)
    step(f"simulating {counted(len(logs), 'log')} under {len(request.policies)} policies")
    by_policy = [simulation.effects(policy) for policy in request.policies]
    simulated = []
    for location in (each.location for each in prepared):
        name, effects = location.topic_partition, tuple(effects[location] for effects in by_policy if location in effects)
        error = errors.get(location)
        simulated.append(SimulatedLog(name.topic, name.partition, location.log_dir, known.get(location), effects, error))
    found = None if span.fit_bytes is None else simulation.fit(request.policies[0], span.fit_bytes)
    names = tuple(policy.name for policy in request.policies)
    seconds = time.monotonic() - started
    return OverTime(
        uuid.uuid4().hex, base.as_of_ms, names, tuple(simulated), simulation.period_ms, span.ahead_ms, found, seconds
    )


class _Simulation:
    """The logs of a call, and the time that is simulated."""

    def __init__(self, base: CompactionRequest, fs: OverlayFileSystem, logs: Sequence[_Log], span: Span) -> None:
        self._base, self._fs = base, fs
        last_ms = (base.as_of_ms if span.last_ms is None else span.last_ms) + span.ahead_ms
        first_ms = min((int(log.arrivals_ms[0]) for log in logs if len(log.arrivals_ms)), default=last_ms)
        shown_ms = max(first_ms, span.first_ms or first_ms)
        self.period_ms = span.period_ms or period(shown_ms, last_ms)
        self._clock = clock(min(first_ms, last_ms), last_ms, shown_ms, self.period_ms)
        self._logs = [_continued(log, base.as_of_ms, span.ahead_ms) for log in logs]

    def effects(self, policy: Policy) -> dict[LogLocation, Effect]:
        """Each log under a policy."""
        base = replace(self._base, resolver=self._base.resolver.with_policy(policy.settings))
        settings = read_settings(self._fs, [log.location for log in self._logs], base)
        return {log.location: self._effect(policy, log, known) for log, known in zip(self._logs, settings, strict=True)}

    def _effect(self, policy: Policy, log: _Log, settings: Settings | CompactionError) -> Effect:
        problem = _refusal(settings)
        if problem is not None or isinstance(settings, CompactionError):
            return Effect(policy.name, error=problem)
        expiration_ms = settings.broker.producer_id_expiration_ms
        return Replay(log.arrivals, log.arrivals_ms, settings.topic, expiration_ms).run(self._clock, policy.name)

    def fit(self, policy: Policy, fit_bytes: int) -> Fit:
        """Settings under which all logs together remain within a size."""
        step(f"looking for settings that fit {size(fit_bytes)}")

        def sum_under(text: str) -> Effect:
            return total(text, list(self.effects(Policy.read(text)).values()))

        resolver = self._base.resolver.with_policy(policy.settings)
        topics = [resolver.topic(log.location.topic_partition.topic) for log in self._logs]
        compacts, deletes = any(each.cleanup_compact for each in topics), any(each.cleanup_delete for each in topics)
        return fit(policy.name, fit_bytes, compacts, deletes, sum_under)


def _continued(log: _Log, now_ms: int, ahead_ms: int) -> _Log:
    arrivals, arrivals_ms = continued(log.arrivals, log.arrivals_ms, now_ms, ahead_ms)
    return log._replace(arrivals=arrivals, arrivals_ms=arrivals_ms)


def _read(
    start: Callable[[], Passes],
    request: ComparisonRequest,
    fs: OverlayFileSystem,
    views: dict[LogLocation, LogView],
    errors: dict[LogLocation, str],
) -> list[_Log]:
    """The logs that can be read, with their arrivals; ``errors`` gets the others."""
    broker = request.base.resolver.broker()
    runner = start() if views else None
    if runner is None:
        return []
    total = sum(view.size_bytes for view in views.values())
    task_sizes = sizes([total], runner.cores, broker.dedupe_buffer_bytes, broker.load_factor)
    settings = map_settings(broker, broker.io_max_bytes_per_second / runner.cores)
    slices = {}
    for number, (location, view) in enumerate(views.items()):
        try:
            slices[location] = slices_of(fs, number, view, view.segments, task_sizes.slice_bytes)
        except CompactionError as error:
            errors[location] = str(error)
    locations = list(slices)
    step(f"reading {counted(len(locations), 'log')}")
    read = [(views[location], slices[location], aborted_of(views[location])) for location in locations]
    logs = []
    for location, found in zip(locations, read_arrivals(runner, read, settings, task_sizes.shard_entries), strict=True):
        view = views[location]
        try:
            if isinstance(found, str):
                errors[location] = found
            else:
                logs.append(_Log(location, view, found, *arrival_times(found, view, request.base.as_of_ms)))
        except UnsupportedLogError as error:
            errors[location] = str(error)
    return logs


def _refusal(settings: Settings | CompactionError) -> str | None:
    if isinstance(settings, CompactionError):
        return str(settings)
    return settings.topic.policy_guess


def _known(log: _Log) -> Known:
    parts = log.arrivals.parts
    held, first, end = parts[:, RECORDS] + parts[:, CONTROLS], parts[:, FIRST_OFFSET], parts[:, LAST_OFFSET] + 1
    # the first part from which on no offset is without a record
    inside, before = np.flatnonzero(end - first > held) + 1, np.flatnonzero(first[1:] > end[:-1]) + 1
    complete = max(int(inside.max(initial=0)), int(before.max(initial=0)))
    offsets = int((first[complete] if complete < len(first) else end[-1]) - first[0])
    complete_ms = log.arrivals_ms[min(complete, len(parts) - 1)]
    estimates = []
    if (parts[:, STORED] - HEADER_SIZE * parts[:, BATCHES] != parts[:, PLAIN]).any():
        estimates.append("what remains of compressed batches is estimated from samples that are compressed again")
    if not log.arrivals.exact:
        spread = counted(len(log.arrivals.starts), "part")
        estimates.append(f"{spread} of the log are simulated, each as if its remaining records were spread evenly")
    elif (parts[:, RECORDS] > 1).any():
        estimates.append("the records of a batch are taken to have the same timestamp")
    return Known(
        exact=not estimates,
        estimate="; ".join(estimates),
        file_times=log.file_times,
        first_ms=int(log.arrivals_ms[0]),
        complete_from_ms=int(complete_ms),
        missing_share=round(1 - int(held[:complete].sum()) / offsets, 4) if offsets else 0.0,
        arrived_bytes=sum(segment.size_bytes for segment in log.view.segments),
    )
