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
from typing import Any, NamedTuple

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import PolicyPlan
from compaction.config import BrokerConfig
from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError
from compaction.locking.access import access
from compaction.locking.claim import PROCESSES, Runs
from compaction.names import LogLocation
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
from compaction.storage.filesystem import DiskFileSystem, storage_of
from compaction.storage.mixed import MixedFileSystem, file_system
from compaction.task_runner import Job, pack

_READ_TASKS_PER_CORE = 4


class _Cleaned(NamedTuple):
    """The logs of a run as they were read, their cleanings in the order of the run, and the reports of logs and waves."""

    prepared: Sequence[PreparedLog[PolicyPlan]]
    logs: Sequence[LogCleaning]
    reports: list[LogReport]
    waves: Sequence[WaveReport]

    @property
    def failed(self) -> dict[LogLocation, str]:
        """The errors of the logs that failed."""
        return {
            **{log.location: str(log.error) for log in self.prepared if log.error is not None},
            **{log.location: log.error for log in self.logs if log.error is not None},
        }

    def with_retried(self, again: _Cleaned) -> _Cleaned:
        """The result after some logs were cleaned again."""
        retried = {log.location for log in again.prepared}
        pairs = [(log, report) for log, report in zip(self.logs, self.reports, strict=True) if log.location not in retried]
        return _Cleaned(
            [*(log for log in self.prepared if log.location not in retried), *again.prepared],
            [*(log for log, _ in pairs), *again.logs],
            [*(report for _, report in pairs), *again.reports],
            [*self.waves, *again.waves],
        )


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
    files = files or file_system([*request.log_dirs, *filter(None, [request.since])])

    def report(
        prepared: Sequence[PreparedLog[PolicyPlan]],
        logs: Sequence[LogReport],
        waves: Sequence[WaveReport],
        remaining_logs: int = 0,
    ) -> RunReport:
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
        sources, required = LogAccess(output.fs, output.disk, held, begin=output.begin), command.policy_required
        if output.increment is not None:
            sources = sources._replace(splices=output.increment.splices)

        def clean(request: CompactionRequest) -> _Cleaned:
            prepared = prepare(sources, request, command.plan, parallel_read(start), policy_required=required)
            logs = command.order(
                [
                    LogCleaning(log.location, log.plan, output.directory(log.location))
                    for log in prepared
                    if log.plan is not None
                ]
            )
            limits = _limits(request, prepared, sizes, files)

            def report_wave(*done: Any) -> None:
                on_wave(report(prepared, *done))

            runner = WaveRunner(command, request, output, limits, start, started, report_wave)
            return _Cleaned(prepared, logs, *runner.run(logs))

        cleaned = clean(request)
        if output.increment is not None and (again := output.increment.restart(cleaned.failed)):
            cleaned = cleaned.with_retried(clean(replace(request, logs=again)))
        prepared, logs, reports, waves = cleaned
        unplanned = {log.location: str(log.error) for log in prepared if log.error is not None}
        if in_place:
            reports = command.conclude(output, logs, unplanned, reports)
        reports = note_logs_in_use(reports, held.in_use, (log.view for log in logs))
    if not in_place:
        reports = command.conclude(None, logs, unplanned, [replace(log, deleted_bytes=0) for log in reports])
    result = report(prepared, reports, waves)
    return result if output.increment is None else replace(result, logs=tuple(output.increment.noted(result.logs)))


def parallel_read(start: Callable[[], Passes]) -> ParallelRead:
    """Reads logs as tasks of the passes that ``start`` returns; it is called when there are logs to read."""

    def read_all(tasks: Sequence[LogReadTask]) -> list[LogView | CompactionError | None]:
        passes = start()
        packs = pack(tasks, lambda _: 1, -(-len(tasks) // (_READ_TASKS_PER_CORE * passes.cores)))
        views_by_task = passes.run(Job(f"read {len(tasks)} logs", in_workers=True), packs, _read_logs)
        return [view for views in views_by_task for view in views]

    return read_all


def _read_logs(tasks: Sequence[LogReadTask]) -> list[LogView | CompactionError | None]:
    return [read_without_recovery(file_system(_directories(task)), task) for task in tasks]


def _directories(task: LogReadTask) -> list[str]:
    return [task.location.path, *([] if task.splice is None else [task.splice.directory])]


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
