"""Takes segments out of a log, as the delete policy decided.

Mirrors ``UnifiedLog.deleteSegments``, ``LocalLog.roll``, ``LeaderEpochFileCache.truncateFromStart`` and
``UnifiedLog.deleteProducerSnapshots`` (Kafka 4.3.0). Order, each step safe before the next: where every segment goes, a new
empty one at the log's end with a snapshot of the producers; the log start; the leader epochs; the files, ascending, the logs
after all others. A stop in between leaves segments below the log start, which readers do not see and the next run removes.

Difference: a broker drops the log start checkpoint's entry when it equals the first segment's base; here it stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from compaction.cleaning.log_view import ProducerEntry
from compaction.cleaning.segment_retention import DeletionPlan
from compaction.formats.checkpoints import EpochEntry, format_leader_epochs, parse_leader_epochs
from compaction.formats.producer_snapshot import SnapshotEntry, write_snapshot
from compaction.fs.durable import replace_file
from compaction.fs.filesystem import FileSystem, join
from compaction.fs.text_files import read_small_text
from compaction.logdir.checkpoint_store import Change, CheckpointFiles
from compaction.logdir.discover import LogLocation
from compaction.logdir.segments import segment_bases
from compaction.names import INDEX, LEADER_EPOCHS, LOG, LOG_STARTS, SNAPSHOT, TIMEINDEX, TXNINDEX, segment_file
from compaction.output.swap import mark_deleted


def delete_segments(
    fs: FileSystem, location: LogLocation, plan: DeletionPlan, checkpoints: CheckpointFiles | None = None
) -> None:
    """Do to a log what ``plan`` says; nothing where it removes nothing. See :func:`expire_segments`."""
    if plan.removals:
        expire_segments(
            fs,
            location,
            [removal.segment.base_offset for removal in plan.removals],
            log_start_offset=plan.new_log_start_offset,
            log_end_offset=plan.view.log_end_offset,
            producers=plan.view.producers,
            checkpoints=checkpoints,
        )


def expire_segments(
    fs: FileSystem,
    location: LogLocation,
    base_offsets: Sequence[int],
    *,
    log_start_offset: int,
    log_end_offset: int,
    producers: Sequence[ProducerEntry] = (),
    checkpoints: CheckpointFiles | None = None,
) -> None:
    """Mark segments as ``.deleted`` and move the log start.

    :param base_offsets: the segments that go: the oldest ones of the log
    :param log_start_offset: the log start from now on
    :param log_end_offset: where the new active segment begins if every segment goes
    :param producers: what its snapshot then holds
    :param checkpoints: where several logs of a directory are worked on at once, theirs
    :raises StorageError: the file system refused; the next run goes on from there
    :raises CorruptLogError: a checkpoint is garbled; nothing was deleted
    """
    path = location.path
    going = sorted(base_offsets)
    epochs = _later_epochs(fs, path, log_start_offset)
    here = segment_bases(fs, path)
    if here and not set(here) - set(going) and log_end_offset not in going:
        _new_active(fs, path, log_end_offset, here[-1], producers)
    like = join(path, segment_file(here[-1], LOG)) if here else None
    change = Change(location.topic_partition, log_start_offset, like=like)
    (checkpoints or CheckpointFiles(fs)).change(location.log_dir, LOG_STARTS, change)
    if epochs is not None:
        replace_file(fs, join(path, LEADER_EPOCHS), format_leader_epochs(epochs).encode())
    # the logs last: a log whose other files are gone is found by the next run, an index or a snapshot without its log is not
    for kinds in ((INDEX, TIMEINDEX, TXNINDEX, SNAPSHOT), (LOG,)):
        for base in going:
            mark_deleted(fs, path, base, kinds)
        fs.fsync_dir(path)


def _new_active(fs: FileSystem, path: str, base_offset: int, last: int, producers: Sequence[ProducerEntry]) -> None:
    """An empty segment, its log made last: an index without a log is nothing to a broker."""
    like = join(path, segment_file(last, LOG))
    replace_file(fs, join(path, segment_file(base_offset, SNAPSHOT)), write_snapshot(_entries(producers)), like=like)
    for kind in (INDEX, TIMEINDEX, LOG):
        name = join(path, segment_file(base_offset, kind))
        # an earlier run may have been stopped here
        fs.unlink(name)
        fs.write_file(name, b"", like=like)
        fs.fsync(name)
    fs.fsync_dir(path)


def _entries(producers: Sequence[ProducerEntry]) -> list[SnapshotEntry]:
    return [SnapshotEntry(*producer) for producer in producers]


def _later_epochs(fs: FileSystem, path: str, start: int) -> list[EpochEntry] | None:
    """The leader epochs from a new log start on; ``None`` when they stay as they are."""
    name = join(path, LEADER_EPOCHS)
    if fs.stat(name) is None:
        return None
    entries = parse_leader_epochs(read_small_text(fs, name, "remove or repair it"), name)
    below = [entry for entry in entries if entry.start_offset <= start]
    after = [entry for entry in entries if entry.start_offset > start]
    kept = [EpochEntry(below[-1].epoch, start), *after] if below else after
    return None if kept == entries else kept
