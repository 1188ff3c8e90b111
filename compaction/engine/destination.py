"""Where the result of a run goes: in place of the sources, into a copy, or nowhere.

A run passes each log to its destination when all is known about it. ``InPlace`` swaps it in at once, several logs concurrently,
because a swap mostly waits for the disk. ``CopyOutput`` collects all logs and publishes them together when the run ends,
cleaned or not, without those that failed. ``DryRunOutput`` writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from compaction.cleaning.cleanup_policy import PolicyPlan
from compaction.fs.filesystem import FileSystem
from compaction.fs.overlay import DeferredFileSystem, OverlayFileSystem
from compaction.fs.uri import is_remote, require_in_place
from compaction.locking.access import Access
from compaction.logdir.changes import require_unchanged
from compaction.logdir.checkpoint_store import Change, CheckpointFiles
from compaction.logdir.discover import LogLocation
from compaction.names import CLEANER_OFFSETS
from compaction.output.local_publish import LocalPublication
from compaction.output.object_publish import ObjectPublication
from compaction.output.publish import Publication
from compaction.output.segment_deletion import delete_segments
from compaction.output.segment_files import discard_unfinished, remove_deleted
from compaction.output.swap import SwapGroup, replace_segments
from compaction.recovery.recover import repair_log

#: a swap waits a dozen times for the disk, which serves many at once
LOGS_AT_ONCE = 8


@dataclass(frozen=True)
class Planned:
    """One log and what its policy does to it."""

    location: LogLocation
    plan: PolicyPlan


class Destination(Protocol):
    """Takes the logs of a run, ``run_concurrently`` of them at a time, from as many threads.

    ``fs`` is how the run sees its sources: recovered, where need be in memory.
    """

    fs: FileSystem
    at_once: int

    def directory(self, location: LogLocation) -> str:
        """Where tasks write the outputs of a log."""

    def cleaned(self, log: Planned, groups: Sequence[SwapGroup]) -> None:
        """A log whose outputs are written."""

    def skipped(self, log: Planned) -> None:
        """A log that is not compacted; the delete policy may still take some of it."""

    def failed(self, log: Planned) -> None:
        """A log that could not be cleaned: it stays as it was."""


class DryRunOutput:
    """A dry run: nothing is written anywhere."""

    def __init__(self, sources: FileSystem) -> None:
        self.fs: FileSystem = OverlayFileSystem(sources)
        self.at_once = 1

    def directory(self, location: LogLocation) -> str:
        return location.path

    def cleaned(self, log: Planned, groups: Sequence[SwapGroup]) -> None:
        pass

    def skipped(self, log: Planned) -> None:
        pass

    def failed(self, log: Planned) -> None:
        pass


class InPlace:
    """Outputs replace their sources; checkpoints follow.

    Indexes are rebuilt and segments split in memory at first, and on disk only when the log turned out to be sound.
    """

    def __init__(self, disk: FileSystem, held: Access) -> None:
        self._disk, self._held = disk, held
        self._checkpoints = CheckpointFiles(self._disk)
        self._deferred = DeferredFileSystem(self._disk)
        self.fs: FileSystem = self._deferred
        self.at_once = LOGS_AT_ONCE

    def directory(self, location: LogLocation) -> str:
        return location.path

    def cleaned(self, log: Planned, groups: Sequence[SwapGroup]) -> None:
        plan, owner = log.plan.compaction, self._held.owner(log.location.log_dir)
        try:
            require_unchanged(self.fs, self._disk, log.location.path, plan.segments)
            self._prepare(log)
        except Exception:
            discard_unfinished(self._disk, log.location.path)
            raise
        replace_segments(
            self._disk, log.location, groups, end_offset=plan.end_offset, checkpoints=self._checkpoints, owner=owner
        )
        if plan.config.file_delete_delay_ms == 0:
            remove_deleted(self._disk, log.location.path)

    def skipped(self, log: Planned) -> None:
        self._prepare(log)
        _repair_checkpoint(self._checkpoints, log)

    def failed(self, log: Planned) -> None:
        discard_unfinished(self._disk, log.location.path)

    def _prepare(self, log: Planned) -> None:
        """Do on disk what recovery did in memory, then delete what has expired."""
        expires = log.plan.expiry is not None and bool(log.plan.expiry.removals)
        changed = self._deferred.changed_in(log.location.path)
        if expires or changed:
            self._held.owner(log.location.log_dir).require()
        if changed:
            plan = log.plan.compaction
            repair_log(
                self._disk,
                log.location.path,
                index_interval_bytes=plan.config.index_interval_bytes,
                log_start=lambda: plan.view.log_start_offset,
            )
        if log.plan.expiry is not None and log.plan.expiry.removals:
            require_unchanged(self._disk, self._disk, log.location.path, log.plan.expiry.view.segments)
            _expire(self._disk, log, self._checkpoints)


class CopyOutput:
    """Everything goes to another place, which appears when ``Publication.commit`` is called."""

    def __init__(self, publication: Publication, sources: FileSystem) -> None:
        self.fs: FileSystem = OverlayFileSystem(sources)
        self.at_once = 1
        self._publication = publication

    def directory(self, location: LogLocation) -> str:
        return self._publication.log_path(location)

    def cleaned(self, log: Planned, groups: Sequence[SwapGroup]) -> None:
        self._add(log, groups, log.plan.compaction.end_offset)

    def skipped(self, log: Planned) -> None:
        _repair_checkpoint(CheckpointFiles(self.fs), log)
        self._add(log, (), None)

    def _add(self, log: Planned, groups: Sequence[SwapGroup], end_offset: int | None) -> None:
        """Take a log in, whole or not at all."""
        try:
            _expire(self.fs, log)
            segments = log.plan.compaction.view.segments
            self._publication.add_log(self.fs, log.location, groups, segments, end_offset=end_offset)
        except Exception:
            self._publication.leave_out(log.location)
            raise

    def failed(self, log: Planned) -> None:
        self._publication.leave_out(log.location)


def _expire(fs: FileSystem, log: Planned, checkpoints: CheckpointFiles | None = None) -> None:
    if log.plan.expiry is not None:
        delete_segments(fs, log.location, log.plan.expiry, checkpoints)


def _repair_checkpoint(checkpoints: CheckpointFiles, log: Planned) -> None:
    plan = log.plan.compaction
    if plan.checkpoint_reset:
        change = Change(plan.view.topic_partition, plan.first_dirty_offset)
        checkpoints.change(plan.view.log_dir, CLEANER_OFFSETS, change)


@contextmanager
def destination(
    files: FileSystem, log_dirs: Sequence[str], output_dir: str | None, held: Access, *, dry_run: bool
) -> Iterator[Destination]:
    """The destination of a run; another place appears when the block ends without an error, and leaves no trace otherwise.

    :param files: how the log directories are reached
    :param held: the run's claims on them
    :raises UsageError: ``output_dir`` cannot be written to, or is not empty; it is missing, and a log directory is in a place
        that cannot be worked on in place
    """
    if dry_run:
        yield DryRunOutput(files)
    elif output_dir is None:
        require_in_place(log_dirs, "compacted")
        yield InPlace(files, held)
    else:
        publication = _publication(files, output_dir, log_dirs)
        try:
            place = CopyOutput(publication, files)
            yield place
            publication.commit(place.fs)
        except BaseException:
            publication.abort()
            raise


def _publication(files: FileSystem, output_dir: str, log_dirs: Sequence[str]) -> Publication:
    if is_remote(output_dir):
        return ObjectPublication.begin(output_dir, log_dirs, files)
    return LocalPublication.begin(files, output_dir, log_dirs)
