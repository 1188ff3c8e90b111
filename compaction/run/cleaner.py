"""The steps of a run between planning and swapping, over many logs: **slice** the logs, **scan** them (pass 1), **resolve**
their transactions, and **clean** them into groups (pass 2).

Each step processes all logs that have not failed. A ``Method`` says what is done: ``OffsetMaps`` is that of the log cleaner,
``erasure.erase_keys`` has that of an erasure. Tasks write and **verify** the outputs; nothing is swapped in here.

A group is one output part if a task can hold all of its survivor entries; otherwise several tasks write it, and the parts are
joined into one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from compaction.config.resolver import BrokerConfig
from compaction.engine import Engine, Job, pack, size_of
from compaction.errors import StorageError, as_log_error
from compaction.files.filesystem import DiskFileSystem, FileSystem, join, real_file
from compaction.files.mixed import MixedFileSystem
from compaction.kernels.keys import HashSecret
from compaction.log.read_log import cut_segment
from compaction.names import LOG, segment_file
from compaction.output.swap import SwapGroup
from compaction.passes.clean_into import Unjoined, join_parts
from compaction.passes.merge import CleanedParts
from compaction.passes.scan import count_records
from compaction.passes.tasks import CleanContext, GroupOutput, MapSettings, OutputPart, PartResult, Slice, SliceSummary
from compaction.rules.log_view import LogView, Segment
from compaction.rules.transactions import KEYLESS_ROW, TXN_ROW, joined
from compaction.run.log import Log
from compaction.run.sizing import Sizes, max_records, sizes
from compaction.run.waves import Lacking, SpaceBudget, Wave, logs_without_space

#: the result of each output segment, by the numbers of its log and its group
Outputs = Mapping[tuple[int, int], PartResult]


def output_parts(log: Log, sizes: Sizes) -> None:
    """Sets the parts of a log; an empty group is one empty part."""
    plan = log.compaction
    base_of = [segment.base_offset for segment in plan.view.segments]
    by_base: dict[int, list[Slice]] = {}
    for part in log.slices:
        by_base.setdefault(base_of[part.segment_index], []).append(part)
    parts: list[OutputPart] = []
    for number, group in enumerate(plan.groups):
        slices = [part for segment in group.segments for part in by_base[segment.base_offset]]
        output = GroupOutput(log.number, number, group.base_offset, group.mtime_ms, log.txn_index[number], slices[0].path)
        single = max_records(group.segments) <= sizes.single_part_records
        packs = [slices] if single else pack(slices, lambda part: part.size_bytes, sizes.slice_bytes)
        parts += [
            OutputPart(output, len(parts) + index, tuple(own), own[0].first_offset, len(packs) == 1)
            for index, own in enumerate(packs)
        ]
    log.parts = parts


def set_outputs(log: Log, outputs: Outputs) -> None:
    """Sets the output segments of a log among ``outputs``, with the segments that they replace. Segments that would not change
    are not replaced."""
    groups = []
    for number, group in enumerate(log.compaction.groups):
        result = outputs.get((log.number, number))
        if result is not None and result.unchanged:
            log.unchanged |= {group.base_offset}
        elif result is not None:
            sources = tuple(segment.base_offset for segment in group.segments)
            groups.append(SwapGroup(sources, result.suffix or "", group.mtime_ms, result.written))
    log.groups = tuple(groups)


#: a task's map spills at this size, which bounds the memory of a worker
_TASK_MAP_BYTES = 128 << 20


@dataclass(frozen=True)
class Limits:
    """The limits of the passes.

    :ivar sizes: sizes of the work, by default derived from the amount of data; they do not change the result
    :ivar space: the free space that outputs may use, by default unlimited
    :ivar files: how tasks access sources and outputs
    :ivar dry_run: pass 2 only measures
    """

    broker: BrokerConfig
    sizes: Sizes | None = None
    space: SpaceBudget | None = None
    files: DiskFileSystem = field(default_factory=MixedFileSystem)
    dry_run: bool = False

    def sizes_for(self, group_bytes: Sequence[int], cores: int) -> Sizes:
        return self.sizes or sizes(group_bytes, cores, self.broker.dedupe_buffer_bytes, self.broker.load_factor)

    def task_rate(self, cores: int) -> float:
        """Bytes that a task reads and writes in a second."""
        return self.broker.io_max_bytes_per_second / cores

    def map_settings(self, cores: int) -> MapSettings:
        """The limits of a task of pass 1. Each call draws a new hash secret."""
        map_bytes, secret = min(_TASK_MAP_BYTES, self.broker.dedupe_buffer_bytes), HashSecret.random()
        return MapSettings(map_bytes, self.broker.load_factor, secret, self.task_rate(cores), self.files)


def group_bytes(logs: Iterable[Log]) -> list[int]:
    return [group.size_bytes for log in logs for group in log.compaction.groups]


def slices_of(fs: FileSystem, log: int, view: LogView, segments: Sequence[Segment], slice_bytes: int) -> list[Slice]:
    """The slices of some segments of log number ``log``, in the order of offsets."""
    path, slices = view.path, []
    index_of = {segment.base_offset: number for number, segment in enumerate(view.segments)}
    for segment in segments:
        base = segment.base_offset
        file = real_file(fs, join(path, segment_file(base, LOG)))
        for cut in cut_segment(fs, path, segment, slice_bytes):
            offsets, positions = cut[2:], (file.start + cut.start, file.start + cut.end)
            slices.append(Slice(log, index_of[base], file.path, *offsets, *positions, segment.mtime_ms))
    return slices


class Method(Protocol):
    """How logs are cleaned: what pass 1 looks for, and what pass 2 retains."""

    def scan(self, cleaner: Cleaner) -> None:
        """Pass 1 over the slices of all logs that have not failed."""

    def resolve(self, cleaner: Cleaner, log: Log) -> None:
        """Sets ``txn_index`` and ``context`` of a log that pass 1 has scanned."""

    def clean(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart], *, writes: bool) -> CleanedParts[PartResult]:
        """Pass 2 over ``parts``, which are in the order of logs and offsets; it only measures unless it ``writes``."""


class Cleaner:
    """Cleans ``logs`` with a method, which gets this object.

    :ivar fs: how the driver reads the logs
    :ivar task_rate: bytes that a task reads and writes in a second
    """

    def __init__(self, logs: Sequence[Log], fs: FileSystem, runner: Engine, limits: Limits) -> None:
        self.logs, self.fs, self.runner, self.limits = list(logs), fs, runner, limits
        for number, log in enumerate(self.logs):
            log.number = number
        self.sizes = limits.sizes_for(group_bytes(self.logs), runner.cores)
        self.task_rate = limits.task_rate(runner.cores)

    def run(self, method: Method) -> dict[Log, Lacking]:
        """All steps. The outputs of each log that has not failed are ready to be swapped in, except those of the logs that are
        returned, because they do not fit into the free space: nothing was written for them."""
        self.each(self._slice)
        method.scan(self)
        self.each(lambda log: method.resolve(self, log))
        self.each(lambda log: output_parts(log, self.sizes))
        lacking = self._without_space(method)
        self.write(method, Wave([log for log in self.unfailed if log not in lacking]))
        return lacking

    @property
    def unfailed(self) -> list[Log]:
        return [log for log in self.logs if log.error is None]

    def each(self, step: Callable[[Log], object], logs: Sequence[Log] | None = None) -> None:
        """Takes a step for each log, by default for all that have not failed; a log fails if it raises."""
        for log in self.unfailed if logs is None else logs:
            try:
                step(log)
            except Exception as error:
                log.error = str(as_log_error(error, log.compaction.view.path))

    @staticmethod
    def add_up(logs: Sequence[Log], summaries: Sequence[SliceSummary]) -> None:
        """Adds up the summaries of each log, which are in the order of offsets, and notes its reads."""
        for log, own in Cleaner.note_reads(logs, summaries):
            log.messages, log.keyless = sum(each.messages for each in own), sum(each.keyless for each in own)
            log.txn_rows = joined(TXN_ROW, (each.txn_rows for each in own))
            log.keyless_rows = joined(KEYLESS_ROW, (each.keyless_rows for each in own))

    @staticmethod
    def note_reads(logs: Sequence[Log], summaries: Sequence[SliceSummary]) -> list[tuple[Log, list[SliceSummary]]]:
        """Sets the fingerprints of the slices that were read: later reads must have the same. The first error of a log fails
        it. Returns the summaries of each log."""
        by_log: dict[int, list[SliceSummary]] = {log.number: [] for log in logs}
        for summary in summaries:
            by_log[summary.log].append(summary)
        for log in logs:
            own = by_log[log.number]
            log.seconds += sum(summary.seconds for summary in own)
            log.error = next((summary.error for summary in own if summary.error is not None), None)
            fingerprints = {summary.slice_id: summary.fingerprint for summary in own}
            log.slices = [replace(part, fingerprint=fingerprints.get(part.id, part.fingerprint)) for part in log.slices]
        return [(log, by_log[log.number]) for log in logs]

    def _slice(self, log: Log) -> None:
        plan = log.compaction
        log.slices = slices_of(self.fs, log.number, plan.view, plan.segments, self.sizes.slice_bytes)

    def _without_space(self, method: Method) -> dict[Log, Lacking]:
        """The logs whose outputs exceed the free space, found before anything is written."""
        logs, space = self.unfailed, self.limits.space
        contexts, parts = _contexts(logs), [part for log in logs for part in log.parts]
        if space is None or not parts:
            return {}
        try:
            lacking = logs_without_space(space, contexts, parts, lambda: method.clean(contexts, parts, writes=False).results)
        except StorageError:
            # if the free space is unknown, the write fails when it is exhausted
            return {}
        return {self.logs[number]: space_of_log for number, space_of_log in lacking.items()}

    def write(self, method: Method, wave: Wave) -> None:
        """Pass 2 over a wave: writes the retained records of each group into one segment, ready to be swapped in. A log fails
        if one of its parts does."""
        logs = wave.logs
        contexts, parts = _contexts(logs), [part for log in logs for part in log.parts]
        if wave.groups is not None:
            parts = [part for part in parts if part.output.group in wave.groups]
        if not parts:
            return
        cleaned = method.clean(contexts, parts, writes=not self.limits.dry_run)
        for result in cleaned.results:
            log = self.logs[result.log]
            log.stats += result.stats
            log.seconds += result.seconds
            log.error = log.error or result.error
        for log in logs:
            log.keys = cleaned.keys.get(log.number, 0)
        outputs = self._joined(contexts, parts, {(result.log, result.number): result for result in cleaned.results})
        for log in logs:
            if log.error is None:
                set_outputs(log, outputs)

    def _joined(
        self, contexts: Mapping[int, CleanContext], parts: Sequence[OutputPart], results: Mapping[Hashable, PartResult]
    ) -> Outputs:
        """Joins the parts that were written, given the result of each; returns the result of each output segment."""
        outputs: dict[tuple[int, int], PartResult] = {}
        unjoined: dict[tuple[int, int], Unjoined] = {}
        for part in parts:
            number, result = part.output.log, results[part.id]
            if self.logs[number].error is not None:
                continue
            if part.complete or result.suffix is None:
                outputs[number, part.output.group] = result
            else:
                unjoined.setdefault((number, part.output.group), (part.output, contexts[number], []))[2].append(result)
        job = Job(f"join the parts of {len(unjoined)} segments", writes=True)
        for result in self.runner.run(job, list(unjoined.values()), join_parts) if unjoined else ():
            outputs[result.log, result.group] = result
            self.logs[result.log].error = self.logs[result.log].error or result.error
        return outputs


def _contexts(logs: Sequence[Log]) -> dict[int, CleanContext]:
    return {log.number: log.context for log in logs if log.context is not None}


def count_expired(logs: Sequence[Log], fs: FileSystem, passes: Engine, limits: Limits) -> None:
    """Sets ``expired_records`` of logs that all lose segments, which neither a broker nor the passes read. A log with a damaged
    one is deleted from all the same."""
    expired = [[removal.segment for removal in log.plan.removals] for log in logs]
    sizes = limits.sizes_for([segment.size_bytes for segments in expired for segment in segments], passes.cores)
    slices = [
        part
        for number, (log, segments) in enumerate(zip(logs, expired, strict=True))
        for part in slices_of(fs, number, log.before, segments, sizes.slice_bytes)
    ]
    tasks = pack(slices, size_of, sizes.slice_bytes)
    task_bytes = [sum(map(size_of, task)) for task in tasks]
    job = Job.sized("expired", f"count the records of {len(slices)} expired slices", task_bytes)
    count = partial(count_records, files=limits.files, bytes_per_second=limits.task_rate(passes.cores))
    results = passes.run(job, tasks, count)
    counts: list[int | None] = [0] * len(logs)
    for number, records in (result for task in results for result in task):
        total = counts[number]
        counts[number] = None if total is None or records is None else total + records
    for log, total in zip(logs, counts, strict=True):
        log.expired_records = total
