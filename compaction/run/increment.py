"""The logs of an incremental copy: those that continue the previous copy, and those that are copied in full.

A log that fails although its source may be intact is copied in full, too: the previous copy may have changed meanwhile.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.logdir.checkpoint_store import read_offsets
from compaction.names import CLEANER_OFFSETS, LOG_STARTS, LogLocation, TopicPartition
from compaction.output.previous_copy import Continuation, NotContinuedError, PreviousCopy
from compaction.report import LogReport, Since
from compaction.storage.durable import replace_file
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.manifest import SourceLog
from compaction.storage.overlay import OverlayFileSystem
from compaction.storage.spliced import Splice, SplicedFileSystem

_LOG = logging.getLogger(__name__)


class Increment:
    """The view of the sources of an incremental copy.

    :ivar splices: by path, the logs that continue the previous copy
    :ivar fs: reads the sources, in which these logs begin with its files
    """

    def __init__(self, previous: PreviousCopy, files: FileSystem) -> None:
        self._previous, self._files = previous, files
        self.splices: dict[str, Splice] = {}
        self.fs = OverlayFileSystem(SplicedFileSystem(files, self.splices))
        self._continued: dict[LogLocation, Continuation] = {}
        #: why the others are copied in full
        self._reasons: dict[LogLocation, str] = {}

    def begin(self, sources: Mapping[LogLocation, SourceLog]) -> None:
        """Decide of logs, before they are read, whether they continue the previous copy; not of those that ``restart`` left."""
        for log, source in sources.items():
            if log in self._reasons:
                continue
            try:
                self._continued[log] = self._previous.continuation(log, source)
                self.splices[log.path] = self._continued[log].splice
            except NotContinuedError as error:
                self._leave(log, str(error))
        cleaned_to = {log: found.cleaned_to for log, found in self._continued.items()}
        _set_offsets(self.fs, CLEANER_OFFSETS, cleaned_to)
        moved = {log: found.log_start for log, found in self._continued.items() if found.log_start is not None}
        _set_offsets(self.fs, LOG_STARTS, moved)

    def require_unchanged(self, log: LogLocation) -> None:
        """:raises StorageError: a file that the log takes over has changed since it was compared with its recorded content"""
        if log in self._continued:
            self._previous.require_unchanged(self._continued[log].files)

    def restart(self, failed: Mapping[LogLocation, str]) -> tuple[LogLocation, ...]:
        """The failed logs that have files of the previous copy. From now on they are read from their source alone."""
        logs = tuple(log for log in failed if log in self._continued)
        for log in logs:
            self._leave(log, f"with files of the previous copy it failed: {failed[log]}")
            del self._continued[log], self.splices[log.path]
            self.fs.revert(log.path)
        for name in (CLEANER_OFFSETS, LOG_STARTS):
            found = {log: read_offsets(self._files, log.log_dir, name).get(log.topic_partition) for log in logs}
            _set_offsets(self.fs, name, found)
        return logs

    def _leave(self, log: LogLocation, reason: str) -> None:
        _LOG.warning("%s: copied in full: %s", log, reason)
        self._reasons[log] = reason

    def noted(self, reports: Iterable[LogReport]) -> list[LogReport]:
        """The reports, with what was taken over."""
        found = {(*log.topic_partition, log.log_dir): log for log in (*self._continued, *self._reasons)}
        return [self._noted(report, found.get((report.topic, report.partition, report.log_dir))) for report in reports]

    def _noted(self, report: LogReport, log: LogLocation | None) -> LogReport:
        if log is None:
            # its settings could not be read
            return replace(report, since=Since.FULL.value, since_reason=report.reason)
        if (found := self._continued.get(log)) is None:
            return replace(report, since=Since.FULL.value, since_reason=self._reasons[log])
        kind = Since.GROWN if found.grown else Since.UNCHANGED
        return replace(report, since=kind.value, previous_bytes=found.size_bytes)


def _set_offsets(fs: FileSystem, name: str, offsets: Mapping[LogLocation, int | None]) -> None:
    """Change entries of checkpoint files; ``None`` removes one."""
    by_dir: dict[str, dict[TopicPartition, int | None]] = defaultdict(dict)
    for log, offset in offsets.items():
        by_dir[log.log_dir][log.topic_partition] = offset
    for log_dir, entries in by_dir.items():
        before = read_offsets(fs, log_dir, name)
        after = {partition: offset for partition, offset in {**before, **entries}.items() if offset is not None}
        if after != before:
            replace_file(fs, join(log_dir, name), format_offset_checkpoint(after).encode())
