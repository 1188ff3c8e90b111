"""Renames and removes the files of segments by suffix (``.clean``, ``.cleaned``, ``.swap``, ``.deleted``), and deletes the
segments that the delete policy has selected.

Mirrors ``LogSegment.changeFileSuffixes``, ``LocalLog.deleteSegmentFiles`` and ``LogLoader.removeTempFilesAndCollectSwapFiles``.

A deletion mirrors ``UnifiedLog.deleteSegments``, ``LocalLog.roll``, ``LeaderEpochFileCache.truncateFromStart`` and
``UnifiedLog.deleteProducerSnapshots``. Steps, each durable before the next:

1. If every segment is deleted, an empty one is created at the log end, with a snapshot of the producers.
2. The log start offset moves, then the leader epochs.
3. The files are renamed to ``.deleted``, in ascending order, all logs after all other files.

An interruption leaves segments below the log start, which readers skip and the next run deletes.

Difference: a broker drops the log start checkpoint's entry when it equals the first segment's base offset; here it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compaction.files.durable import DurableSteps, content_of, names_in, replacement
from compaction.files.filesystem import FileSystem, join
from compaction.files.text_files import read_small_text
from compaction.formats.checkpoints import EpochEntry, format_leader_epochs, parse_leader_epochs
from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot
from compaction.log.checkpoint_store import Change, CheckpointFiles
from compaction.log.read_log import segment_bases
from compaction.names import (
    CLEAN,
    CLEANED,
    DELETED,
    INDEX,
    LEADER_EPOCHS,
    LOG,
    LOG_STARTS,
    SEGMENT_KINDS,
    SNAPSHOT,
    SWAP,
    TIMEINDEX,
    TXNINDEX,
    LogLocation,
    parse_segment_file,
    segment_file,
)
from compaction.rules.segment_retention import DeletionPlan


def change_suffixes(
    fs: FileSystem, log_path: str, base_offset: int, old: str, new: str, kinds: Iterable[str] = SEGMENT_KINDS
) -> None:
    """Rename a segment's files from one suffix to another, the log first; kinds that do not exist are skipped."""
    for kind in kinds:
        if exists(fs, log_path, base_offset, kind, old):
            source, target = (join(log_path, segment_file(base_offset, kind, suffix)) for suffix in (old, new))
            fs.rename(source, target)


def exists(fs: FileSystem, log_path: str, base_offset: int, kind: str, suffix: str) -> bool:
    return fs.stat(join(log_path, segment_file(base_offset, kind, suffix))) is not None


def any_log(fs: FileSystem, log_path: str) -> str | None:
    """The path of a segment's log file in a partition directory, if it has one."""
    return next((join(log_path, name) for name in fs.listdir(log_path) if name.endswith(LOG)), None)


def is_unfinished(name: str) -> bool:
    """Whether a file belongs to an output that no swap has renamed yet: ``.clean``, ``.clean.<attempt>`` or ``.cleaned``."""
    file = parse_segment_file(name)
    return file is not None and (file.suffix in (CLEAN, CLEANED) or file.suffix.startswith(CLEAN + "."))


def discard_unfinished(fs: FileSystem, log_path: str) -> int:
    """Remove the unfinished outputs of tasks and of a broker's cleaner; returns the number of files removed.

    While there are ``.swap`` files, ``.cleaned`` files are kept: they say that the segments to be replaced still count.
    """
    every = fs.listdir(log_path)
    swapping = any(name.endswith(SWAP) for name in every)
    names = [name for name in every if is_unfinished(name) and not (swapping and name.endswith(CLEANED))]
    for name in names:
        fs.unlink(join(log_path, name))
    return len(names)


def remove_deleted(fs: FileSystem, log_path: str) -> int:
    """Remove a log's ``.deleted`` files; returns the bytes freed."""
    freed = 0
    for name in fs.listdir(log_path):
        file = parse_segment_file(name)
        if file is None or not file.suffix.endswith(DELETED):
            continue
        stat = fs.stat(join(log_path, name))
        freed += 0 if stat is None else stat.size
        fs.unlink(join(log_path, name))
    return freed


def delete_segments(
    fs: FileSystem, location: LogLocation, plan: DeletionPlan, checkpoints: CheckpointFiles | None = None
) -> DurableSteps[None]:
    """Deletes the plan's segments and moves the log start.

    :param checkpoints: shared by deletions from several logs of the directory at once
    :raises StorageError: the file system refused; the next run continues
    :raises CorruptLogError: a checkpoint is malformed; nothing was deleted
    """
    if not plan.removals:
        return
    path, log_end_offset = location.path, plan.view.log_end_offset
    deleted = sorted(removal.segment.base_offset for removal in plan.removals)
    epochs = _epochs_from(fs, path, plan.after.log_start_offset)
    bases = segment_bases(fs, path)
    if bases and set(bases) <= set(deleted) and log_end_offset not in deleted:
        yield from _create_active(fs, path, log_end_offset, bases[-1], plan.view.producers)
    like = join(path, segment_file(bases[-1], LOG)) if bases else None
    change = Change(location.topic_partition, plan.after.log_start_offset, like=like)
    yield from (checkpoints or CheckpointFiles(fs)).file(location.log_dir, LOG_STARTS).change(change)
    if epochs is not None:
        yield from replacement(fs, join(path, LEADER_EPOCHS), format_leader_epochs(epochs).encode())
    # logs last: the next run finds a log without its other files, but not an index or a snapshot without its log
    for kinds in ((INDEX, TIMEINDEX, TXNINDEX, SNAPSHOT), (LOG,)):
        for base in deleted:
            change_suffixes(fs, path, base, "", DELETED, kinds)
        yield names_in(path)


def _create_active(
    fs: FileSystem, path: str, base_offset: int, last: int, producers: Sequence[ProducerEntry]
) -> DurableSteps[None]:
    """Creates an empty segment, its log last: a broker ignores an index without a log."""
    like = join(path, segment_file(last, LOG))
    snapshot = write_snapshot(producers)
    yield from replacement(fs, join(path, segment_file(base_offset, SNAPSHOT)), snapshot, like=like)
    for kind in (INDEX, TIMEINDEX, LOG):
        name = join(path, segment_file(base_offset, kind))
        # an interrupted run may have created it
        fs.unlink(name)
        fs.write_file(name, b"", like=like)
        yield content_of(name)
    yield names_in(path)


def _epochs_from(fs: FileSystem, path: str, start: int) -> list[EpochEntry] | None:
    """The leader epochs from a new log start; ``None`` if they do not change."""
    name = join(path, LEADER_EPOCHS)
    if fs.stat(name) is None:
        return None
    entries = parse_leader_epochs(read_small_text(fs, name, "remove or repair it"), name)
    below = [entry for entry in entries if entry.start_offset <= start]
    after = [entry for entry in entries if entry.start_offset > start]
    kept = [EpochEntry(below[-1].epoch, start), *after] if below else after
    return None if kept == entries else kept
