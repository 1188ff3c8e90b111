"""From log directories to plans: lock, recover, read, plan. What is wrong with one log stays with that log.

A dry run, and a run into another place, see everything through an overlay that keeps every change in memory: the same steps run, and the
log directories stay untouched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from compaction.cleaning.plan import LogPlan, plan_log
from compaction.config import Resolver, TopicConfig
from compaction.errors import CompactionError, LogError
from compaction.request import CompactionRequest
from compaction.storage.checkpoint_store import Checkpoints, read_checkpoints
from compaction.storage.discover import LogLocation, Selector, discover
from compaction.storage.filesystem import FileSystem
from compaction.storage.lock import LogDirLock, require_unlocked
from compaction.storage.metadata import read_metadata
from compaction.storage.read_log import ReadOptions, read_log
from compaction.storage.recover import recover_log
from compaction.storage.split import split_segment


@dataclass(frozen=True)
class Prepared:
    """One log, ready to be worked on: its plan, or what is wrong with it. ``notes`` say what recovery did."""

    location: LogLocation
    plan: LogPlan | None = None
    error: CompactionError | None = None
    notes: tuple[str, ...] = field(default=())


@contextmanager
def locked(log_dirs: Sequence[str], *, write: bool) -> Iterator[None]:
    """Hold the lock of every log directory; when not writing, only make sure that nobody does.

    :raises LockedError: a live broker or another run holds one
    """
    with ExitStack() as stack:
        for log_dir in log_dirs:
            if write:
                stack.enter_context(LogDirLock.acquire(log_dir))
            else:
                require_unlocked(log_dir)
        yield


def prepare(fs: FileSystem, request: CompactionRequest) -> tuple[Prepared, ...]:
    """Recover, read and plan all logs that the request asks for, in the order of directories, topics and partitions."""
    locations = discover(fs, request.log_dirs, Selector(request.topics, request.partitions))
    resolvers = {
        log_dir: request.resolver.with_metadata(*read_metadata(fs, log_dir))
        for log_dir in {location.log_dir for location in locations}
    }
    recovered = [_recover(fs, location, resolvers[location.log_dir]) for location in locations]
    checkpoints = {log_dir: read_checkpoints(fs, log_dir) for log_dir in resolvers}
    return tuple(
        found if found.error else _plan(fs, found, checkpoints[found.location.log_dir], config, request)
        for found, config in recovered
    )


def _recover(fs: FileSystem, location: LogLocation, resolver: Resolver) -> tuple[Prepared, TopicConfig]:
    config = resolver.topic(location.topic_partition.topic)
    try:
        report = recover_log(fs, location, index_interval_bytes=config.index_interval_bytes)
    except LogError as error:
        return Prepared(location, error=error), config
    return Prepared(location, notes=tuple(report.actions)), config


def _plan(
    fs: FileSystem, found: Prepared, checkpoints: Checkpoints, config: TopicConfig, request: CompactionRequest
) -> Prepared:
    location = found.location
    options = ReadOptions(request.as_of_ms, request.resolver.broker().producer_id_expiration_ms)
    try:
        plan = _plan_once(fs, location, checkpoints, config, request, options)
        if plan.overflowed:
            for segment in plan.overflowed:
                split_segment(fs, location.path, segment, config.index_interval_bytes)
            plan = _plan_once(fs, location, checkpoints, config, request, options)
    except LogError as error:
        return Prepared(location, error=error, notes=found.notes)
    return Prepared(location, plan=plan, notes=found.notes)


def _plan_once(
    fs: FileSystem,
    location: LogLocation,
    checkpoints: Checkpoints,
    config: TopicConfig,
    request: CompactionRequest,
    options: ReadOptions,
) -> LogPlan:
    view = read_log(fs, location, checkpoints, options)
    return plan_log(view, config, now_ms=request.as_of_ms, include_active=request.include_active)
