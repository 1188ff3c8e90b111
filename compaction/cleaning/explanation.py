"""Answers to *why*: every condition that a plan asked, its value, its bound and source, and what would change the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compaction.cleaning.log_to_clean import ACTIVE, HIGH_WATERMARK, MIN_LAG, CleaningBound, segments_between
from compaction.cleaning.log_view import Segment
from compaction.cleaning.plan import LogPlan
from compaction.cleaning.segment_retention import DeletionPlan
from compaction.cleaning.skip_reasons import Condition, amount, duration, ratio_remedy
from compaction.config.kinds import LONG_MAX

#: so many segments that go are told one by one
MOST_SEGMENTS = 10
_KNOWN = "cleanup policy is known"
_FUTURE = "its newest record lies in the future"


@dataclass(frozen=True)
class Answer:
    """One line of an explanation: what was asked, whether it holds (``None``: it only limits), and what would change that."""

    text: str
    holds: bool | None
    remedy: str = ""

    def __str__(self) -> str:
        mark = {True: "yes", False: "no", None: "limit"}[self.holds]
        return f"{mark:<5} {self.text}" + (f"\n      {self.remedy}" if self.remedy else "")


def explain_compaction(plan: LogPlan, now_ms: int) -> tuple[Answer, ...]:
    """Why a log is or is not compacted, and what holds back the end of what is cleaned."""
    return (*(_condition(plan, each, now_ms) for each in plan.conditions), *_limits(plan, now_ms))


def explain_deletion(plan: DeletionPlan, now_ms: int) -> tuple[Answer, ...]:
    """Why segments go, and why the oldest one that stays does not."""
    gone = _gone(plan)
    if plan.config.policy_guess is not None:
        return (*gone, Answer(_KNOWN, False, plan.config.policy_guess))
    if not plan.config.cleanup_delete:
        policy = f"cleanup policy {plan.config.cleanup_policy or 'none'} includes delete"
        return (*gone, Answer(f"{policy} ({plan.config.source('cleanup.policy')})", False, "set cleanup.policy=delete"))
    oldest = plan.after.segments[0]
    if len(plan.after.segments) == 1 and oldest.size_bytes == 0:
        return (*gone, Answer(f"segment {oldest.base_offset} is empty and active, it stays", None))
    return (*gone, _size(plan, oldest), _time(plan, oldest, now_ms), *_held(plan, oldest))


def _gone(plan: DeletionPlan) -> tuple[Answer, ...]:
    """The segments that go; of many, the oldest and a line that sums up the others."""
    shown = tuple(Answer(str(removal), True) for removal in plan.removals[:MOST_SEGMENTS])
    others = plan.removals[MOST_SEGMENTS:]
    if not others:
        return shown
    size = amount(sum(removal.segment.size_bytes for removal in others))
    causes = sorted({removal.cause.value for removal in others})
    return (*shown, Answer(f"{len(others)} more segments ({size}) go by {' and '.join(causes)}", True))


def _condition(plan: LogPlan, asked: Condition, now_ms: int) -> Answer:
    text = str(asked).rpartition(":")[0]
    if asked.holds:
        return Answer(text, True)
    if asked.name == "cleanup policy" and plan.config.policy_guess is not None:
        return Answer(_KNOWN, False, plan.config.policy_guess)
    if asked.name == "cleanup policy":
        return Answer(text, False, "set cleanup.policy=compact, or compact,delete")
    if asked.name == "cleanable ratio":
        return Answer(text, False, ratio_remedy(plan.clean_bytes, plan.dirty_bytes, float(asked.bound)))
    if asked.setting == "max.compaction.lag.ms":
        return Answer(text, False, _overdue_remedy(plan, now_ms))
    return Answer(text, False)


def _overdue_remedy(plan: LogPlan, now_ms: int) -> str:
    """When ``max.compaction.lag.ms`` will have passed for the oldest dirty closed segment."""
    dirty = segments_between(plan.view.segments[:-1], plan.first_dirty_offset, plan.view.segments[-1].base_offset)
    stamps = [each.first_batch_timestamp_ms for each in dirty if 0 < each.first_batch_timestamp_ms < LONG_MAX]
    if not stamps:
        return "no closed segment is dirty"
    age_ms, lag_ms = now_ms - min(stamps), plan.config.max_compaction_lag_ms
    lower = f"with max.compaction.lag.ms={age_ms - 1}" if age_ms > 1 else ""
    if lag_ms == LONG_MAX:
        return f"there is no such limit; the oldest dirty segment is {duration(age_ms)} old" + (f": {lower}" if lower else "")
    return f"in {duration(lag_ms - age_ms + 1)}" + (f", or {lower}" if lower else "")


def _limits(plan: LogPlan, now_ms: int) -> Iterator[Answer]:
    """What holds back the end, the strictest first; a high watermark at the log's end holds back nothing."""
    for limit in plan.limits:
        if limit.name == HIGH_WATERMARK and limit.offset >= plan.view.log_end_offset:
            continue
        text = f"nothing is cleaned from offset {limit.offset} on: {limit.detail or limit.name}"
        yield Answer(text, None, _limit_remedy(plan, limit, now_ms))


def _limit_remedy(plan: LogPlan, limit: CleaningBound, now_ms: int) -> str:
    if limit.name == ACTIVE:
        size = sum(each.size_bytes for each in plan.view.segments if each.base_offset >= limit.offset)
        held = f"its {amount(size)} stay" if size else "it is empty"
        return f"{held} until a broker rolls it; an export that no broker will append to: --include-active"
    if limit.name == MIN_LAG:
        young = next(each for each in plan.view.segments if each.base_offset == limit.offset)
        age_ms = now_ms - young.largest_timestamp_ms
        source = plan.config.source("min.compaction.lag.ms")
        wait = duration(plan.config.min_compaction_lag_ms - age_ms)
        lower = f"with min.compaction.lag.ms={max(age_ms, 0)}"
        return f"min.compaction.lag.ms is {plan.config.min_compaction_lag_ms} ({source}): in {wait}, or {lower}"
    if limit.name == HIGH_WATERMARK:
        missing = plan.view.log_end_offset - limit.offset
        return f"the last {missing} offsets were not known to be replicated; in a copy, the checkpoint's entry can be removed"
    return "it ends when its producer, or the coordinator for it, commits or aborts (kafka-transactions --describe, abort)"


def _size(plan: DeletionPlan, oldest: Segment) -> Answer:
    bound, source = plan.config.retention_bytes, plan.config.source("retention.bytes")
    left = plan.after.size_bytes - oldest.size_bytes
    if bound < 0:
        return Answer(f"log size has a limit (retention.bytes is {bound}, {source})", False, f"with retention.bytes={left}")
    text = f"{left} bytes left without segment {oldest.base_offset} >= {bound} (retention.bytes, {source})"
    return Answer(text, False, f"goes after {amount(bound - left)} more, or with retention.bytes={left}")


def _time(plan: DeletionPlan, oldest: Segment, now_ms: int) -> Answer:
    bound, source = plan.config.retention_ms, plan.config.source("retention.ms")
    age_ms = now_ms - oldest.largest_timestamp_ms
    lower = f"with retention.ms={age_ms - 1}"
    if bound < 0:
        return Answer(f"age has a limit (retention.ms is {bound}, {source})", False, lower if age_ms > 0 else _FUTURE)
    text = f"age of segment {oldest.base_offset} {age_ms} ms > {bound} (retention.ms, {source})"
    if age_ms > bound:
        return Answer(text, True)
    wait = f"goes in {duration(bound - age_ms + 1)}"
    return Answer(text, False, f"{wait}, or {lower}" if age_ms > 0 else f"{wait}: {_FUTURE}")


def _held(plan: DeletionPlan, oldest: Segment) -> Iterator[Answer]:
    end = plan.after.segments[1].base_offset if len(plan.after.segments) > 1 else plan.after.log_end_offset
    if plan.after.high_watermark < end:
        yield Answer(f"high watermark {plan.after.high_watermark} lies before the end of segment {oldest.base_offset}", None)
