"""Replays the arrivals of a log under a policy: appends and rolls, cleanings, deletions of segments.

The rules of cleaning and deletion are those of a run (``compaction.cleaning``), over a log whose offsets are the numbers of its
parts. Appends mirror ``UnifiedLog.maybeRoll`` and ``LogSegment.shouldRoll``: a segment whose first batch has no timestamp is
rolled ``segment.ms`` after it was created; one without any timestamp is as old as its file. Cleanings are those of Kafka 3.1
and later, with the sizes of parts in place of records (``compaction.simulation.parts``).

At each check, as in a broker, the cleaner comes first, then the deletion of segments. Differences to a broker: offset maps have
room for all keys, the cleaner is never busy elsewhere, the high watermark is the log end, and transactions hold cleanings back
in small logs only, whose parts are batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from compaction.cleaning.log_to_clean import Verdict
from compaction.cleaning.log_view import LogView, Segment
from compaction.cleaning.plan import plan_log
from compaction.cleaning.segment_retention import plan_deletion
from compaction.config import TopicConfig
from compaction.formats.indexes import OFFSET_ENTRY, TIME_ENTRY
from compaction.names import TopicPartition
from compaction.simulation.arrivals import LARGEST_TIMESTAMP, Arrivals, Int64s
from compaction.simulation.figures import Effect, Event, Sample
from compaction.simulation.parts import Parts

_LONG_MAX = 2**63 - 1
_NS = 1_000_000


class Clock(NamedTuple):
    """The times of a replay, ms since the epoch: ``checks`` of cleaner and retention; the ends of periods, each of which is a
    check."""

    checks: Int64s
    ends: Int64s


class Replay:
    """One log under one policy.

    :param arrivals_ms: int64[n], when each part arrived, ascending, ms since the epoch
    """

    def __init__(self, arrivals: Arrivals, arrivals_ms: Int64s, config: TopicConfig, producer_expiration_ms: int) -> None:
        self._config, self._times = config, arrivals_ms.tolist()
        self._parts = Parts(arrivals, arrivals_ms, config.delete_retention_ms, producer_expiration_ms)
        self._largest_ms = arrivals.parts[:, LARGEST_TIMESTAMP].tolist()
        self._sizes: list[int] = self._parts.appended.tolist()
        self._segments: list[Segment] = []
        self._arrived, self._arrived_bytes, self._size = 0, 0, 0
        self._first_dirty: int | None = None
        #: when the active segment was created, ms, and its largest timestamp, -1 without one
        self._created_ms = self._active_largest_ms = -1
        #: replaced and deleted segments that wait for ``file.delete.delay.ms``: until when, and their bytes
        self._waiting: list[tuple[int, int]] = []
        #: the cleaner looks again if a segment was rolled, or at a time
        self._rolled, self._look_ms = False, _LONG_MAX
        self._samples: list[Sample] = []
        self._events: list[Event] = []
        #: how long a superseded record has remained at most, ms, and one that a tombstone superseded
        self._oldest = 0, 0

    def run(self, clock: Clock, policy: str) -> Effect:
        """All arrivals up to the last check; events since the first period ended. ``policy`` is the name of the effect."""
        times, ends = self._times, set(clock.ends.tolist())
        least = peak = area = cleaned = superseded = 0
        measured: tuple[int, int, int] | None = None
        before_ms: int | None = None
        since_ms = 0
        for now_ms in clock.checks.tolist():
            if before_ms is None:
                before_ms = since_ms = now_ms
            self._append(bisect_right(times, now_ms))
            area += self._size * (now_ms - before_ms)
            self._waiting = [(until_ms, size) for until_ms, size in self._waiting if until_ms > now_ms]
            peak = max(peak, self._on_disk(self._size + sum(size for _, size in self._waiting)))
            if self._config.cleanup_compact:
                cleaned = max(cleaned, self._on_disk(self._clean(now_ms)))
            if self._config.cleanup_delete:
                self._delete(now_ms)
            least, before_ms = min(least, self._size), now_ms
            if now_ms in ends:
                mean = area // (now_ms - since_ms) if now_ms > since_ms else self._size
                state = self._start, self._arrived, self._first_dirty or 0
                if state != measured:
                    superseded, measured = self._parts.superseded_bytes(*state), state
                self._samples.append(
                    Sample(now_ms, self._size, least, mean, peak, cleaned, superseded, len(self._segments), self._arrived_bytes)
                )
                least, peak = self._size, self._on_disk(self._size)
                area = cleaned = 0
                since_ms = now_ms
        if clock.checks.size:
            self._note_ages(int(clock.checks[-1]))
        events = tuple(event for event in self._events if event.at_ms >= clock.ends[0]) if clock.ends.size else ()
        return Effect(policy, tuple(self._samples), events, *self._oldest)

    def _on_disk(self, log_bytes: int) -> int:
        """Bytes of ``.log`` files with their offset and time indexes, which have about an entry for each interval."""
        entries = log_bytes // max(1, self._config.index_interval_bytes)
        return log_bytes + entries * (OFFSET_ENTRY.size + TIME_ENTRY.size)

    @property
    def _start(self) -> int:
        return self._segments[0].base_offset if self._segments else 0

    def _append(self, end: int) -> None:
        config, segments = self._config, self._segments
        # Kafka: ``LogConfig.maxSegmentMs``
        longest_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.cleanup_compact else config.segment_ms
        active = segments.pop() if segments else None
        base, size, began_ms, written_ms = _fields(active)
        created_ms, largest_ms = self._created_ms, self._active_largest_ms
        for part in range(self._arrived, end):
            more, latest_ms, now_ms = self._sizes[part], self._largest_ms[part], self._times[part]
            if base >= 0:
                waited_ms = latest_ms - began_ms if 0 <= began_ms < _LONG_MAX else now_ms - created_ms
                if size > config.segment_bytes - more or (size > 0 and waited_ms > longest_ms):
                    segments.append(_segment(base, size, began_ms, largest_ms, written_ms, part))
                    self._rolled, base = True, -1
            if base < 0:
                base, size, created_ms, largest_ms = part, 0, now_ms, -1
            if size == 0:
                began_ms = latest_ms
            largest_ms = max(largest_ms, latest_ms)
            size, written_ms = size + more, now_ms
            self._size += more
            self._arrived_bytes += more
        if base >= 0:
            segments.append(_segment(base, size, began_ms, largest_ms, written_ms, max(self._arrived, end)))
        self._arrived, self._created_ms, self._active_largest_ms = max(self._arrived, end), created_ms, largest_ms

    def _view(self) -> LogView:
        end, stable = self._arrived, int(self._parts.stable[self._arrived])
        return LogView(
            TopicPartition("simulated", 0), "", "", tuple(self._segments), self._start, end, stable, end, self._first_dirty
        )

    def _clean(self, now_ms: int) -> int:
        """Clean the log if its policy says so; returns the bytes that are written."""
        config = self._config
        if not self._segments or not (self._rolled or now_ms >= self._look_ms):
            return 0
        self._rolled = False
        plan = plan_log(self._view(), config, now_ms=now_ms)
        if plan.verdict is not Verdict.CLEAN:
            # nothing changes before a lag passes, or a segment is rolled
            lags = (
                time_ms
                for segment in self._segments[:-1]
                for time_ms in (
                    segment.largest_timestamp_ms + config.min_compaction_lag_ms,
                    segment.first_batch_timestamp_ms + config.max_compaction_lag_ms,
                )
            )
            self._look_ms = min((time_ms for time_ms in lags if time_ms >= now_ms), default=_LONG_MAX)
            # or an open transaction ends
            self._rolled = bool(self._parts.stable[self._arrived] < self._arrived)
            return 0
        self._note_ages(now_ms)
        first, end = self._start, plan.first_uncleanable_offset
        before = sum(segment.size_bytes for segment in plan.segments)
        self._parts.clean(first, end, self._arrived, now_ms)
        bases = {group.base_offset: group.mtime_ns for group in plan.groups}
        outputs = self._outputs(sorted(bases), end, bases)
        self._segments = [*outputs, *(segment for segment in self._segments if segment.base_offset >= end)]
        after = sum(segment.size_bytes for segment in outputs)
        self._first_dirty, self._rolled = end, True
        self._size += after - before
        self._waiting.append((now_ms + config.file_delete_delay_ms, before))
        self._events.append(Event(now_ms, "cleaned", before, after))
        return after

    def _outputs(self, bases: Sequence[int], end: int, mtimes: dict[int, int]) -> list[Segment]:
        outputs = []
        for base, next_base in zip(bases, [*bases[1:], end], strict=True):
            size, first, largest = self._parts.remaining(base, next_base)
            outputs.append(
                Segment(
                    base, size, mtimes[base], 0, 0,
                    largest if largest >= 0 else mtimes[base] // _NS, first if size else _LONG_MAX, next_base,
                )
            )  # fmt: skip
        return outputs

    def _delete(self, now_ms: int) -> None:
        config = self._config
        if not self._segments:
            return
        oldest = self._segments[0]
        too_old = 0 <= config.retention_ms < now_ms - oldest.largest_timestamp_ms
        if not too_old and not 0 <= config.retention_bytes <= self._size:
            return
        plan = plan_deletion(self._view(), replace(config, remote_storage_enable=False), now_ms=now_ms)
        if plan.removals:
            self._segments = list(plan.after.segments)
            self._parts.delete(self._start)
            self._size -= plan.removed_bytes
            self._waiting.append((now_ms + config.file_delete_delay_ms, plan.removed_bytes))
            self._rolled = True
            if not self._segments[-1].size_bytes:
                self._created_ms, self._active_largest_ms = now_ms, -1
            self._events.append(Event(now_ms, "deleted", plan.removed_bytes, 0))

    def _note_ages(self, now_ms: int) -> None:
        """The oldest records that a cleaning is about to remove, or that remain at the end."""
        covered = self._first_dirty or 0
        ages = self._parts.ages(self._start, self._arrived, covered, now_ms)
        self._oldest = max(self._oldest[0], ages[0]), max(self._oldest[1], ages[1])


def _fields(segment: Segment | None) -> tuple[int, int, int, int]:
    """Base, size, first timestamp, and when it was written last; a base of -1 for none."""
    if segment is None:
        return -1, 0, _LONG_MAX, -1
    return segment.base_offset, segment.size_bytes, segment.first_batch_timestamp_ms, segment.mtime_ns // _NS


def _segment(base: int, size: int, first_ms: int, largest_ms: int, written_ms: int, end: int) -> Segment:
    largest_ms = largest_ms if largest_ms >= 0 else written_ms
    return Segment(base, size, written_ms * _NS, 0, 0, largest_ms, first_ms if size and first_ms >= 0 else _LONG_MAX, end)
