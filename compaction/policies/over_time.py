"""Simulates policies on logs at rest: reads every log once, and writes nothing.

When the records of a log arrived is known from their timestamps, or from the times of its files.

After the present, the arrivals of the last days are repeated, as often as needed. A copy of the last days has the same records
at the same distances, and its keys recur as they did: for the records of an age that were superseded in the last days, as many
records of that age as remain are superseded at the same place of the copy. Each copy takes the time of all before it, and a
log that is much shorter says little about the future: there are at most ``MOST_COPIES``.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

import numpy as np

from compaction.config.entries import DAY_MS
from compaction.config.request import CompactionRequest, ComparisonRequest, Span
from compaction.config.sources import Policy
from compaction.engine import Engine
from compaction.errors import CompactionError, UnsupportedLogError, UsageError, wording
from compaction.files.mixed import file_system
from compaction.files.overlay import OverlayFileSystem
from compaction.formats.record_batch import HEADER_SIZE
from compaction.log.access import Purpose, access
from compaction.log.settings import Settings, read_settings
from compaction.names import LogLocation
from compaction.policies.arrivals import (
    BATCHES,
    CONTROLS,
    FIRST_OFFSET,
    FIRST_TIMESTAMP,
    LARGEST_TIMESTAMP,
    LAST_OFFSET,
    NEVER,
    PLAIN,
    RECORDS,
    STORED,
    TOMBSTONE,
    Arrivals,
    Cells,
    Int64s,
    cell_keys,
    joined_cells,
    read_arrivals,
    sums_of,
)
from compaction.policies.replay import Replay
from compaction.policies.result import Effect, Known, OverTime, SimulatedLog
from compaction.rules.log_view import LogView
from compaction.rules.transactions import aborted_of
from compaction.run.cleaner import Limits, slices_of
from compaction.run.destination import Destination
from compaction.run.log import warn_of_changes
from compaction.run.prepare import read_logs
from compaction.screen.amounts import counted, duration
from compaction.screen.steps import step

_LOG = logging.getLogger(__name__)
_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
#: the days that are repeated
WINDOW_MS = 30 * DAY_MS
MOST_COPIES = 100
#: a broker's ``log.retention.check.interval.ms``; its cleaner looks more often
_LEAST_CHECK_MS = 5 * _MINUTE_MS
#: checks of a simulation, at most this number and the ends of periods
_CHECKS = 1000
_PERIODS_MS = (10 * _MINUTE_MS, _HOUR_MS, 6 * _HOUR_MS)
#: with fewer days periods are shorter
_FEW = 14
#: timestamps may be later than now, or fall, by this time
_TOLERANCE_MS = DAY_MS
#: at most this share of the parts may be out of order by more
_DISORDER = 0.1
#: samples of a simulation that a caller may ask for
_MOST_PERIODS = 10_000


def window_ms(arrivals_ms: Int64s, now_ms: int) -> int:
    """The length of what is repeated, ms; 0 if nothing is."""
    length_ms = min(WINDOW_MS, now_ms - int(arrivals_ms[0])) if len(arrivals_ms) else 0
    return length_ms if length_ms > 0 and arrivals_ms[-1] > now_ms - length_ms else 0


def continued(arrivals: Arrivals, arrivals_ms: Int64s, now_ms: int, ahead_ms: int) -> tuple[Arrivals, Int64s]:
    """The arrivals and their times, with those of ``ahead_ms`` after ``now_ms``; whole buckets are copied."""
    parts, buckets, cells, count = arrivals.parts, arrivals.buckets, arrivals.cells, len(arrivals_ms)
    length_ms = window_ms(arrivals_ms, now_ms)
    if not length_ms:
        return arrivals, arrivals_ms
    first = int(np.searchsorted(arrivals_ms, now_ms - length_ms, "right"))
    first, starts = int(arrivals.starts[buckets[first]]), np.append(arrivals.starts, count)
    bucket_ms = arrivals_ms[arrivals.starts]
    for copy in range(1, -(-ahead_ms // length_ms) + 1):
        last = first + int(np.searchsorted(arrivals_ms[first:count], now_ms + ahead_ms - copy * length_ms, "right"))
        copied = slice(int(buckets[first]), int(buckets[last - 1]) + 1 if last > first else int(buckets[first]))
        of, start = slice(first, int(starts[copied.stop])), len(bucket_ms)
        arrivals_ms = np.append(arrivals_ms, arrivals_ms[of] + copy * length_ms)
        parts = np.concatenate([parts, _later(parts[of], parts[-1, LAST_OFFSET] + 1, copy * length_ms)])
        buckets = np.append(buckets, arrivals.buckets[of] - copied.start + start)
        bucket_ms = np.append(bucket_ms, bucket_ms[copied] + copy * length_ms)
        cells = _superseding(cells, arrivals.cells, bucket_ms, (copied.start, copied.stop, start), copy * length_ms)
    return arrivals._replace(parts=parts, buckets=buckets, cells=cells), arrivals_ms


def _later(parts: Int64s, offset: int, by_ms: int) -> Int64s:
    copied = parts.copy()
    copied[:, [FIRST_OFFSET, LAST_OFFSET]] += offset - parts[0, FIRST_OFFSET] if len(parts) else 0
    copied[:, [FIRST_TIMESTAMP, LARGEST_TIMESTAMP]] += by_ms
    return copied


def _superseding(cells: Cells, pattern: Cells, bucket_ms: Int64s, copied: tuple[int, int, int], by_ms: int) -> Cells:
    """``cells`` with those of a copy.

    :param pattern: the cells of what is copied
    :param copied: the buckets ``[first, end)`` are copied to those from ``start`` on
    """
    first, end, start = copied
    shift, flags = start - first, pattern.keys & 3
    # the records of the copy; what supersedes them after its end is not in it
    own = (pattern.bucket >= first) & (pattern.bucket < end)
    successor = np.where(pattern.successor[own] < end, pattern.successor[own] + shift, NEVER)
    records = Cells(cell_keys(pattern.bucket[own] + shift, successor, flags[own]), pattern.numbers[own])
    # the older ones that they supersede
    older = (pattern.bucket < first) & (pattern.successor >= first) & (pattern.successor < end)
    place = np.searchsorted(bucket_ms[:start], bucket_ms[pattern.bucket[older]] + by_ms, "right") - 1
    waiting = place * 2 + (flags[older] & TOMBSTONE)
    newest = cells.successor == NEVER
    pool = cells.bucket[newest] * 2 + (cells.keys[newest] & TOMBSTONE)
    available, sizes = (sums_of(pool, column, 2 * start) for column in cells.numbers[newest].T)
    wanted = sums_of(waiting, pattern.records[older], 2 * start)
    granted = np.divide(np.minimum(wanted, available), wanted, out=np.zeros(2 * start), where=wanted > 0)
    order = np.argsort(waiting, kind="stable")
    # rounded so that the sums are right
    taken = np.diff(np.floor(np.cumsum(pattern.records[older][order] * granted[waiting[order]]) + 1e-6), prepend=0)
    each = np.divide(sizes, available, out=np.zeros(2 * start), where=available > 0)
    numbers = np.stack([taken, np.rint(taken * each[waiting[order]])], axis=1).astype(np.int64)
    keys = cell_keys(place[order], pattern.successor[older][order] + shift, flags[older][order])
    left = cell_keys(place[order], np.full(len(order), NEVER), flags[older][order] & TOMBSTONE)
    joined = joined_cells([cells, records, Cells(keys, numbers), Cells(left, -numbers)])
    present = joined.records > 0
    return Cells(joined.keys[present], joined.numbers[present])


def arrival_times(arrivals: Arrivals, view: LogView, now_ms: int) -> tuple[Int64s, bool]:
    """When each part arrived, int64[n], ascending; and whether that is by the times of files.

    :raises UnsupportedLogError: neither timestamps nor files say when
    """
    largest = arrivals.parts[:, LARGEST_TIMESTAMP]
    if not len(largest):
        return largest, False
    problem = _problem(largest, now_ms)
    if problem is None:
        return np.maximum.accumulate(np.minimum(largest, now_ms)), False
    bases = np.array([segment.base_offset for segment in view.segments])
    written = np.array([segment.mtime_ms for segment in view.segments])
    written = np.maximum.accumulate(np.minimum(written, now_ms))
    if len(written) < 2 or written[-1] - written[0] < _HOUR_MS:
        message = f"its timestamps do not say when its records arrived ({problem}), nor do the times of its files"
        raise UnsupportedLogError(message, path=view.path, hint="copy it with its file times (cp -p, rsync -t)")
    # a file is written last when the next one begins
    ends = np.append(bases[1:], view.log_end_offset)
    offsets = arrivals.parts[:, FIRST_OFFSET]
    return np.interp(offsets, np.append(bases[:1], ends), np.append(written[:1], written)).astype(np.int64), True


def _problem(largest: Int64s, now_ms: int) -> str | None:
    """Why timestamps are no times of arrival; ``None`` if they are."""
    if (largest < 0).any():
        return "some records have none"
    future = int((largest > now_ms + _TOLERANCE_MS).sum())
    if future:
        return "some are in the future"
    if len(largest) > 2 and largest.min() == largest.max():
        return "all are equal"
    fallen = np.maximum.accumulate(largest) - largest > _TOLERANCE_MS
    return "they decrease" if fallen.mean() > _DISORDER else None


def period(first_ms: int, last_ms: int) -> int:
    """The length of a period, ms: a day, or less if there are few days."""
    span_ms = last_ms - first_ms
    return next((each for each in _PERIODS_MS if span_ms < _FEW * DAY_MS and span_ms / each <= 2 * _FEW * 4), DAY_MS)


def clock(first_ms: int, last_ms: int, shown_ms: int, period_ms: int) -> tuple[Int64s, Int64s]:
    """The checks of a simulation from the first time to the last, at which a period ends, whichever its length; and the ends of
    periods, the first of which is ``shown_ms``."""
    step_ms = max(_LEAST_CHECK_MS, -(-(last_ms - first_ms) // _CHECKS))
    first_end = shown_ms - shown_ms % period_ms + period_ms
    ends = np.unique([shown_ms, *range(first_end, last_ms, period_ms), last_ms])
    checks = np.arange(first_ms, last_ms, step_ms, dtype=np.int64)
    return np.unique(np.concatenate([checks, ends])), ends


class _Log(NamedTuple):
    location: LogLocation
    view: LogView
    arrivals: Arrivals
    arrivals_ms: Int64s
    file_times: bool


def simulate(start: Callable[[], Engine], request: ComparisonRequest, span: Span) -> OverTime:
    """The sizes that the logs would have had under each policy of ``request``.

    :param start: starts the task runner, if there is work
    :raises ConfigError: a policy contradicts itself or the rest of the configuration
    :raises UsageError: the time has too many periods
    """
    started, base = time.monotonic(), request.base
    fs = OverlayFileSystem(file_system(base.log_dirs))
    with access(file_system(base.log_dirs), base.log_dirs, Purpose.READ) as dir_access:
        prepared = read_logs(Destination(fs), base, start)
        errors = {log.location: str(log.error) for log in prepared if log.view is None}
        views = {log.location: log.view for log in prepared if log.view is not None}
        logs = _read(start, request, fs, views, errors)
        warn_of_changes(dir_access.in_use, iter(views.values()))
    known = {log.location: _known(log) for log in logs if len(log.arrivals_ms)}
    step(f"simulating {counted(len(logs), 'log')}")
    _warn_if_past(logs, base.as_of_ms)
    span = replace(span, ahead_ms=_ahead_ms(logs, base.as_of_ms, span.ahead_ms))
    logs = _without_short(logs, base.as_of_ms, span.ahead_ms, errors)
    simulation = _Simulation(base, fs, logs, span)
    by_policy = [simulation.effects(policy) for policy in request.policies]
    simulated = []
    for log in (each.location for each in prepared):
        effects = tuple(effects[log] for effects in by_policy if log in effects)
        simulated.append(SimulatedLog(*log.topic_partition, log.log_dir, known.get(log), effects, errors.get(log)))
    names = tuple(policy.name for policy in request.policies)
    seconds = time.monotonic() - started
    return OverTime(
        uuid.uuid4().hex, base.as_of_ms, names, tuple(simulated), simulation.period_ms, span.ahead_ms, seconds
    )


class _Simulation:
    """The logs of a call, and the time that is simulated."""

    def __init__(self, base: CompactionRequest, fs: OverlayFileSystem, logs: Sequence[_Log], span: Span) -> None:
        self._base, self._fs = base, fs
        last_ms = (base.as_of_ms if span.last_ms is None else span.last_ms) + span.ahead_ms
        first_ms = min((int(log.arrivals_ms[0]) for log in logs if len(log.arrivals_ms)), default=last_ms)
        shown_ms = max(first_ms, span.first_ms or first_ms)
        self.period_ms = span.period_ms or period(shown_ms, last_ms)
        if span.period_ms is not None and (last_ms - shown_ms) // span.period_ms > _MOST_PERIODS:
            minutes = -(-(last_ms - shown_ms) // (_MOST_PERIODS * _MINUTE_MS))
            message = f"--every: {duration(span.period_ms)} divides the time into more than {_MOST_PERIODS:,} parts"
            hint = f"give at least {duration(minutes * _MINUTE_MS)}, or a shorter time by --from and --to"
            raise UsageError(message, hint=hint)
        self._clock = clock(min(first_ms, last_ms), last_ms, shown_ms, self.period_ms)
        self._logs = []
        for log in logs:
            arrivals, arrivals_ms = continued(log.arrivals, log.arrivals_ms, base.as_of_ms, span.ahead_ms)
            self._logs.append(log._replace(arrivals=arrivals, arrivals_ms=arrivals_ms))

    def effects(self, policy: Policy) -> dict[LogLocation, Effect]:
        step(f"simulating {counted(len(self._logs), 'log')} under {policy.name}")
        base = replace(self._base, resolver=self._base.resolver.with_policy(policy.settings))
        settings = read_settings(self._fs, [log.location for log in self._logs], base)
        return {log.location: self._effect(policy, log, known) for log, known in zip(self._logs, settings, strict=True)}

    def _effect(self, policy: Policy, log: _Log, settings: Settings | CompactionError) -> Effect:
        if isinstance(settings, CompactionError):
            return Effect(policy.name, error=str(settings))
        if settings.topic.policy_guess is not None:
            return Effect(policy.name, error=settings.topic.policy_guess)
        expiration_ms = settings.broker.producer_id_expiration_ms
        return Replay(log.arrivals, log.arrivals_ms, settings.topic, expiration_ms).run(*self._clock, policy.name)


def _warn_if_past(logs: Sequence[_Log], now_ms: int) -> None:
    """Logs a warning if nothing has arrived for long: in an old copy, "now" is not the time of the logs."""
    times = [log.arrivals_ms for log in logs if len(log.arrivals_ms)]
    if not times:
        return
    first_ms, last_ms = min(int(each[0]) for each in times), max(int(each[-1]) for each in times)
    if now_ms - last_ms > max(DAY_MS, (last_ms - first_ms) // 10):
        last = datetime.fromtimestamp(-(-last_ms // _MINUTE_MS) * 60, timezone.utc)
        message = "the last record arrived %s before --as-of: if this is an old copy, give --as-of %s"
        _LOG.warning(wording.get()(message), duration(now_ms - last_ms), f"{last:%Y-%m-%dT%H:%MZ}")


def _ahead_ms(logs: Sequence[_Log], now_ms: int, ahead_ms: int) -> int:
    """``ahead_ms``, or less if it is much longer than what can be repeated."""
    window = max((window_ms(log.arrivals_ms, now_ms) for log in logs), default=0)
    if not window or ahead_ms <= MOST_COPIES * window:
        return ahead_ms
    message = "--ahead: the logs have arrivals of %s to repeat, at most %d times: simulated is what comes in %s, not in %s"
    _LOG.warning(wording.get()(message), duration(window), MOST_COPIES, duration(MOST_COPIES * window), duration(ahead_ms))
    return MOST_COPIES * window


def _without_short(logs: Sequence[_Log], now_ms: int, ahead_ms: int, errors: dict[LogLocation, str]) -> list[_Log]:
    """The logs that last long enough to be continued; ``errors`` gets the others."""
    long_enough = []
    for log in logs:
        window = window_ms(log.arrivals_ms, now_ms)
        if 0 < window * MOST_COPIES < ahead_ms:
            message = f"its arrivals of {duration(window)} would be repeated more than {MOST_COPIES} times"
            hint = f"give --ahead of at most {duration(window * MOST_COPIES)}, or leave it out by --topic"
            errors[log.location] = str(UnsupportedLogError(message, path=log.view.path, hint=hint))
        else:
            long_enough.append(log)
    return long_enough


def _read(
    start: Callable[[], Engine],
    request: ComparisonRequest,
    fs: OverlayFileSystem,
    views: dict[LogLocation, LogView],
    errors: dict[LogLocation, str],
) -> list[_Log]:
    """The logs that can be read, with their arrivals; ``errors`` gets the others."""
    if not views:
        return []
    runner = start()
    total = sum(view.size_bytes for view in views.values())
    limits = Limits(request.base.resolver.broker())
    task_sizes, settings = limits.sizes_for([total], runner.cores), limits.map_settings(runner.cores)
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
    missing_share = round(1 - int(held[:complete].sum()) / offsets, 4) if offsets else 0.0
    times = int(log.arrivals_ms[0]), int(complete_ms)
    return Known(not estimates, "; ".join(estimates), log.file_times, *times, missing_share, log.view.size_bytes)
