"""Puts cleaned segments in place of their sources so that no kill and no power loss can lose a record.

Mirrors ``LocalLog.replaceSegments`` and ``UnifiedLog.deleteProducerSnapshots`` (Kafka 4.3.0), with ``.clean`` where Kafka
writes ``.cleaned``. Steps, each safe on disk before the next:

1. every output file is fsynced and named ``<base>.<kind>.clean``; the journal is written: the commit point
2. group by group, ascending: ``.log.clean`` becomes ``.log.swap``, then ``.index``, ``.timeindex``, ``.txnindex``
3. the group's sources become ``.deleted``, ascending, log first
4. ``.swap`` is stripped, log first; snapshots of vanished segments become ``.deleted``
5. after the last group: the cleaner checkpoint, then the journal goes

What a broker that starts in between does (``LogLoader``; it passes over ``.clean`` and the journal):

* in 1: it sees the sources only.
* in 2: it finds ``<base>.log.swap``, removes the segments from its base up to its next offset, ``.clean`` files of that
  range included, and renames it. What it removed begins below the cleaned log's end, so every survivor of it is in the
  cleaned log; the missing indexes it makes anew. A lost ``.txnindex`` loses nothing: groups go in ascending order, so the
  aborted data that it speaks of is gone from this group and from all before it. (Were groups to go in descending order, or
  several at once, aborted records of an older group would turn up as committed, and segments between two groups would be
  removed.) The log goes first because an index that became ``.swap`` without it would be renamed over the sources' index.
* in 3: as in 2; sources past the cleaned log's end stay, with records that are superseded, which is no loss.
* in 4: it renames the rest.

Groups that are not swapped yet stay as they were: a broker's own cleaner leaves the same between two groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compaction.errors import StorageError
from compaction.names import (
    CLEAN,
    CLEANED,
    CLEANER_OFFSETS,
    DELETED,
    LOG,
    SEGMENT_KINDS,
    SNAPSHOT,
    SWAP,
    TXNINDEX,
    parse_segment_file,
    segment_file,
)
from compaction.storage.checkpoint_store import Change, CheckpointFiles
from compaction.storage.discover import LogLocation
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.journal import Journal, JournalGroup, Source, remove_journal, write_journal
from compaction.storage.manifest import Content


@dataclass(frozen=True)
class SwapGroup:
    """One output segment and the segments that it replaces, the first of which has its base offset.

    ``suffix`` is what its files end with now: ``<base>.log<suffix>``, ``.index``, ``.timeindex`` and, where there is one,
    ``.txnindex``. ``mtime_ms`` is their time of last modification, for places that do not keep it;
    ``contents`` are those of its files by kind, where they are in such a place.
    """

    base_offset: int
    source_base_offsets: tuple[int, ...]
    suffix: str = CLEAN
    mtime_ms: int = 0
    contents: Mapping[str, Content] = field(default_factory=dict)


def swap_in(
    fs: FileSystem,
    location: LogLocation,
    groups: Sequence[SwapGroup],
    *,
    end_offset: int | None,
    checkpoints: CheckpointFiles | None = None,
) -> None:
    """Replace each group's sources by its output, then move the log's cleaner checkpoint to ``end_offset``.

    Until the commit point an error leaves the log as it was, outputs removed. After it the swap stays half done only
    until the next run, which finishes it first; the log serves every survivor meanwhile. The sources stay as ``.deleted``.

    :param checkpoints: where several logs of a directory are swapped in at once, theirs
    :raises StorageError: the file system refused
    :raises CorruptLogError: the cleaner checkpoint is garbled; nothing was changed
    """
    path, checkpoints = location.path, checkpoints or CheckpointFiles(fs)
    ordered = sorted(groups, key=lambda group: group.base_offset)
    try:
        for group in ordered:
            _promote(fs, path, group)
        previous = checkpoints.offset(location.log_dir, CLEANER_OFFSETS, location.topic_partition)
        journal = Journal(tuple(_record(fs, path, group) for group in ordered), previous, end_offset)
        fs.fsync_dir(path)
        if ordered:
            write_journal(fs, path, journal)
    except Exception:
        _discard_quietly(fs, path)
        raise
    for recorded in journal.groups:
        finish_group(fs, path, recorded)
    finish_round(fs, location, journal, checkpoints)


def finish_group(fs: FileSystem, path: str, group: JournalGroup) -> None:
    """Bring one group from wherever its swap stopped to its end (steps 2 to 4). Repeating it changes nothing.

    Each output file is in one of three places: ``.clean``, ``.swap`` or final. A file under a group's final name is a source as
    long as its output is in one of the first two.
    """
    base = group.base_offset
    for kind in group.kinds:
        _rename_if_there(fs, path, segment_file(base, kind, CLEAN), segment_file(base, kind, SWAP))
        if kind == LOG:
            fs.fsync_dir(path)
    fs.fsync_dir(path)
    for source in group.sources:
        for kind in SEGMENT_KINDS:
            if source.base_offset != base or kind not in group.kinds or _exists(fs, path, base, kind, SWAP):
                name = segment_file(source.base_offset, kind)
                _rename_if_there(fs, path, name, name + DELETED)
    fs.fsync_dir(path)
    for kind in group.kinds:
        _rename_if_there(fs, path, segment_file(base, kind, SWAP), segment_file(base, kind))
        if kind == LOG:
            fs.fsync_dir(path)
    for source in group.sources:
        if source.base_offset != base:
            name = segment_file(source.base_offset, SNAPSHOT)
            _rename_if_there(fs, path, name, name + DELETED)
    fs.fsync_dir(path)


def finish_round(fs: FileSystem, location: LogLocation, journal: Journal, checkpoints: CheckpointFiles) -> None:
    """Move the cleaner checkpoint, if it still is where the round began, and end the swap (step 5)."""
    if journal.end_offset is not None:
        expected = (journal.previous_checkpoint,)
        change = Change(location.topic_partition, journal.end_offset, expected, any_log(fs, location.path))
        checkpoints.change(location.log_dir, CLEANER_OFFSETS, change)
    discard_unfinished(fs, location.path)
    if journal.groups:
        remove_journal(fs, location.path)


def discard_unfinished(fs: FileSystem, log_path: str) -> int:
    """Remove what tasks or a broker's cleaner left: ``.clean``, ``.clean.<attempt>``, ``.cleaned``; how many files."""
    names = [name for name in fs.listdir(log_path) if is_unfinished(name)]
    for name in names:
        fs.unlink(join(log_path, name))
    return len(names)


def remove_deleted(fs: FileSystem, log_path: str) -> int:
    """Remove the ``.deleted`` files of a log: bytes freed."""
    freed = 0
    for name in fs.listdir(log_path):
        file = parse_segment_file(name)
        if file is None or not file.suffix.endswith(DELETED):
            continue
        found = fs.stat(join(log_path, name))
        freed += 0 if found is None else found.size
        fs.unlink(join(log_path, name))
    return freed


def is_unfinished(name: str) -> bool:
    """Whether a file name is that of an output which no swap has taken up."""
    file = parse_segment_file(name)
    return file is not None and (file.suffix in (CLEAN, CLEANED) or file.suffix.startswith(CLEAN + "."))


def mark_deleted(fs: FileSystem, log_path: str, base_offset: int, kinds: Iterable[str] = (*SEGMENT_KINDS, SNAPSHOT)) -> None:
    """Rename a segment's files to ``.deleted``, log first."""
    for kind in kinds:
        name = segment_file(base_offset, kind)
        _rename_if_there(fs, log_path, name, name + DELETED)


def _promote(fs: FileSystem, path: str, group: SwapGroup) -> None:
    """Make an attempt's files the group's, and safe."""
    for kind in SEGMENT_KINDS:
        name = segment_file(group.base_offset, kind, group.suffix)
        if fs.stat(join(path, name)) is None:
            if kind != TXNINDEX:
                raise StorageError("output of this run has vanished", path=join(path, name), hint="run again")
            continue
        fs.fsync(join(path, name))
        if group.suffix != CLEAN:
            fs.rename(join(path, name), join(path, segment_file(group.base_offset, kind, CLEAN)))


def _record(fs: FileSystem, path: str, group: SwapGroup) -> JournalGroup:
    base = group.base_offset
    kinds = tuple(kind for kind in SEGMENT_KINDS if _exists(fs, path, base, kind, CLEAN))
    sources = tuple(source_at(fs, path, source) for source in sorted(group.source_base_offsets))
    if not sources or sources[0].base_offset != base:
        raise StorageError("the first segment of a group is not at its base offset", path=join(path, segment_file(base, LOG)))
    return JournalGroup(base, source_at(fs, path, base, CLEAN).size_bytes, kinds, sources)


def source_at(fs: FileSystem, path: str, base_offset: int, suffix: str = "") -> Source:
    """A segment's log as it is now.

    :raises StorageError: it is not there
    """
    name = join(path, segment_file(base_offset, LOG, suffix))
    found = fs.stat(name)
    if found is None:
        raise StorageError("segment has vanished", path=name, hint="make sure that nothing else works on this directory")
    return Source(base_offset, found.size, found.mtime_ns)


def _exists(fs: FileSystem, path: str, base_offset: int, kind: str, suffix: str) -> bool:
    return fs.stat(join(path, segment_file(base_offset, kind, suffix))) is not None


def _rename_if_there(fs: FileSystem, path: str, source: str, target: str) -> None:
    if fs.stat(join(path, source)) is not None:
        fs.rename(join(path, source), join(path, target))


def any_log(fs: FileSystem, path: str) -> str | None:
    """A segment's log file of a partition directory, if there is one."""
    return next((join(path, name) for name in fs.listdir(path) if name.endswith(LOG)), None)


def _discard_quietly(fs: FileSystem, path: str) -> None:
    """Clean up after an error without hiding it."""
    try:
        discard_unfinished(fs, path)
    except StorageError:
        return
