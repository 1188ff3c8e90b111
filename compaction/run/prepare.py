"""Step **plan** of a run: from log directories to plans. Recover, read and plan every selected log.

An error of one log does not affect the others. Runs read their sources through an overlay, which keeps repairs in memory; a run
in place writes them when it swaps the log, and only it finishes interrupted swaps on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from compaction.config.request import CompactionRequest
from compaction.engine import Engine, Job, pack
from compaction.errors import CompactionError, CorruptLogError, LogError, StorageError, as_log_error
from compaction.files.filesystem import FileSystem, join, parent, storage_of
from compaction.files.mixed import file_system
from compaction.files.overlay import OverlayFileSystem, Splice, SplicedFileSystem
from compaction.files.uri import resolved
from compaction.log.access import mount_points
from compaction.log.checkpoint_store import Checkpoints, read_checkpoints
from compaction.log.read_log import ReadOptions, read_log, segment_bases
from compaction.log.settings import Settings, read_settings, require_policy
from compaction.names import LogLocation
from compaction.recovery.recover import RecoveryReport, recover_log
from compaction.rules.log_view import LogView
from compaction.rules.plan import PolicyPlan
from compaction.run.destination import Destination
from compaction.run.log import Log
from compaction.screen.amounts import counted
from compaction.screen.steps import step

_BEYOND = "beyond the lock of this log directory"
#: number of segments from which logs are read in parallel: one process reads about a thousand segments per second
MANY_SEGMENTS = 8_000
#: the same in object stores, where a segment takes several requests
MANY_REMOTE_SEGMENTS = 200
_READ_TASKS_PER_CORE = 4


class LogReadTask(NamedTuple):
    """The input for reading one log, in any process that can access its files."""

    location: LogLocation
    settings: Settings
    checkpoints: Checkpoints
    now_ms: int
    splice: Splice | None = None


def _read_without_recovery(tasks: Sequence[LogReadTask]) -> list[LogView | CompactionError | None]:
    """Reads logs in a task and writes nothing: of each its view or its error, ``None`` if it needs recovery first."""
    views: list[LogView | CompactionError | None] = []
    for task in tasks:
        path, splice = task.location.path, task.splice
        files = file_system([path] if splice is None else [path, splice.directory])
        output = Destination(OverlayFileSystem(files if splice is None else SplicedFileSystem(files, {path: splice})))
        recovered = _recover(output, task)
        view = recovered if isinstance(recovered, CompactionError) else _read(output.fs, task, recovered)
        views.append(None if output.fs.changed else view)
    return views


def read_logs(
    output: Destination, request: CompactionRequest, start: Callable[[], Engine] | None = None, *, policy_required: bool = False
) -> list[Log]:
    """Recovers and reads all selected logs, in the order of directories, topics and partitions. They have no plan yet.

    :param start: starts the engine, whose tasks read very many segments; without it they are read here
    :param policy_required: a log whose ``cleanup.policy`` is a guess is not changed; its error is a ``PolicyUnknownError``
    :raises ConfigError: settings of the call contradict each other; nothing was changed
    """
    fs = output.fs
    step(f"reading {counted(len(request.logs), 'log')}")
    settings = _read_settings(fs, request, policy_required=policy_required)
    valid = {location: known for location, known in settings.items() if isinstance(known, Settings)}
    output.begin(valid)
    checkpoints = _checkpoints(fs, valid)
    tasks = [
        LogReadTask(log, known, checkpoints[log.log_dir], request.as_of_ms, output.splices.get(log.path))
        for log, known in valid.items()
    ]
    views: dict[LogLocation, LogView | CompactionError] = {}
    if start is not None and _are_many(output, valid):
        views = _read_many(tasks, start())
    recovered = [(task, _recover(output, task)) for task in tasks if task.location not in views]
    # read again: recovery may have changed them
    checkpoints = _checkpoints(fs, settings)
    for task, report in recovered:
        task = task._replace(checkpoints=checkpoints[task.location.log_dir])
        views[task.location] = report if isinstance(report, CompactionError) else _read(fs, task, report)
    logs = []
    for location, known in settings.items():
        log = Log(location, valid.get(location))
        found_view = known if isinstance(known, CompactionError) else views[location]
        logs.append(log.fail(found_view) if isinstance(found_view, CompactionError) else replace(log, view=found_view))
    return logs


def _read_settings(
    fs: FileSystem, request: CompactionRequest, *, policy_required: bool
) -> dict[LogLocation, Settings | CompactionError]:
    """The settings of each selected log, or why it must not be touched."""
    settings = dict(zip(request.logs, read_settings(fs, request.logs, request), strict=True))
    if policy_required:
        settings = {location: require_policy(known) for location, known in settings.items()}
    if not request.dry_run:
        settings.update(_beyond_locks(request.logs, request.log_dirs))
    return settings


def prepare(
    output: Destination,
    request: CompactionRequest,
    plan_for: Callable[[LogView, Settings], PolicyPlan],
    start: Callable[[], Engine] | None = None,
    *,
    policy_required: bool = False,
) -> list[Log]:
    """Recovers, reads and plans all selected logs; see ``read_logs``. A log without a plan has failed."""
    logs = read_logs(output, request, start, policy_required=policy_required)
    for log in logs:
        if log.settings is not None and log.view is not None:
            try:
                log.planned = plan_for(log.view, log.settings)
            except Exception as error:
                log.fail(as_log_error(error, log.location.path))
    return logs


def _are_many(output: Destination, logs: Iterable[LogLocation]) -> bool:
    directories = [*(log.path for log in logs), *(splice.directory for splice in output.splices.values())]
    least = MANY_REMOTE_SEGMENTS if any(storage_of(path).round_trips for path in directories) else MANY_SEGMENTS
    segments = 0
    for log in logs:
        # an error is reported when the log is read
        with suppress(LogError):
            segments += len(segment_bases(output.fs, log.path))
    return segments >= least


def _read_many(tasks: Sequence[LogReadTask], engine: Engine) -> dict[LogLocation, LogView | CompactionError]:
    """Reads logs by tasks; those that need recovery first are missing."""
    packs = pack(tasks, lambda _: 1, -(-len(tasks) // (_READ_TASKS_PER_CORE * engine.cores)))
    views = engine.run(Job(f"read {len(tasks)} logs", in_workers=True), packs, _read_without_recovery)
    pairs = zip(tasks, chain.from_iterable(views), strict=True)
    return {task.location: view for task, view in pairs if view is not None}


def _beyond_locks(locations: Iterable[LogLocation], log_dirs: Sequence[str]) -> dict[LogLocation, CompactionError]:
    """The logs whose real directories are in none of ``log_dirs``: no lock of this run protects them from a broker."""
    results: dict[LogLocation, CompactionError] = {}
    mounted = mount_points()
    for location in locations:
        if not storage_of(location.path).locks:
            continue
        real = resolved(location.path)
        if parent(real) not in log_dirs:
            hint = f"give --log-dir {parent(real)} too: its lock protects this log"
            results[location] = StorageError(f"is a link to {real}, {_BEYOND}", path=location.path, hint=hint)
        elif real in mounted:
            hint = "give the log directory that contains it where it is mounted from, or use a dry run"
            results[location] = StorageError(f"is a mount point, {_BEYOND}", path=location.path, hint=hint)
    return results


def _checkpoints(fs: FileSystem, locations: Iterable[LogLocation]) -> dict[str, Checkpoints]:
    return {log_dir: read_checkpoints(fs, log_dir) for log_dir in {location.log_dir for location in locations}}


def _recover(output: Destination, task: LogReadTask) -> RecoveryReport | CompactionError:
    location, checkpoints, splice = task.location, task.checkpoints, task.splice
    if splice is not None:
        checkpoints = replace(checkpoints, complete_to=splice.end)
    try:
        report = recover_log(
            output.fs,
            location,
            index_interval_bytes=task.settings.topic.index_interval_bytes,
            disk=output.disk,
            owner=output.held.owner(location.log_dir),
            checkpoints=checkpoints,
        )
        if splice is not None:
            _require_not_repaired(output.fs, location.path, splice)
    except Exception as error:
        return as_log_error(error, location.path)
    return report


def _require_not_repaired(fs: OverlayFileSystem, path: str, splice: Splice) -> None:
    """Recovery is for the files of a source: those of a previous copy are complete as they were written.

    :raises CorruptLogError: recovery would change one of them
    """
    if (name := next(filter(splice.has, fs.changed_names(path)), None)) is not None:
        message, hint = "file of the previous copy needs recovery", "check it with verify"
        raise CorruptLogError(message, path=join(splice.directory, name), hint=hint)


def _read(fs: FileSystem, task: LogReadTask, recovered: RecoveryReport) -> LogView | CompactionError:
    options = ReadOptions(task.now_ms, task.settings.broker.producer_id_expiration_ms)
    try:
        return read_log(
            fs,
            task.location,
            task.checkpoints,
            options,
            segments=recovered.segments,
            without_producers=recovered.without_producers,
        )
    except Exception as error:
        return as_log_error(error, task.location.path)
