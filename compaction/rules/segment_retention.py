"""Segment retention by the delete policy. ``record_retention`` has the cleaner's rule for records.

The rule: three passes over the log, oldest segment first. Each ends at the first segment that it retains.

1. *Log start.* A segment is deleted if the next segment's base <= log start. This pass always runs.
2. *Size.* A segment is deleted if the log without it still has ``retention.bytes``. Only with ``delete`` in ``cleanup.policy``.
3. *Time.* A segment is deleted if now - its largest timestamp > ``retention.ms``. Only with ``delete`` in ``cleanup.policy``.

Exceptions:

1. A segment that ends above the high watermark is retained, and so is an empty last segment.
2. If every segment is deleted, an empty active segment at the log end replaces them. The log start becomes the base of the
   first remaining segment, unless it is higher already.
3. A negative bound is unlimited.
4. Nothing is deleted if ``cleanup.policy`` is a guess (``compaction.config.resolver``), whatever the guess.
5. Nothing is deleted from a tiered topic (``remote.storage.enable``): a broker deletes only uploaded segments, and a directory
   does not say which are.
6. Nothing is deleted from ``__cluster_metadata``, which a broker prunes by snapshots.

Mirrors ``UnifiedLog.deleteOldSegments``, ``deletableSegments`` and ``deleteSegments``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from compaction.config.entries import LONG_MAX, to_long
from compaction.config.resolver import TopicConfig
from compaction.names import CLUSTER_METADATA_TOPIC
from compaction.rules.log_to_clean import SkipCause
from compaction.rules.log_view import LogView, Segment
from compaction.screen.amounts import counted, duration, with_duration


class DeletionCause(enum.Enum):
    """The pass that deletes a segment."""

    #: it ends below the log start offset
    LOG_START = "log start"
    #: the log is larger than ``retention.bytes``
    SIZE = "size"
    #: it is older than ``retention.ms``
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Removal:
    """A segment to delete; ``why`` is the reason with its numbers."""

    segment: Segment
    cause: DeletionCause
    why: str

    def __str__(self) -> str:
        segment = f"segment {self.segment.base_offset} ({self.segment.size_bytes} bytes)"
        return f"{segment} is deleted by {self.cause.value}: {self.why}"


@dataclass(frozen=True, slots=True)
class DeletionPlan:
    """The segments of one log that the delete policy deletes.

    ``removals`` are ascending; ``after`` is the log afterwards.
    """

    view: LogView
    config: TopicConfig
    removals: tuple[Removal, ...]
    after: LogView
    reason: str

    @property
    def new_log_start_offset(self) -> int:
        return self.after.log_start_offset

    @property
    def removed_bytes(self) -> int:
        """Bytes of the deleted ``.log`` files."""
        return sum(removal.segment.size_bytes for removal in self.removals)

    def __str__(self) -> str:
        """A summary line, then one line per deleted segment."""
        return "\n".join([f"{self.view.topic_partition}: {self.reason}", *(f"  {removal}" for removal in self.removals)])


#: the reason to delete a segment, ``None`` to retain it; the second argument is the next segment, ``None`` for the last
_Rule = Callable[[Segment, "Segment | None"], "str | None"]


def plan_deletion(view: LogView, config: TopicConfig, *, now_ms: int) -> DeletionPlan:
    """The segments of one log that the delete policy deletes at ``now_ms``."""
    refusal = _refusal(view, config)
    if refusal is not None:
        return DeletionPlan(view, config, (), view, refusal)
    after, removals = view, []
    for cause, rule_for in _PASSES:
        rule = rule_for(after, config, now_ms) if cause is DeletionCause.LOG_START or config.cleanup_delete else None
        if rule is not None:
            deleted = [Removal(segment, cause, why) for segment, why in _oldest_first(after, rule)]
            after = _without(after, len(deleted), now_ms)
            removals += deleted
    return DeletionPlan(view, config, tuple(removals), after, _summary(view, config, removals, now_ms))


def _refusal(view: LogView, config: TopicConfig) -> str | None:
    if view.topic_partition.topic == CLUSTER_METADATA_TOPIC:
        return f"refused: {CLUSTER_METADATA_TOPIC} is pruned by snapshots"
    if config.policy_guess is not None:
        return f"{SkipCause.REFUSED.value}: {config.policy_guess}"
    if config.remote_storage_enable:
        return f"tiered: remote.storage.enable is true ({config.source('remote.storage.enable')}), uploads cannot be seen here"
    return None


def _oldest_first(view: LogView, rule: _Rule) -> Iterator[tuple[Segment, str]]:
    """The segments that a pass deletes, with the reasons."""
    for position, segment in enumerate(view.segments):
        following = view.segments[position + 1] if position + 1 < len(view.segments) else None
        end_offset = view.log_end_offset if following is None else following.base_offset
        if view.high_watermark < end_offset or (following is None and segment.size_bytes == 0):
            return
        why = rule(segment, following)
        if why is None:
            return
        yield segment, why


def _by_log_start(view: LogView, config: TopicConfig, now_ms: int) -> _Rule:
    def rule(segment: Segment, following: Segment | None) -> str | None:
        if following is None or following.base_offset > view.log_start_offset:
            return None
        return f"it ends at {following.base_offset}, the log starts at {view.log_start_offset}"

    return rule


def _by_size(view: LogView, config: TopicConfig, now_ms: int) -> _Rule | None:
    bound = config.retention_bytes
    if bound < 0 or view.size_bytes < bound:
        return None
    remaining_bytes = view.size_bytes

    def rule(segment: Segment, following: Segment | None) -> str | None:
        nonlocal remaining_bytes
        if remaining_bytes - segment.size_bytes < bound:
            return None
        remaining_bytes -= segment.size_bytes
        origin = config.source("retention.bytes")
        return f"{remaining_bytes} bytes are left without it, retention.bytes is {bound} ({origin})"

    return rule


def _by_time(view: LogView, config: TopicConfig, now_ms: int) -> _Rule | None:
    bound = config.retention_ms
    if bound < 0:
        return None

    def rule(segment: Segment, following: Segment | None) -> str | None:
        age_ms = to_long(now_ms - segment.largest_timestamp_ms)
        if age_ms <= bound:
            return None
        return f"it is {duration(age_ms)} old, retention.ms is {with_duration(bound)} ({config.source('retention.ms')})"

    return rule


_PASSES: tuple[tuple[DeletionCause, Callable[[LogView, TopicConfig, int], _Rule | None]], ...] = (
    (DeletionCause.LOG_START, _by_log_start),
    (DeletionCause.SIZE, _by_size),
    (DeletionCause.TIME, _by_time),
)


def _without(view: LogView, count: int, now_ms: int) -> LogView:
    """The log without its first ``count`` segments; with a new active segment if none remains."""
    if count == 0:
        return view
    remaining = view.segments[count:] or (_rolled(view.log_end_offset, now_ms),)
    return replace(view, segments=remaining, log_start_offset=max(view.log_start_offset, remaining[0].base_offset))


def _rolled(base_offset: int, now_ms: int) -> Segment:
    return Segment(
        base_offset=base_offset,
        size_bytes=0,
        mtime_ns=now_ms * 1_000_000,
        index_bytes=0,
        time_index_bytes=0,
        largest_timestamp_ms=now_ms,
        first_batch_timestamp_ms=LONG_MAX,
        next_offset=base_offset,
    )


def _summary(view: LogView, config: TopicConfig, removals: Sequence[Removal], now_ms: int) -> str:
    policy = f"cleanup.policy is {config.cleanup_policy or 'none'} ({config.source('cleanup.policy')})"
    if removals:
        by_cause = [(cause, [removal for removal in removals if removal.cause is cause]) for cause in DeletionCause]
        parts = [f"{len(deleted)} by {cause.value}" for cause, deleted in by_cause if deleted]
        return f"{len(removals)} of {counted(len(view.segments), 'segment')} expired ({', '.join(parts)}); {policy}"
    if not config.cleanup_delete:
        return f"policy: {policy}, only segments below log start {view.log_start_offset} are deleted"
    future = [segment for segment in view.segments[:1] if segment.largest_timestamp_ms > now_ms]
    if future and config.retention_ms >= 0:
        stamp = future[0].largest_timestamp_ms
        return f"future: segment {future[0].base_offset} has a timestamp {stamp} after {now_ms}, which prevents its deletion"
    values = {"retention.ms": config.retention_ms, "retention.bytes": config.retention_bytes}
    bounds = (f"{name} is {value if value >= 0 else 'no limit'} ({config.source(name)})" for name, value in values.items())
    return f"nothing has expired: {', '.join(bounds)}; {policy}"
