"""Notes of dry runs on logs in directories that a broker uses: which of them changed while they were read."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from compaction.cleaning.log_view import LogView
from compaction.fs.local import LocalFileSystem
from compaction.logdir.changes import moved
from compaction.report import LogReport

_LOG = logging.getLogger(__name__)
_CHANGED = "the log changed while it was read"
_IN_USE = "in use; figures are a snapshot"


def note_logs_in_use(reports: Iterable[LogReport], in_use: Collection[str], views: Iterable[LogView]) -> list[LogReport]:
    """The reports, with a note on each log in the directories ``in_use``."""
    by_name = {(*view.topic_partition, view.log_dir): view for view in views if view.log_dir in in_use}

    def noted(report: LogReport) -> LogReport:
        view = by_name.get((report.topic, report.partition, report.log_dir))
        if view is None:
            return report
        note = _CHANGED if moved(LocalFileSystem(), view) else _IN_USE
        return replace(report, reason=f"{report.reason} ({note})")

    return [noted(report) for report in reports] if in_use else list(reports)


def warn_of_changes(in_use: Collection[str], views: Iterable[LogView]) -> None:
    """Logs a warning for each log in the directories ``in_use`` that changed since it was read."""
    for path, view in {view.path: view for view in views if view.log_dir in in_use}.items():
        if moved(LocalFileSystem(), view):
            _LOG.warning("%s: %s", path, _CHANGED)
