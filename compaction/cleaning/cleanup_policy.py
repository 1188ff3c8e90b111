"""What ``cleanup.policy`` does to one log in one run: deletion first, then compaction of what is left.

The rule: a log whose policy holds both ``compact`` and ``delete`` loses its expired segments, and what is compacted is planned
on the log as it is afterwards. A log that is only compacted keeps segments below its log start; ``plan_deletion`` takes those.

A policy that is a guess is not carried out: neither half of it removes anything.

Difference to Kafka 4.3.0: a broker's cleaner thread compacts first and deletes then (``LogCleaner.cleanFilthiestLog``), over
and over; in a single run deletion goes first, so that nothing is rewritten only to be deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import LogPlan, plan_log
from compaction.cleaning.segment_retention import DeletionPlan, plan_deletion
from compaction.config import TopicConfig


@dataclass(frozen=True)
class PolicyPlan:
    """``deletion`` is ``None`` where nothing is deleted; ``compaction`` is planned on ``deletion.after`` where there is one."""

    compaction: LogPlan
    deletion: DeletionPlan | None = None


def plan_compact_run(view: LogView, config: TopicConfig, *, now_ms: int, include_active: bool = False) -> PolicyPlan:
    """What a compaction run does to one log; parameters as for ``plan_log``."""
    if config.policy_guess is not None or not (config.cleanup_compact and config.cleanup_delete):
        return PolicyPlan(plan_log(view, config, now_ms=now_ms, include_active=include_active))
    deletion = plan_deletion(view, config, now_ms=now_ms)
    return PolicyPlan(plan_log(deletion.after, config, now_ms=now_ms, include_active=include_active), deletion)


def plan_cleanup_policy(view: LogView, config: TopicConfig, *, now_ms: int, include_active: bool = False) -> PolicyPlan:
    """What a log's policy comes to: a compaction run where it is to be compacted, else the delete policy alone."""
    if config.cleanup_compact:
        return plan_compact_run(view, config, now_ms=now_ms, include_active=include_active)
    deletion = plan_deletion(view, config, now_ms=now_ms)
    return PolicyPlan(plan_log(deletion.after, config, now_ms=now_ms, include_active=include_active), deletion)
