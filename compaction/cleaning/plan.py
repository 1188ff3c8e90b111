"""Plans the compaction of a log: whether it is cleaned, up to which offset, and in which groups of segments.

The rule: a log whose ``cleanup.policy`` includes ``compact`` and that has bytes is cleaned if

    dirty bytes / (clean + dirty bytes) > min.cleanable.dirty.ratio, or
    dirty bytes > 0 and max.compaction.lag.ms has passed for the first dirty batch of an inactive segment

and the dirtiest log is cleaned first. ``compaction.cleaning.log_to_clean`` defines dirty. All segments below the first
uncleanable offset are cleaned, including the clean ones, in the groups of ``compaction.cleaning.grouping``.

Two kinds of logs are refused: ``__cluster_metadata``, whose records have no keys (a broker prunes it by snapshots), and logs
whose ``cleanup.policy`` is a guess (``compaction.config.resolver``), whatever the guess: compaction removes records too.

A ``PolicyPlan`` is the effect of ``cleanup.policy`` in one run: segment deletion, then compaction as planned on the remaining
log. A guessed policy removes nothing, in either half.

Mirrors ``LogCleanerManager.grabFilthiestCompactedLog`` and ``Cleaner.doClean``. Differences: a broker's offset
map may fill up and end the round early; this round always reaches the first uncleanable offset. A broker's cleaner thread
compacts first and then deletes (``LogCleaner.cleanFilthiestLog``), again and again; a single run deletes first, so that nothing
is rewritten only to be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compaction.cleaning.grouping import Group, group_segments, overflows
from compaction.cleaning.kafka_rules import NEWEST, RULES, KafkaRules, LastBatch
from compaction.cleaning.log_to_clean import (
    ACTIVE,
    HIGH_WATERMARK,
    LAST_STABLE,
    MIN_LAG,
    LogToClean,
    first_dirty_offset,
    log_to_clean,
    segments_between,
)
from compaction.cleaning.log_view import LogView, Segment
from compaction.cleaning.segment_retention import DeletionPlan, Removal, plan_deletion
from compaction.cleaning.skip_reasons import Condition, SkipCause, Verdict, ratio_remedy, shown
from compaction.config import TopicConfig
from compaction.config.entries import NO_RECORD_LIMIT
from compaction.config.kinds import to_long
from compaction.names import CLUSTER_METADATA_TOPIC, TopicPartition
from compaction.screen.amounts import duration

#: why a log is skipped if a cleaning bound leaves nothing dirty
_HOLDS_BACK = {
    ACTIVE: SkipCause.ACTIVE,
    HIGH_WATERMARK: SkipCause.HELD,
    LAST_STABLE: SkipCause.HELD,
    MIN_LAG: SkipCause.LAG,
}


@dataclass(frozen=True, kw_only=True)
class LogPlan(LogToClean):
    """Whether and how one log is cleaned, and why.

    The round cleans all segments below ``first_uncleanable_offset`` with a map of the offsets from ``first_dirty_offset`` up to
    there. If ``checkpoint_reset``, ``first_dirty_offset`` becomes the cleaner checkpoint even if nothing is cleaned. Unless
    ``compacts``, superseded records remain, as in an erasure: the cleaner checkpoint is not moved.
    ``legacy_delete_horizon_ms`` is that of exception 5 in ``compaction.cleaning.record_retention``. ``overflowed`` segments
    must be split and the log planned again before it is cleaned. ``conditions`` are all conditions that were checked. ``rules``
    are those of the Kafka version that the log is cleaned for.
    """

    view: LogView
    config: TopicConfig
    verdict: Verdict
    reason: str
    skip_cause: SkipCause | None = None
    groups: tuple[Group, ...] = ()
    legacy_delete_horizon_ms: int = 0
    overflowed: tuple[Segment, ...] = ()
    conditions: tuple[Condition, ...] = ()
    rules: KafkaRules = RULES[NEWEST]
    compacts: bool = True

    @property
    def new_checkpoint(self) -> int | None:
        """The cleaner checkpoint after the round; ``None`` if it is not moved: the dirty section is unchanged."""
        return self.first_uncleanable_offset if self.compacts else None

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment for group in self.groups for segment in group.segments)

    @property
    def retain_end_offset(self) -> int:
        """Exception 7 of ``compaction.cleaning.record_retention``: a batch that ends there, exclusive, becomes an empty batch
        if it loses all records; -1 for none."""
        end_offset, last_batch = self.first_uncleanable_offset, self.rules.last_batch
        at_high_watermark = last_batch is LastBatch.RETAINED_AT_HIGH_WATERMARK and end_offset == self.view.high_watermark
        return end_offset if last_batch is LastBatch.RETAINED or at_high_watermark else -1

    @property
    def max_record_bytes(self) -> int | None:
        """The largest record that a compressed batch may have; ``None`` if there is no limit."""
        limit = self.config.max_decompressed_message_bytes
        return limit if self.rules.limits_decompressed_records and limit < NO_RECORD_LIMIT else None

    def __str__(self) -> str:
        """One line."""
        if self.verdict is Verdict.SKIP:
            return f"{self.view.topic_partition}: skip, {self.reason}"
        segments = f"{len(self.segments)} segments into {len(self.groups)}"
        offsets = f"[{self.first_dirty_offset}, {self.first_uncleanable_offset})"
        return f"{self.view.topic_partition}: clean {offsets}, {segments}, {self.reason}"


def dirtiest_first(plans: Iterable[LogPlan]) -> list[LogPlan]:
    """The plans in the order of a run: logs to clean first, dirtiest first; ties by directory, topic and partition."""

    def rank(log: LogPlan) -> tuple[bool, float, str, TopicPartition]:
        return log.verdict is Verdict.SKIP, -log.cleanable_ratio, log.view.log_dir, log.view.topic_partition

    return sorted(plans, key=rank)


def plan_log(
    view: LogView,
    config: TopicConfig,
    *,
    now_ms: int,
    include_active: bool = False,
    rules: KafkaRules = RULES[NEWEST],
) -> LogPlan:
    """Whether and how one log is cleaned.

    :param now_ms: the time of the round
    :param include_active: no broker will append to the log, so its last segment may be cleaned too
    :param rules: those of the Kafka version that the log is cleaned for
    """
    basics = _basic_conditions(view, config)
    refusal = _refusal(view, config)
    if refusal is not None:
        return _refused(view, config, refusal, basics)
    to_clean = log_to_clean(view, config, now_ms=now_ms, include_active=include_active)
    conditions = _conditions(to_clean, config)
    cause, reason = _decision(to_clean, conditions, view.log_end_offset)
    cleaned = segments_between(view.segments, 0, to_clean.first_uncleanable_offset) if cause is None else ()
    return LogPlan(
        **vars(to_clean),
        view=view,
        config=config,
        verdict=Verdict.CLEAN if cause is None else Verdict.SKIP,
        reason=reason + (_reset_note(view) if to_clean.checkpoint_reset else ""),
        skip_cause=cause,
        groups=group_segments(
            cleaned,
            max_bytes=config.segment_bytes,
            max_index_bytes=config.segment_index_bytes,
            first_uncleanable_offset=to_clean.first_uncleanable_offset,
            rules=rules,
        ),
        legacy_delete_horizon_ms=_legacy_delete_horizon_ms(view, config, to_clean.first_dirty_offset),
        overflowed=tuple(segment for segment in cleaned if overflows(segment)),
        conditions=basics + conditions,
        rules=rules,
    )


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """The plan of one log: ``deletion``, if the run deletes segments, then ``compaction`` of ``deletion.after``."""

    compaction: LogPlan
    deletion: DeletionPlan | None = None

    @property
    def removals(self) -> tuple[Removal, ...]:
        """The segments that are deleted."""
        return () if self.deletion is None else self.deletion.removals


def plan_compact_run(
    view: LogView, config: TopicConfig, *, now_ms: int, include_active: bool = False, rules: KafkaRules = RULES[NEWEST]
) -> PolicyPlan:
    """The plan of a compaction run: it deletes segments only under ``compact,delete``. Parameters as for ``plan_log``."""
    deletes = config.policy_guess is None and config.cleanup_compact and config.cleanup_delete
    deletion = plan_deletion(view, config, now_ms=now_ms) if deletes else None
    remaining = view if deletion is None else deletion.after
    return PolicyPlan(plan_log(remaining, config, now_ms=now_ms, include_active=include_active, rules=rules), deletion)


def plan_cleanup_policy(
    view: LogView, config: TopicConfig, *, now_ms: int, include_active: bool = False, rules: KafkaRules = RULES[NEWEST]
) -> PolicyPlan:
    """The plan of the command for this policy: a compaction run if it has ``compact``, else a run of the delete policy."""
    if config.cleanup_compact:
        return plan_compact_run(view, config, now_ms=now_ms, include_active=include_active, rules=rules)
    deletion = plan_deletion(view, config, now_ms=now_ms)
    return PolicyPlan(plan_log(deletion.after, config, now_ms=now_ms, include_active=include_active, rules=rules), deletion)


def _refused(view: LogView, config: TopicConfig, refusal: tuple[SkipCause, str], basics: tuple[Condition, ...]) -> LogPlan:
    """The plan of a log that is not examined further; an empty log's checkpoint is still reset if it is outside the log."""
    cause, why = refusal
    first_dirty, reset = first_dirty_offset(view) if cause is SkipCause.EMPTY else (0, False)
    return LogPlan(
        view=view,
        config=config,
        verdict=Verdict.SKIP,
        reason=f"{cause.value}: {why}" + (_reset_note(view) if reset else ""),
        skip_cause=cause,
        first_dirty_offset=first_dirty,
        checkpoint_reset=reset,
        conditions=basics,
    )


def _basic_conditions(view: LogView, config: TopicConfig) -> tuple[Condition, ...]:
    """The conditions that do not depend on the dirty section."""
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


def _conditions(to_clean: LogToClean, config: TopicConfig) -> tuple[Condition, Condition, Condition]:
    ratio, bound = to_clean.cleanable_ratio, config.min_cleanable_dirty_ratio
    return (
        Condition("dirty bytes", to_clean.dirty_bytes, ">", 0, to_clean.dirty_bytes > 0),
        Condition(
            "cleanable ratio", ratio, ">", bound, ratio > bound,
            "min.cleanable.dirty.ratio", config.source("min.cleanable.dirty.ratio"),
        ),
        Condition(
            "age past max.compaction.lag.ms", to_clean.overdue_ms, ">", 0, to_clean.overdue_ms > 0,
            "max.compaction.lag.ms", config.source("max.compaction.lag.ms"),
        ),
    )  # fmt: skip


def _decision(
    to_clean: LogToClean, conditions: tuple[Condition, Condition, Condition], log_end_offset: int
) -> tuple[SkipCause | None, str]:
    """Why the log is skipped (``None``: it is cleaned), and the reason as text."""
    has_dirty, over_ratio, overdue = conditions
    if over_ratio.holds:
        return None, f"{_amount(to_clean)}: over {shown(over_ratio.bound)} ({over_ratio.origin})"
    if has_dirty.holds and overdue.holds:
        return None, f"{_amount(to_clean)}: {overdue.setting} passed {duration(to_clean.overdue_ms)} ago ({overdue.source})"
    held = f"held back by {to_clean.bounds[0]}"
    if not has_dirty.holds:
        is_clean = to_clean.first_dirty_offset >= log_end_offset
        cause = SkipCause.CLEAN if is_clean else _HOLDS_BACK[to_clean.bounds[0].name]
        remedy = "; becomes cleanable once a broker rolls it, or in an export with --include-active"
        why = f"nothing to clean from first dirty offset {to_clean.first_dirty_offset} on, {held}"
        return cause, f"{cause.value}: {why}{remedy if cause is SkipCause.ACTIVE else ''}"
    bound = f"{shown(over_ratio.bound)} ({over_ratio.origin})"
    remedy = ratio_remedy(to_clean.clean_bytes, to_clean.dirty_bytes, float(over_ratio.bound))
    why = f"{_amount(to_clean)}, not over {bound}, and {overdue.setting} has not passed; {held}; {remedy}"
    return SkipCause.RATIO, f"{SkipCause.RATIO.value}: {why}"


def _amount(to_clean: LogToClean) -> str:
    total = to_clean.clean_bytes + to_clean.dirty_bytes
    return f"{to_clean.dirty_bytes} of {total} bytes dirty, ratio {shown(to_clean.cleanable_ratio)}"


def _reset_note(view: LogView) -> str:
    log = f"[{view.log_start_offset}, {view.log_end_offset}]"
    return f"; the cleaner checkpoint {view.cleaner_checkpoint} is outside the log {log} and is reset"


def _legacy_delete_horizon_ms(view: LogView, config: TopicConfig, first_dirty_offset: int) -> int:
    """Exception 5 of ``compaction.cleaning.record_retention`` (Kafka: ``Cleaner.doClean``)."""
    clean = segments_between(view.segments, 0, first_dirty_offset)
    return to_long(clean[-1].mtime_ms - config.delete_retention_ms) if clean else 0
