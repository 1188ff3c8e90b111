"""One run of the delete policy: **prepare**, delete segments, **report**. An error of one log does not affect the others.

A log whose ``cleanup.policy`` is a guess fails and is not changed. Only the driver deletes segments, by renaming their files,
or copies the retained ones to an output directory, as ``compact`` does for logs that it does not clean. Spark is used only to
read very many segments.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from compaction.cleaning.log_view import LogView
from compaction.cleaning.segment_retention import DeletionPlan, plan_deletion
from compaction.config.request import CompactionRequest
from compaction.engine.admission import SpaceBudget, copied_bytes
from compaction.engine.concurrency import change_logs
from compaction.engine.destination import LOG_CONCURRENCY, CopyOutput, publication, purpose
from compaction.engine.log_reports import deletion_report, failed_report, note_logs_in_use
from compaction.engine.prepare import ParallelRead, PreparedLog, Sources, prepare
from compaction.errors import StorageError, of_log
from compaction.fs.durable import Steps
from compaction.fs.filesystem import DiskFileSystem, FileSystem
from compaction.fs.overlay import OverlayFileSystem
from compaction.fs.uri import any_remote, is_remote, require_in_place
from compaction.locking.access import Access, access
from compaction.logdir.changes import require_unchanged
from compaction.logdir.checkpoint_store import CheckpointFiles
from compaction.logdir.settings.log_settings import Settings
from compaction.names import LogLocation
from compaction.output.segment_deletion import delete_segments
from compaction.output.segment_files import remove_deleted
from compaction.recovery.write_repairs import write_repairs
from compaction.report import LogReport
from compaction.run_report import RunReport
from compaction.stores.mixed import file_system


class _Changes:
    """Deletes segments in place, or of an overlay in a dry run."""

    def __init__(self, files: DiskFileSystem, held: Access, *, dry_run: bool) -> None:
        self._overlay = OverlayFileSystem(files)
        self.fs: FileSystem = self._overlay
        self.disk: FileSystem = self._overlay if dry_run else files
        self.concurrency = 1 if dry_run else LOG_CONCURRENCY
        self._held, self._checkpoints = held, CheckpointFiles(self.disk)

    def expire(self, location: LogLocation, plan: DeletionPlan) -> Steps[None]:
        """Deletes the expired segments of one log."""
        self._held.owner(location.log_dir).require()
        if self.disk is not self.fs:
            yield from write_repairs(self._overlay, self.disk, location.path, plan.view.segments)
        if plan.removals:
            require_unchanged(self.disk, self.disk, location.path, plan.view.segments)
        yield from delete_segments(self.disk, location, plan, self._checkpoints)
        if plan.config.file_delete_delay_ms == 0:
            remove_deleted(self.disk, location.path)


def delete_old_segments(
    request: CompactionRequest, parallel_read: ParallelRead | None = None, files: DiskFileSystem | None = None
) -> RunReport:
    """Apply the delete policy to the logs of ``request``, in place or in a copy of them.

    :param parallel_read: reads logs that have very many segments
    :param files: how they are accessed; by default the file system of their paths
    :raises UsageError: a log directory is in use, or cannot be changed in place; or the output directory cannot be written to
    :raises StorageError: the copy does not fit; nothing was written
    """
    started = time.monotonic()
    files = files or file_system(request.log_dirs)
    with access(files, request.log_dirs, purpose(request)) as held, _target(request, files, held) as target:

        def plan_for(view: LogView, settings: Settings) -> DeletionPlan:
            return plan_deletion(view, settings.topic, now_ms=request.as_of_ms)

        prepared = prepare(Sources(target.fs, target.disk, held), request, plan_for, parallel_read, policy_required=True)
        if isinstance(target, CopyOutput):
            _require_space(request.output_dir, prepared)
        views = (log.plan.view for log in prepared if log.plan is not None)
        works = [(log.location.path, _finish(target, log)) for log in prepared]
        reports = note_logs_in_use(change_logs(target.disk, works, target.concurrency), held.in_use, views)
    if request.output_dir is not None:
        reports = [replace(report, deleted_bytes=0) for report in reports]
    copied, seconds = request.output_dir is not None or any_remote(request.log_dirs), time.monotonic() - started
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, tuple(reports), seconds, copied=copied)


@contextmanager
def _target(request: CompactionRequest, files: DiskFileSystem, held: Access) -> Iterator[_Changes | CopyOutput]:
    if request.output_dir is not None and not request.dry_run:
        with publication(files, request, request.output_dir) as copy:
            yield copy
        return
    if not request.dry_run:
        require_in_place(request.log_dirs, "expired")
    yield _Changes(files, held, dry_run=request.dry_run)


def _require_space(output_dir: str | None, logs: Iterable[PreparedLog[DeletionPlan]]) -> None:
    """:raises StorageError: the segments to be copied do not fit"""
    if output_dir is None or is_remote(output_dir):
        return
    needed_bytes = sum(copied_bytes(log.plan.after.segments) for log in logs if log.plan is not None)
    space = SpaceBudget()
    if not space.fits([output_dir], needed_bytes):
        free = max(0, space.left(output_dir))
        what = f"the copy takes {needed_bytes} bytes, {free} bytes are free {space.besides()}"
        raise StorageError(what, path=output_dir, hint="free some space and run again; nothing was written")


def _finish(target: _Changes | CopyOutput, log: PreparedLog[DeletionPlan]) -> Steps[LogReport]:
    """Deletes the expired segments of one log; its report."""
    started = time.monotonic()
    if log.plan is None:
        return failed_report(log.location, log.error)
    try:
        yield from target.expire(log.location, log.plan)
    except Exception as error:
        return failed_report(log.location, of_log(error, log.location.path))
    return replace(deletion_report(log.plan), seconds=time.monotonic() - started)
