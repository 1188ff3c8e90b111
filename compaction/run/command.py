"""The contribution of a command to its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import PolicyPlan
from compaction.logdir.settings import Settings
from compaction.names import LogLocation
from compaction.report import LogReport
from compaction.run.cleaner import Cleaner, Method
from compaction.run.destination import Destination
from compaction.run.log_cleaning import LogCleaning
from compaction.storage.durable import DurableSteps
from compaction.storage.filesystem import DiskFileSystem


class Command:
    """Each command is a subclass.

    :cvar done: what the run does to logs, for messages
    :cvar doing: the step of the passes, for the progress
    :cvar policy_required: a log whose ``cleanup.policy`` is a guess fails
    :cvar has_versions: the rules of Kafka's versions apply, and the report names them
    :cvar counts_expired: the run reads logs anyway, and counts the records of expired segments
    """

    done, doing = "compacted", "cleaning"
    policy_required, has_versions, counts_expired = False, True, False

    def begin(self, files: DiskFileSystem) -> None:
        """Called when the log directories are locked."""

    def plan(self, view: LogView, settings: Settings) -> PolicyPlan:
        """The plan of a log; if it raises, the log fails."""
        raise NotImplementedError

    def order(self, logs: Sequence[LogCleaning]) -> list[LogCleaning]:
        """The logs in the order of the passes and of the report.

        :raises StorageError: the run cannot be done; nothing was written
        """
        return list(logs)

    def method(self, cleaner: Cleaner) -> Method:
        raise NotImplementedError

    def swapped(self, output: Destination, log: LogCleaning) -> DurableSteps[None]:
        """Called for each log whose result is in place."""
        yield ()

    def report(self, log: LogCleaning) -> LogReport:
        """The row of a log that has not failed."""
        raise NotImplementedError

    def conclude(
        self,
        output: Destination | None,
        logs: Sequence[LogCleaning],
        unplanned: Mapping[LogLocation, str],
        reports: list[LogReport],
    ) -> list[LogReport]:
        """The rows of the logs, once the results of all are in place, or once the copy is published.

        :param output: where the results are; ``None`` for a copy
        :param unplanned: the errors of the logs that could not be planned
        """
        return reports
