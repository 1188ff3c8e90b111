"""Estimates what cleaning a log frees, before its records are read.

The clean section shows which share of its bytes earlier rounds have retained. The dirty section is assumed to retain as much:

    density        = bytes of a section / offsets of the section
    retained share = density of the clean section / density of the dirty section, at most 1
    freed bytes    = dirty bytes * (1 - retained share) + bytes of expired segments
    benefit        = freed bytes / bytes of the segments to be rewritten

Without a clean section the retained share is that of a sample of its keys, if there is one (``run.compact``). Else nothing
is known, and it is 0: such a log is the first, as by its dirty ratio.

The estimate decides the order of logs and which are deferred, never which records are retained.
"""

from __future__ import annotations

from compaction.cleaning.plan import LogPlan, PolicyPlan


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
