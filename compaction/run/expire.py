"""``expire``: applies the delete policy to logs.

A log whose ``cleanup.policy`` is a guess fails and is not changed. Only the driver deletes segments, by renaming their files,
or copies the retained ones to an output directory, as ``compact`` does for logs that it does not clean. Tasks only read very
many segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compaction.config.request import CompactionRequest
from compaction.engine import Engine
from compaction.errors import StorageError
from compaction.files.filesystem import DiskFileSystem
from compaction.log.settings import Settings
from compaction.report import LogReport, RunReport
from compaction.rules.log_to_clean import Verdict
from compaction.rules.log_view import LogView
from compaction.rules.plan import LogPlan, PolicyPlan
from compaction.rules.segment_retention import plan_deletion
from compaction.run.log import Log, deletion_report, skipped_report
from compaction.run.run import Command, Run
from compaction.run.waves import SpaceBudget, copied_bytes
from compaction.screen.amounts import size


def delete_old_segments(
    start: Callable[[], Engine], request: CompactionRequest, files: DiskFileSystem | None = None
) -> RunReport:
    """Applies the delete policy to the logs of ``request``; see ``Run``. A copy that does not fit is a ``StorageError``."""
    return Run(_Expiry(request), start, request, files).run()


@dataclass(frozen=True)
class _Expiry(Command):
    request: CompactionRequest
    done, policy_required, has_versions = "expired", True, False

    def plan(self, view: LogView, settings: Settings) -> PolicyPlan:
        deletion = plan_deletion(view, settings.topic, now_ms=self.request.as_of_ms)
        uncompacted = LogPlan(view=deletion.after, config=settings.topic, verdict=Verdict.SKIP, reason=deletion.reason)
        return PolicyPlan(uncompacted, deletion)

    def order(self, logs: Sequence[Log]) -> list[Log]:
        output_dir = self.request.output_dir
        if output_dir is not None and not self.request.dry_run:
            needed_bytes = sum(copied_bytes(log.compaction.view.segments) for log in logs)
            space = SpaceBudget()
            if not space.fits([(output_dir, needed_bytes)]):
                free = max(0, space.free_bytes(output_dir))
                message = f"the copy takes {size(needed_bytes)}, {size(free)} are free {space.besides()}"
                raise StorageError(message, path=output_dir, hint="free some space and run again; nothing was written")
        return list(logs)

    def report(self, log: Log) -> LogReport:
        return skipped_report(log.plan) if log.plan.deletion is None else deletion_report(log.plan.deletion)
