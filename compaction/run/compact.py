"""``compact``: cleans logs as the log cleaner of their Kafka version does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from compaction.cleaning.log_to_clean import Verdict
from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import PolicyPlan, benefit, dirtiest_first, freed_bytes, plan_compact_run
from compaction.config.request import BENEFIT, CompactionRequest
from compaction.locking.claim import PROCESSES, Runs
from compaction.logdir.settings import Settings
from compaction.report import LogReport
from compaction.run.admission import keyless_refusal
from compaction.run.budget import defer
from compaction.run.cleaner import Cleaner
from compaction.run.command import Command
from compaction.run.key_sample import sample_keys
from compaction.run.log_cleaning import LogCleaning
from compaction.run.log_reports import cleaned_report, deferred_report, skipped_report
from compaction.run.offset_maps import OffsetMaps
from compaction.run.passes import Passes
from compaction.run.run import carry_out
from compaction.run.sizing import Sizes
from compaction.run_report import RunReport
from compaction.storage.filesystem import DiskFileSystem


def clean_logs(
    start: Callable[[], Passes],
    request: CompactionRequest,
    sizes: Sizes | None = None,
    files: DiskFileSystem | None = None,
    runs: Runs = PROCESSES,
    on_wave: Callable[[RunReport], None] = lambda report: None,
) -> RunReport:
    """Compacts the logs of ``request``; see ``run.carry_out``."""
    return carry_out(_Compaction(request), start, request, sizes, files, runs, on_wave)


@dataclass
class _Compaction(Command):
    request: CompactionRequest
    #: how the log directories are accessed, once they are locked
    files: DiskFileSystem | None = None
    counts_expired = True

    def begin(self, files: DiskFileSystem) -> None:
        self.files = files

    def plan(self, view: LogView, settings: Settings) -> PolicyPlan:
        active, rules = self.request.include_active, settings.kafka.rules
        return plan_compact_run(view, settings.topic, now_ms=self.request.as_of_ms, include_active=active, rules=rules)

    def order(self, logs: Sequence[LogCleaning]) -> list[LogCleaning]:
        by_path = {log.location.path: log for log in logs}
        if self.request.budget.min_freed_share is not None and self.files is not None:
            sample_keys(self.files, [log for log in logs if log.cleans])
        ordered = [by_path[plan.view.path] for plan in dirtiest_first(log.compaction for log in logs)]
        if self.request.order == BENEFIT:
            ordered.sort(key=lambda log: (not log.cleans, -benefit(log.plan)))
        defer([log for log in ordered if log.cleans], self.request.budget)
        return ordered

    def method(self, cleaner: Cleaner) -> OffsetMaps:
        refuse = keyless_refusal(allow_keyless=self.request.allow_keyless)
        return OffsetMaps(cleaner.runner, cleaner.sizes, self.request.as_of_ms, refuse, dry_run=self.request.dry_run)

    def report(self, log: LogCleaning) -> LogReport:
        if log.compaction.verdict is not Verdict.CLEAN:
            return skipped_report(log.plan)
        report = cleaned_report(log.plan, log) if log.deferred is None else deferred_report(log)
        return replace(report, estimated_freed_bytes=freed_bytes(log.plan))
