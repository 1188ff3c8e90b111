"""The dirty section of a log, its first uncleanable offset, its dirty ratio, and why a plan skips the log.

The rule, in offsets:

    first dirty       = cleaner checkpoint; log start if there is none or it is outside [log start, log end]
    first uncleanable = base of the inactive segment that holds max(first dirty, bound), else base of the active segment
    bound             = min(last stable offset, base of the active segment,
                            base of the first dirty inactive segment with a timestamp > now - min.compaction.lag.ms)
    clean bytes       = bytes of the segments whose base is below first dirty
    dirty bytes       = bytes of the segments from the one that holds first dirty up to first uncleanable

1. A segment with the first dirty offset inside counts as clean and as dirty, as in Kafka.
2. Segments below the log start count as clean; the delete policy deletes them.
3. With ``include_active`` (an export that no broker will append to) the rule applies as if a broker had just rolled: the last
   segment is inactive, and an empty active segment starts at the log end. A last stable offset inside the last segment still
   excludes that segment.

Mirrors ``LogCleanerManager.cleanableOffsets``, ``calculateCleanableBytes``, ``maxCompactionDelay`` and ``LogToClean``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from compaction.config.entries import to_long
from compaction.config.resolver import TopicConfig
from compaction.rules.log_view import LogView, Segment
from compaction.screen.amounts import decimal

#: names of cleaning bounds
ACTIVE, HIGH_WATERMARK, LAST_STABLE, MIN_LAG = (
    "active segment", "high watermark", "last stable offset", "min.compaction.lag.ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CleaningBound:
    """The first offset that cannot be cleaned, and why. In messages ``detail`` replaces ``name``."""

    name: str
    offset: int
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.detail} since offset {self.offset}" if self.detail else f"{self.name} {self.offset}"


@dataclass(frozen=True)
class LogToClean:
    """How dirty a log is. Offsets and bytes are as in the module's rule; ``bounds`` are ascending.

    ``overdue_ms`` is the time since ``max.compaction.lag.ms`` passed for the oldest dirty inactive segment, 0 if it has not.
    ``checkpoint_reset``: the cleaner checkpoint was outside the log.
    """

    first_dirty_offset: int = 0
    first_uncleanable_offset: int = 0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    overdue_ms: int = 0
    bounds: tuple[CleaningBound, ...] = ()
    checkpoint_reset: bool = False

    @property
    def cleanable_ratio(self) -> float:
        """See :func:`dirty_ratio`."""
        return dirty_ratio(self.clean_bytes, self.dirty_bytes)


def log_to_clean(view: LogView, config: TopicConfig, *, now_ms: int, include_active: bool) -> LogToClean:
    """How dirty a log with at least one segment is.

    :param now_ms: the time of the round
    :param include_active: no broker will append to the log, so its last segment may be cleaned too
    """
    first_dirty, reset = first_dirty_offset(view)
    inactive, active_base = _inactive(view, include_active)
    dirty = segments_between(inactive, first_dirty, active_base)
    bounds = _bounds(view, config, dirty, active_base, now_ms)
    uncleanable = segments_between(inactive, max(first_dirty, bounds[0].offset), active_base)
    first_uncleanable = uncleanable[0].base_offset if uncleanable else active_base
    return LogToClean(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=first_uncleanable,
        clean_bytes=_bytes_of(segments_between(view.segments, -1, first_dirty)),
        dirty_bytes=_bytes_of(segments_between(view.segments, min(first_dirty, first_uncleanable), first_uncleanable)),
        overdue_ms=_overdue_ms(dirty, config, now_ms),
        bounds=bounds,
        checkpoint_reset=reset,
    )


def first_dirty_offset(view: LogView) -> tuple[int, bool]:
    """The first dirty offset, and whether it is reset because the checkpoint is outside the log."""
    checkpoint = view.cleaner_checkpoint
    if checkpoint is None:
        return view.log_start_offset, False
    if view.log_start_offset <= checkpoint <= view.log_end_offset:
        return checkpoint, False
    return view.log_start_offset, True


def dirty_ratio(clean_bytes: int, dirty_bytes: int) -> float:
    """Dirty bytes / (clean + dirty bytes); 0 without any bytes."""
    total = clean_bytes + dirty_bytes
    return dirty_bytes / total if total else 0.0


def segments_between(segments: Sequence[Segment], start: int, end: int) -> tuple[Segment, ...]:
    """The segments with offsets in ``[start, end)``: from the one that holds ``start``, up to bases below ``end``.

    Mirrors ``LogSegments.values(from, to)`` and ``nonActiveLogSegmentsFrom``: a segment extends to the next one's base.
    """
    if start >= end:
        return ()
    floor = max((segment.base_offset for segment in segments if segment.base_offset <= start), default=start)
    return tuple(segment for segment in segments if floor <= segment.base_offset < end)


def _inactive(view: LogView, include_active: bool) -> tuple[tuple[Segment, ...], int]:
    """The inactive segments, and the base of the active one. An empty last segment is always active."""
    last = view.segments[-1]
    if include_active and last.size_bytes > 0:
        return view.segments, view.log_end_offset
    return view.segments[:-1], last.base_offset


def _bounds(
    view: LogView, config: TopicConfig, dirty: Sequence[Segment], active_base: int, now_ms: int
) -> tuple[CleaningBound, ...]:
    bounds = [CleaningBound(ACTIVE, active_base)]
    if view.last_stable_offset < view.high_watermark:
        bounds.append(CleaningBound(LAST_STABLE, view.last_stable_offset, open_transaction(view)))
    bounds.append(CleaningBound(HIGH_WATERMARK, view.high_watermark))
    if config.min_compaction_lag_ms > 0:
        newest_cleanable_ms = to_long(now_ms - config.min_compaction_lag_ms)
        young = next((segment for segment in dirty if segment.largest_timestamp_ms > newest_cleanable_ms), None)
        if young is not None:
            # the name alone would make the offset read like the setting's value
            bounds.append(CleaningBound(MIN_LAG, young.base_offset, MIN_LAG))
    return tuple(sorted(bounds, key=lambda bound: bound.offset))


def open_transaction(view: LogView) -> str:
    """The transaction that holds back the last stable offset; it may have begun below the log start."""
    begins = [
        (producer.current_txn_first_offset, producer.producer_id)
        for producer in view.producers
        if 0 <= producer.current_txn_first_offset <= view.last_stable_offset
    ]
    if not begins:
        return "transaction that ends at or past the high watermark"
    return f"open transaction of producer {min(begins)[1]}"


def _overdue_ms(dirty: Sequence[Segment], config: TopicConfig, now_ms: int) -> int:
    stamps = [segment.first_batch_timestamp_ms for segment in dirty if segment.first_batch_timestamp_ms > 0]
    clean_until_ms = to_long(now_ms - max(config.max_compaction_lag_ms, 0))
    return max(clean_until_ms - min(stamps), 0) if stamps else 0


def _bytes_of(segments: Sequence[Segment]) -> int:
    return sum(segment.size_bytes for segment in segments)


class Verdict(enum.Enum):
    """Whether a log is cleaned."""

    CLEAN = "clean"
    SKIP = "skip"


class SkipCause(enum.Enum):
    """Why a log is skipped; the first word of the reason."""

    #: a guard refuses it: the metadata log, a policy that is not known
    REFUSED = "refused"
    #: its ``cleanup.policy`` does not include what the run does
    POLICY = "policy"
    #: there is nothing to clean or delete
    EMPTY = "empty"
    #: nothing was appended since it was cleaned
    CLEAN = "clean"
    #: all of its dirty records are in the active segment, which is cleaned only with ``--include-active``
    ACTIVE = "active"
    #: its dirty records are in an open transaction, or above the high watermark
    HELD = "held"
    #: its dirty records are younger than ``min.compaction.lag.ms``
    LAG = "lag"
    #: its dirty ratio is not above ``min.cleanable.dirty.ratio``
    RATIO = "ratio"
    #: the budget of the run leaves it to the next one: ``--max-duration``, ``--max-rewrite`` or ``--min-freed``
    DEFERRED = "deferred"


def shown(value: int | float | str) -> str:
    """A value as shown to users: ratios with up to four digits, empty text as ``none``."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) or "none"


def bytes_missing(clean_bytes: int, dirty_bytes: int, ratio: float) -> int | None:
    """The fewest additional dirty bytes that bring dirty / (clean + dirty) above ``ratio``; ``None`` if impossible."""
    if ratio >= 1:
        return None

    def suffices(more: int) -> bool:
        return dirty_ratio(clean_bytes, dirty_bytes + more) > ratio

    if suffices(0):
        return 0
    # the ratio grows with the dirty bytes, so bisect
    too_few, enough = 0, 1
    while not suffices(enough):
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffices(middle) else (middle, enough)
    return enough


def ratio_below(ratio: float) -> float:
    """A bound below ``ratio`` with as few digits as possible, the largest such; 0 if the ratio is below 1e-5."""
    for digits in range(1, 6):
        scale = 10.0**digits
        bound = (math.ceil(ratio * scale) - 1) / scale
        while bound >= ratio:
            bound -= 1 / scale
        if bound > 0:
            return round(bound, digits)
    return 0.0


def ratio_remedy(clean_bytes: int, dirty_bytes: int, bound: float) -> str:
    """The change that brings a log above ``min.cleanable.dirty.ratio``."""
    if dirty_bytes == 0:
        return "becomes cleanable once an inactive segment is dirty"
    more = bytes_missing(clean_bytes, dirty_bytes, bound)
    lower = f"with min.cleanable.dirty.ratio={ratio_below(dirty_ratio(clean_bytes, dirty_bytes)):g}"
    return f"becomes cleanable {lower}" if more is None else f"becomes cleanable after {decimal(more)} more, or {lower}"
