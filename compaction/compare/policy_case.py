"""One log under one policy: its plan, and all that the plan alone determines."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.cleaning.explanation import explain_compaction, explain_deletion
from compaction.cleaning.grouping import Group
from compaction.cleaning.kafka_rules import KafkaRules
from compaction.cleaning.log_view import LogView, ProducerEntry
from compaction.cleaning.plan import PolicyPlan
from compaction.cleaning.skip_reasons import Verdict
from compaction.compare.figures import OutcomeStatus
from compaction.kernels.reading.tables import ENTRY_BYTES
from compaction.logdir.settings.log_settings import Settings
from compaction.names import LogLocation
from compaction.report import LogReport
from compaction.run.log import deletion_report, skipped_report
from compaction.storage.filesystem import FileSystem

#: everything that determines a plan's output
PlanKey = tuple[str, int, int, tuple[Group, ...], int, int, int, tuple[ProducerEntry, ...], KafkaRules, int | None]


@dataclass(frozen=True)
class PolicyCase:
    """One log under one policy; ``view`` is the log in ``fs`` before the run."""

    policy: str
    now_ms: int
    settings: Settings
    fs: FileSystem
    view: LogView
    plan: PolicyPlan

    @property
    def cleans(self) -> bool:
        return self.plan.compaction.verdict is Verdict.CLEAN

    @property
    def key(self) -> PlanKey:
        plan = self.plan.compaction
        return (
            plan.view.path,
            plan.first_dirty_offset,
            plan.first_uncleanable_offset,
            plan.groups,
            plan.config.delete_retention_ms,
            plan.legacy_delete_horizon_ms,
            plan.view.log_start_offset,
            plan.view.producers,
            plan.rules,
            plan.max_record_bytes,
        )

    @property
    def most_keys(self) -> int:
        """The number of keys that fit into the offset map of one cleaner thread of the broker (``Cleaner.buildOffsetMap``)."""
        broker = self.settings.broker
        slots = min(broker.dedupe_buffer_bytes // max(broker.cleaner_threads, 1), 2**31 - 1) // ENTRY_BYTES
        return int(slots * broker.load_factor)

    @property
    def why(self) -> tuple[str, ...]:
        config, deletion = self.settings.topic, self.plan.deletion
        lines = explain_compaction(self.plan.compaction, self.now_ms) if config.cleanup_compact or deletion is None else ()
        return tuple(map(str, (*(explain_deletion(deletion, self.now_ms) if deletion is not None else ()), *lines)))

    @property
    def status(self) -> OutcomeStatus:
        """The effect of a run on the log, unless it fails or is refused."""
        if self.settings.topic.policy_guess is not None:
            return OutcomeStatus.POLICY_UNKNOWN
        return OutcomeStatus.CLEANED if self.cleans or self.report.expired_segments else OutcomeStatus.SKIPPED

    @property
    def report(self) -> LogReport:
        """The report of a run, without figures of the data."""
        if not self.settings.topic.cleanup_compact and self.plan.deletion is not None:
            return deletion_report(self.plan.deletion)
        return skipped_report(self.plan)


@dataclass(frozen=True)
class LogCases:
    """One log under every policy; ``error``: why it has no figures under any."""

    location: LogLocation
    cases: tuple[PolicyCase, ...] = ()
    error: str | None = None
