"""Divides a run into waves: the logs of a wave go through both passes together, and their results are in place before the next
wave is planned.

There is one wave if the outputs of all logs fit into the free space, and their segments into the driver's memory. Otherwise a
wave has every log, in the order of the run, that still fits beside the earlier ones:

1. An upper bound of its outputs fits into the free space of its file system, of which ``RESERVED_SHARE`` remains free.
2. The wave has at most ``_MOST_SEGMENTS`` segments.
3. It is as short as a limit of the run's time demands (``run.budget``). Such a run defers logs that would end too late.

A log that does not even fit alone is a wave of its own, after all others have freed space; its outputs are measured before they
are written (``run.admission``). If they do not fit it is cleaned in portions (``run.portions``). If the file system lacks even
the margin that no output may use, all of its logs fail at once. Logs that are not compacted need no space, and are in the first
wave.

The free space is read again for each wave. Before that, the ``.deleted`` files of earlier waves are removed for which
``file.delete.delay.ms`` has passed. The run waits for the delay, for at most ``_LONGEST_WAIT_S``, if logs lack space and these
files take more of it than the logs that fit: then they are most of the next wave. If the run's time ends before the delay, it
defers these logs. Those of the last wave remain, as those of a
run with one wave do. If they are to be removed early, they are removed as soon as the swaps of their wave have ended; a swap
whose end is not known keeps them.

If a file system does not report its free space, a write fails when it is exhausted. Only runs in place have several waves
because of space: a copy is published as one, and a dry run writes nothing.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple

from compaction.cleaning.plan import rewritten_bytes
from compaction.errors import CompactionError, StorageError
from compaction.names import LogLocation
from compaction.run.admission import SpaceBudget, most_output_bytes
from compaction.run.budget import Pace
from compaction.run.cleaner import Limits, sizes_for
from compaction.run.destination import Destination
from compaction.run.log_cleaning import LogCleaning
from compaction.screen.amounts import elapsed, size
from compaction.screen.steps import WaveProgress, step

_LOG = logging.getLogger(__name__)

#: the driver holds slices, statistics and results of all segments of a wave
_MOST_SEGMENTS = 1 << 16
#: the share of a file system that stays free if there are several waves
RESERVED_SHARE = 0.03
#: the longest time that a run waits for ``file.delete.delay.ms``
_LONGEST_WAIT_S = 600.0


@dataclass(frozen=True)
class Wave:
    """Logs that are cleaned together, in the order of the run. ``progress`` is that of the run; the only wave has none."""

    logs: Sequence[LogCleaning]
    progress: WaveProgress | None = None

    @cached_property
    def to_clean(self) -> list[LogCleaning]:
        return [log for log in self.logs if log.cleans and log.error is None]


class _Replaced(NamedTuple):
    """The ``.deleted`` files of a log, and when ``file.delete.delay.ms`` has passed for them."""

    log: LogCleaning
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
    end_s: float = float("inf")
    added: Counter[LogLocation] = field(default_factory=Counter)
    removed: Counter[LogLocation] = field(default_factory=Counter)
    _remaining: dict[LogLocation, _Replaced] = field(default_factory=dict)

    def add(self, log: LogCleaning, size_bytes: int) -> None:
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

    def soon(self, space: SpaceBudget, devices: set[int]) -> int:
        """The bytes on some file systems of files that the run may wait for."""
        return sum(files.size_bytes for files in self._awaited(space, devices) if files.due_s <= self.end_s)

    def late(self, space: SpaceBudget, devices: set[int]) -> str | None:
        """Why logs that lack space on some file systems are deferred: the run ends before files there may be removed."""
        late_bytes = sum(files.size_bytes for files in self._awaited(space, devices) if files.due_s > self.end_s)
        if not late_bytes:
            return None
        return f"deferred: --max-duration ends before file.delete.delay.ms has passed for {size(late_bytes)} in .deleted files"

    def _awaited(self, space: SpaceBudget, devices: set[int]) -> list[_Replaced]:
        """The files on some file systems that a run without a limit of time would wait for."""
        latest_s = time.monotonic() + _LONGEST_WAIT_S
        awaited = (files for files in self._remaining.values() if files.due_s <= latest_s)
        return [files for files in awaited if space.device(files.log.directory) in devices]

    def wait(self) -> None:
        """Waits until the next files may be removed, and removes them."""
        seconds = max(0.0, min(files.due_s for files in self._remaining.values()) - time.monotonic())
        total = size(sum(files.size_bytes for files in self._remaining.values()))
        step(f"waiting {elapsed(seconds)} until file.delete.delay.ms has passed for {total} in .deleted files")
        time.sleep(seconds)
        self.remove_due()


class Waves:
    """The waves of a run, each of which is planned when the one before it has ended.

    :param cores: number of tasks that run concurrently
    :param replaced: of the waves; ``None`` if the outputs of a wave need not fit into the free space
    """

    def __init__(
        self, logs: Sequence[LogCleaning], limits: Limits, cores: int, replaced: ReplacedSegments | None, pace: Pace
    ) -> None:
        self._logs = [log for log in logs if log.deferred is None]
        self._replaced, self._pace = replaced, pace
        self._remaining = [log for log in logs if log.cleans]
        self._sizes = sizes_for(self._remaining, limits, cores)
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

    def _progress(self, number: int, chosen: Sequence[LogCleaning]) -> WaveProgress:
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

    def _next(self) -> list[LogCleaning]:
        """The logs of the next wave, after a wait if that pays; empty if all others are deferred."""
        while True:
            self._pace.defer_late(self._remaining, time.monotonic())
            self._remaining = [log for log in self._remaining if log.deferred is None]
            if self._replaced is None:
                return self._fitting(None)[0]
            self._replaced.remove_due()
            space = SpaceBudget(reserved_share=RESERVED_SHARE)
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

    def _without_margin(self) -> list[LogCleaning]:
        """The logs on file systems whose free space is less than the margin: these logs fail."""
        space = SpaceBudget()
        failed = [log for log in self._remaining if space.free_bytes(log.directory) < 0]
        for log in failed:
            bounds = (
                self._bounds[other.location]
                for other in failed
                if space.device(other.directory) == space.device(log.directory)
            )
            log.error = str(space.refusal(log.location.log_dir, min(bounds)))
        return failed

    def _fitting(self, space: SpaceBudget | None) -> tuple[list[LogCleaning], list[LogCleaning]]:
        """The logs that fit together, and those that lack space."""
        chosen: list[LogCleaning] = []
        lacking: list[LogCleaning] = []
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
