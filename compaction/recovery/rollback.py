"""Undoes a swap whose output is not what the journal says: the sources, which are ``.deleted``, get their names back.

What a broker has done since the swap stopped stays: it finishes swaps by its own rules, and its cleaner may have gone on.
"""

from __future__ import annotations

from compaction.errors import CorruptLogError
from compaction.fs.contents import find_mismatch
from compaction.fs.filesystem import FileSystem, join
from compaction.names import CLEAN, DELETED, LOG, SEGMENT_KINDS, SNAPSHOT, SWAP, segment_file
from compaction.output.journal import JournalGroup, Source
from compaction.output.swap import exists, rename_if_there


def roll_back(fs: FileSystem, path: str, group: JournalGroup) -> None:
    """Put a group's sources back in place of an output that is not what the journal says.

    The last source comes first: until the first one replaces the output, nothing that the output may hold is missing.

    :raises CorruptLogError: a source is gone; nothing was changed
    """
    base = group.base_offset
    if _was_final(fs, path, group) or not _can_undo(fs, path, group):
        # a broker has worked here since: what it left is the log
        return
    # as long as the output's log is .clean, no source was touched: .deleted and .swap are a broker's doing then
    touched = not exists(fs, path, base, LOG, CLEAN)
    for source in group.sources if touched else ():
        if not _has_source(fs, path, source, group):
            what = "neither the output of an earlier swap nor the segment that it replaced is there as the journal says"
            name = join(path, segment_file(source.base_offset, LOG))
            raise CorruptLogError(what, path=name, hint="restore this segment from a replica or a backup")
    for source in reversed(group.sources if touched else ()):
        for kind in (*reversed(SEGMENT_KINDS), SNAPSHOT):
            name = segment_file(source.base_offset, kind)
            if source.base_offset == base and kind in group.kinds and not exists(fs, path, base, kind, DELETED):
                if kind != LOG and not exists(fs, path, base, LOG, SWAP):
                    # an index of the output: the source had none, or has it back already; missing ones are built anew
                    fs.unlink(join(path, name))
                continue
            rename_if_there(fs, path, name + DELETED, name)
        fs.fsync_dir(path)
    for kind in reversed(SEGMENT_KINDS):
        for suffix in (SWAP, CLEAN) if touched else (CLEAN,):
            fs.unlink(join(path, segment_file(base, kind, suffix)))
    fs.fsync_dir(path)


def _was_final(fs: FileSystem, path: str, group: JournalGroup) -> bool:
    """Whether the group's log has had its final name already: what is otherwise there is a broker's doing since.

    Its own cleaner may have replaced the output again, and have been stopped half way. A source may have the output's content.
    """
    sources = {source.inode for source in group.sources}
    log = join(path, segment_file(group.base_offset, LOG))
    for name in (log, log + DELETED):
        found = fs.stat(name)
        if found is not None and found.inode not in sources and find_mismatch(fs, name, group.files[0]) is None:
            return True
    return False


def _can_undo(fs: FileSystem, path: str, group: JournalGroup) -> bool:
    """Whether anything is left of the group's swap: a log that has no final name yet, or a source's ``.deleted`` log.

    An index may be ``.swap`` without a log because a broker's own cleaner was stopped here since.
    """
    if any(exists(fs, path, group.base_offset, LOG, suffix) for suffix in (CLEAN, SWAP)):
        return True
    found = ((fs.stat(join(path, segment_file(s.base_offset, LOG, DELETED))), s) for s in group.sources)
    return any(stat is not None and (stat.size, stat.mtime_ns) == (s.size_bytes, s.mtime_ns) for stat, s in found)


def _has_source(fs: FileSystem, path: str, source: Source, group: JournalGroup) -> bool:
    """Whether a source's log is there, ``.deleted`` or under its own name."""
    for suffix in (DELETED, ""):
        found = fs.stat(join(path, segment_file(source.base_offset, LOG, suffix)))
        if found is not None and (found.size, found.mtime_ns) == (source.size_bytes, source.mtime_ns):
            # an output may have its source's size and time, but not its inode
            if suffix or found.inode == source.inode:
                return True
    # under its own name something newer may have taken its place, as long as the swap had not touched it
    untouched = any(exists(fs, path, group.base_offset, LOG, suffix) for suffix in (CLEAN, SWAP))
    return untouched and exists(fs, path, source.base_offset, LOG, "")
