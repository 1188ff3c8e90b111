"""Explains a plan: every condition with its value, bound and source, and the changes that would reverse the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compaction.cleaning.log_to_clean import ACTIVE, HIGH_WATERMARK, MIN_LAG, CleaningBound, segments_between
from compaction.cleaning.log_view import Segment
from compaction.cleaning.plan import LogPlan
from compaction.cleaning.segment_retention import DeletionPlan
from compaction.cleaning.skip_reasons import Condition, ratio_remedy
from compaction.config.kinds import LONG_MAX
from compaction.screen.amounts import at_most, duration, size_in_words

#: deleted segments that are listed one by one
MAX_SEGMENTS = 10
_KNOWN = "cleanup policy is known"
_FUTURE = "its newest record is in the future"


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
    conditions = (_condition(plan, condition, now_ms) for condition in plan.conditions)
    return (*conditions, *_bounds(plan, now_ms))


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
    size = size_in_words(sum(removal.segment.size_bytes for removal in others))
    causes = sorted({removal.cause.value for removal in others})
    return (*shown, Answer(f"{len(others)} more segments ({size}) are deleted by {' and '.join(causes)}", True))


def _condition(plan: LogPlan, condition: Condition, now_ms: int) -> Answer:
    text = str(condition).rpartition(":")[0]
    if condition.holds:
        return Answer(text, True)
    if condition.name == "cleanup policy" and plan.config.policy_guess is not None:
        return Answer(_KNOWN, False, plan.config.policy_guess)
    if condition.name == "cleanup policy":
        return Answer(text, False, "set cleanup.policy=compact, or compact,delete")
    if condition.name == "cleanable ratio":
        return Answer(text, False, ratio_remedy(plan.clean_bytes, plan.dirty_bytes, float(condition.bound)))
    if condition.setting == "max.compaction.lag.ms":
        return Answer(text, False, _overdue_remedy(plan, now_ms))
    return Answer(text, False)


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
        held = f"its {size_in_words(size)} are not cleaned until a broker rolls it" if size else "it is empty"
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
    return Answer(text, False, f"deleted after {size_in_words(bound - remaining)} more, or with retention.bytes={remaining}")


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
