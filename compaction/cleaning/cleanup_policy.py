"""What ``cleanup.policy`` does to one log in one run: segment deletion first, then compaction of the remaining segments.

Compaction is planned on the log as it is after the deletion. A policy that is a guess is not carried out: neither half removes
anything.

Difference to Kafka 4.3.0: a broker's cleaner thread compacts first and then deletes (``LogCleaner.cleanFilthiestLog``), again
and again. A single run deletes first, so that nothing is rewritten only to be deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import LogPlan, plan_log
from compaction.cleaning.segment_retention import DeletionPlan, plan_deletion
from compaction.config import TopicConfig


@dataclass(frozen=True)
class PolicyPlan:
    """What happens to one log: ``deletion``, if the run deletes segments, then ``compaction`` of ``deletion.after``."""

    compaction: LogPlan
    deletion: DeletionPlan | None = None


def plan_compact_run(view: LogView, config: TopicConfig, *, now_ms: int, include_active: bool = False) -> PolicyPlan:
    """The plan of a compaction run: it deletes segments only under ``compact,delete``. Parameters as for ``plan_log``."""
    deletes = config.policy_guess is None and config.cleanup_compact and config.cleanup_delete
    return _planned(view, config, now_ms, include_active=include_active, deletes=deletes)


def plan_cleanup_policy(view: LogView, config: TopicConfig, *, now_ms: int, include_active: bool = False) -> PolicyPlan:
    """The plan of the command for this policy: a compaction run if it has ``compact``, else a run of the delete policy."""
    if config.cleanup_compact:
        return plan_compact_run(view, config, now_ms=now_ms, include_active=include_active)
    return _planned(view, config, now_ms, include_active=include_active, deletes=True)


def _planned(view: LogView, config: TopicConfig, now_ms: int, *, include_active: bool, deletes: bool) -> PolicyPlan:
    deletion = plan_deletion(view, config, now_ms=now_ms) if deletes else None
    left = view if deletion is None else deletion.after
    return PolicyPlan(plan_log(left, config, now_ms=now_ms, include_active=include_active), deletion)
