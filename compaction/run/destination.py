"""Step **swap** of a run: the outputs replace the sources, become a copy, or are discarded in a dry run.

``InPlace`` swaps logs in, many in step: a swap waits for the disk nine times. ``CopyOutput`` collects all logs, cleaned or not,
except failed ones, and publishes them together at the end of the run. ``Destination`` itself is that of a dry run.

Logs of an incremental copy continue the previous copy, or are copied in full. So is a log that fails although its source may be
intact: the previous copy may have changed meanwhile.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from compaction.config.request import CompactionRequest
from compaction.files.durable import DurableSteps, replace_file
from compaction.files.filesystem import DiskFileSystem, FileSystem, join
from compaction.files.overlay import OverlayFileSystem, Splice, SplicedFileSystem
from compaction.files.uri import require_in_place
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.log.access import Access, Purpose, access
from compaction.log.checkpoint_store import Change, CheckpointFiles, read_offsets
from compaction.log.read_log import require_unchanged
from compaction.log.settings import Settings
from compaction.names import CLEANER_OFFSETS, LOG_STARTS, LogLocation, TopicPartition
from compaction.output.previous_copy import Continuation, NotContinuedError, PreviousCopy, identify, rules_of
from compaction.output.publish import Publication
from compaction.output.segment_files import delete_segments, remove_deleted
from compaction.output.swap import SwapGroup, discard_outputs, replace_segments
from compaction.recovery.recover import write_repairs
from compaction.report import LogReport, Since
from compaction.rules.plan import LogPlan
from compaction.run.log import Log

_LOG = logging.getLogger(__name__)


#: logs that are changed in step: the more, the less often the disk is waited for, and the checkpoint file written
LOG_CONCURRENCY = 512


class Destination:
    """Applies the result of each log, of up to ``concurrency`` logs in step. This one is that of a dry run: it writes nothing.

    :ivar fs: the run's view of its sources, in which recovery may have changed files in memory only
    :ivar disk: where recovery finishes interrupted swaps; another one than ``fs`` only if the run is in place
    :ivar held: the run's claims on the log directories
    :ivar splices: by path, the logs that in ``fs`` begin with files of a previous copy, which they continue
    """

    concurrency = 1
    held = Access()
    splices: Mapping[str, Splice] = MappingProxyType({})

    def __init__(self, fs: OverlayFileSystem, disk: FileSystem | None = None) -> None:
        self.fs, self.disk = fs, disk or fs

    def begin(self, settings: Mapping[LogLocation, Settings]) -> None:
        """Called with the settings of logs before they are read."""

    def directory(self, location: LogLocation) -> str:
        """The directory in which tasks write the outputs of a log."""
        return location.path

    def replace(self, log: Log, *, is_last: bool = True) -> DurableSteps[None]:
        """Replaces segments of a cleaned log by its outputs.

        :param is_last: nothing of it is left to later portions
        """
        yield ()

    def keep(self, log: Log) -> DurableSteps[None]:
        """Keeps a log that is not compacted; expired segments are deleted."""
        yield ()

    def discard(self, log: Log) -> None:
        """Removes the outputs of a failed log, which is not changed."""

    def remove_replaced(self, log: Log) -> None:
        """Removes the segments of a log that ``replace`` or ``keep`` has left as ``.deleted`` files."""

    def restart(self, failed: Mapping[LogLocation, str]) -> tuple[LogLocation, ...]:
        """The failed logs that are to be read again: from now on without files of the previous copy."""
        return ()

    def noted(self, reports: Iterable[LogReport]) -> tuple[LogReport, ...]:
        """The reports, with what was taken over from the previous copy."""
        return tuple(reports)


class InPlace(Destination):
    """Swaps outputs in and moves the cleaner checkpoint, if the plan does.

    Recovery rebuilds indexes and splits segments in memory; that is written just before the swap, if the log did not fail.
    """

    def __init__(self, disk: DiskFileSystem, held: Access) -> None:
        super().__init__(OverlayFileSystem(disk), disk)
        self.held, self._checkpoints = held, CheckpointFiles(disk)
        self.concurrency = LOG_CONCURRENCY

    def replace(self, log: Log, *, is_last: bool = True) -> DurableSteps[None]:
        plan, path = log.compaction, log.location.path
        try:
            require_unchanged(self.fs, self.disk, path, log.sources)
            if not log.swapped:
                yield from self._repair_and_delete(log)
        except Exception:
            discard_outputs(self.disk, path)
            raise
        yield from replace_segments(
            self.disk,
            log.location,
            log.groups,
            end_offset=plan.new_checkpoint if is_last else None,
            checkpoints=self._checkpoints,
            owner=self.held.owner(log.location.log_dir),
        )
        if plan.config.file_delete_delay_ms == 0:
            remove_deleted(self.disk, path)

    def keep(self, log: Log) -> DurableSteps[None]:
        yield from self._repair_and_delete(log)
        if log.plan.removals and log.compaction.config.file_delete_delay_ms == 0:
            remove_deleted(self.disk, log.location.path)
        yield from _repair_checkpoint(self._checkpoints, log.compaction)

    def discard(self, log: Log) -> None:
        discard_outputs(self.disk, log.location.path)

    def remove_replaced(self, log: Log) -> None:
        self.held.owner(log.location.log_dir).require()
        remove_deleted(self.disk, log.location.path)

    def _repair_and_delete(self, log: Log) -> DurableSteps[None]:
        path, deletion = log.location.path, log.plan.deletion
        deletes = deletion is not None and bool(deletion.removals)
        if deletes or self.fs.operations(path):
            self.held.owner(log.location.log_dir).require()
        view = log.compaction.view if deletion is None else deletion.view
        yield from write_repairs(self.fs, self.disk, path, view.segments)
        if deletion is not None and deletes:
            require_unchanged(self.disk, self.disk, path, deletion.view.segments)
            yield from delete_segments(self.disk, log.location, deletion, self._checkpoints)


class CopyOutput(Destination):
    """Adds all logs to a copy, which ``Publication.commit`` makes visible.

    :param request: of the run
    :param previous: the copy that logs may continue
    """

    def __init__(
        self, publication: Publication, sources: FileSystem, request: CompactionRequest, previous: PreviousCopy | None
    ) -> None:
        self.splices: dict[str, Splice] = {}
        super().__init__(OverlayFileSystem(sources if previous is None else SplicedFileSystem(sources, self.splices)))
        self._publication, self._sources, self._request, self._previous = publication, sources, request, previous
        self._continued: dict[LogLocation, Continuation] = {}
        #: why the other logs are copied in full
        self._reasons: dict[LogLocation, str] = {}
        #: of the logs; none if the copy does not record its request
        self._identities = {} if request.call is None else identify(sources, request.logs)

    def begin(self, settings: Mapping[LogLocation, Settings]) -> None:
        """Decides whether logs continue the previous copy; not those that ``restart`` left."""
        known = {log: rules_of(found, self._request) for log, found in settings.items() if log in self._identities}
        self._identities |= {log: replace(self._identities[log], rules=rules) for log, rules in known.items()}
        if self._previous is None:
            return
        for log in [log for log in known if log not in self._reasons]:
            try:
                self._continued[log] = self._previous.continuation(log, self._identities[log])
                self.splices[log.path] = self._continued[log].splice
            except NotContinuedError as error:
                self._leave(log, str(error))
        _set_offsets(self.fs, CLEANER_OFFSETS, {log: found.cleaned_to for log, found in self._continued.items()})
        moved = {log: found.log_start for log, found in self._continued.items() if found.log_start is not None}
        _set_offsets(self.fs, LOG_STARTS, moved)

    def directory(self, location: LogLocation) -> str:
        return self._publication.log_path(location)

    def replace(self, log: Log, *, is_last: bool = True) -> DurableSteps[None]:
        yield from self._add(log, log.groups, log.compaction.new_checkpoint)

    def keep(self, log: Log) -> DurableSteps[None]:
        yield from _repair_checkpoint(CheckpointFiles(self.fs), log.compaction)
        yield from self._add(log, (), None)

    def discard(self, log: Log) -> None:
        self._publication.leave_out(log.location)

    def _add(self, log: Log, groups: Sequence[SwapGroup], end_offset: int | None) -> DurableSteps[None]:
        try:
            if log.plan.deletion is not None:
                yield from delete_segments(self.fs, log.location, log.plan.deletion)
            segments = log.compaction.view.segments
            identity = self._identities.get(log.location)
            self._publication.add_log(self.fs, log.location, groups, segments, end_offset=end_offset, identity=identity)
            if self._previous is not None and log.location in self._continued:
                self._previous.require_unchanged(self._continued[log.location].files)
        except Exception:
            self._publication.leave_out(log.location)
            raise

    def restart(self, failed: Mapping[LogLocation, str]) -> tuple[LogLocation, ...]:
        logs = tuple(log for log in failed if log in self._continued)
        for log in logs:
            self._leave(log, f"with files of the previous copy it failed: {failed[log]}")
            del self._continued[log], self.splices[log.path]
            self.fs.revert(log.path)
        for name in (CLEANER_OFFSETS, LOG_STARTS):
            found = {log: read_offsets(self._sources, log.log_dir, name).get(log.topic_partition) for log in logs}
            _set_offsets(self.fs, name, found)
        return logs

    def _leave(self, log: LogLocation, reason: str) -> None:
        _LOG.warning("%s: copied in full: %s", log, reason)
        self._reasons[log] = reason

    def noted(self, reports: Iterable[LogReport]) -> tuple[LogReport, ...]:
        if self._previous is None:
            return tuple(reports)
        found = {(*log.topic_partition, log.log_dir): log for log in (*self._continued, *self._reasons)}
        return tuple(self._noted(report, found.get((report.topic, report.partition, report.log_dir))) for report in reports)

    def _noted(self, report: LogReport, log: LogLocation | None) -> LogReport:
        if log is None:
            # its settings could not be read
            return replace(report, since=Since.FULL.value, since_reason=report.reason)
        if (found := self._continued.get(log)) is None:
            return replace(report, since=Since.FULL.value, since_reason=self._reasons[log])
        kind = Since.GROWN if found.grown else Since.UNCHANGED
        return replace(report, since=kind.value, previous_bytes=found.size_bytes)


def _set_offsets(fs: FileSystem, name: str, offsets: Mapping[LogLocation, int | None]) -> None:
    """Changes entries of checkpoint files; ``None`` removes one."""
    by_dir: dict[str, dict[TopicPartition, int | None]] = defaultdict(dict)
    for log, offset in offsets.items():
        by_dir[log.log_dir][log.topic_partition] = offset
    for log_dir, entries in by_dir.items():
        before = read_offsets(fs, log_dir, name)
        after = {partition: offset for partition, offset in {**before, **entries}.items() if offset is not None}
        if after != before:
            replace_file(fs, join(log_dir, name), format_offset_checkpoint(after).encode())


def _repair_checkpoint(checkpoints: CheckpointFiles, plan: LogPlan) -> DurableSteps[None]:
    if plan.checkpoint_reset:
        change = Change(plan.view.topic_partition, plan.first_dirty_offset)
        yield from checkpoints.file(plan.view.log_dir, CLEANER_OFFSETS).change(change)


def purpose(request: CompactionRequest) -> Purpose:
    """The access that a run needs: without logs to change it leaves nothing in their directories."""
    if request.output_dir is not None and not request.dry_run:
        return Purpose.COPY
    return Purpose.READ if request.dry_run or not request.logs else Purpose.CHANGE


@contextmanager
def destination(files: DiskFileSystem, request: CompactionRequest, held: Access, done: str) -> Iterator[Destination]:
    """The destination of a run. A copy becomes visible if the block ends without an error, and is removed otherwise.

    :param files: how the log directories are accessed
    :param held: the run's claims on them
    :param done: what the run does to logs, for messages: ``compacted``
    :raises UsageError: the output directory cannot be written to or is not empty; or there is none, and a log directory cannot
        be changed in place
    """
    output_dir = request.output_dir
    if request.dry_run:
        yield Destination(OverlayFileSystem(files))
    elif output_dir is None:
        require_in_place(request.log_dirs, done)
        yield InPlace(files, held)
    else:
        with _previous_copy(files, request) as previous:
            entry_of = (lambda path: None) if previous is None else previous.entry
            publication = Publication(files, output_dir, request, entry_of)
            try:
                copy = CopyOutput(publication, files, request, previous)
                yield copy
                if previous is not None:
                    previous.require_same()
                publication.commit(copy.fs)
            except BaseException:
                publication.abort()
                raise


@contextmanager
def _previous_copy(files: DiskFileSystem, request: CompactionRequest) -> Iterator[PreviousCopy | None]:
    """The previous copy of the request, if any; no broker starts on it, and no run replaces it, if it has a lock file."""
    if request.since is None:
        yield None
        return
    previous = PreviousCopy(request.since, request, files)
    roots = [root for root in previous.roots.values() if files.stat(root) is not None]
    with access(files, roots, Purpose.SHARE):
        yield previous
