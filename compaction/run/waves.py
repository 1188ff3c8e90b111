"""Divides a run into waves: the logs of a wave go through both passes together, and their results are in place before the next
wave is planned.

There is one wave if the outputs of all logs fit into the free space, and their segments into the driver's memory. Otherwise a
wave has every log, in the order of the run, that still fits beside the earlier ones:

1. An upper bound of its outputs fits into the free space of its file system, of which ``_RESERVED_SHARE`` remains free.
2. The wave has at most ``_MOST_SEGMENTS`` segments.
3. It is as short as a limit of the run's time demands (``Pace``). Such a run defers logs that would end too late.

A log that does not even fit alone is a wave of its own, after all others have freed space. Its outputs are measured first: pass
2 runs once without writing. If they do not fit it is cleaned in portions. If the file system lacks even the margin that no
output may use, all of its logs fail at once. Logs that are not compacted need no space, and are in the first wave.

A portion is a wave with as many groups of segments of one log as fit beside it, in the order of offsets; the cleaner checkpoint
moves with the last one. If a run ends between two portions, the log is one between two groups of Kafka's cleaner, which swaps
each group in before it cleans the next: complete, with a part of its superseded records. The next run cleans it again from the
same checkpoint, in fewer groups. All portions are cleaned by the offset map of one pass 1. A log is refused if

* it has only one group, or the replaced segments must remain (``--verify``, ``erase --certificate``);
* its segments have other bytes on the disk than recovery has made of them in memory: they are written at the first swap;
* the next group does not fit even when the ``.deleted`` files of this run are gone. If the run's time ends before that, the
  rest of the log is deferred.

The free space is read again for each wave. Before that, the ``.deleted`` files of earlier waves are removed for which
``file.delete.delay.ms`` has passed. The run waits for the delay, for at most ``_LONGEST_WAIT_S``, if logs lack space and these
files take more of it than the logs that fit; it defers these logs if its time ends before the delay. Files of the last wave
remain, as in a run with one wave. If they are to be removed early, they are removed as soon as the swaps of their wave have
ended; a swap whose end is not known keeps them.

If a file system does not report its free space, a write fails when it is exhausted. Only runs in place have several waves
because of space: a copy is published as one, and a dry run writes nothing.

A budget defers logs, which are not changed and are dirtier in the next run:

1. A log that is expected to free less than the least share of what would be rewritten (``cleaning.benefit``).
2. In the order of the run, logs whose rewriting exceeds the most bytes; later ones that still fit are not deferred.
3. A log that would not be done in time at the rate of the run so far, but not the first one of the run. Waves are short for
   that: the first one has at most ``_FIRST_WAVE_BYTES``, each other one at most what the run rewrites in a tenth of its time.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple

from compaction.config.request import Budget
from compaction.errors import CompactionError, StorageError
from compaction.files.filesystem import join
from compaction.files.local import free_space
from compaction.kernels.tables import OUT_ROW
from compaction.names import LOG, LogLocation, segment_file
from compaction.passes.tasks import CleanContext, OutputPart, PartResult
from compaction.rules.log_view import Segment
from compaction.rules.plan import Group, LogPlan, freed_bytes, rewritten_bytes
from compaction.run.destination import Destination
from compaction.run.log import Log
from compaction.run.sizing import Sizes, max_records
from compaction.screen.amounts import elapsed, size
from compaction.screen.steps import WaveProgress, step

_LOG = logging.getLogger(__name__)

#: the driver holds slices, statistics and results of all segments of a wave
_MOST_SEGMENTS = 1 << 16
#: the share of a file system that stays free if there are several waves
_RESERVED_SHARE = 0.03
#: the longest time that a run waits for ``file.delete.delay.ms``
_LONGEST_WAIT_S = 600.0
#: of a run with a time limit, before its rate is known
_FIRST_WAVE_BYTES = 1 << 30
#: waves that a run with a time limit has at least
_WAVES = 10
#: for checkpoints, journals and directories
_MARGIN_BYTES = 4 << 20
#: two index entries; rounding to blocks of each of a segment's files
_INDEX_ENTRY_BYTES = 20
_SEGMENT_BYTES = 5 * 4096
_TXN_ENTRY_BYTES = 34
#: assumed least average size of batches
_BATCH_BYTES = 128
_REFUSED = "free some space and run again, or use --output-dir; nothing was written"
_STOPPED = "free some space and run again: the next run cleans the rest"


class SpaceBudget:
    """Allocates the free bytes of file systems, as they were when each was first used, except ``reserved_bytes`` and
    ``reserved_share`` of every one."""

    def __init__(self, reserved_bytes: int = 0, reserved_share: float = 0.0) -> None:
        self._copied_bytes, self._reserved_bytes = reserved_bytes, reserved_bytes + _MARGIN_BYTES
        self._reserved_share = reserved_share
        self._devices: dict[str, int] = {}
        self._free_bytes: dict[int, int] = {}

    def besides(self) -> str:
        copied = f" and {self._copied_bytes} bytes for segments that are only copied" if self._copied_bytes else ""
        return f"besides a margin of {size(_MARGIN_BYTES)} for checkpoints and journals{copied}"

    def free_bytes(self, directory: str) -> int:
        """Bytes that can still be allocated; negative if not even the reserve fits."""
        return self._free_bytes[self.device(directory)]

    def take(self, directory: str, needed_bytes: int) -> bool:
        """Allocates ``needed_bytes`` in ``directory`` if they fit; returns whether they do."""
        fits = needed_bytes <= self.free_bytes(directory)
        if fits:
            self._free_bytes[self.device(directory)] -= needed_bytes
        return fits

    def device(self, directory: str) -> int:
        if directory not in self._devices:
            space = free_space(directory)
            self._devices[directory] = space.device
            reserved_bytes = self._reserved_bytes + int(self._reserved_share * space.total_bytes)
            self._free_bytes.setdefault(space.device, space.free_bytes - reserved_bytes)
        return self._devices[directory]

    def fits(self, needed_bytes: Iterable[tuple[str, int]]) -> bool:
        """Whether the bytes needed in directories fit, all together; allocates nothing."""
        totals: Counter[int] = Counter()
        for directory, needed in needed_bytes:
            totals[self.device(directory)] += needed
        return all(total <= self._free_bytes[device] for device, total in totals.items())


class Lacking(NamedTuple):
    """The space of a log whose outputs do not fit: bytes needed by the number of each group, and bytes free."""

    needed_bytes: Mapping[int, int]
    free_bytes: int


def logs_without_space(
    space: SpaceBudget,
    logs: Mapping[int, CleanContext],
    parts: Sequence[OutputPart],
    measure: Callable[[], Sequence[PartResult]],
) -> dict[int, Lacking]:
    """The logs whose outputs do not fit. ``measure`` runs pass 2 without writing."""

    def upper_bound(part: OutputPart) -> tuple[str, int]:
        log = logs[part.output.log]
        return log.directory, _needed(part, log, part.size_bytes, part.size_bytes // _BATCH_BYTES)

    if space.fits(map(upper_bound, parts)):
        return {}
    measured = {(result.log, result.number): result for result in measure()}
    exact: dict[int, Counter[int]] = {log: Counter() for log in logs}
    for part in parts:
        result = measured[part.output.log, part.number]
        kept = _needed(part, logs[result.log], result.stats.bytes_kept, result.batches)
        exact[result.log][part.output.group] += 0 if result.unchanged else kept
    lacking = {}
    for log, needed_bytes in exact.items():
        if not space.take(logs[log].directory, needed_bytes.total()):
            lacking[log] = Lacking(needed_bytes, max(0, space.free_bytes(logs[log].directory)))
    return lacking


def copied_bytes(segments: Iterable[Segment]) -> int:
    return sum(each.files_bytes + _SEGMENT_BYTES + _TXN_ENTRY_BYTES * len(each.aborted_txns) for each in segments)


def most_output_bytes(plan: LogPlan, sizes: Sizes) -> int:
    """An upper bound of the bytes on disk that the outputs of a log take until its swap, before it is read."""
    return sum(_most_of_group(group, plan.config.index_interval_bytes, sizes) for group in plan.groups)


def _most_of_group(group: Group, interval_bytes: int, sizes: Sizes) -> int:
    aborted = sum(len(segment.aborted_txns) for segment in group.segments)
    complete = _complete_bytes(group.size_bytes, interval_bytes, aborted)
    if group.size_bytes <= sizes.slice_bytes or max_records(group.segments) <= sizes.single_part_records:
        return complete
    parts = -(-group.size_bytes // sizes.slice_bytes)
    besides = parts * _complete_bytes(0, interval_bytes, aborted)
    return complete + besides + _joined_bytes(group.size_bytes, group.size_bytes // _BATCH_BYTES)


def _needed(part: OutputPart, log: CleanContext, kept_bytes: int, batches: int) -> int:
    """Bytes on disk for ``kept_bytes``, including indexes; parts that are joined exist twice until the swap."""
    complete = _complete_bytes(kept_bytes, log.index_interval_bytes, len(part.output.aborted_txns))
    return complete if part.complete else complete + _joined_bytes(kept_bytes, batches)


def _complete_bytes(kept_bytes: int, interval_bytes: int, aborted_txns: int) -> int:
    indexes = _INDEX_ENTRY_BYTES * (kept_bytes // max(1, interval_bytes) + 1)
    return kept_bytes + indexes + _SEGMENT_BYTES + _TXN_ENTRY_BYTES * aborted_txns


def _joined_bytes(kept_bytes: int, batches: int) -> int:
    return kept_bytes + OUT_ROW.itemsize * batches


def defer(logs: Sequence[Log], budget: Budget) -> None:
    """Sets ``deferred`` of logs to clean, in the order of the run, by rules 1 and 2."""
    planned_bytes, most_bytes, least_share = 0, budget.max_rewrite_bytes, budget.min_freed_share
    for log in logs:
        log_bytes = rewritten_bytes(log.compaction)
        freed = freed_bytes(log.plan)
        if least_share is not None and freed < least_share * log_bytes:
            share = f"{100 * freed / log_bytes:.1f} % of {size(log_bytes)}"
            log.deferred = f"deferred: would free about {share}, less than --min-freed {100 * least_share:g} %"
        elif most_bytes is not None and planned_bytes + log_bytes > most_bytes:
            amounts = f"{size(log_bytes)} after {size(planned_bytes)}"
            log.deferred = f"deferred: {amounts} would exceed --max-rewrite {size(most_bytes)}"
        else:
            planned_bytes += log_bytes


class Pace:
    """The rate of a run that began at ``started_s``, and which logs would be done before it ends (rule 3)."""

    def __init__(self, max_duration_ms: int | None, started_s: float) -> None:
        self.limited = max_duration_ms is not None
        self._max_s = math.inf if max_duration_ms is None else max_duration_ms / 1000
        self.end_s = started_s + self._max_s
        #: of the waves that have ended
        self.rewritten_bytes, self._seconds = 0, 0.0
        self._begun = False

    @property
    def bytes_per_second(self) -> float:
        """The rate of the run so far; 0 if that is not known."""
        return self.rewritten_bytes / self._seconds if self._seconds else 0.0

    def add(self, log_bytes: int, seconds: float) -> None:
        """A wave took ``seconds``; ``log_bytes`` are those of its logs that did not fail."""
        self._begun = True
        self.rewritten_bytes += log_bytes
        self._seconds += seconds

    def defer_late(self, logs: Sequence[Log], now_s: float) -> None:
        """Sets ``deferred`` of logs that would not be done in time, each begun now; the first wave has the first log anyway."""
        left_s = self.end_s - now_s
        for log in logs if self._begun else logs[1:]:
            seconds = self.seconds_for(rewritten_bytes(log.compaction))
            if left_s <= 0:
                log.deferred = "deferred: --max-duration has passed"
            elif seconds > left_s:
                needed = f"{elapsed(seconds)} at {size(self.bytes_per_second)}/s"
                log.deferred = f"deferred: would take {needed}, {elapsed(left_s)} of --max-duration are left"

    def wave_bytes(self, now_s: float) -> float:
        """The most bytes of a wave of several logs."""
        if not self.rewritten_bytes:
            return _FIRST_WAVE_BYTES if self.limited else math.inf
        return min(self._max_s / _WAVES, self.end_s - now_s) * self.rewritten_bytes / max(self._seconds, 0.001)

    def seconds_for(self, log_bytes: int) -> float:
        """How long logs take at the rate of the run so far; 0 if that is not known."""
        rate = self.bytes_per_second
        return log_bytes / rate if rate else 0.0


@dataclass(frozen=True)
class Wave:
    """Logs that are cleaned together, in the order of the run.

    :ivar progress: that of the run; the only wave has none
    :ivar groups: the numbers of the groups of a portion; ``None``: all groups of all logs
    :ivar is_last: nothing of its logs is left to later waves
    """

    logs: Sequence[Log]
    progress: WaveProgress | None = None
    groups: Sequence[int] | None = None
    is_last: bool = True

    @cached_property
    def to_clean(self) -> list[Log]:
        return [log for log in self.logs if log.cleans and log.error is None]


class _Replaced(NamedTuple):
    """The ``.deleted`` files of a log, and when ``file.delete.delay.ms`` has passed for them."""

    log: Log
    size_bytes: int
    due_s: float


@dataclass
class ReplacedSegments:
    """The ``.deleted`` files that the waves of this run have left.

    :ivar early: they are removed when their wave has ended
    :ivar retained: they are not removed
    :ivar end_s: when the run ends
    :ivar added, removed: bytes of the files of each log
    """

    output: Destination
    early: bool = False
    retained: bool = False
    end_s: float = math.inf
    added: Counter[LogLocation] = field(default_factory=Counter)
    removed: Counter[LogLocation] = field(default_factory=Counter)
    _remaining: dict[LogLocation, _Replaced] = field(default_factory=dict)

    def add(self, log: Log, size_bytes: int) -> None:
        """Adds files of a log whose result, or a portion of it, is in place."""
        if self.retained or size_bytes <= 0:
            return
        self.added[log.location] += size_bytes
        delay_s = 0.0 if self.early else log.compaction.config.file_delete_delay_ms / 1000
        # all files of a log are removed at once
        earlier = self._remaining.get(log.location)
        total_bytes = size_bytes + (0 if earlier is None else earlier.size_bytes)
        self._remaining[log.location] = _Replaced(log, total_bytes, time.monotonic() + delay_s)
        if self.early:
            self.remove_due()

    def remove_due(self) -> None:
        """Removes the files whose time has come. If that fails, they remain until the next run."""
        now_s = time.monotonic()
        for files in [files for files in self._remaining.values() if files.due_s <= now_s]:
            del self._remaining[files.log.location]
            try:
                self.output.remove_replaced(files.log)
            except CompactionError as error:
                _LOG.warning("%s", error.describe())
            else:
                self.removed[files.log.location] += files.size_bytes

    def soon(self, space: SpaceBudget, devices: set[int], *, late: bool = False) -> int:
        """The bytes on some file systems of files that the run may wait for; of those that become due after its end if
        ``late``."""
        latest_s = time.monotonic() + _LONGEST_WAIT_S
        due = (files for files in self._remaining.values() if files.due_s <= latest_s and (files.due_s > self.end_s) == late)
        return sum(files.size_bytes for files in due if space.device(files.log.directory) in devices)

    def late(self, space: SpaceBudget, devices: set[int]) -> str | None:
        """Why logs that lack space on some file systems are deferred: the run ends before files there may be removed."""
        if not (late_bytes := self.soon(space, devices, late=True)):
            return None
        return f"deferred: --max-duration ends before file.delete.delay.ms has passed for {size(late_bytes)} in .deleted files"

    def wait(self) -> None:
        seconds = max(0.0, min(files.due_s for files in self._remaining.values()) - time.monotonic())
        total = size(sum(files.size_bytes for files in self._remaining.values()))
        step(f"waiting {elapsed(seconds)} until file.delete.delay.ms has passed for {total} in .deleted files")
        time.sleep(seconds)
        self.remove_due()


class Waves:
    """The waves of a run, each of which is planned when the one before it has ended.

    :param sizes: of the work on all logs to clean
    :param replaced: of the waves; ``None`` if the outputs of a wave need not fit into the free space
    """

    def __init__(self, logs: Sequence[Log], sizes: Sizes, replaced: ReplacedSegments | None, pace: Pace) -> None:
        self._logs = [log for log in logs if log.deferred is None]
        self._replaced, self._pace = replaced, pace
        self._remaining, self._sizes = [log for log in logs if log.cleans], sizes
        self._bounds: dict[LogLocation, int] = {}

    def __iter__(self) -> Iterator[Wave]:
        if not self._logs:
            return
        if not self._remaining or (not self._pace.limited and self._is_one()):
            yield Wave(self._logs)
            return
        smallest = self._sizes.smallest
        self._bounds = {log.location: most_output_bytes(log.compaction, smallest) for log in self._remaining}
        others = {log.location for log in self._logs} - self._bounds.keys()
        for number in count(1):
            chosen = self._next()
            in_wave = {log.location for log in chosen} | (others if number == 1 else set())
            if not in_wave:
                return
            started_s = time.monotonic()
            progress = None if number == 1 and len(chosen) == len(self._remaining) else self._progress(number, chosen)
            yield Wave([log for log in self._logs if log.location in in_wave], progress)
            done = (log for log in chosen if log.error is None)
            self._pace.add(sum(rewritten_bytes(log.compaction) for log in done), time.monotonic() - started_s)
            self._remaining = [log for log in self._remaining if log.location not in in_wave]
            if not self._remaining:
                return

    def _progress(self, number: int, chosen: Sequence[Log]) -> WaveProgress:
        bytes_done = self._pace.rewritten_bytes
        in_wave, bytes_to_do = (sum(rewritten_bytes(log.compaction) for log in logs) for logs in (chosen, self._remaining))
        # as many as if each had the average size
        waves = number - 1 + -(-bytes_to_do * number // max(1, bytes_done + in_wave))
        rate, seconds_left = self._pace.bytes_per_second, self._pace.seconds_for(bytes_to_do)
        return WaveProgress(number, waves, bytes_done, bytes_to_do, round(rate), round(seconds_left, 1))

    def _is_one(self) -> bool:
        segments = sum(len(log.compaction.segments) for log in self._remaining)
        if len(self._remaining) > 1 and segments > _MOST_SEGMENTS:
            return False
        try:
            bounds = ((log.directory, most_output_bytes(log.compaction, self._sizes)) for log in self._remaining)
            return self._replaced is None or SpaceBudget().fits(bounds)
        except StorageError:
            return True

    def _next(self) -> list[Log]:
        """The logs of the next wave, after a wait if that pays; empty if all others are deferred."""
        while True:
            self._pace.defer_late(self._remaining, time.monotonic())
            self._remaining = [log for log in self._remaining if log.deferred is None]
            if self._replaced is None:
                return self._fitting(None)[0]
            self._replaced.remove_due()
            space = SpaceBudget(reserved_share=_RESERVED_SHARE)
            try:
                chosen, lacking = self._fitting(space)
            except StorageError:
                return self._fitting(None)[0]
            needed_bytes = sum(self._bounds[log.location] for log in chosen)
            devices = {space.device(log.directory) for log in lacking}
            if self._replaced.soon(space, devices) > needed_bytes:
                self._replaced.wait()
            elif not chosen and (late := self._replaced.late(space, devices)):
                for log in lacking:
                    log.deferred = late
            else:
                return chosen or self._without_margin() or self._remaining[:1]

    def _without_margin(self) -> list[Log]:
        """The logs on file systems whose free space is less than the margin: these logs fail."""
        space = SpaceBudget()
        failed = [log for log in self._remaining if space.free_bytes(log.directory) < 0]
        for log in failed:
            device, free_bytes = space.device(log.directory), space.free_bytes(log.location.log_dir) + _MARGIN_BYTES
            smallest_bytes = min(self._bounds[other.location] for other in failed if space.device(other.directory) == device)
            lacking = size(smallest_bytes + _MARGIN_BYTES - free_bytes)
            message = f"{size(free_bytes)} are free, less than the margin of {size(_MARGIN_BYTES)} for checkpoints and journals"
            hint = f"free {lacking} more for the smallest log, and run again, or use --output-dir; nothing was written"
            log.error = str(StorageError(message, path=log.location.log_dir, hint=hint))
        return failed

    def _fitting(self, space: SpaceBudget | None) -> tuple[list[Log], list[Log]]:
        """The logs that fit together, and those that lack space."""
        chosen: list[Log] = []
        lacking: list[Log] = []
        segments, log_bytes, most_bytes = 0, 0, self._pace.wave_bytes(time.monotonic())
        for log in self._remaining:
            if space is not None and not space.take(log.directory, self._bounds[log.location]):
                lacking.append(log)
                continue
            segments += len(log.compaction.segments)
            log_bytes += rewritten_bytes(log.compaction)
            if chosen and (segments > _MOST_SEGMENTS or log_bytes > most_bytes):
                break
            chosen.append(log)
        return chosen, lacking


def portions(log: Log, lacking: Lacking, replaced: ReplacedSegments | None, besides: str) -> Iterator[Wave]:
    """The waves of a log whose outputs do not fit, each of which is planned when the one before has ended. The log fails, or is
    deferred, if a portion does not fit.

    :param replaced: the ``.deleted`` files of the run; ``None`` if it does not replace segments in place
    """
    remaining = sorted(lacking.needed_bytes)
    if replaced is None or replaced.retained or len(remaining) < 2 or not _is_as_on_disk(log):
        needed = size(sum(lacking.needed_bytes.values()))
        message = f"its cleaned segments take {needed}, {size(lacking.free_bytes)} are free {besides}"
        log.error = str(StorageError(message, path=log.directory, hint=_REFUSED))
        return
    while remaining and log.error is None:
        chosen = _fitting(log, remaining, lacking.needed_bytes, replaced)
        if not chosen:
            space = SpaceBudget()
            log.deferred = replaced.late(space, {space.device(log.directory)})
            log.error = None if log.deferred else _refusal(log, lacking.needed_bytes[remaining[0]])
            return
        remaining = remaining[len(chosen) :]
        step(f"cleaning {log.location.topic_partition}, group {chosen[-1] + 1} of {len(lacking.needed_bytes)}")
        yield Wave([log], groups=chosen, is_last=not remaining)


def _fitting(log: Log, groups: Sequence[int], needed: Mapping[int, int], replaced: ReplacedSegments) -> list[int]:
    """The first of these groups that fit, after a wait if that pays; empty if the first one does not."""
    while True:
        replaced.remove_due()
        space, chosen = SpaceBudget(reserved_share=_RESERVED_SHARE), list[int]()
        while len(chosen) < len(groups) and space.take(log.directory, needed[groups[len(chosen)]]):
            chosen.append(groups[len(chosen)])
        if replaced.soon(space, {space.device(log.directory)}) <= sum(needed[group] for group in chosen):
            break
        replaced.wait()
    # a single group may also use the reserve
    return chosen or [group for group in groups[:1] if SpaceBudget().take(log.directory, needed[group])]


def _is_as_on_disk(log: Log) -> bool:
    view = log.compaction.view
    names = [join(view.path, segment_file(segment.base_offset, LOG)) for segment in view.segments]
    return all(part.path == names[part.segment_index] for part in log.slices)


def _refusal(log: Log, needed_bytes: int) -> str:
    space = SpaceBudget()
    free_bytes = max(0, space.free_bytes(log.directory))
    message = f"its next group of cleaned segments takes {size(needed_bytes)}, {size(free_bytes)} are free {space.besides()}"
    hint = _STOPPED if log.swapped else _REFUSED
    return str(StorageError(f"{message}; {len(log.swapped)} groups are replaced", path=log.directory, hint=hint))
