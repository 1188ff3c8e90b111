"""One run of the delete policy: **prepare**, delete segments, **report**. An error of one log does not affect the others.

A log whose ``cleanup.policy`` is a guess fails and is not changed. Only the driver deletes segments, by renaming their files;
Spark is used only to read very many segments.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from functools import partial

from compaction.cleaning.segment_retention import DeletionPlan, plan_deletion
from compaction.config.request import CompactionRequest
from compaction.engine.concurrency import run_concurrently
from compaction.engine.destination import LOG_CONCURRENCY, purpose
from compaction.engine.log_reports import deletion_report, failed_report, note_logs_in_use
from compaction.engine.prepare import ParallelRead, PreparedLog, Sources, prepare
from compaction.errors import of_log
from compaction.fs.filesystem import DiskFileSystem, FileSystem
from compaction.fs.overlay import OverlayFileSystem
from compaction.fs.uri import require_in_place
from compaction.locking.access import access
from compaction.locking.claim import Owner
from compaction.logdir.changes import require_unchanged
from compaction.logdir.checkpoint_store import CheckpointFiles
from compaction.output.segment_deletion import delete_segments
from compaction.output.segment_files import remove_deleted
from compaction.recovery.write_repairs import write_repairs
from compaction.report import LogReport, RunReport
from compaction.stores.mixed import file_system


def delete_old_segments(
    request: CompactionRequest, parallel_read: ParallelRead | None = None, files: DiskFileSystem | None = None
) -> RunReport:
    """Apply the delete policy to the logs of ``request``.

    :param parallel_read: reads logs that have very many segments
    :param files: how they are accessed; by default the file system of their paths
    """
    started = time.monotonic()
    if not request.dry_run:
        require_in_place(request.log_dirs, "expired")
    files = files or file_system(request.log_dirs)
    fs = OverlayFileSystem(files)
    disk = fs if request.dry_run else files
    with access(files, request.log_dirs, purpose(request)) as held:
        plan_for = partial(plan_deletion, now_ms=request.as_of_ms)
        prepared = prepare(Sources(fs, disk, held), request, plan_for, parallel_read, policy_required=True)
        views = (log.plan.view for log in prepared if log.plan is not None)
        checkpoints = CheckpointFiles(disk)
        works = [partial(_finish, fs, disk, checkpoints, held.owner(log.location.log_dir), log) for log in prepared]
        reports = note_logs_in_use(run_concurrently(works, 1 if request.dry_run else LOG_CONCURRENCY), held.in_use, views)
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, tuple(reports), time.monotonic() - started)


def _finish(
    fs: OverlayFileSystem, disk: FileSystem, checkpoints: CheckpointFiles, owner: Owner, log: PreparedLog[DeletionPlan]
) -> LogReport:
    """Deletes the expired segments of one log; its report. In a dry run ``disk`` is the overlay too."""
    started = time.monotonic()
    if log.plan is None:
        return failed_report(log.location, log.error)
    try:
        owner.require()
        if disk is not fs:
            write_repairs(fs, disk, log.location.path, log.plan.view.segments)
        if log.plan.removals:
            require_unchanged(disk, disk, log.location.path, log.plan.view.segments)
        delete_segments(disk, log.location, log.plan, checkpoints)
        if log.plan.config.file_delete_delay_ms == 0:
            remove_deleted(disk, log.location.path)
    except Exception as error:
        return failed_report(log.location, of_log(error, log.location.path))
    return replace(deletion_report(log.plan), seconds=time.monotonic() - started)
