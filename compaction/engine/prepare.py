"""From log directories to plans: lock, recover, read, plan. What is wrong with one log stays with that log.

A dry run, and a run into another place, see everything through an overlay that keeps every change in memory: the same steps are
taken, and the log directories stay untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from compaction.cleaning.log_view import LogView
from compaction.config import TopicConfig
from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError, StorageError, of_log
from compaction.fs.filesystem import FileSystem, parent
from compaction.fs.overlay import DeferredFileSystem, OverlayFileSystem
from compaction.fs.uri import any_remote, is_remote, resolved
from compaction.locking.access import Access
from compaction.locking.claim import NOBODY, Owner
from compaction.locking.mounts import mount_points
from compaction.logdir.checkpoint_store import Checkpoints, read_checkpoints
from compaction.logdir.discover import LogLocation, Selector, discover
from compaction.logdir.read_log import ReadOptions, read_log
from compaction.logdir.segments import segment_bases
from compaction.logdir.settings.log_settings import Settings, read_settings, require_policy
from compaction.recovery.recover import RecoveryReport, finish_interrupted_swap, recover_log

Plan = TypeVar("Plan")

_NO_ACCESS = Access()
_BEYOND = "beyond the lock of this log directory"
#: from here on it pays to have logs read by many processes: one reads about a thousand segments a second
MANY_SEGMENTS = 8_000
#: the same where reading a segment takes several requests
MANY_REMOTE_SEGMENTS = 200


@dataclass(frozen=True)
class Prepared(Generic[Plan]):
    """One log, ready to be worked on: its plan, or what is wrong with it."""

    location: LogLocation
    plan: Plan | None = None
    settings: Settings = field(default_factory=Settings)
    error: CompactionError | None = None


class LogReadTask(NamedTuple):
    """One log to be looked at: read-only, by any process that sees the files."""

    location: LogLocation
    settings: Settings
    checkpoints: Checkpoints
    now_ms: int


#: looks at many logs at once, in order; see :func:`look`
ParallelRead = Callable[[Sequence[LogReadTask]], "list[LogView | CompactionError | None]"]


def look(base: FileSystem, log: LogReadTask) -> LogView | CompactionError | None:
    """One log as it is, what is wrong with it, or ``None`` where something has to be recovered first. Writes nothing."""
    overlay = OverlayFileSystem(base)
    recovered = _recover(overlay, log.location, log.settings)
    if overlay.changed:
        return None
    return recovered.error or _read(overlay, recovered, log.checkpoints, log.now_ms)


class ReadLog(NamedTuple):
    """One log as it was read: its settings and view, or what is wrong with it."""

    location: LogLocation
    settings: Settings | CompactionError
    view: LogView | CompactionError


def read_logs(
    fs: FileSystem,
    request: CompactionRequest,
    parallel_read: ParallelRead | None = None,
    held: Access = _NO_ACCESS,
    *,
    policy_required: bool = False,
) -> tuple[ReadLog, ...]:
    """Recover and read all logs that the request asks for, in the order of directories, topics and partitions.

    :param look_ahead: used for very many segments
    :param held: the run's claims on the log directories
    :param policy_required: a log whose ``cleanup.policy`` is a guess is not touched; its settings are ``PolicyUnknownError``
    :raises ConfigError: the call's own settings contradict each other; nothing was touched
    """
    locations = discover(fs, request.log_dirs, Selector(request.topics, request.partitions))
    settings = dict(zip(locations, read_settings(fs, locations, request), strict=True))
    if policy_required:
        settings = {location: require_policy(each) for location, each in settings.items()}
    if not request.dry_run:
        settings.update(_beyond_locks(locations, request.log_dirs))
    seen = _parallel_read(fs, settings, request.as_of_ms, parallel_read)
    recovered = [_recover(fs, log, settings[log], held.owner(log.log_dir)) for log in locations if seen.get(log) is None]
    checkpoints = _checkpoints(fs, locations)
    views = {location: view for location, view in seen.items() if view is not None}
    for log in recovered:
        views[log.location] = log.error or _read(fs, log, checkpoints[log.location.log_dir], request.as_of_ms)
    return tuple(ReadLog(location, settings[location], views[location]) for location in locations)


def prepare(
    fs: FileSystem,
    request: CompactionRequest,
    plan_for: Callable[[LogView, TopicConfig], Plan],
    parallel_read: ParallelRead | None = None,
    held: Access = _NO_ACCESS,
    *,
    policy_required: bool = False,
) -> tuple[Prepared[Plan], ...]:
    """Recover, read and plan all logs that the request asks for; see ``read_logs``."""

    def plan(log: ReadLog) -> Prepared[Plan]:
        if isinstance(log.settings, CompactionError):
            return Prepared(log.location, error=log.settings)
        if not isinstance(log.view, LogView):
            return Prepared(log.location, settings=log.settings, error=log.view)
        try:
            return Prepared(log.location, plan_for(log.view, log.settings.topic), log.settings)
        except Exception as error:
            return Prepared(log.location, settings=log.settings, error=of_log(error, log.location.path))

    return tuple(map(plan, read_logs(fs, request, parallel_read, held, policy_required=policy_required)))


def _parallel_read(
    fs: FileSystem,
    logs: Mapping[LogLocation, Settings | CompactionError],
    now_ms: int,
    parallel_read: ParallelRead | None,
) -> dict[LogLocation, LogView | CompactionError | None]:
    """What others found of logs that are many; nothing where they are few."""
    many = MANY_REMOTE_SEGMENTS if any_remote(log.path for log in logs) else MANY_SEGMENTS
    if parallel_read is None or sum(len(segment_bases(fs, log.path)) for log in logs) < many:
        return {}
    checkpoints = _checkpoints(fs, logs)
    tasks = [
        LogReadTask(log, configured, checkpoints[log.log_dir], now_ms)
        for log, configured in logs.items()
        if isinstance(configured, Settings)
    ]
    return dict(zip([task.location for task in tasks], parallel_read(tasks), strict=True))


def _beyond_locks(locations: Iterable[LogLocation], log_dirs: Sequence[str]) -> dict[LogLocation, CompactionError]:
    """The logs whose directories lie in none of ``log_dirs``: no lock of this run protects them from a broker."""
    found: dict[LogLocation, CompactionError] = {}
    mounted = mount_points()
    for location in locations:
        if is_remote(location.path):
            continue
        real = resolved(location.path)
        if parent(real) not in log_dirs:
            hint = f"give --log-dir {parent(real)} too: its lock is that of this log"
            found[location] = StorageError(f"is a link to {real}, {_BEYOND}", path=location.path, hint=hint)
        elif real in mounted:
            hint = "give the log directory that holds it where it is mounted from, or use a dry run"
            found[location] = StorageError(f"is a mount point, {_BEYOND}", path=location.path, hint=hint)
    return found


def _checkpoints(fs: FileSystem, locations: Iterable[LogLocation]) -> dict[str, Checkpoints]:
    return {log_dir: read_checkpoints(fs, log_dir) for log_dir in {location.log_dir for location in locations}}


class _Recovered(NamedTuple):
    location: LogLocation
    settings: Settings = Settings()
    report: RecoveryReport = RecoveryReport()
    error: CompactionError | None = None


def _recover(
    fs: FileSystem, location: LogLocation, settings: Settings | CompactionError, owner: Owner = NOBODY
) -> _Recovered:
    """Recover a log that can be recovered: a first try in memory finds damage before anything is changed."""
    if isinstance(settings, CompactionError):
        return _Recovered(location, error=settings)
    interval_bytes = settings.topic.index_interval_bytes
    try:
        trial = OverlayFileSystem(fs)
        report = recover_log(trial, location, index_interval_bytes=interval_bytes)
        if trial.changed:
            if isinstance(fs, DeferredFileSystem):
                finish_interrupted_swap(fs.disk, location, owner)
            report = recover_log(fs, location, index_interval_bytes=interval_bytes, owner=owner)
    except Exception as error:
        return _Recovered(location, settings, error=of_log(error, location.path))
    return _Recovered(location, settings, report)


def _read(fs: FileSystem, log: _Recovered, checkpoints: Checkpoints, now_ms: int) -> LogView | CompactionError:
    options = ReadOptions(now_ms, log.settings.broker.producer_id_expiration_ms)
    try:
        found = log.report
        return read_log(
            fs, log.location, checkpoints, options, segments=found.segments, without_producers=found.without_producers
        )
    except Exception as error:
        return of_log(error, log.location.path)
