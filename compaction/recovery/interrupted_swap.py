"""Finishes or undoes a swap that a run or a broker did not complete, and removes its leftover files.

Mirrors ``LogLoader.removeTempFilesAndCollectSwapFiles`` and ``LogLoader.load``:

1. A swap with a journal is finished group by group, as long as the outputs have the recorded content and the sources are the
   recorded ones. From the first group for which that does not hold, the swap is rolled back, and so is the cleaner checkpoint.
2. Without a journal, ``.swap`` files at or above the lowest ``.clean`` or ``.cleaned`` file are removed if the segments that
   they would replace still exist; files of an attempt (``.clean.<attempt>``) do not count. Other ``.swap`` files with
   valid batches are finished: the segments from their base offset up to their next offset are renamed to ``.deleted``, and
   ``.swap`` is removed.
3. ``.clean``, ``.cleaned``, ``.deleted`` and temporary files are removed.

A swap is rolled back by giving the ``.deleted`` sources their names back. Files that a broker has changed since the
interruption are kept: it finishes swaps by its own rules, and its cleaner may have continued.
"""

from __future__ import annotations

from dataclasses import replace

from compaction.errors import CorruptLogError
from compaction.files.contents import find_mismatch
from compaction.files.durable import TMP, remove_temporary, run_alone
from compaction.files.filesystem import FileStat, FileSystem, join
from compaction.files.segment_file import SegmentFile, SegmentScan
from compaction.log.access import NO_OWNER, Owner
from compaction.log.checkpoint_store import Change, CheckpointFiles
from compaction.log.read_log import RESTORE_SEGMENT, segment_bases
from compaction.names import (
    CLEAN,
    CLEANED,
    CLEANER_OFFSETS,
    DELETED,
    LOG,
    SEGMENT_KINDS,
    SNAPSHOT,
    SWAP,
    LogLocation,
    parse_segment_file,
    segment_file,
)
from compaction.output.journal import JOURNAL, Journal, JournalGroup, Source, read_journal, remove_journal
from compaction.output.segment_files import change_suffixes, discard_unfinished, exists, remove_deleted
from compaction.output.swap import finish_group, finish_swap
from compaction.screen.amounts import counted


def finish_interrupted_swap(fs: FileSystem, location: LogLocation, owner: Owner = NO_OWNER) -> list[str]:
    """Finish or undo an interrupted swap and remove leftover files; returns a line for each action.

    :raises CorruptLogError: a swap can neither be finished nor undone
    """
    path = location.path
    # other files of segments have no second suffix
    if not any(name == JOURNAL or name.count(".") > 1 for name in fs.listdir(path)):
        return []
    journal = read_journal(fs, path)
    actions = [] if journal is None else [_finish_journal(fs, location, journal, owner)]
    return actions + _finish_swap_files(fs, path) + _remove_leftovers(fs, path)


def _finish_journal(fs: FileSystem, location: LogLocation, journal: Journal, owner: Owner) -> str:
    path, groups = location.path, journal.groups
    owner.require()
    # a mismatch is read again: the first read may have been wrong
    resumable = (_is_resumable(fs, path, group) or _is_resumable(fs, path, group) for group in groups)
    count = next((n for n, is_resumable in enumerate(resumable) if not is_resumable), len(groups))
    resumed = tuple(_without_lost_indexes(fs, path, group) for group in groups[:count])
    for group in resumed:
        run_alone(fs, finish_group(fs, path, group))
    if count == len(groups):
        run_alone(fs, finish_swap(fs, location, replace(journal, groups=resumed), CheckpointFiles(fs)))
        return f"finished an earlier swap of {counted(count, 'segment')}"
    if journal.end_offset is not None:
        # the sources are not clean: a later cleaning would remove a tombstone there, and leave the records that it deletes
        change = Change(location.topic_partition, journal.previous_checkpoint, (journal.end_offset,))
        run_alone(fs, CheckpointFiles(fs).file(location.log_dir, CLEANER_OFFSETS).change(change))
    for group in reversed(groups[count:]):
        roll_back(fs, path, group)
    discard_unfinished(fs, path)
    run_alone(fs, remove_journal(fs, path))
    return "rolled back the rest of an earlier swap: its output is damaged, or its sources have changed since"


def _is_resumable(fs: FileSystem, path: str, group: JournalGroup) -> bool:
    """Whether the group's output has the recorded content, and its remaining sources are the recorded ones.

    Once the log has its final name, indexes do not count: a broker that finished the swap has rebuilt them.
    """
    suffixes = {written.kind: _suffix_of(fs, path, group.base_offset, written.kind) for written in group.files}
    for written in group.files:
        suffix = suffixes[written.kind]
        if written.kind != LOG and suffixes[LOG] == "":
            continue
        if suffix is None or find_mismatch(fs, join(path, segment_file(group.base_offset, written.kind, suffix)), written):
            return False
    for source in group.sources:
        if source.base_offset == group.base_offset and not suffixes[LOG]:
            continue
        status = fs.stat(join(path, segment_file(source.base_offset, LOG)))
        if status is None:
            if suffixes[LOG] == CLEAN:
                return False
        elif not _is_recorded(status, source):
            return False
    return True


def _is_recorded(status: FileStat, source: Source) -> bool:
    return (status.size, status.mtime_ns) == (source.size_bytes, source.mtime_ns)


def _suffix_of(fs: FileSystem, path: str, base_offset: int, kind: str) -> str | None:
    """The suffix that an output's file has now; ``None`` if it is missing."""
    return next((suffix for suffix in (CLEAN, SWAP, "") if exists(fs, path, base_offset, kind, suffix)), None)


def _without_lost_indexes(fs: FileSystem, path: str, group: JournalGroup) -> JournalGroup:
    """A resumable group with the current mtimes of its files.

    If its log has its final name, indexes that differ from the recorded ones are removed and rebuilt later. A log is never
    removed: if it is now read differently, ``finish_group`` fails.
    """
    is_final = not _suffix_of(fs, path, group.base_offset, LOG)
    kept = []
    for written in group.files:
        suffix = _suffix_of(fs, path, group.base_offset, written.kind) or ""
        name = join(path, segment_file(group.base_offset, written.kind, suffix))
        status = fs.stat(name)
        if written.kind != LOG and is_final and (status is None or find_mismatch(fs, name, written) is not None):
            fs.unlink(name)
        else:
            kept.append(written if status is None else written._replace(mtime_ns=status.mtime_ns))
    return replace(group, files=tuple(kept))


def _finish_swap_files(fs: FileSystem, path: str) -> list[str]:
    """Finish or remove ``.swap`` files without a journal."""
    actions = []
    parsed = [(name, file) for name in fs.listdir(path) if (file := parse_segment_file(name)) is not None]
    swaps = sorted({file.base_offset for _, file in parsed if file.suffix == SWAP})
    unfinished = min((file.base_offset for _, file in parsed if file.suffix in (CLEAN, CLEANED)), default=None)
    # in descending order, as a split renames them: an interruption leaves the lowest ones, which decide
    for base in reversed(swaps):
        scan = _scan_swap(fs, path, base)
        if scan is None:
            continue
        suspect = not scan.complete or (unfinished is not None and base >= unfinished)
        if suspect and _sources_remain(fs, path, base, scan.next_offset or base):
            _remove_swap(fs, path, base)
            actions.append(f"undid an unfinished swap at offset {base}")
        elif not scan.complete:
            name = join(path, segment_file(base, LOG, SWAP))
            raise CorruptLogError(scan.error or "segment ends within a batch", path=name, position=scan.position)
    for base in swaps:
        if any(exists(fs, path, base, kind, SWAP) for kind in SEGMENT_KINDS):
            _finish_swap_at(fs, path, base)
            actions.append(f"finished an earlier swap at offset {base}")
    return actions


def _finish_swap_at(fs: FileSystem, path: str, base: int) -> None:
    scan = _scan_swap(fs, path, base)
    if scan is not None:
        end = base if scan.next_offset is None else scan.next_offset
        for other in segment_bases(fs, path):
            if base < other < end:
                change_suffixes(fs, path, other, "", DELETED, (*SEGMENT_KINDS, SNAPSHOT))
        change_suffixes(fs, path, base, "", DELETED)
        fs.fsync_dir(path)
    elif not exists(fs, path, base, LOG, ""):
        _remove_swap(fs, path, base)
        return
    for kind in SEGMENT_KINDS:
        if exists(fs, path, base, kind, SWAP):
            change_suffixes(fs, path, base, SWAP, "", (kind,))
            fs.fsync_dir(path)


def _remove_swap(fs: FileSystem, path: str, base: int) -> None:
    """Remove ``.swap`` files, the log last: an index without its log would be taken for the last step of a swap."""
    for kind in reversed(SEGMENT_KINDS):
        fs.unlink(join(path, segment_file(base, kind, SWAP)))
        fs.fsync_dir(path)


def _scan_swap(fs: FileSystem, path: str, base: int) -> SegmentScan | None:
    """Scan a ``.log.swap``, checksums included; ``None`` if only indexes are ``.swap``."""
    if not exists(fs, path, base, LOG, SWAP):
        return None
    return SegmentFile(fs, join(path, segment_file(base, LOG, SWAP))).scan(check_crc=True).finish()


def _sources_remain(fs: FileSystem, path: str, base: int, end: int) -> bool:
    """Whether the segments that a swap of ``[base, end)`` replaces still exist; they are deleted in ascending order."""
    below = [other for other in segment_bases(fs, path) if other <= base]
    if not below:
        return False
    if below[-1] == base:
        return True
    scan = SegmentFile(fs, join(path, segment_file(below[-1], LOG))).scan().finish()
    return scan.next_offset is not None and scan.next_offset >= end


def _remove_leftovers(fs: FileSystem, path: str) -> list[str]:
    actions = []
    removed = discard_unfinished(fs, path)
    for name in fs.listdir(path):
        file = parse_segment_file(name)
        if file is not None and file.suffix == TMP:
            fs.unlink(join(path, name))
            removed += 1
    removed += remove_temporary(fs, path)
    if removed:
        actions.append(f"removed {removed} unfinished files")
    if any(name.endswith(DELETED) for name in fs.listdir(path)):
        actions.append(f"removed {remove_deleted(fs, path)} bytes of deleted segments")
    return actions


def roll_back(fs: FileSystem, path: str, group: JournalGroup) -> None:
    """Restore a group's sources in place of its output.

    The last source is restored first: until the first one replaces the output, no record that the output may hold is missing.

    :raises CorruptLogError: a source is missing; nothing was changed
    """
    base = group.base_offset
    if _was_final(fs, path, group) or not _can_undo(fs, path, group):
        # a broker has completed the log since
        return
    # while the output's log is still .clean, no source has been renamed: any .deleted and .swap files are a broker's
    renamed = not exists(fs, path, base, LOG, CLEAN)
    for source in group.sources if renamed else ():
        if not _has_source(fs, path, source, group):
            message = "neither the output of an earlier swap nor the segment that it replaced is as the journal says"
            name = join(path, segment_file(source.base_offset, LOG))
            raise CorruptLogError(message, path=name, hint=RESTORE_SEGMENT)
    for source in reversed(group.sources if renamed else ()):
        _restore(fs, path, source, group)
        fs.fsync_dir(path)
    for kind in reversed(SEGMENT_KINDS):
        for suffix in (SWAP, CLEAN) if renamed else (CLEAN,):
            fs.unlink(join(path, segment_file(base, kind, suffix)))
    fs.fsync_dir(path)


def _restore(fs: FileSystem, path: str, source: Source, group: JournalGroup) -> None:
    """Remove ``.deleted`` from a source's files, the log last of the segment's."""
    base = source.base_offset
    for kind in (*reversed(SEGMENT_KINDS), SNAPSHOT):
        replaced = base == group.base_offset and kind in group.kinds
        if not replaced or exists(fs, path, base, kind, DELETED):
            change_suffixes(fs, path, base, DELETED, "", (kind,))
        elif kind != LOG and not exists(fs, path, base, LOG, SWAP):
            # the output's index: the source had none, or already has it back. Missing indexes are rebuilt
            fs.unlink(join(path, segment_file(base, kind)))


def _was_final(fs: FileSystem, path: str, group: JournalGroup) -> bool:
    """Whether the group's log has had its final name: the other files are then a broker's.

    The broker's cleaner may have replaced the output again, and may have been interrupted. A source may have the output's
    content.
    """
    sources = {source.inode for source in group.sources}
    log = join(path, segment_file(group.base_offset, LOG))
    for name in (log, log + DELETED):
        status = fs.stat(name)
        if status is not None and status.inode not in sources and find_mismatch(fs, name, group.files[0]) is None:
            return True
    return False


def _can_undo(fs: FileSystem, path: str, group: JournalGroup) -> bool:
    """Whether the group's swap has left a log without its final name, or a source's ``.deleted`` log.

    A ``.swap`` index without its log does not count: a broker's interrupted cleaner may have left it.
    """
    if any(exists(fs, path, group.base_offset, LOG, suffix) for suffix in (CLEAN, SWAP)):
        return True
    statuses = ((fs.stat(join(path, segment_file(source.base_offset, LOG, DELETED))), source) for source in group.sources)
    return any(status is not None and _is_recorded(status, source) for status, source in statuses)


def _has_source(fs: FileSystem, path: str, source: Source, group: JournalGroup) -> bool:
    """Whether a source's log exists, ``.deleted`` or under its own name."""
    for suffix in (DELETED, ""):
        status = fs.stat(join(path, segment_file(source.base_offset, LOG, suffix)))
        if status is not None and _is_recorded(status, source):
            # an output may have its source's size and mtime, but not its inode
            if suffix or status.inode == source.inode:
                return True
    # a newer log may have its own name, as long as the swap has not renamed the source
    untouched = any(exists(fs, path, group.base_offset, LOG, suffix) for suffix in (CLEAN, SWAP))
    return untouched and exists(fs, path, source.base_offset, LOG, "")
