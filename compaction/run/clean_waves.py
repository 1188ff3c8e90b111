"""Steps **passes** and **swap** of a run, for one wave of logs after the other.

Cleans a log whose outputs do not fit beside it in portions: as many groups of segments as fit are cleaned and swapped in,
then, once their ``.deleted`` files are gone, the next ones.

Kafka's cleaner swaps each group in before it cleans the next. Portions are in the order of offsets as well, and the cleaner
checkpoint moves with the last one. If a run ends between two portions, the log is a log between two groups of Kafka's cleaner:
complete, with a part of its superseded records. The next run cleans it again from the same checkpoint; as the cleaned segments
are smaller, more of them are in one group then.

All portions are cleaned by the offset map of one pass 1. A log is refused if

* it has only one group, or the replaced segments must remain (``--verify``, ``erase --certificate``);
* its segments have other bytes on the disk than recovery has made of them in memory: they are written at the first swap;
* the next group does not fit even when the ``.deleted`` files of this run are gone. If the run's time ends before that, the
  rest of the log is deferred.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from compaction.config.request import CompactionRequest
from compaction.errors import StorageError, as_log_error
from compaction.names import LOG, LogLocation, segment_file
from compaction.passes.scan import count_records
from compaction.passes.tasks import Slice
from compaction.report import LogReport, WaveReport
from compaction.run.admission import Lacking, SpaceBudget, copied_bytes
from compaction.run.budget import Pace
from compaction.run.cleaner import Cleaner, Limits, Method, slices_of
from compaction.run.command import Command
from compaction.run.destination import Destination
from compaction.run.log_cleaning import LogCleaning
from compaction.run.log_reports import failed_report, replaced_bytes, replaced_source_bytes
from compaction.run.passes import Passes
from compaction.run.waves import RESERVED_SHARE, ReplacedSegments, Wave, Waves
from compaction.screen.amounts import counted, size
from compaction.screen.steps import begin_wave, step
from compaction.signals import deferred
from compaction.storage.durable import DurableSteps, run_in_step
from compaction.storage.filesystem import FileSystem, ReadableFileSystem, join
from compaction.task_runner import Job, pack, size_of

_REFUSED = "free some space and run again, or use --output-dir; nothing was written"
_STOPPED = "free some space and run again: the next run cleans the rest"


def clean_in_portions(
    log: LogCleaning,
    lacking: Lacking,
    cleaner: Cleaner,
    method: Method,
    replaced: ReplacedSegments | None,
    swap: Callable[[LogCleaning], None],
) -> None:
    """Cleans a log in portions, all but the last of which are swapped in; the log fails if a portion does not fit.

    :param replaced: the ``.deleted`` files of the run; ``None`` if it does not replace segments in place
    :param swap: swaps the outputs of the log in; it fails if that is refused
    """
    parts, remaining = log.parts, sorted(lacking.needed_bytes)
    if replaced is None or replaced.retained or len(remaining) < 2 or not _is_as_on_disk(log):
        message = lacking.message(cleaner.limits.space.besides() if cleaner.limits.space is not None else "")
        log.error = str(StorageError(message, path=log.directory, hint=_REFUSED))
        return
    while remaining and log.error is None:
        chosen = _fitting(log, remaining, lacking, replaced)
        if not chosen:
            space = SpaceBudget()
            log.deferred = replaced.late(space, {space.device(log.directory)})
            log.error = None if log.deferred else _refusal(log, lacking.needed_bytes[remaining[0]])
            return
        log.parts = [part for part in parts if part.output.group in chosen]
        remaining = remaining[len(chosen) :]
        log.is_last = not remaining
        step(f"cleaning {log.location.topic_partition}, group {chosen[-1] + 1} of {len(lacking.needed_bytes)}")
        cleaner.write(method, [log])
        if remaining and log.error is None:
            swap(log)


def _is_as_on_disk(log: LogCleaning) -> bool:
    view = log.compaction.view
    names = [join(view.path, segment_file(segment.base_offset, LOG)) for segment in view.segments]
    return all(part.path == names[part.segment_index] for part in log.slices)


def _fitting(
    log: LogCleaning, groups: Sequence[int], lacking: Lacking, replaced: ReplacedSegments
) -> list[int]:
    """The first of these groups that fit, after a wait if that pays; empty if the first one does not."""
    while True:
        replaced.remove_due()
        space, chosen = SpaceBudget(reserved_share=RESERVED_SHARE), list[int]()
        while len(chosen) < len(groups) and space.take(log.directory, lacking.needed_bytes[groups[len(chosen)]]):
            chosen.append(groups[len(chosen)])
        needed_bytes = sum(lacking.needed_bytes[group] for group in chosen)
        if replaced.soon(space, {space.device(log.directory)}) <= needed_bytes:
            break
        replaced.wait()
    # a single group may also use the reserve
    return chosen or [group for group in groups[:1] if SpaceBudget().take(log.directory, lacking.needed_bytes[group])]


def _refusal(log: LogCleaning, needed_bytes: int) -> str:
    space = SpaceBudget()
    free_bytes = max(0, space.free_bytes(log.directory))
    message = f"its next group of cleaned segments takes {size(needed_bytes)}, {size(free_bytes)} are free {space.besides()}"
    hint = _STOPPED if log.swapped else _REFUSED
    return str(StorageError(f"{message}; {len(log.swapped)} groups are replaced", path=log.directory, hint=hint))


T = TypeVar("T")


@dataclass(frozen=True)
class WaveRunner:
    """The passes and swaps of a run, wave by wave.

    :ivar output: where the results are put
    :ivar limits: of the passes, but for the space
    :ivar started_s: when the run began
    :ivar on_wave: called when a wave has ended, with the reports of the logs and of the waves that are done, and the number of
        logs that are not
    """

    command: Command
    request: CompactionRequest
    output: Destination
    limits: Limits
    start: Callable[[], Passes]
    started_s: float
    on_wave: Callable[[list[LogReport], list[WaveReport], int], None]

    @property
    def _in_place(self) -> bool:
        return self.request.output_dir is None

    def run(self, logs: Sequence[LogCleaning]) -> tuple[list[LogReport], list[WaveReport]]:
        """The reports of the logs, in their order, and those of the waves."""
        passes = self.start() if any(log.cleans or self._counts(log) for log in logs) else None
        pace = Pace(self.request.budget.max_duration_ms, self.started_s)
        replaced = ReplacedSegments(self.output, self.request.release_early, self.request.retain_replaced, pace.end_s)
        bounding = replaced if self._in_place and not self.request.dry_run else None
        reports: dict[LogLocation, LogReport] = {}
        ended: list[tuple[Wave, float]] = []
        for wave in Waves(logs, self.limits, 1 if passes is None else passes.cores, bounding, pace):
            started = time.monotonic()
            if wave.progress is not None:
                begin_wave(wave.progress)
            if passes is not None:
                self._clean(wave, passes, [log for log in logs if log.location not in reports], bounding)
            reports |= self._swap(wave)
            for log in wave.logs:
                replaced.add(log, reports[log.location].deleted_bytes - replaced.added[log.location])
            ended.append((wave, time.monotonic() - started))
            if wave.progress is not None:
                done, waves = self._reports(logs, reports, replaced, ended)
                self.on_wave(done, waves, len(logs) - len(done))
        reports |= {log.location: self.command.report(log) for log in logs if log.deferred is not None}
        return self._reports(logs, reports, replaced, ended)

    def _reports(
        self,
        logs: Sequence[LogCleaning],
        reports: Mapping[LogLocation, LogReport],
        replaced: ReplacedSegments,
        ended: Sequence[tuple[Wave, float]],
    ) -> tuple[list[LogReport], list[WaveReport]]:
        """The reports of the logs that are done, in the order of all, and of the waves that have ended."""
        done = {}
        for log in logs:
            if (report := reports.get(log.location)) is not None:
                # a log that failed or was deferred may have replaced a part of its segments
                complete = log.error is None and log.deferred is None
                left_bytes = report.deleted_bytes if complete else replaced.added[log.location]
                deleted_bytes = max(0, left_bytes - replaced.removed[log.location])
                same = deleted_bytes == report.deleted_bytes
                done[log.location] = report if same else replace(report, deleted_bytes=deleted_bytes)
        return list(done.values()), [self._report(wave, done, seconds) for wave, seconds in ended]

    def _counts(self, log: LogCleaning) -> bool:
        counts = self.command.counts_expired and bool(log.plan.removals)
        return counts and log.deferred is None and log.error is None

    def _clean(
        self, wave: Wave, passes: Passes, remaining: Sequence[LogCleaning], replaced: ReplacedSegments | None
    ) -> None:
        """The passes over a wave; ``remaining`` are its logs and those of later waves."""
        if expired := [log for log in wave.logs if self._counts(log)]:
            _count_expired(expired, self.output.fs, passes, self.limits)
        if not wave.to_clean:
            return
        step(f"{self.command.doing} {counted(len(wave.to_clean), 'log')}")
        limits = replace(self.limits, space=_space_for(self.request, remaining))
        cleaner = Cleaner(wave.to_clean, self.output.fs, passes, limits)
        method = self.command.method(cleaner)
        for log, lacking in cleaner.run(method).items():
            clean_in_portions(log, lacking, cleaner, method, replaced, partial(self._swap_portion, replaced=replaced))

    def _swap_portion(self, log: LogCleaning, replaced: ReplacedSegments | None) -> None:
        """Swaps in outputs of a log that is not cleaned completely yet."""
        size_bytes = replaced_source_bytes(log)
        try:
            change_logs(self.output.disk, [(log.location.path, self.output.replace(log))], self.output.concurrency)
        except Exception as error:
            log.error = str(as_log_error(error, log.location.path))
            return
        log.swapped, log.groups = (*log.swapped, *log.groups), ()
        if replaced is not None:
            replaced.add(log, size_bytes)

    def _swap(self, wave: Wave) -> dict[LogLocation, LogReport]:
        """Puts the results of a wave in place."""
        if wave.to_clean and not self.request.dry_run:
            step("replacing segments" if self._in_place else "publishing the copy")
        works = [(log.location.path, self._finish(log)) for log in wave.logs]
        reports = change_logs(self.output.disk, works, self.output.concurrency)
        for log in wave.logs:
            log.release()
        return {log.location: report for log, report in zip(wave.logs, reports, strict=True)}

    def _finish(self, log: LogCleaning) -> DurableSteps[LogReport]:
        """Swaps in a cleaned log, applies the delete policy to another one; a failed log is not changed. Returns its report."""
        started = time.monotonic()
        try:
            if log.error is not None or log.deferred is not None:
                self.output.discard(log)
            elif log.cleans:
                yield from self.output.replace(log)
            else:
                yield from self.output.keep(log)
            if log.error is None:
                yield from self.command.swapped(self.output, log)
        except Exception as error:
            log.error = str(as_log_error(error, log.location.path))
        if log.error is not None:
            return failed_report(log.location, log.error, log.plan, log.swapped)
        report = self.command.report(log)
        seconds = log.seconds + time.monotonic() - started
        return replace(report, expired_records=log.expired_records, task_seconds=log.seconds, seconds=seconds)

    def _report(self, wave: Wave, reports: Mapping[LogLocation, LogReport], seconds: float) -> WaveReport:
        done = [log for log in wave.logs if log.error is None and log.deferred is None]
        written_bytes = sum(file.size for log in done for group in (*log.swapped, *log.groups) for file in group.files)
        freed_bytes = sum(replaced_bytes(log) - reports[log.location].deleted_bytes for log in done) if self._in_place else 0
        return WaveReport(len(wave.logs), written_bytes, freed_bytes, seconds)


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


def _space_for(request: CompactionRequest, logs: Sequence[LogCleaning]) -> SpaceBudget | None:
    """The free space that outputs may use. A copy also needs space for all segments that are not cleaned.

    :param logs: the logs whose results are not in place yet
    """
    if request.dry_run:
        return None
    if request.output_dir is None:
        return SpaceBudget()
    total_bytes = sum(copied_bytes(log.compaction.view.segments) for log in logs)
    return SpaceBudget(total_bytes - sum(copied_bytes(log.compaction.segments) for log in logs))


def _count_expired(logs: Sequence[LogCleaning], fs: FileSystem, passes: Passes, limits: Limits) -> None:
    """Sets ``expired_records`` of logs that all lose segments, which neither a broker nor the passes read. A log with a damaged
    one is deleted from all the same."""
    expired = [[removal.segment for removal in log.plan.removals] for log in logs]
    sizes = limits.sizes_of([segment.size_bytes for segments in expired for segment in segments], passes.cores)
    slices = [
        part
        for number, (log, segments) in enumerate(zip(logs, expired, strict=True))
        for part in slices_of(fs, number, log.view, segments, sizes.slice_bytes)
    ]
    tasks = pack(slices, size_of, sizes.slice_bytes)
    task_bytes = [sum(map(size_of, task)) for task in tasks]
    job = Job.sized("expired", f"count the records of {len(slices)} expired slices", task_bytes)
    count = partial(_count_slices, files=limits.files, bytes_per_second=limits.task_rate(passes.cores))
    results = passes.run(job, tasks, count)
    counts: list[int | None] = [0] * len(logs)
    for number, records in (result for task in results for result in task):
        total = counts[number]
        counts[number] = None if total is None or records is None else total + records
    for log, total in zip(logs, counts, strict=True):
        log.expired_records = total


def _count_slices(slices: Sequence[Slice], files: ReadableFileSystem, bytes_per_second: float) -> list[tuple[int, int | None]]:
    return [(part.log, count_records(part, files, bytes_per_second)) for part in slices]
