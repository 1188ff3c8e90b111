"""One run of a command over many logs, from a request to its report: **plan → passes → swap → report**.

Reads as ``Cleaner.doClean`` of Kafka does, over many logs at once:

1. **plan**: lock the log directories, recover each log, read it, plan it (``run.prepare``, and the command's planner);
2. **passes**: scan the logs, resolve transactions, clean into groups, verify what was written (``run.cleaner``, with the
   command's method);
3. **swap** the outputs in, or publish the copy (``run.destination``);
4. **report** (``run.log_reports``, and the command's rows).

``LogCleaning`` carries a log from step to step. An error of one log does not affect the others. ``run.compact``,
``run.expire`` and ``erasure.erase_keys`` are the commands; ``compare.compare_policies`` has the first two steps for several
policies at once, and writes nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import PolicyPlan
from compaction.cleaning.skip_reasons import Verdict
from compaction.config import BrokerConfig
from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError, as_log_error
from compaction.locking.access import access
from compaction.locking.claim import PROCESSES, Runs
from compaction.logdir.settings.log_settings import Settings
from compaction.names import LogLocation
from compaction.report import LogReport
from compaction.run.admission import SpaceBudget, copied_bytes
from compaction.run.cleaner import Cleaner, Limits, Method
from compaction.run.destination import Destination, destination, purpose
from compaction.run.expired_records import count_expired
from compaction.run.log_cleaning import LogCleaning
from compaction.run.log_reports import failed_report, note_logs_in_use, versions_used
from compaction.run.passes import Passes, run_in_threads
from compaction.run.prepare import LogAccess, LogReadTask, ParallelRead, PreparedLog, prepare, read_without_recovery
from compaction.run.sizing import Sizes
from compaction.run_report import RunReport
from compaction.screen.amounts import counted
from compaction.screen.steps import step
from compaction.storage.durable import Steps, run_in_step
from compaction.storage.filesystem import DiskFileSystem, FileSystem
from compaction.storage.kinds import storage_of
from compaction.storage.mixed import MixedFileSystem, file_system
from compaction.task_runner import Job, pack

T = TypeVar("T")

_READ_TASKS_PER_CORE = 4


class Command:
    """What a command contributes to its run; each command is a subclass.

    :cvar done: what the run does to logs, for messages
    :cvar doing: the step of the passes, for the progress
    :cvar policy_required: a log whose ``cleanup.policy`` is a guess fails
    :cvar has_versions: the rules of Kafka's versions apply, and the report names them
    :cvar counts_expired: the run reads logs anyway, and counts the records of expired segments
    """

    done, doing = "compacted", "cleaning"
    policy_required, has_versions, counts_expired = False, True, False

    def begin(self, files: DiskFileSystem) -> None:
        """Called when the log directories are locked."""

    def plan(self, view: LogView, settings: Settings) -> PolicyPlan:
        """The plan of a log; if it raises, the log fails."""
        raise NotImplementedError

    def order(self, logs: Sequence[LogCleaning]) -> list[LogCleaning]:
        """The logs in the order of the passes and of the report.

        :raises StorageError: the run cannot be done; nothing was written
        """
        return list(logs)

    def method(self, cleaner: Cleaner) -> Method:
        raise NotImplementedError

    def swapped(self, output: Destination, log: LogCleaning) -> Steps[None]:
        """Called for each log whose result is in place."""
        yield ()

    def report(self, log: LogCleaning) -> LogReport:
        """The row of a log that has not failed."""
        raise NotImplementedError

    def conclude(
        self,
        output: Destination | None,
        logs: Sequence[LogCleaning],
        unplanned: Mapping[LogLocation, str],
        reports: list[LogReport],
    ) -> list[LogReport]:
        """The rows of the logs, once the results of all are in place, or once the copy is published.

        :param output: where the results are; ``None`` for a copy
        :param unplanned: the errors of the logs that could not be planned
        """
        return reports


def carry_out(
    command: Command,
    start: Callable[[], Passes],
    request: CompactionRequest,
    sizes: Sizes | None = None,
    files: DiskFileSystem | None = None,
    runs: Runs = PROCESSES,
) -> RunReport:
    """One run of a command.

    :param start: starts what runs the tasks; called only if a log is to be cleaned, or there are very many segments to read
    :param sizes: see ``Limits``
    :param files: how driver and tasks access files; by default the file system of their paths
    :param runs: tells runs apart that claim the same directories
    :raises UsageError: a log directory is in use, or cannot be changed in place; or the output directory cannot be written to
    """
    started, in_place = time.monotonic(), request.output_dir is None
    files = files or file_system(request.log_dirs)
    with (
        access(files, request.log_dirs, purpose(request), runs) as held,
        destination(files, request, held, command.done) as output,
    ):
        command.begin(files)
        sources = LogAccess(output.fs, output.disk, held)
        required = command.policy_required
        prepared = prepare(sources, request, command.plan, parallel_read(start), policy_required=required)
        logs = command.order(
            [LogCleaning(log.location, log.plan, output.directory(log.location)) for log in prepared if log.plan is not None]
        )
        selected = [log for log in logs if log.compaction.verdict is Verdict.CLEAN]
        limits = _limits(request, logs, prepared, sizes, files)
        expired = [log for log in logs if log.plan.removals and command.counts_expired]
        if expired:
            count_expired(expired, output.fs, start(), limits)
        if selected:
            passes = start()
            step(f"{command.doing} {counted(len(selected), 'log')}")
            cleaner = Cleaner(selected, output.fs, passes, limits)
            cleaner.run(command.method(cleaner))
        if selected and not request.dry_run:
            step("replacing segments" if in_place else "publishing the copy")
        works = [(log.location.path, _finish(command, output, log)) for log in logs]
        reports = change_logs(output.disk, works, output.concurrency)
        unplanned = {log.location: str(log.error) for log in prepared if log.error is not None}
        if in_place:
            reports = command.conclude(output, logs, unplanned, reports)
        reports = note_logs_in_use(reports, held.in_use, (log.view for log in logs))
    if not in_place:
        reports = command.conclude(None, logs, unplanned, [replace(report, deleted_bytes=0) for report in reports])
    failed = (failed_report(log.location, log.error) for log in prepared if log.error is not None)
    return RunReport(
        uuid.uuid4().hex,
        request.as_of_ms,
        request.dry_run,
        (*reports, *failed),
        time.monotonic() - started,
        versions_used(log.settings.kafka for log in prepared if log.settings is not None and command.has_versions),
        copied=not in_place or not all(storage_of(log_dir).renames for log_dir in request.log_dirs),
    )


def _finish(command: Command, output: Destination, log: LogCleaning) -> Steps[LogReport]:
    """Swaps in a cleaned log, applies the delete policy to another one; a failed log is not changed. Returns its report."""
    started = time.monotonic()
    try:
        if log.error is not None:
            output.discard(log)
        elif log.compaction.verdict is Verdict.CLEAN:
            yield from output.replace(log)
        else:
            yield from output.keep(log)
        if log.error is None:
            yield from command.swapped(output, log)
    except Exception as error:
        log.error = str(as_log_error(error, log.location.path))
    if log.error is not None:
        return failed_report(log.location, log.error, log.plan)
    report = replace(command.report(log), expired_records=log.expired_records)
    return replace(report, seconds=log.seconds + time.monotonic() - started)


def change_logs(fs: FileSystem, works: Sequence[tuple[str, Steps[T]]], most: int) -> list[T]:
    """Runs works that each change one log; returns their results in order. Groups of up to ``most`` works advance in step.

    Several works run in one thread, so that an interrupt does not stop them halfway; two threads would contend for the GIL.

    :param works: the directory of each log, and what changes it
    """
    groups = [works[first : first + most] for first in range(0, len(works), most)]
    calls = [partial(run_in_step, fs, [path for path, _ in group], [work for _, work in group]) for group in groups]
    results = run_in_threads(calls, 1) if min(most, len(works)) > 1 else [call() for call in calls]
    return [result for group in results for result in group]


def parallel_read(start: Callable[[], Passes]) -> ParallelRead:
    """Reads logs as tasks of the passes that ``start`` returns; it is called when there are logs to read."""

    def read_all(tasks: Sequence[LogReadTask]) -> list[LogView | CompactionError | None]:
        passes = start()
        packs = pack(tasks, lambda _: 1, -(-len(tasks) // (_READ_TASKS_PER_CORE * passes.cores)))
        views_by_task = passes.run(Job(f"read {len(tasks)} logs"), packs, _read_logs)
        return [view for views in views_by_task for view in views]

    return read_all


def _read_logs(tasks: Sequence[LogReadTask]) -> list[LogView | CompactionError | None]:
    return [read_without_recovery(file_system([task.location.path]), task) for task in tasks]


def smallest_broker(brokers: Iterable[BrokerConfig]) -> BrokerConfig:
    """The limits of a run over directories of several brokers: the smallest dedupe buffer, load factor and I/O rate of any.
    None of them changes the result."""
    known = list(brokers) or [BrokerConfig()]
    return replace(
        known[0],
        dedupe_buffer_bytes=min(broker.dedupe_buffer_bytes for broker in known),
        load_factor=min(broker.load_factor for broker in known),
        io_max_bytes_per_second=min(broker.io_max_bytes_per_second for broker in known),
    )


def _limits(
    request: CompactionRequest,
    logs: Sequence[LogCleaning],
    prepared: Iterable[PreparedLog[PolicyPlan]],
    sizes: Sizes | None,
    files: DiskFileSystem,
) -> Limits:
    brokers = (log.settings.broker for log in prepared if log.settings is not None and log.plan is not None)
    to_store = request.output_dir is not None and not storage_of(request.output_dir).renames
    return Limits(smallest_broker(brokers), sizes, _space_for(request, logs), MixedFileSystem() if to_store else files)


def _space_for(request: CompactionRequest, logs: Sequence[LogCleaning]) -> SpaceBudget | None:
    """The free space that outputs may use. A copy also needs space for all segments that are not cleaned."""
    if request.dry_run:
        return None
    if request.output_dir is None:
        return SpaceBudget()
    total_bytes = sum(copied_bytes(log.compaction.view.segments) for log in logs)
    return SpaceBudget(total_bytes - sum(copied_bytes(log.compaction.segments) for log in logs))
