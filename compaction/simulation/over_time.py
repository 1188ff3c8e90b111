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
from compaction.config.request import ComparisonRequest, Span
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
from compaction.screen.amounts import counted
from compaction.screen.steps import step
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
from compaction.simulation.figures import Effect, Known, SimulatedLog
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
    times = _times(logs, span, base.as_of_ms)
    step(f"simulating {counted(len(logs), 'log')} under {len(request.policies)} policies")
    effects: dict[LogLocation, list[Effect]] = {each.location: [] for each in logs}
    for policy in request.policies:
        for each, effect in zip(logs, _effects(request, policy, fs, logs, times), strict=True):
            effects[each.location].append(effect)
    by_location = {each.location: each for each in logs}
    simulated = []
    for location in (each.location for each in prepared):
        name, log = location.topic_partition, by_location.get(location)
        known = _known(log) if log is not None and len(log.arrivals_ms) else None
        found = tuple(effects.get(location, ()))
        simulated.append(SimulatedLog(name.topic, name.partition, location.log_dir, known, found, errors.get(location)))
    names = tuple(policy.name for policy in request.policies)
    return OverTime(uuid.uuid4().hex, base.as_of_ms, names, tuple(simulated), times.period_ms, time.monotonic() - started)


class _Times(NamedTuple):
    first_ms: int
    last_ms: int
    period_ms: int


def _times(logs: Sequence[_Log], span: Span, now_ms: int) -> _Times:
    firsts = [int(log.arrivals_ms[0]) for log in logs if len(log.arrivals_ms)]
    last_ms = now_ms if span.last_ms is None else span.last_ms
    first_ms = min(min(firsts, default=last_ms), last_ms)
    return _Times(first_ms, last_ms, span.period_ms or period(first_ms, last_ms))


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


def _effects(
    request: ComparisonRequest, policy: Policy, fs: OverlayFileSystem, logs: Sequence[_Log], times: _Times
) -> list[Effect]:
    base = replace(request.base, resolver=request.base.resolver.with_policy(policy.settings))
    settings = read_settings(fs, [log.location for log in logs], base)
    effects = []
    for log, known in zip(logs, settings, strict=True):
        problem = _refusal(known)
        if problem is not None or isinstance(known, CompactionError):
            effects.append(Effect(policy.name, error=problem))
            continue
        replay = Replay(log.arrivals, log.arrivals_ms, known.topic, known.broker.producer_id_expiration_ms)
        history = replay.run(clock(*times))
        effects.append(Effect.of(policy.name, history))
    return effects


def _refusal(settings: Settings | CompactionError) -> str | None:
    if isinstance(settings, CompactionError):
        return str(settings)
    config = settings.topic
    if config.policy_guess is not None:
        return config.policy_guess
    return None if config.by_offset else f"{config.strategy} is not simulated"


def _known(log: _Log) -> Known:
    buckets = log.arrivals.buckets
    held = buckets[:, RECORDS] + buckets[:, CONTROLS]
    missing = buckets[:, LAST_OFFSET] - buckets[:, FIRST_OFFSET] + 1 - held
    missing[1:] += buckets[1:, FIRST_OFFSET] - buckets[:-1, LAST_OFFSET] - 1
    gaps = np.flatnonzero(missing > 0)
    complete = int(gaps[-1]) + 1 if len(gaps) else 0
    before = held[:complete].sum() + missing[:complete].sum()
    complete_ms = log.arrivals_ms[min(complete, len(buckets) - 1)]
    compressed = bool((buckets[:, STORED] - HEADER_SIZE * buckets[:, BATCHES] != buckets[:, PLAIN]).any())
    single = log.arrivals.exact and bool((buckets[:, RECORDS] <= 1).all())
    estimate = ""
    if compressed:
        estimate = "compressed batches are taken to compress their remaining records as well as all of them"
    elif not single and not log.arrivals.exact:
        estimate = f"{len(buckets)} parts of the log are simulated as a whole, their remaining records as spread evenly"
    return Known(
        exact=not compressed and log.arrivals.exact,
        estimate=estimate,
        file_times=log.file_times,
        first_ms=int(log.arrivals_ms[0]),
        complete_from_ms=int(complete_ms),
        missing_share=round(float(missing[:complete].sum() / before), 4) if before else 0.0,
        arrived_bytes=sum(segment.size_bytes for segment in log.view.segments),
    )
