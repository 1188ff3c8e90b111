"""One run of the log cleaner, from a request to its report.

Reads as ``Cleaner.doClean`` of Kafka 4.4.0 does, over many logs at once:

1. **prepare**: lock the log directories, recover each log, read it, plan it (``engine.prepare``,
   ``cleaning.plan``);
2. **build the offset map**: pass 1 maps the hash of every dirty key to its highest offset (``passes.build_map``);
3. **resolve transactions**: which data is aborted, which markers may be dropped (``cleaning.transactions``);
4. **clean into groups**: pass 2 writes what is retained, one segment a group (``passes.clean_into``), and the tasks
5. **verify** what they have written (``output.verification``);
6. **swap** the outputs in and move the **checkpoint** (``engine.destination``, ``output.swap``);
7. **report** (``engine.log_reports``).

``LogCleaning`` carries a log from step to step. An error of one log does not affect the others.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import PolicyPlan, dirtiest_first, plan_compact_run
from compaction.cleaning.skip_reasons import Verdict
from compaction.config import BrokerConfig
from compaction.config.request import CompactionRequest
from compaction.engine.admission import SpaceBudget, copied_bytes, keyless_refusal, require_lasting
from compaction.engine.cleaner import Cleaner, CleanerOptions
from compaction.engine.concurrency import change_logs
from compaction.engine.destination import Destination, destination, purpose
from compaction.engine.log_cleaning import LogCleaning
from compaction.engine.log_reports import cleaned_report, failed_report, note_logs_in_use, skipped_report, versions_used
from compaction.engine.prepare import LogReadTask, ParallelRead, PreparedLog, Sources, prepare, read_without_recovery
from compaction.engine.protocol import Passes, PlainPasses
from compaction.engine.sizing import Sizes
from compaction.errors import CompactionError, of_log
from compaction.fs.durable import Steps
from compaction.fs.filesystem import DiskFileSystem
from compaction.fs.uri import any_remote, is_remote
from compaction.locking.access import access
from compaction.locking.claim import PROCESSES, Runs
from compaction.logdir.settings.log_settings import Settings
from compaction.report import LogReport
from compaction.run_report import RunReport
from compaction.screen.amounts import counted
from compaction.screen.steps import step
from compaction.stores.mixed import MixedFileSystem, file_system
from compaction.task_runner import Job, pack

_READ_TASKS_PER_CORE = 4


def clean_logs(
    start: Callable[[], Passes],
    request: CompactionRequest,
    sizes: Sizes | None = None,
    files: DiskFileSystem | None = None,
    runs: Runs = PROCESSES,
) -> RunReport:
    """Executes ``request``.

    :param start: starts what runs the tasks; called only if a log is to be cleaned, or there are very many segments to read
    :param sizes: see ``CleanerOptions``
    :param files: how driver and tasks access files; by default the file system of their paths
    :param runs: tells runs apart that claim the same directories
    :raises UsageError: a log directory is in use
    """
    started = time.monotonic()
    files = files or file_system(request.log_dirs)
    with (
        access(files, request.log_dirs, purpose(request), runs) as held,
        destination(files, request, held) as output,
    ):
        def plan_for(view: LogView, settings: Settings) -> PolicyPlan:
            active, rules = request.include_active, settings.kafka.rules
            plan = plan_compact_run(view, settings.topic, now_ms=request.as_of_ms, include_active=active, rules=rules)
            require_lasting(plan.compaction, request)
            return plan

        prepared = prepare(Sources(output.fs, output.disk, held), request, plan_for, parallel_read(start))
        logs = _in_order(prepared, output)
        dirty = [log for log in logs if log.compaction.verdict is Verdict.CLEAN]
        if dirty:
            options = cleaner_options(request, logs, prepared, sizes, files)
            passes = start()
            step(f"cleaning {counted(len(dirty), 'log')}")
            do_clean(Cleaner(dirty, output.fs, partial(PlainPasses, passes), passes.cores, options))
        if dirty and not request.dry_run:
            step("replacing segments" if request.output_dir is None else "publishing the copy")
        reports = change_logs(output.disk, [(log.location.path, _finish(output, log)) for log in logs], output.concurrency)
        reports = note_logs_in_use(reports, held.in_use, (log.compaction.view for log in logs))
    if request.output_dir is not None:
        reports = [replace(report, deleted_bytes=0) for report in reports]
    reports += [failed_report(log.location, log.error) for log in prepared if log.error is not None]
    seconds = time.monotonic() - started
    used = versions_used(log.settings.kafka for log in prepared if log.settings is not None)
    copied = request.output_dir is not None or any_remote(request.log_dirs)
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, tuple(reports), seconds, used, copied=copied)


def parallel_read(start: Callable[[], Passes]) -> ParallelRead:
    """Reads logs as tasks of the passes that ``start`` returns; it is called when there are logs to read."""

    def read_all(tasks: Sequence[LogReadTask]) -> list[LogView | CompactionError | None]:
        passes = start()
        packs = pack(tasks, lambda _: 1, -(-len(tasks) // (_READ_TASKS_PER_CORE * passes.cores)))
        found = passes.run(Job(f"read {len(tasks)} logs"), packs, _read_logs)
        return [view for views in found for view in views]

    return read_all


def _read_logs(tasks: Sequence[LogReadTask]) -> list[LogView | CompactionError | None]:
    return [read_without_recovery(file_system([task.location.path]), task) for task in tasks]


def do_clean(cleaner: Cleaner) -> None:
    """The steps between planning and swapping, which comparisons of policies have in common."""
    cleaner.build_offset_map()
    cleaner.resolve_transactions()
    cleaner.clean_into_groups()


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


def _in_order(prepared: Iterable[PreparedLog[PolicyPlan]], output: Destination) -> list[LogCleaning]:
    """The logs that have a plan; those to be cleaned come first, the dirtiest of them first."""
    logs = {
        log.location.path: LogCleaning(log.location, log.plan, output.directory(log.location))
        for log in prepared
        if log.plan is not None
    }
    return [logs[plan.view.path] for plan in dirtiest_first(log.compaction for log in logs.values())]


def cleaner_options(
    request: CompactionRequest,
    logs: Sequence[LogCleaning],
    prepared: Iterable[PreparedLog[PolicyPlan]],
    sizes: Sizes | None,
    files: DiskFileSystem,
) -> CleanerOptions:
    """The options of a run over ``prepared``, of which ``logs`` have a plan."""
    brokers = (log.settings.broker for log in prepared if log.settings is not None and log.plan is not None)
    return CleanerOptions(
        now_ms=request.as_of_ms,
        dry_run=request.dry_run,
        broker=smallest_broker(brokers),
        refuse=keyless_refusal(allow_keyless=request.allow_keyless),
        sizes=sizes,
        space=_space_for(request, logs),
        files=files if request.output_dir is None or not is_remote(request.output_dir) else MixedFileSystem(),
    )


def _space_for(request: CompactionRequest, logs: Sequence[LogCleaning]) -> SpaceBudget | None:
    """The free space that outputs may use. A copy also needs space for all segments that are not cleaned."""
    if request.dry_run:
        return None
    if request.output_dir is None:
        return SpaceBudget()
    if is_remote(request.output_dir):
        return None
    total_bytes = sum(copied_bytes(log.compaction.view.segments) for log in logs)
    return SpaceBudget(total_bytes - sum(copied_bytes(log.compaction.segments) for log in logs))


def _finish(output: Destination, log: LogCleaning) -> Steps[LogReport]:
    """Finishes a log; its report."""
    started = time.monotonic()
    yield from finish_log(output, log)
    if log.error is not None:
        return failed_report(log.location, log.error, log.plan)
    if log.compaction.verdict is not Verdict.CLEAN:
        return skipped_report(log.plan)
    return replace(cleaned_report(log.plan, log), seconds=log.seconds + time.monotonic() - started)


def finish_log(output: Destination, log: LogCleaning) -> Steps[None]:
    """Swaps in a cleaned log, applies the delete policy to another one. A failed log is not changed."""
    try:
        if log.error is not None:
            output.discard(log)
        elif log.compaction.verdict is Verdict.CLEAN:
            yield from output.replace(log)
        else:
            yield from output.keep(log)
    except Exception as error:
        log.error = str(of_log(error, log.location.path))
