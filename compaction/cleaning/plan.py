"""Which logs are compacted, how far, and in which groups of segments; a dry run prints this plan, a real run carries it out.

The rule: a log whose ``cleanup.policy`` holds ``compact`` and that has bytes is cleaned when

    dirty bytes / (clean + dirty bytes) > min.cleanable.dirty.ratio, or
    dirty bytes > 0 and max.compaction.lag.ms has passed for the first dirty batch of a closed segment

and the dirtiest log comes first. ``compaction.cleaning.log_to_clean`` says what is dirty. The segments from the first one up to
the end take part, cleaned ones included, in the groups of ``compaction.cleaning.grouping``. ``__cluster_metadata`` is refused:
its records have no keys and a broker prunes it by snapshots. A log whose ``cleanup.policy`` is a guess
(``compaction.config.policy_guess``) is refused too, whatever the guess: compaction removes records as well.

Mirrors ``LogCleanerManager.grabFilthiestCompactedLog`` and ``Cleaner.doClean`` of Kafka 4.3.0, with one difference: a broker's
offset map may fill up and end the round early, this one always reaches the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compaction.cleaning.grouping import Group, group_segments, overflows
from compaction.cleaning.log_to_clean import (
    MIN_LAG,
    CleaningBound,
    LogToClean,
    first_dirty_offset,
    log_to_clean,
    segments_between,
)
from compaction.cleaning.log_view import LogView, Segment
from compaction.cleaning.skip_reasons import Condition, SkipCause, Verdict, ratio_remedy, shown
from compaction.config import TopicConfig
from compaction.names import CLUSTER_METADATA_TOPIC


@dataclass(frozen=True)
class LogPlan:
    """What is to be done with one log, and why.

    The round cleans ``[first segment's base, end_offset)`` with the keys of ``[first_dirty_offset, end_offset)``. Tombstones of
    magic 0 and 1 stay in segments modified after ``legacy_delete_horizon_ms``. ``checkpoint_reset`` says that the cleaner
    checkpoint lay outside of the log, so that ``first_dirty_offset`` is to be written in its place even if nothing is cleaned.
    ``overflowed`` segments must be split, and the log be planned again, before it can be cleaned. ``conditions`` are all
    questions that were asked, ``limits`` all that holds back the end, the strictest first.
    """

    view: LogView
    config: TopicConfig
    verdict: Verdict
    reason: str
    skip_cause: SkipCause | None = None
    first_dirty_offset: int = 0
    first_uncleanable_offset: int = 0
    clean_bytes: int = 0
    dirty_bytes: int = 0
    groups: tuple[Group, ...] = ()
    legacy_delete_horizon_ms: int = 0
    checkpoint_reset: bool = False
    overflowed: tuple[Segment, ...] = ()
    conditions: tuple[Condition, ...] = ()
    limits: tuple[CleaningBound, ...] = ()

    @property
    def cleanable_ratio(self) -> float:
        """Dirty bytes as a share of clean and dirty ones; 0 for a log without any."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments that take part."""
        return tuple(segment for group in self.groups for segment in group.segments)

    def __str__(self) -> str:
        """One line for people."""
        if self.verdict is Verdict.SKIP:
            return f"{self.view.topic_partition}: skip, {self.reason}"
        segments = f"{len(self.segments)} segments into {len(self.groups)}"
        offsets = f"[{self.first_dirty_offset}, {self.first_uncleanable_offset})"
        return f"{self.view.topic_partition}: clean {offsets}, {segments}, {self.reason}"


@dataclass(frozen=True)
class CompactionPlan:
    """The plans of all selected logs as of one moment, those to be cleaned first and the dirtiest first among them."""

    as_of_ms: int
    logs: tuple[LogPlan, ...]

    @property
    def to_clean(self) -> tuple[LogPlan, ...]:
        """The plans whose verdict is to clean."""
        return tuple(log for log in self.logs if log.verdict is Verdict.CLEAN)

    def __str__(self) -> str:
        """One line a log, under a line that sums up."""
        head = f"as of {self.as_of_ms}: {len(self.to_clean)} of {len(self.logs)} logs to clean"
        return "\n".join([head, *(f"  {log}" for log in self.logs)])


def plan_logs(as_of_ms: int, plans: Iterable[LogPlan]) -> CompactionPlan:
    """The plan of a run, in the order of work; equally dirty logs go by directory, topic and partition."""
    return CompactionPlan(
        as_of_ms,
        tuple(
            sorted(
                plans,
                key=lambda log: (
                    log.verdict is Verdict.SKIP,
                    -log.cleanable_ratio,
                    log.view.log_dir,
                    log.view.topic_partition,
                ),
            )
        ),
    )


def plan_log(view: LogView, config: TopicConfig, *, now_ms: int, include_active: bool = False) -> LogPlan:
    """What is to be done with one log.

    :param now_ms: the present, milliseconds
    :param include_active: the directory is an export that no broker will append to, so its last segment may be cleaned too
    """
    standing = _standing(view, config)
    refusal = _refusal(view, config)
    if refusal is not None:
        return _refused(view, config, refusal, standing)
    dirt = log_to_clean(view, config, now_ms=now_ms, include_active=include_active)
    asked = _conditions(dirt, config)
    has_dirty, over_ratio, overdue = asked
    cleans = over_ratio.holds or (has_dirty.holds and overdue.holds)
    cause = None if cleans else _skip_cause(dirt, config)
    reason = _why_clean(over_ratio, overdue, dirt) if cause is None else f"{cause.value}: {_why_not(dirt, asked)}"
    taking_part = segments_between(view.segments, 0, dirt.first_uncleanable_offset) if cleans else ()
    return LogPlan(
        view,
        config,
        Verdict.CLEAN if cleans else Verdict.SKIP,
        reason + (_reset_note(view) if dirt.checkpoint_reset else ""),
        cause,
        first_dirty_offset=dirt.first_dirty_offset,
        first_uncleanable_offset=dirt.first_uncleanable_offset,
        clean_bytes=dirt.clean_bytes,
        dirty_bytes=dirt.dirty_bytes,
        groups=group_segments(
            taking_part,
            max_bytes=config.segment_bytes,
            max_index_bytes=config.segment_index_bytes,
            first_uncleanable_offset=dirt.first_uncleanable_offset,
        ),
        legacy_delete_horizon_ms=_legacy_delete_horizon_ms(view, config, dirt.first_dirty_offset),
        checkpoint_reset=dirt.checkpoint_reset,
        overflowed=tuple(segment for segment in taking_part if overflows(segment)),
        conditions=standing + asked,
        limits=dirt.limits,
    )


def _refused(view: LogView, config: TopicConfig, refusal: tuple[SkipCause, str], standing: tuple[Condition, ...]) -> LogPlan:
    """The plan of a log that is not looked at any further; a checkpoint outside of an empty one starts over all the same."""
    cause, why = refusal
    first_dirty, reset = first_dirty_offset(view) if cause is SkipCause.EMPTY else (0, False)
    return LogPlan(
        view,
        config,
        Verdict.SKIP,
        f"{cause.value}: {why}" + (_reset_note(view) if reset else ""),
        cause,
        first_dirty_offset=first_dirty,
        checkpoint_reset=reset,
        conditions=standing,
    )


def _standing(view: LogView, config: TopicConfig) -> tuple[Condition, ...]:
    """What must hold of a log before anything is computed about it."""
    source = config.source("cleanup.policy")
    shown_policy = config.cleanup_policy if config.policy_guess is None else "unknown"
    compacts = config.cleanup_compact and config.policy_guess is None
    return (
        Condition("cleanup policy", shown_policy, "includes", "compact", compacts, "cleanup.policy", source),
        Condition("bytes", view.size_bytes, ">", 0, view.size_bytes > 0),
    )


def _refusal(view: LogView, config: TopicConfig) -> tuple[SkipCause, str] | None:
    if view.topic_partition.topic == CLUSTER_METADATA_TOPIC:
        return SkipCause.REFUSED, f"{CLUSTER_METADATA_TOPIC} is pruned by snapshots, cleaning would destroy it"
    if config.policy_guess is not None:
        return SkipCause.REFUSED, config.policy_guess
    if not config.cleanup_compact:
        policy = f"cleanup.policy is {config.cleanup_policy or 'none'} ({config.source('cleanup.policy')})"
        return SkipCause.POLICY, f"{policy}, only compact is cleaned"
    if view.size_bytes == 0:
        return SkipCause.EMPTY, "the log has no bytes"
    return None


def _conditions(dirt: LogToClean, config: TopicConfig) -> tuple[Condition, Condition, Condition]:
    ratio, bound = dirt.cleanable_ratio, config.min_cleanable_dirty_ratio
    return (
        Condition("dirty bytes", dirt.dirty_bytes, ">", 0, dirt.dirty_bytes > 0),
        Condition(
            "cleanable ratio", ratio, ">", bound, ratio > bound,
            "min.cleanable.dirty.ratio", config.source("min.cleanable.dirty.ratio"),
        ),
        Condition(
            "age past max.compaction.lag.ms", dirt.overdue_ms, ">", 0, dirt.overdue_ms > 0,
            "max.compaction.lag.ms", config.source("max.compaction.lag.ms"),
        ),
    )  # fmt: skip


def _skip_cause(dirt: LogToClean, config: TopicConfig) -> SkipCause:
    """Lag where only ``min.compaction.lag.ms`` stands between the log and its dirty segments, else the ratio."""
    held_by_lag = config.min_compaction_lag_ms > 0 and dirt.limits[0].name == MIN_LAG
    return SkipCause.LAG if held_by_lag and dirt.dirty_bytes == 0 else SkipCause.RATIO


def _why_clean(over_ratio: Condition, overdue: Condition, dirt: LogToClean) -> str:
    amount = _amount(dirt)
    if over_ratio.holds:
        return f"{amount}: over {shown(over_ratio.bound)} ({over_ratio.origin})"
    return f"{amount}: {overdue.setting} passed {overdue.value} ms ago ({overdue.source})"


def _why_not(dirt: LogToClean, asked: tuple[Condition, Condition, Condition]) -> str:
    has_dirty, over_ratio, overdue = asked
    held = f"held back by {dirt.limits[0]}"
    if not has_dirty.holds:
        return f"nothing to clean from first dirty offset {dirt.first_dirty_offset} on, {held}"
    bound = f"{shown(over_ratio.bound)} ({over_ratio.origin})"
    remedy = ratio_remedy(dirt.clean_bytes, dirt.dirty_bytes, float(over_ratio.bound))
    return f"{_amount(dirt)}, not over {bound}, and {overdue.setting} has not passed; {held}; {remedy}"


def _amount(dirt: LogToClean) -> str:
    total = dirt.clean_bytes + dirt.dirty_bytes
    return f"{dirt.dirty_bytes} of {total} bytes dirty, ratio {shown(dirt.cleanable_ratio)}"


def _reset_note(view: LogView) -> str:
    place = f"outside of the log [{view.log_start_offset}, {view.log_end_offset}]"
    return f"; the cleaner checkpoint {view.cleaner_checkpoint} lies {place} and starts over"


def _legacy_delete_horizon_ms(view: LogView, config: TopicConfig, first_dirty_offset: int) -> int:
    """Mirrors ``Cleaner.doClean``: ``delete.retention.ms`` before the last clean segment's modification time, 0 without one."""
    clean = segments_between(view.segments, 0, first_dirty_offset)
    return clean[-1].mtime_ms - config.delete_retention_ms if clean else 0
