"""One run of a command over many logs, from a request to its report: **lock → plan → clean → publish → report**.

Reads as ``Cleaner.doClean`` of Kafka does, over many logs at once. ``Run`` has a method for each step:

1. **lock** the log directories (``log.access``);
2. **plan**: recover each log, read it, plan it (``run.prepare``, and the command's planner);
3. **clean**: scan the logs, resolve transactions, clean into groups, verify what was written (``run.cleaner``, with the
   command's method);
4. **publish**: swap the outputs in, or add them to the copy (``run.destination``);
5. **report** (``run.log``, and the command's rows).

If the outputs of all logs do not fit beside them, steps 3 and 4 are repeated for one wave of logs after the other
(``run.waves``). ``Log`` carries a log from step to step. An error of one log does not affect the others.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TypeVar

from compaction.config.request import CompactionRequest
from compaction.config.resolver import BrokerConfig
from compaction.engine import Engine
from compaction.errors import as_log_error
from compaction.files.durable import DurableSteps, run_in_step
from compaction.files.filesystem import DiskFileSystem, FileSystem, storage_of
from compaction.files.mixed import MixedFileSystem, file_system
from compaction.log.access import Access, access
from compaction.log.settings import Settings
from compaction.names import LogLocation
from compaction.report import LogReport, RunReport, WaveReport
from compaction.rules.log_view import LogView
from compaction.rules.plan import PolicyPlan
from compaction.run.cleaner import Cleaner, Limits, Method, count_expired, group_bytes
from compaction.run.destination import Destination, destination, purpose
from compaction.run.log import Log, failed_report, note_logs_in_use, replaced_bytes, replaced_source_bytes, versions_used
from compaction.run.prepare import prepare
from compaction.run.sizing import Sizes
from compaction.run.waves import Pace, ReplacedSegments, SpaceBudget, Wave, Waves, copied_bytes, portions
from compaction.screen.amounts import counted
from compaction.screen.steps import step
from compaction.signals import deferred

T = TypeVar("T")


class Command:
    """Each command is a subclass.

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

    def order(self, logs: Sequence[Log]) -> list[Log]:
        """The logs in the order of the passes and of the report.

        :raises StorageError: the run cannot be done; nothing was written
        """
        return list(logs)

    def method(self, cleaner: Cleaner) -> Method:
        raise NotImplementedError

    def swapped(self, output: Destination, log: Log) -> DurableSteps[None]:
        """Called for each log whose result is in place."""
        yield ()

    def report(self, log: Log) -> LogReport:
        """The row of a log that has not failed."""
        raise NotImplementedError

    def conclude(
        self, output: Destination | None, logs: Sequence[Log], unplanned: Mapping[LogLocation, str], reports: list[LogReport]
    ) -> list[LogReport]:
        """The rows of the logs, once the results of all are in place, or once the copy is published.

        :param output: where the results are; ``None`` for a copy
        :param unplanned: the errors of the logs that could not be planned
        """
        return reports


class Run:
    """One run of a command; see the module.

    :param start: starts what runs the tasks; called only if a log is to be cleaned, or there are very many segments to read
    :param files: how driver and tasks access files, by default by the file system of their paths
    :param sizes: see ``Limits``
    :param on_wave: called with the report so far when one of several waves has ended
    """

    def __init__(
        self,
        command: Command,
        start: Callable[[], Engine],
        request: CompactionRequest,
        files: DiskFileSystem | None = None,
        sizes: Sizes | None = None,
        on_wave: Callable[[RunReport], None] = lambda report: None,
    ) -> None:
        self._command, self._start, self._request, self._on_wave = command, start, request, on_wave
        self._started_s, self._run_id = time.monotonic(), uuid.uuid4().hex
        self._in_place, self._sizes = request.output_dir is None, sizes
        self._pace = Pace(request.budget.max_duration_ms, self._started_s)
        self._files = files or file_system([*request.log_dirs, *filter(None, [request.since])])
        #: all logs as they were read, and those with a plan in the order of the run
        self._logs: list[Log] = []
        self._planned: list[Log] = []
        #: the waves that have ended, and how long they took
        self._ended: list[tuple[Wave, float]] = []

    def run(self) -> RunReport:
        """All steps.

        :raises UsageError: a log directory is in use, or cannot be changed in place; or the output directory cannot be written
            to
        """
        with self.lock() as held, destination(self._files, self._request, held, self._command.done) as output:
            self._output = output
            early, retained = self._request.release_early, self._request.retain_replaced
            self._replaced = ReplacedSegments(output, early, retained, self._pace.end_s)
            self._command.begin(self._files)
            self.clean(self.plan(self._request))
            failed = {log.location: log.error for log in self._planned if log.error is not None}
            if again := output.restart(self._unplanned() | failed):
                self.clean(self.plan(replace(self._request, logs=again)))
            reports, waves = self._reports(), self._wave_reports()
            if self._in_place:
                reports = self._conclude(output, reports)
            reports = note_logs_in_use(reports, held.in_use, (log.before for log in self._planned))
        if not self._in_place:
            reports = self._conclude(None, [replace(log, deleted_bytes=0) for log in reports])
        result = self.report(reports, waves)
        return replace(result, logs=output.noted(result.logs))

    def lock(self) -> AbstractContextManager[Access]:
        """Locks the log directories for what the run does there."""
        return access(self._files, self._request.log_dirs, purpose(self._request))

    def plan(self, request: CompactionRequest) -> list[Log]:
        """Reads and plans the logs of ``request``: those that have a plan, in the order of the run."""
        output, command = self._output, self._command
        read = prepare(output, request, command.plan, self._start, policy_required=command.policy_required)
        planned = [log for log in read if log.is_planned]
        for log in planned:
            log.directory = output.directory(log.location)
        planned = command.order(planned)
        repeated = set(request.logs)
        self._logs = [*(log for log in self._logs if log.location not in repeated), *read]
        self._planned = [*(log for log in self._planned if log.location not in repeated), *planned]
        return planned

    def clean(self, logs: Sequence[Log]) -> None:
        """The passes over logs, wave by wave; the results of each wave are published before the next one is planned."""
        passes = self._start() if any(log.cleans or self._counts(log) for log in logs) else None
        limits = self._limits()
        sizes = limits.sizes_for(group_bytes(log for log in logs if log.cleans), 1 if passes is None else passes.cores)
        for wave in Waves(logs, sizes, self._in_place_replaced, self._pace):
            started_s = time.monotonic()
            if wave.progress is not None:
                step(wave.progress)
            if passes is not None:
                self._clean(wave, passes, replace(limits, space=self._space_for(logs)))
            self.publish(wave)
            self._ended.append((wave, time.monotonic() - started_s))
            if wave.progress is not None:
                self._on_wave(self.report(self._reports(), self._wave_reports()))
        for log in logs:
            if log.deferred is not None:
                log.report = self._command.report(log)

    def _clean(self, wave: Wave, passes: Engine, limits: Limits) -> None:
        """The passes over a wave. A log that does not fit is cleaned in portions, all but the last of which are swapped in."""
        if expired := [log for log in wave.logs if self._counts(log)]:
            count_expired(expired, self._output.fs, passes, limits)
        if not wave.to_clean:
            return
        step(f"{self._command.doing} {counted(len(wave.to_clean), 'log')}")
        cleaner = Cleaner(wave.to_clean, self._output.fs, passes, limits)
        method = self._command.method(cleaner)
        besides = "" if limits.space is None else limits.space.besides()
        for log, lacking in cleaner.run(method).items():
            for portion in portions(log, lacking, self._in_place_replaced, besides):
                cleaner.write(method, portion)
                if not portion.is_last and log.error is None:
                    self._swap_portion(log)

    def _swap_portion(self, log: Log) -> None:
        """Swaps in outputs of a log that is not cleaned completely yet."""
        size_bytes = replaced_source_bytes(log)
        try:
            steps = self._output.replace(log, is_last=False)
            change_logs(self._output.disk, [(log.location.path, steps)], self._output.concurrency)
        except Exception as error:
            log.error = str(as_log_error(error, log.location.path))
            return
        log.swapped, log.groups = (*log.swapped, *log.groups), ()
        self._replaced.add(log, size_bytes)

    def publish(self, wave: Wave) -> None:
        """Puts the results of a wave in place."""
        if wave.to_clean and not self._request.dry_run:
            step("replacing segments" if self._in_place else "publishing the copy")
        works = [(log.location.path, self._finish(log)) for log in wave.logs]
        reports = change_logs(self._output.disk, works, self._output.concurrency)
        for log, report in zip(wave.logs, reports, strict=True):
            log.report = report
            log.release()
            self._replaced.add(log, report.deleted_bytes - self._replaced.added[log.location])

    def _finish(self, log: Log) -> DurableSteps[LogReport]:
        """Swaps in a cleaned log, applies the delete policy to another one; a failed log is not changed. Returns its report."""
        started_s = time.monotonic()
        try:
            if not log.is_done:
                self._output.discard(log)
            elif log.cleans:
                yield from self._output.replace(log)
            else:
                yield from self._output.keep(log)
            if log.error is None:
                yield from self._command.swapped(self._output, log)
        except Exception as error:
            log.error = str(as_log_error(error, log.location.path))
        if log.error is not None:
            return failed_report(log.location, log.error, log.plan, log.swapped)
        seconds = log.seconds + time.monotonic() - started_s
        report = self._command.report(log)
        return replace(report, expired_records=log.expired_records, task_seconds=log.seconds, seconds=seconds)

    def report(self, logs: Sequence[LogReport], waves: Sequence[WaveReport]) -> RunReport:
        """The report of the run, of which these logs and waves are done; logs without a plan have failed."""
        settings = [log.settings for log in self._logs if log.settings is not None and self._command.has_versions]
        failed = [failed_report(log.location, log.cause) for log in self._logs if not log.is_planned]
        return RunReport(
            self._run_id,
            self._request.as_of_ms,
            self._request.dry_run,
            (*logs, *failed),
            time.monotonic() - self._started_s,
            versions_used(known.kafka for known in settings),
            copied=not self._in_place or not all(storage_of(log_dir).renames for log_dir in self._request.log_dirs),
            waves=tuple(waves),
            remaining_logs=len(self._planned) - len(logs),
        )

    def _reports(self) -> list[LogReport]:
        """The reports of the logs that are done, in the order of the run."""
        return [self._log_report(log, log.report) for log in self._planned if log.report is not None]

    def _log_report(self, log: Log, report: LogReport) -> LogReport:
        # a log that failed or was deferred may have replaced a part of its segments
        left_bytes = report.deleted_bytes if log.is_done else self._replaced.added[log.location]
        deleted_bytes = max(0, left_bytes - self._replaced.removed[log.location])
        return report if deleted_bytes == report.deleted_bytes else replace(report, deleted_bytes=deleted_bytes)

    def _wave_reports(self) -> list[WaveReport]:
        reports = []
        for wave, seconds in self._ended:
            done = [log for log in wave.logs if log.is_done]
            written_bytes = sum(file.size for log in done for group in (*log.swapped, *log.groups) for file in group.files)
            left_bytes = sum(self._log_report(log, log.report).deleted_bytes for log in done if log.report is not None)
            freed_bytes = sum(map(replaced_bytes, done)) - left_bytes if self._in_place else 0
            reports.append(WaveReport(len(wave.logs), written_bytes, freed_bytes, seconds))
        return reports

    def _conclude(self, output: Destination | None, reports: list[LogReport]) -> list[LogReport]:
        return self._command.conclude(output, self._planned, self._unplanned(), reports)

    def _unplanned(self) -> dict[LogLocation, str]:
        """The errors of the logs without a plan."""
        return {log.location: str(log.cause) for log in self._logs if not log.is_planned}

    def _counts(self, log: Log) -> bool:
        """Whether the records of its expired segments are counted."""
        return self._command.counts_expired and bool(log.plan.removals) and log.is_done

    @property
    def _in_place_replaced(self) -> ReplacedSegments | None:
        """The ``.deleted`` files of a run whose outputs have to fit beside the logs."""
        return self._replaced if self._in_place and not self._request.dry_run else None

    def _limits(self) -> Limits:
        planned = (log.settings for log in self._logs if log.is_planned)
        brokers = [settings.broker for settings in planned if settings is not None]
        to_store = self._request.output_dir is not None and not storage_of(self._request.output_dir).renames
        files = MixedFileSystem() if to_store else self._files
        return Limits(smallest_broker(brokers), self._sizes, files=files, dry_run=self._request.dry_run)

    def _space_for(self, logs: Sequence[Log]) -> SpaceBudget | None:
        """The free space that outputs may use. A copy also needs space for all segments that are not cleaned.

        :param logs: those of this run, some of which may be done
        """
        if self._request.dry_run:
            return None
        if self._in_place:
            return SpaceBudget()
        plans = [log.compaction for log in logs if log.report is None]
        total_bytes = sum(copied_bytes(plan.view.segments) for plan in plans)
        return SpaceBudget(total_bytes - sum(copied_bytes(plan.segments) for plan in plans))


def change_logs(fs: FileSystem, works: Sequence[tuple[str, DurableSteps[T]]], most: int) -> list[T]:
    """Runs works that each change one log; returns their results in order. Groups of up to ``most`` works advance in step.

    Signals that stop a run do not stop such a group halfway: they take effect when it has ended. Works that advance alone are
    copies, which take long and are removed.

    :param works: the directory of each log, and what changes it
    """
    results: list[T] = []
    for first in range(0, len(works), most):
        group = works[first : first + most]
        with deferred() if most > 1 else nullcontext():
            results += run_in_step(fs, [path for path, _ in group], [work for _, work in group])
    return results


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
