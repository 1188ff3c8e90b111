"""Plans the compaction of a log: whether it is cleaned, up to which offset, and in which groups of segments.

The rule: a log whose ``cleanup.policy`` includes ``compact`` and that has bytes is cleaned if

    dirty bytes / (clean + dirty bytes) > min.cleanable.dirty.ratio, or
    dirty bytes > 0 and max.compaction.lag.ms has passed for the first dirty batch of an inactive segment

and the dirtiest log is cleaned first. ``compaction.rules.log_to_clean`` defines dirty. All segments below the first
uncleanable offset are cleaned, including the clean ones. Adjacent segments become one output: a group takes the next segment in
ascending order if, with that segment,

1. the ``.log`` files total at most ``segment.bytes``;
2. the offset indexes total at most ``segment.index.bytes``, and so do the time indexes;
3. the last offset less the group's base offset fits an index's signed 32 bits. The last offset is estimated, to avoid reading
   the segment: one below the next segment's base, or below the first uncleanable offset for the last segment. An empty segment
   is exempt since Kafka 3.0 (KAFKA-12889), so that no empty segment remains every 2^31 offsets.

Two kinds of logs are refused: ``__cluster_metadata``, whose records have no keys (a broker prunes it by snapshots), and logs
whose ``cleanup.policy`` is a guess (``compaction.config.resolver``), whatever the guess: compaction removes records too. A
``PolicyPlan`` is segment deletion, then compaction as planned on the remaining log.

Mirrors ``LogCleanerManager.grabFilthiestCompactedLog``, ``Cleaner.doClean``, ``groupSegmentsBySize`` and
``lastOffsetForFirstSegment``. Differences: a broker's offset map may fill up and end the round early; this round always reaches
the first uncleanable offset. A broker's cleaner thread compacts first and then deletes (``LogCleaner.cleanFilthiestLog``),
again and again; a run deletes first, so that nothing is rewritten only to be deleted.

The bytes that cleaning frees are estimated before records are read. The clean section shows which share of its bytes earlier
rounds have retained. The dirty section is assumed to retain as much:

    density        = bytes of a section / offsets of the section
    retained share = density of the clean section / density of the dirty section, at most 1
    freed bytes    = dirty bytes * (1 - retained share) + bytes of expired segments
    benefit        = freed bytes / bytes of the segments to be rewritten

Without a clean section the retained share is that of a sample of its keys, if there is one (``run.compact``). Else nothing
is known, and it is 0: such a log is the first, as by its dirty ratio. The estimate decides the order of logs and which are
deferred, never which records are retained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from compaction.config.entries import LONG_MAX, NO_RECORD_LIMIT, to_long
from compaction.config.resolver import TopicConfig
from compaction.formats.indexes import MAX_RELATIVE_OFFSET
from compaction.names import CLUSTER_METADATA_TOPIC, TopicPartition
from compaction.rules.kafka_rules import NEWEST, RULES, KafkaRules, LastBatch
from compaction.rules.log_to_clean import (
    ACTIVE,
    HIGH_WATERMARK,
    LAST_STABLE,
    MIN_LAG,
    CleaningBound,
    LogToClean,
    SkipCause,
    Verdict,
    first_dirty_offset,
    log_to_clean,
    ratio_remedy,
    segments_between,
    shown,
)
from compaction.rules.log_view import LogView, Segment
from compaction.rules.segment_retention import DeletionPlan, Removal, plan_deletion
from compaction.screen.amounts import at_most, decimal, duration

#: why a log is skipped if a cleaning bound leaves nothing dirty
_HOLDS_BACK = {
    ACTIVE: SkipCause.ACTIVE,
    HIGH_WATERMARK: SkipCause.HELD,
    LAST_STABLE: SkipCause.HELD,
    MIN_LAG: SkipCause.LAG,
}
#: deleted segments that are listed one by one
MAX_SEGMENTS = 10
_RATIO, _LAG = "min.cleanable.dirty.ratio", "max.compaction.lag.ms"
_KNOWN = "cleanup policy is known"
_FUTURE = "its newest record is in the future"


@dataclass(frozen=True)
class Group:
    """Segments that become one output: named by the first base offset, with the last segment's modification time."""

    segments: tuple[Segment, ...]

    @property
    def base_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def mtime_ms(self) -> int:
        """Modification time of the output."""
        return self.segments[-1].mtime_ms

    @property
    def size_bytes(self) -> int:
        """Bytes of the input ``.log`` files."""
        return sum(segment.size_bytes for segment in self.segments)

    def __str__(self) -> str:
        """E.g. ``[0, 1500, 3000] 12345 bytes``: the base offsets of the inputs."""
        bases = ", ".join(str(segment.base_offset) for segment in self.segments)
        return f"[{bases}] {self.size_bytes} bytes"


def group_segments(
    segments: Sequence[Segment], config: TopicConfig, first_uncleanable_offset: int, rules: KafkaRules = RULES[NEWEST]
) -> tuple[Group, ...]:
    """The groups in ascending order; ``first_uncleanable_offset`` is exclusive."""
    limits = config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes
    groups: list[list[Segment]] = []
    totals = [0, 0, 0]
    for position, segment in enumerate(segments):
        following = segments[position + 1].base_offset if position + 1 < len(segments) else first_uncleanable_offset
        sizes = segment.size_bytes, segment.index_bytes, segment.time_index_bytes
        joined = [total + size for total, size in zip(totals, sizes, strict=True)]
        fits = all(total <= limit for total, limit in zip(joined, limits, strict=True))
        exempt = rules.groups_empty_segments and segment.size_bytes == 0
        if groups and fits and (exempt or following - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET):
            groups[-1].append(segment)
            totals = joined
        else:
            groups.append([segment])
            totals = [*sizes]
    return tuple(Group(tuple(group)) for group in groups)


@dataclass(frozen=True, kw_only=True)
class LogPlan(LogToClean):
    """Whether and how one log is cleaned, and why.

    The round cleans all segments below ``first_uncleanable_offset`` with a map of the offsets from ``first_dirty_offset`` up to
    there. If ``checkpoint_reset``, ``first_dirty_offset`` becomes the cleaner checkpoint even if nothing is cleaned. Unless
    ``compacts``, superseded records remain, as in an erasure: the cleaner checkpoint is not moved.
    ``legacy_delete_horizon_ms`` is that of exception 5 in ``compaction.rules.record_retention``. ``rules`` are those of the
    Kafka version that the log is cleaned for. ``sampled_share``: the share of its records that is expected to remain, by a
    sample of keys; ``None`` without a sample.
    """

    view: LogView
    config: TopicConfig
    verdict: Verdict
    reason: str
    skip_cause: SkipCause | None = None
    groups: tuple[Group, ...] = ()
    legacy_delete_horizon_ms: int = 0
    rules: KafkaRules = RULES[NEWEST]
    compacts: bool = True
    sampled_share: float | None = None

    @property
    def new_checkpoint(self) -> int | None:
        """The cleaner checkpoint after the round; ``None`` if it is not moved: the dirty section is unchanged."""
        return self.first_uncleanable_offset if self.compacts else None

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment for group in self.groups for segment in group.segments)

    @property
    def retain_end_offset(self) -> int:
        """Exception 7 of ``compaction.rules.record_retention``: a batch that ends there, exclusive, becomes an empty batch
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
    refusal = _refusal(view, config)
    if refusal is not None:
        return _refused(view, config, refusal)
    to_clean = log_to_clean(view, config, now_ms=now_ms, include_active=include_active)
    cause, reason = _decision(to_clean, config, view.log_end_offset)
    cleaned = segments_between(view.segments, 0, to_clean.first_uncleanable_offset) if cause is None else ()
    below_dirty = segments_between(view.segments, 0, to_clean.first_dirty_offset)
    return LogPlan(
        **vars(to_clean),
        view=view,
        config=config,
        verdict=Verdict.CLEAN if cause is None else Verdict.SKIP,
        reason=reason + (_reset_note(view) if to_clean.checkpoint_reset else ""),
        skip_cause=cause,
        groups=group_segments(cleaned, config, to_clean.first_uncleanable_offset, rules),
        legacy_delete_horizon_ms=to_long(below_dirty[-1].mtime_ms - config.delete_retention_ms) if below_dirty else 0,
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


def plan_policy(
    view: LogView,
    config: TopicConfig,
    *,
    now_ms: int,
    include_active: bool = False,
    rules: KafkaRules = RULES[NEWEST],
    expires: bool = False,
) -> PolicyPlan:
    """The plan of a compaction run: it deletes segments only under ``compact,delete``. Parameters as for ``plan_log``.

    :param expires: the plan of the command for the policy: without ``compact``, of a run of the delete policy
    """
    deletes = config.cleanup_delete and config.policy_guess is None if config.cleanup_compact else expires
    deletion = plan_deletion(view, config, now_ms=now_ms) if deletes else None
    remaining = view if deletion is None else deletion.after
    return PolicyPlan(plan_log(remaining, config, now_ms=now_ms, include_active=include_active, rules=rules), deletion)


def _refused(view: LogView, config: TopicConfig, refusal: tuple[SkipCause, str]) -> LogPlan:
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


def _decision(to_clean: LogToClean, config: TopicConfig, log_end_offset: int) -> tuple[SkipCause | None, str]:
    """Why the log is skipped (``None``: it is cleaned), and the reason as text."""
    bound = config.min_cleanable_dirty_ratio
    limit = f"{shown(bound)} ({_origin(config, _RATIO)})"
    if to_clean.cleanable_ratio > bound:
        return None, f"{_amount(to_clean)}: over {limit}"
    if to_clean.dirty_bytes > 0 and to_clean.overdue_ms > 0:
        return None, f"{_amount(to_clean)}: {_LAG} passed {duration(to_clean.overdue_ms)} ago ({config.source(_LAG)})"
    held = f"held back by {to_clean.bounds[0]}"
    if not to_clean.dirty_bytes:
        is_clean = to_clean.first_dirty_offset >= log_end_offset
        cause = SkipCause.CLEAN if is_clean else _HOLDS_BACK[to_clean.bounds[0].name]
        remedy = "; becomes cleanable once a broker rolls it, or in an export with --include-active"
        why = f"nothing to clean from first dirty offset {to_clean.first_dirty_offset} on, {held}"
        return cause, f"{cause.value}: {why}{remedy if cause is SkipCause.ACTIVE else ''}"
    remedy = ratio_remedy(to_clean.clean_bytes, to_clean.dirty_bytes, bound)
    why = f"{_amount(to_clean)}, not over {limit}, and {_LAG} has not passed; {held}; {remedy}"
    return SkipCause.RATIO, f"{SkipCause.RATIO.value}: {why}"


def _origin(config: TopicConfig, setting: str) -> str:
    """A setting and its source, without repeating the name."""
    source = str(config.source(setting))
    return source if setting in source else f"{setting}, {source}"


def _amount(to_clean: LogToClean) -> str:
    total = to_clean.clean_bytes + to_clean.dirty_bytes
    return f"{to_clean.dirty_bytes} of {total} bytes dirty, ratio {shown(to_clean.cleanable_ratio)}"


def _reset_note(view: LogView) -> str:
    log = f"[{view.log_start_offset}, {view.log_end_offset}]"
    return f"; the cleaner checkpoint {view.cleaner_checkpoint} is outside the log {log} and is reset"


def rewritten_bytes(plan: LogPlan) -> int:
    """The bytes of the segments that a round reads and replaces."""
    return sum(group.size_bytes for group in plan.groups)


def freed_bytes(plan: PolicyPlan) -> int:
    """The bytes that a log is expected to free."""
    expired = 0 if plan.deletion is None else plan.deletion.removed_bytes
    return int(plan.compaction.dirty_bytes * (1 - _retained_share(plan.compaction))) + expired


def benefit(plan: PolicyPlan) -> float:
    """The bytes that a log is expected to free for each byte that is rewritten."""
    rewritten = rewritten_bytes(plan.compaction)
    return freed_bytes(plan) / rewritten if rewritten else 0.0


def _retained_share(plan: LogPlan) -> float:
    if not plan.clean_bytes or not plan.dirty_bytes:
        return plan.sampled_share or 0.0
    clean_offsets = plan.first_dirty_offset - plan.view.segments[0].base_offset
    dirty_offsets = plan.first_uncleanable_offset - plan.first_dirty_offset
    return min(1.0, (plan.clean_bytes * dirty_offsets) / (plan.dirty_bytes * max(1, clean_offsets)))


@dataclass(frozen=True)
class Answer:
    """One line of an explanation: a condition, its outcome, and the change that reverses it; a bound has ``holds=None``."""

    text: str
    holds: bool | None
    remedy: str = ""

    def __str__(self) -> str:
        label = {True: "yes", False: "no", None: "bound"}[self.holds]
        return f"{label:<5} {self.text}" + (f"\n      {self.remedy}" if self.remedy else "")


def explain_compaction(plan: LogPlan, now_ms: int) -> tuple[Answer, ...]:
    """The conditions under which a log is compacted, and the bounds of the cleanable range."""
    return (*_conditions(plan, now_ms), *_bounds(plan, now_ms))


def explain_deletion(plan: DeletionPlan, now_ms: int) -> tuple[Answer, ...]:
    """The reasons that segments are deleted, and that the oldest remaining one is not."""
    deleted = _deleted(plan)
    if plan.config.policy_guess is not None:
        return (*deleted, Answer(_KNOWN, False, plan.config.policy_guess))
    if not plan.config.cleanup_delete:
        policy = f"cleanup policy {plan.config.cleanup_policy or 'none'} includes delete"
        return (*deleted, Answer(f"{policy} ({plan.config.source('cleanup.policy')})", False, "set cleanup.policy=delete"))
    oldest = plan.after.segments[0]
    if len(plan.after.segments) == 1 and oldest.size_bytes == 0:
        return (*deleted, Answer(f"segment {oldest.base_offset} is empty and active: it is retained", None))
    return (*deleted, _size(plan, oldest), _time(plan, oldest, now_ms), *_held(plan, oldest))


def _deleted(plan: DeletionPlan) -> tuple[Answer, ...]:
    """The deleted segments: the oldest, and the sum of the others if they are many."""
    shown = tuple(Answer(str(removal), True) for removal in plan.removals[:MAX_SEGMENTS])
    others = plan.removals[MAX_SEGMENTS:]
    if not others:
        return shown
    size = decimal(sum(removal.segment.size_bytes for removal in others))
    causes = sorted({removal.cause.value for removal in others})
    return (*shown, Answer(f"{len(others)} more segments ({size}) are deleted by {' and '.join(causes)}", True))


def _conditions(plan: LogPlan, now_ms: int) -> Iterator[Answer]:
    """Those that were checked: a log that is refused is not examined further, and has no bounds."""
    config, size, dirty = plan.config, plan.view.size_bytes, plan.dirty_bytes
    if config.policy_guess is not None:
        yield Answer(_KNOWN, False, config.policy_guess)
    else:
        text = f"cleanup policy {shown(config.cleanup_policy)} includes compact ({_origin(config, 'cleanup.policy')})"
        yield _answer(text, config.cleanup_compact, "set cleanup.policy=compact, or compact,delete")
    yield Answer(f"bytes {size} > 0", size > 0)
    if not plan.bounds:
        return
    ratio, bound = plan.cleanable_ratio, config.min_cleanable_dirty_ratio
    yield Answer(f"dirty bytes {dirty} > 0", dirty > 0)
    text = f"cleanable ratio {shown(ratio)} > {shown(bound)} ({_origin(config, _RATIO)})"
    yield _answer(text, ratio > bound, ratio_remedy(plan.clean_bytes, dirty, bound))
    text = f"age past {_LAG} {plan.overdue_ms} > 0 ({_origin(config, _LAG)})"
    yield _answer(text, plan.overdue_ms > 0, _overdue_remedy(plan, now_ms))


def _answer(text: str, holds: bool, remedy: str) -> Answer:
    return Answer(text, holds, "" if holds else remedy)


def _overdue_remedy(plan: LogPlan, now_ms: int) -> str:
    """When ``max.compaction.lag.ms`` will have passed for the oldest dirty inactive segment."""
    dirty = segments_between(plan.view.segments[:-1], plan.first_dirty_offset, plan.view.segments[-1].base_offset)
    stamps = [segment.first_batch_timestamp_ms for segment in dirty if 0 < segment.first_batch_timestamp_ms < LONG_MAX]
    if not stamps:
        return "no inactive segment is dirty"
    age_ms, lag_ms = now_ms - min(stamps), plan.config.max_compaction_lag_ms
    lower = f"with max.compaction.lag.ms={at_most(age_ms - 1)}" if age_ms > 1 else ""
    if lag_ms == LONG_MAX:
        return f"it is not limited; the oldest dirty segment is {duration(age_ms)} old" + (f": {lower}" if lower else "")
    return f"in {duration(lag_ms - age_ms + 1)}" + (f", or {lower}" if lower else "")


def _bounds(plan: LogPlan, now_ms: int) -> Iterator[Answer]:
    """The cleaning bounds, lowest first, without a high watermark at the log end."""
    for bound in plan.bounds:
        if bound.name == HIGH_WATERMARK and bound.offset >= plan.view.log_end_offset:
            continue
        text = f"nothing is cleaned from offset {bound.offset} on: {bound.detail or bound.name}"
        yield Answer(text, None, _bound_remedy(plan, bound, now_ms))


def _bound_remedy(plan: LogPlan, bound: CleaningBound, now_ms: int) -> str:
    if bound.name == ACTIVE:
        size = sum(segment.size_bytes for segment in plan.view.segments if segment.base_offset >= bound.offset)
        held = f"its {decimal(size)} are not cleaned until a broker rolls it" if size else "it is empty"
        return f"{held}; for an export that no broker will append to: --include-active"
    if bound.name == MIN_LAG:
        young = next(segment for segment in plan.view.segments if segment.base_offset == bound.offset)
        age_ms = now_ms - young.largest_timestamp_ms
        source = plan.config.source("min.compaction.lag.ms")
        wait = duration(plan.config.min_compaction_lag_ms - age_ms)
        lower = f"with min.compaction.lag.ms={at_most(max(age_ms, 0))}"
        return f"min.compaction.lag.ms is {plan.config.min_compaction_lag_ms} ({source}): in {wait}, or {lower}"
    if bound.name == HIGH_WATERMARK:
        missing = plan.view.log_end_offset - bound.offset
        return f"the last {missing} offsets were not known to be replicated; in a copy, the checkpoint's entry can be removed"
    return "it ends when its producer or the coordinator commits or aborts it (kafka-transactions --describe, abort)"


def _size(plan: DeletionPlan, oldest: Segment) -> Answer:
    bound, source = plan.config.retention_bytes, plan.config.source("retention.bytes")
    remaining = plan.after.size_bytes - oldest.size_bytes
    if bound < 0:
        text = f"log size has a limit (retention.bytes is {bound}, {source})"
        return Answer(text, False, f"with retention.bytes={remaining}")
    text = f"{remaining} bytes left without segment {oldest.base_offset} >= {bound} (retention.bytes, {source})"
    return Answer(text, False, f"deleted after {decimal(bound - remaining)} more, or with retention.bytes={remaining}")


def _time(plan: DeletionPlan, oldest: Segment, now_ms: int) -> Answer:
    bound, source = plan.config.retention_ms, plan.config.source("retention.ms")
    age_ms = now_ms - oldest.largest_timestamp_ms
    lower = f"with retention.ms={age_ms - 1}"
    if bound < 0:
        return Answer(f"age has a limit (retention.ms is {bound}, {source})", False, lower if age_ms > 0 else _FUTURE)
    text = f"age of segment {oldest.base_offset} {duration(age_ms)} > {duration(bound)} (retention.ms={bound}, {source})"
    if age_ms > bound:
        return Answer(text, True)
    wait = f"deleted in {duration(bound - age_ms + 1)}"
    return Answer(text, False, f"{wait}, or {lower}" if age_ms > 0 else f"{wait}: {_FUTURE}")


def _held(plan: DeletionPlan, oldest: Segment) -> Iterator[Answer]:
    end = plan.after.segments[1].base_offset if len(plan.after.segments) > 1 else plan.after.log_end_offset
    if plan.after.high_watermark < end:
        yield Answer(f"high watermark {plan.after.high_watermark} is before the end of segment {oldest.base_offset}", None)
