"""One run of a command over many logs, from a request to its report: **plan → passes → swap → report**.

Reads as ``Cleaner.doClean`` of Kafka does, over many logs at once:

1. **plan**: lock the log directories, recover each log, read it, plan it (``run.prepare``, and the command's planner);
2. **passes**: scan the logs, resolve transactions, clean into groups, verify what was written (``run.cleaner``, with the
   command's method);
3. **swap** the outputs in, or publish the copy (``run.destination``);
4. **report** (``run.log_reports``, and the command's rows).

If the outputs of all logs do not fit beside them, steps 2 and 3 are repeated for one wave of logs after the other
(``run.waves``). ``LogCleaning`` carries a log from step to step. An error of one log does not affect the others.
``run.compact``, ``run.expire`` and ``erasure.erase_keys`` are the commands; ``compare.compare_policies`` has the first two
steps for several policies at once, and writes nothing.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import PolicyPlan
from compaction.config import BrokerConfig
from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError
from compaction.locking.access import access
from compaction.locking.claim import PROCESSES, Runs
from compaction.report import LogReport, WaveReport
from compaction.run.clean_waves import WaveRunner
from compaction.run.cleaner import Limits
from compaction.run.command import Command
from compaction.run.destination import destination, purpose
from compaction.run.log_cleaning import LogCleaning
from compaction.run.log_reports import failed_report, note_logs_in_use, versions_used
from compaction.run.passes import Passes
from compaction.run.prepare import LogAccess, LogReadTask, ParallelRead, PreparedLog, prepare, read_without_recovery
from compaction.run.sizing import Sizes
from compaction.run_report import RunReport
from compaction.storage.filesystem import DiskFileSystem
from compaction.storage.kinds import storage_of
from compaction.storage.mixed import MixedFileSystem, file_system
from compaction.task_runner import Job, pack

_READ_TASKS_PER_CORE = 4


def carry_out(
    command: Command,
    start: Callable[[], Passes],
    request: CompactionRequest,
    sizes: Sizes | None = None,
    files: DiskFileSystem | None = None,
    runs: Runs = PROCESSES,
    on_wave: Callable[[RunReport], None] = lambda report: None,
) -> RunReport:
    """One run of a command.

    :param start: starts what runs the tasks; called only if a log is to be cleaned, or there are very many segments to read
    :param sizes: see ``Limits``
    :param files: how driver and tasks access files; by default the file system of their paths
    :param runs: tells runs apart that claim the same directories
    :param on_wave: called with the report so far when one of several waves has ended
    :raises UsageError: a log directory is in use, or cannot be changed in place; or the output directory cannot be written to
    """
    started, in_place, run_id = time.monotonic(), request.output_dir is None, uuid.uuid4().hex
    copied = not in_place or not all(storage_of(log_dir).renames for log_dir in request.log_dirs)
    files = files or file_system(request.log_dirs)

    def report(logs: Sequence[LogReport], waves: Sequence[WaveReport], remaining_logs: int = 0) -> RunReport:
        failed = (failed_report(log.location, log.error) for log in prepared if log.error is not None)
        settings = (log.settings for log in prepared if command.has_versions)
        return RunReport(
            run_id,
            request.as_of_ms,
            request.dry_run,
            (*logs, *failed),
            time.monotonic() - started,
            versions_used(known.kafka for known in settings if known is not None),
            copied=copied,
            waves=tuple(waves),
            remaining_logs=remaining_logs,
        )

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
        limits = _limits(request, prepared, sizes, files)
        runner = WaveRunner(command, request, output, limits, start, started, lambda *done: on_wave(report(*done)))
        reports, waves = runner.run(logs)
        unplanned = {log.location: str(log.error) for log in prepared if log.error is not None}
        if in_place:
            reports = command.conclude(output, logs, unplanned, reports)
        reports = note_logs_in_use(reports, held.in_use, (log.view for log in logs))
    if not in_place:
        reports = command.conclude(None, logs, unplanned, [replace(log, deleted_bytes=0) for log in reports])
    return report(reports, waves)


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
    request: CompactionRequest, prepared: Iterable[PreparedLog[PolicyPlan]], sizes: Sizes | None, files: DiskFileSystem
) -> Limits:
    brokers = (log.settings.broker for log in prepared if log.settings is not None and log.plan is not None)
    to_store = request.output_dir is not None and not storage_of(request.output_dir).renames
    return Limits(smallest_broker(brokers), sizes, files=MixedFileSystem() if to_store else files)
