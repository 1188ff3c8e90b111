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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from compaction.config.entries import LONG_MAX, to_long
from compaction.config.resolver import TopicConfig
from compaction.names import CLUSTER_METADATA_TOPIC
from compaction.rules.log_to_clean import SkipCause
from compaction.rules.log_view import LogView, Segment
from compaction.screen.amounts import counted, duration, with_duration


class DeletionCause(enum.Enum):
    """The pass that deletes a segment, in their order."""

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
    def removed_bytes(self) -> int:
        """Bytes of the deleted ``.log`` files."""
        return sum(removal.segment.size_bytes for removal in self.removals)

    def __str__(self) -> str:
        """A summary line, then one line per deleted segment."""
        return "\n".join([f"{self.view.topic_partition}: {self.reason}", *(f"  {removal}" for removal in self.removals)])


def plan_deletion(view: LogView, config: TopicConfig, *, now_ms: int) -> DeletionPlan:
    """The segments of one log that the delete policy deletes at ``now_ms``."""
    refusal = _refusal(view, config)
    if refusal is not None:
        return DeletionPlan(view, config, (), view, refusal)
    after, removals = view, []
    for cause in DeletionCause if config.cleanup_delete else (DeletionCause.LOG_START,):
        deleted = list(_oldest_first(after, config, cause, now_ms))
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


def _oldest_first(view: LogView, config: TopicConfig, cause: DeletionCause, now_ms: int) -> Iterator[Removal]:
    """The segments that a pass deletes."""
    remaining_bytes, ends = view.size_bytes, [segment.base_offset for segment in view.segments[1:]]
    for segment, following in zip_longest(view.segments, ends):
        end_offset = view.log_end_offset if following is None else following
        if view.high_watermark < end_offset or (following is None and segment.size_bytes == 0):
            return
        remaining_bytes -= segment.size_bytes
        why = _why(cause, view, config, following, remaining_bytes, to_long(now_ms - segment.largest_timestamp_ms))
        if why is None:
            return
        yield Removal(segment, cause, why)


def _why(
    cause: DeletionCause, view: LogView, config: TopicConfig, following: int | None, remaining_bytes: int, age_ms: int
) -> str | None:
    """Why a pass deletes a segment, if it does: by the next segment's base, the bytes of the log without it, and its age."""
    if cause is DeletionCause.LOG_START and following is not None and following <= view.log_start_offset:
        return f"it ends at {following}, the log starts at {view.log_start_offset}"
    if cause is DeletionCause.SIZE and 0 <= config.retention_bytes <= remaining_bytes:
        origin = config.source("retention.bytes")
        return f"{remaining_bytes} bytes are left without it, retention.bytes is {config.retention_bytes} ({origin})"
    if cause is DeletionCause.TIME and 0 <= config.retention_ms < age_ms:
        bound = f"{with_duration(config.retention_ms)} ({config.source('retention.ms')})"
        return f"it is {duration(age_ms)} old, retention.ms is {bound}"
    return None


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
