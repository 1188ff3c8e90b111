"""Which part of a log is dirty, which part of that can be cleaned, and how dirty that makes the log.

The rule, in offsets:

    first dirty       = cleaner checkpoint, or log start where there is none or where it is below log start or above log end
    first uncleanable = min(last stable offset, base of the active segment,
                            base of the first dirty closed segment with a timestamp > now - min.compaction.lag.ms)
    end               = base of the closed segment that holds max(first dirty, first uncleanable), else of the active segment
    clean bytes       = bytes of the segments whose base is below first dirty
    dirty bytes       = bytes of the segments from the one that holds first dirty up to the end

1. A segment with the first dirty offset inside counts as clean *and* as dirty, as it does to a broker.
2. Segments wholly below log start count as clean; removing them is the delete policy's business.
3. Where the whole log may be cleaned (an export that no broker will append to), everything is computed as if a broker had just
   rolled: the last segment is a closed one, and an empty active segment starts at the log end. The last stable offset still
   holds: where it lies inside the last segment, that segment stays as it is and the end is its base.

Mirrors ``LogCleanerManager.cleanableOffsets``, ``calculateCleanableBytes``, ``maxCompactionDelay`` and ``LogToClean`` of Kafka
4.3.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compaction.cleaning.log_view import LogView, Segment
from compaction.config import TopicConfig

#: names of limits
ACTIVE, HIGH_WATERMARK, LAST_STABLE, MIN_LAG = (
    "active segment", "high watermark", "last stable offset", "min.compaction.lag.ms",
)  # fmt: skip


@dataclass(frozen=True)
class CleaningBound:
    """Something past which nothing is cleaned: what it is, and the first offset that it forbids; ``detail`` says more of it."""

    name: str
    offset: int
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.detail} since offset {self.offset}" if self.detail else f"{self.name} {self.offset}"


@dataclass(frozen=True)
class LogToClean:
    """How dirty a log is. Offsets and bytes are as in the module's rule; ``limits`` has the strictest first.

    ``overdue_ms`` is by how much ``max.compaction.lag.ms`` has passed for the oldest dirty closed segment, 0 if it has not.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    limits: tuple[CleaningBound, ...]
    checkpoint_reset: bool

    @property
    def cleanable_ratio(self) -> float:
        """Dirty bytes as a share of clean and dirty ones; 0 for a log without any."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def log_to_clean(view: LogView, config: TopicConfig, *, now_ms: int, include_active: bool) -> LogToClean:
    """How dirty a log with at least one segment is.

    :param now_ms: the present, milliseconds
    :param include_active: the log is an export: its last segment may be cleaned too
    """
    first_dirty, reset = first_dirty_offset(view)
    closed, active_base = _closed(view, include_active)
    dirty = _closed_from(closed, active_base, first_dirty)
    limits = _limits(view, config, dirty, active_base, now_ms)
    held = _closed_from(closed, active_base, max(first_dirty, limits[0].offset))
    end = held[0].base_offset if held else active_base
    return LogToClean(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=end,
        clean_bytes=_bytes_of(segments_between(view.segments, -1, first_dirty)),
        dirty_bytes=_bytes_of(segments_between(view.segments, min(first_dirty, end), end)),
        overdue_ms=_overdue_ms(dirty, config, now_ms),
        limits=limits,
        checkpoint_reset=reset,
    )


def first_dirty_offset(view: LogView) -> tuple[int, bool]:
    """The first dirty offset, and whether a checkpoint had to be set aside for it."""
    checkpoint = view.cleaner_checkpoint
    if checkpoint is None:
        return view.log_start_offset, False
    if view.log_start_offset <= checkpoint <= view.log_end_offset:
        return checkpoint, False
    return view.log_start_offset, True


def segments_between(segments: Sequence[Segment], start: int, end: int) -> tuple[Segment, ...]:
    """The segments that hold offsets in ``[start, end)``: from the one that holds ``start``, up to bases below ``end``.

    Mirrors ``LogSegments.values(from, to)``, which takes a segment to reach up to the next one's base.
    """
    if start >= end:
        return ()
    floor = max((segment.base_offset for segment in segments if segment.base_offset <= start), default=start)
    return tuple(segment for segment in segments if floor <= segment.base_offset < end)


def _closed(view: LogView, include_active: bool) -> tuple[tuple[Segment, ...], int]:
    """The closed segments and the base of the active one; an empty last segment is what rolling would have made."""
    last = view.segments[-1]
    if include_active and last.size_bytes > 0:
        return view.segments, view.log_end_offset
    return view.segments[:-1], last.base_offset


def _closed_from(closed: Sequence[Segment], active_base: int, offset: int) -> tuple[Segment, ...]:
    """Mirrors ``LogSegments.nonActiveLogSegmentsFrom``."""
    return segments_between(closed, offset, active_base)


def _limits(
    view: LogView, config: TopicConfig, dirty: Sequence[Segment], active_base: int, now_ms: int
) -> tuple[CleaningBound, ...]:
    limits = [CleaningBound(ACTIVE, active_base)]
    if view.last_stable_offset < view.high_watermark:
        limits.append(CleaningBound(LAST_STABLE, view.last_stable_offset, _transaction(view)))
    limits.append(CleaningBound(HIGH_WATERMARK, view.high_watermark))
    if config.min_compaction_lag_ms > 0:
        newest_cleanable_ms = now_ms - config.min_compaction_lag_ms
        young = next((each for each in dirty if each.largest_timestamp_ms > newest_cleanable_ms), None)
        if young is not None:
            # as the name alone the offset would read as the setting's value
            limits.append(CleaningBound(MIN_LAG, young.base_offset, MIN_LAG))
    return tuple(sorted(limits, key=lambda limit: limit.offset))


def _transaction(view: LogView) -> str:
    """The transaction that the last stable offset stands before; it may have begun below the log start."""
    begins = [
        (each.current_txn_first_offset, each.producer_id)
        for each in view.producers
        if 0 <= each.current_txn_first_offset <= view.last_stable_offset
    ]
    if not begins:
        return "transaction that ends at or past the high watermark"
    return f"open transaction of producer {min(begins)[1]}"


def _overdue_ms(dirty: Sequence[Segment], config: TopicConfig, now_ms: int) -> int:
    stamps = [each.first_batch_timestamp_ms for each in dirty if each.first_batch_timestamp_ms > 0]
    clean_until_ms = now_ms - max(config.max_compaction_lag_ms, 0)
    return max(clean_until_ms - min(stamps), 0) if stamps else 0


def _bytes_of(segments: Sequence[Segment]) -> int:
    return sum(segment.size_bytes for segment in segments)
