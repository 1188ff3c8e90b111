"""Which segments the delete policy removes.

The rule: three passes over the log, oldest segment first, each ending at the first segment that it keeps.

1. **Log start**: the segment ends at or below the log start (the next segment's base ≤ log start). Always done.
2. **Size**: without it, the log still holds ``retention.bytes``. Only with ``delete`` in ``cleanup.policy``.
3. **Time**: now - its largest timestamp > ``retention.ms``. Only with ``delete`` in ``cleanup.policy``.

No pass goes past the high watermark, and none takes a last segment that is empty. Where every segment goes, an empty one that
starts at the log end takes over. The log start moves up to the first segment that is left. A bound below 0 is no bound.

A log whose ``cleanup.policy`` is a guess (``compaction.config.policy_guess``) keeps everything, whatever the guess.

A tiered topic (``remote.storage.enable``) keeps everything: a broker removes only what was uploaded, and a directory does not
tell what that is.

Mirrors ``UnifiedLog.deleteOldSegments``, ``deletableSegments`` and ``deleteSegments`` of Kafka 4.3.0.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from compaction.cleaning.log_view import LogView, Segment
from compaction.cleaning.skip_reasons import SkipCause, Verdict
from compaction.config import TopicConfig
from compaction.config.kinds import LONG_MAX
from compaction.names import CLUSTER_METADATA_TOPIC


class DeletionCause(enum.Enum):
    """Why a segment goes."""

    LOG_START = "log start"
    SIZE = "size"
    TIME = "time"


@dataclass(frozen=True)
class Removal:
    """A segment that goes, and why; ``why`` has the numbers."""

    segment: Segment
    cause: DeletionCause
    why: str

    def __str__(self) -> str:
        return f"segment {self.segment.base_offset} ({self.segment.size_bytes} bytes) goes by {self.cause.value}: {self.why}"


@dataclass(frozen=True)
class DeletionPlan:
    """What the delete policy does to one log.

    ``removals`` are ascending. ``new_log_start_offset`` is the log start afterwards. ``rolled_base_offset`` is the base of the
    empty segment that takes over where every segment goes, else ``None``. ``after`` is the log as it is afterwards.
    """

    view: LogView
    config: TopicConfig
    removals: tuple[Removal, ...]
    new_log_start_offset: int
    rolled_base_offset: int | None
    after: LogView
    reason: str

    @property
    def verdict(self) -> Verdict:
        """``CLEAN`` when something goes."""
        return Verdict.CLEAN if self.removals else Verdict.SKIP

    @property
    def removed_bytes(self) -> int:
        """Bytes of the ``.log`` files that go."""
        return sum(removal.segment.size_bytes for removal in self.removals)

    def __str__(self) -> str:
        """One line a removed segment, under a line that sums up."""
        return "\n".join([f"{self.view.topic_partition}: {self.reason}", *(f"  {removal}" for removal in self.removals)])


#: says why a segment goes, or gives ``None`` to keep it; the second argument is the next segment, ``None`` for the last
_Rule = Callable[[Segment, "Segment | None"], "str | None"]


def plan_deletion(view: LogView, config: TopicConfig, *, now_ms: int) -> DeletionPlan:
    """What the delete policy does to one log as of ``now_ms``, milliseconds."""
    obstacle = _obstacle(view, config)
    if obstacle is not None:
        return DeletionPlan(view, config, (), view.log_start_offset, None, view, obstacle)
    now, removals = view, []
    for cause, rule_for in _PASSES:
        rule = rule_for(now, config, now_ms) if cause is DeletionCause.LOG_START or config.cleanup_delete else None
        if rule is not None:
            gone = [Removal(segment, cause, why) for segment, why in _oldest_first(now, rule)]
            now = _without(now, len(gone), now_ms)
            removals += gone
    rolled = now.segments[0].base_offset if removals and len(removals) == len(view.segments) else None
    reason = _summary(view, config, removals, now_ms)
    return DeletionPlan(view, config, tuple(removals), now.log_start_offset, rolled, now, reason)


def _obstacle(view: LogView, config: TopicConfig) -> str | None:
    if view.topic_partition.topic == CLUSTER_METADATA_TOPIC:
        return f"refused: {CLUSTER_METADATA_TOPIC} is pruned by snapshots"
    if config.policy_guess is not None:
        return f"{SkipCause.REFUSED.value}: {config.policy_guess}"
    if config.remote_storage_enable:
        return f"tiered: remote.storage.enable is true ({config.source('remote.storage.enable')}), uploads cannot be seen here"
    return None


def _oldest_first(view: LogView, rule: _Rule) -> Iterator[tuple[Segment, str]]:
    """The segments that a rule takes, up to the first that it keeps, the high watermark or an empty last segment."""
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
    left_bytes = view.size_bytes

    def rule(segment: Segment, following: Segment | None) -> str | None:
        nonlocal left_bytes
        if left_bytes - segment.size_bytes < bound:
            return None
        left_bytes -= segment.size_bytes
        origin = config.source("retention.bytes")
        return f"{left_bytes} bytes are left without it, retention.bytes is {bound} ({origin})"

    return rule


def _by_time(view: LogView, config: TopicConfig, now_ms: int) -> _Rule | None:
    bound = config.retention_ms
    if bound < 0:
        return None

    def rule(segment: Segment, following: Segment | None) -> str | None:
        age_ms = now_ms - segment.largest_timestamp_ms
        if age_ms <= bound:
            return None
        return f"it is {age_ms} ms old, retention.ms is {bound} ({config.source('retention.ms')})"

    return rule


_PASSES: tuple[tuple[DeletionCause, Callable[[LogView, TopicConfig, int], _Rule | None]], ...] = (
    (DeletionCause.LOG_START, _by_log_start),
    (DeletionCause.SIZE, _by_size),
    (DeletionCause.TIME, _by_time),
)


def _without(view: LogView, count: int, now_ms: int) -> LogView:
    """The log without its first ``count`` segments; never without any."""
    if count == 0:
        return view
    left = view.segments[count:] or (_rolled(view.log_end_offset, now_ms),)
    return replace(view, segments=left, log_start_offset=max(view.log_start_offset, left[0].base_offset))


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
        by_cause = [(cause, [each for each in removals if each.cause is cause]) for cause in DeletionCause]
        parts = [f"{len(found)} by {cause.value}" for cause, found in by_cause if found]
        return f"{len(removals)} of {len(view.segments)} segments go ({', '.join(parts)}); {policy}"
    if not config.cleanup_delete:
        return f"policy: {policy}, only segments below log start {view.log_start_offset} would go"
    future = [segment for segment in view.segments[:1] if segment.largest_timestamp_ms > now_ms]
    if future and config.retention_ms >= 0:
        stamp = future[0].largest_timestamp_ms
        return f"future: segment {future[0].base_offset} has a timestamp {stamp} after {now_ms}, which keeps it from going"
    bounds = f"{_bound_text(config, 'retention.ms')}, {_bound_text(config, 'retention.bytes')}"
    return f"nothing has expired: {bounds}; {policy}"


def _bound_text(config: TopicConfig, name: str) -> str:
    value = config.retention_ms if name == "retention.ms" else config.retention_bytes
    return f"{name} is {value if value >= 0 else 'no limit'} ({config.source(name)})"
