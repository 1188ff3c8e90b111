"""Rolls back a swap whose output is not what the journal says: the ``.deleted`` sources get their names back.

Files that a broker has changed since the interruption are kept: it finishes swaps by its own rules, and its cleaner may have
continued.
"""

from __future__ import annotations

from compaction.errors import CorruptLogError
from compaction.names import CLEAN, DELETED, LOG, SEGMENT_KINDS, SNAPSHOT, SWAP, segment_file
from compaction.output.journal import JournalGroup, Source
from compaction.output.segment_files import change_suffixes, exists
from compaction.storage.contents import find_mismatch
from compaction.storage.filesystem import FileSystem, join


def roll_back(fs: FileSystem, path: str, group: JournalGroup) -> None:
    """Restore a group's sources in place of its output.

    The last source is restored first: until the first one replaces the output, no record that the output may hold is missing.

    :raises CorruptLogError: a source is missing; nothing was changed
    """
    base = group.base_offset
    if _was_final(fs, path, group) or not _can_undo(fs, path, group):
        # a broker has worked here since, and left the log as it should be
        return
    # while the output's log is still .clean, no source has been renamed: any .deleted and .swap files are a broker's
    renamed = not exists(fs, path, base, LOG, CLEAN)
    for source in group.sources if renamed else ():
        if not _has_source(fs, path, source, group):
            what = "neither the output of an earlier swap nor the segment that it replaced is as the journal says"
            name = join(path, segment_file(source.base_offset, LOG))
            raise CorruptLogError(what, path=name, hint="restore this segment from a replica or a backup")
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
        found = fs.stat(name)
        if found is not None and found.inode not in sources and find_mismatch(fs, name, group.files[0]) is None:
            return True
    return False


def _can_undo(fs: FileSystem, path: str, group: JournalGroup) -> bool:
    """Whether the group's swap has left a log without its final name, or a source's ``.deleted`` log.

    A ``.swap`` index without its log does not count: a broker's interrupted cleaner may have left it.
    """
    if any(exists(fs, path, group.base_offset, LOG, suffix) for suffix in (CLEAN, SWAP)):
        return True
    found = ((fs.stat(join(path, segment_file(s.base_offset, LOG, DELETED))), s) for s in group.sources)
    return any(stat is not None and (stat.size, stat.mtime_ns) == (s.size_bytes, s.mtime_ns) for stat, s in found)


def _has_source(fs: FileSystem, path: str, source: Source, group: JournalGroup) -> bool:
    """Whether a source's log exists, ``.deleted`` or under its own name."""
    for suffix in (DELETED, ""):
        found = fs.stat(join(path, segment_file(source.base_offset, LOG, suffix)))
        if found is not None and (found.size, found.mtime_ns) == (source.size_bytes, source.mtime_ns):
            # an output may have its source's size and mtime, but not its inode
            if suffix or found.inode == source.inode:
                return True
    # a newer log may have its own name, as long as the swap has not renamed the source
    untouched = any(exists(fs, path, group.base_offset, LOG, suffix) for suffix in (CLEAN, SWAP))
    return untouched and exists(fs, path, source.base_offset, LOG, "")
