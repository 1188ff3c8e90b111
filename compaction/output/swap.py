"""Puts cleaned segments in place of their sources so that no kill and no power loss can lose a record.

Mirrors ``LocalLog.replaceSegments`` and ``UnifiedLog.deleteProducerSnapshots`` (Kafka 4.3.0), with ``.clean`` where Kafka
writes ``.cleaned``. Steps, each safe on disk before the next:

1. every output file is fsynced, verified and named ``<base>.<kind>.clean``; the journal is written: the commit point
2. group by group, ascending: ``.log.clean`` becomes ``.log.swap``, then ``.index``, ``.timeindex``, ``.txnindex``
3. the group's outputs are there, with the size and the time of when they were read back (the next run, if this one is killed,
   reads them again); then its sources become ``.deleted``, ascending, log first
4. ``.swap`` is stripped, log first; snapshots of vanished segments become ``.deleted``
5. after the last group: the cleaner checkpoint; outputs are looked at under their final names; then the journal goes

After the journal is there, no error path removes an output, and no source is removed before the journal is. What turns out
to be wrong then is undone (``rollback``): the ``.deleted`` files get their names back.

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
from dataclasses import dataclass

from compaction.errors import StorageError
from compaction.fs.contents import Written
from compaction.fs.filesystem import FileStat, FileSystem, join
from compaction.locking.claim import NOBODY, Owner
from compaction.logdir.checkpoint_store import Change, CheckpointFiles
from compaction.logdir.discover import LogLocation
from compaction.names import (
    CLEAN,
    CLEANED,
    CLEANER_OFFSETS,
    DELETED,
    LOG,
    SEGMENT_KINDS,
    SNAPSHOT,
    SWAP,
    parse_segment_file,
    segment_file,
)
from compaction.output.journal import JOURNAL, Journal, JournalGroup, Source, remove_journal, write_journal


@dataclass(frozen=True)
class SwapGroup:
    """One output segment and the segments that it replaces, the first of which has its base offset.

    ``suffix`` is what its files end with now: ``<base>.log<suffix>``, ``.index``, ``.timeindex`` and, if there is one,
    ``.txnindex``. ``mtime_ms`` is their time of last modification, for places that do not keep it. ``files`` is what they hold.
    """

    base_offset: int
    source_base_offsets: tuple[int, ...]
    suffix: str = CLEAN
    mtime_ms: int = 0
    files: tuple[Written, ...] = ()


def replace_segments(
    fs: FileSystem,
    location: LogLocation,
    groups: Sequence[SwapGroup],
    *,
    end_offset: int | None,
    checkpoints: CheckpointFiles | None = None,
    owner: Owner = NOBODY,
) -> None:
    """Replace each group's sources by its output, then move the log's cleaner checkpoint to ``end_offset``.

    Until the commit point an error leaves the log as it was, outputs removed. After it the swap stays half done only
    until the next run, which finishes it first; the log serves every survivor meanwhile. The sources stay as ``.deleted``.

    :param checkpoints: where several logs of a directory are swapped in at once, theirs
    :param owner: the claim of this run on the log directory, looked at before each group
    :raises StorageError: the file system refused, or another run works here
    :raises CorruptLogError: the cleaner checkpoint is malformed; nothing was changed
    """
    path, checkpoints = location.path, checkpoints or CheckpointFiles(fs)
    ordered = sorted(groups, key=lambda group: group.base_offset)
    try:
        owner.require()
        for group in ordered:
            _promote(fs, path, group)
        previous = checkpoints.offset(location.log_dir, CLEANER_OFFSETS, location.topic_partition)
        journal = Journal(tuple(_record(fs, path, group) for group in ordered), previous, end_offset, owner.token)
        fs.fsync_dir(path)
        if ordered:
            _require_no_journal(fs, path)
            write_journal(fs, path, journal, join(path, segment_file(ordered[0].base_offset, LOG)))
    except Exception:
        _discard_quietly(fs, path)
        raise
    for recorded in journal.groups:
        owner.require()
        finish_group(fs, path, recorded)
    owner.require()
    finish_swap(fs, location, journal, checkpoints)


def finish_group(fs: FileSystem, path: str, group: JournalGroup) -> None:
    """Bring one group from wherever its swap stopped to its end (steps 2 to 4). Repeating it changes nothing.

    Each output file is in one of three places: ``.clean``, ``.swap`` or final. A file under a group's final name is a source as
    long as its output is in one of the first two.

    :raises StorageError: the output is not what the journal says; no source was touched
    """
    base = group.base_offset
    for kind in group.kinds:
        rename_if_there(fs, path, segment_file(base, kind, CLEAN), segment_file(base, kind, SWAP))
        if kind == LOG:
            fs.fsync_dir(path)
    fs.fsync_dir(path)
    outputs = _require_output(fs, path, group)
    for source in group.sources:
        for kind in SEGMENT_KINDS:
            _retire(fs, join(path, segment_file(source.base_offset, kind)), outputs if source.base_offset == base else {})
    fs.fsync_dir(path)
    for kind in group.kinds:
        rename_if_there(fs, path, segment_file(base, kind, SWAP), segment_file(base, kind))
        if kind == LOG:
            fs.fsync_dir(path)
    for source in group.sources:
        if source.base_offset != base:
            name = segment_file(source.base_offset, SNAPSHOT)
            rename_if_there(fs, path, name, name + DELETED)
    fs.fsync_dir(path)


def _retire(fs: FileSystem, name: str, outputs: Mapping[str, FileStat | None]) -> None:
    """Make a source's file ``.deleted``.

    A file that an output of the same name is going to replace only gets a second name; the output takes the first one from it.
    So there is no moment without a file of this name, nor can a broker, which starts meanwhile because locks do not work, and
    finishes the swap, have its output taken for the source: that would have another inode. If the file system knows no second
    names, the file is renamed, and renamed back if it was the output.

    :param outputs: the group's, as ``_require_output`` found them: unless the one of this name is there as ``.swap``, the file
        is no source any more
    """
    swap, source = outputs.get(name), fs.stat(name)
    if source is None or (name in outputs and swap is None):
        return
    if swap is not None and (fs.link(name, name + DELETED) or _is_linked(fs, name, source)):
        linked = fs.stat(name + DELETED)
        if linked is not None and linked.inode == swap.inode:
            fs.unlink(name + DELETED)
        return
    fs.rename(name, name + DELETED)
    renamed = None if swap is None else fs.stat(name + DELETED)
    if swap is not None and renamed is not None and renamed.inode == swap.inode:
        fs.rename(name + DELETED, name)


def _is_linked(fs: FileSystem, name: str, source: FileStat) -> bool:
    """Whether a source has its second name already."""
    found = fs.stat(name + DELETED)
    return found is not None and (found.device, found.inode) == (source.device, source.inode)


def _require_output(fs: FileSystem, path: str, group: JournalGroup) -> dict[str, FileStat | None]:
    """By final name, the ``.swap`` files of an output; ``None`` for those that have their final name.

    :raises StorageError: a file of the output, ``.swap`` or final, is not the one that was read back
    """
    found_as_swap: dict[str, FileStat | None] = {}
    sources = {source.inode for source in group.sources}
    for written in group.files:
        name = join(path, segment_file(group.base_offset, written.kind))
        found_as_swap[name] = fs.stat(name + SWAP)
        found = found_as_swap[name] or fs.stat(name)
        # a source may have the size of its output, and has its time
        if not _is_that(found, written) or (found is not None and found.inode in sources):
            raise StorageError("output has changed since it was written", path=name, hint=_NEXT_RUN)
    return found_as_swap


def _require_unchanged(fs: FileSystem, path: str, written: Written) -> None:
    """:raises StorageError: size or time of last modification of an output are others"""
    if not _is_that(fs.stat(path), written):
        raise StorageError("output has changed since it was written", path=path, hint=_NEXT_RUN)


def _is_that(found: FileStat | None, written: Written) -> bool:
    return found is not None and (found.size, found.mtime_ns) == (written.size, written.mtime_ns)


def finish_swap(fs: FileSystem, location: LogLocation, journal: Journal, checkpoints: CheckpointFiles) -> None:
    """Move the cleaner checkpoint, if it still is where the round began, and end the swap (step 5).

    :raises StorageError: an output is not there any more as it was; the journal stays, and the next run repairs it
    """
    if journal.end_offset is not None:
        expected = (journal.previous_checkpoint,)
        log = join(location.path, segment_file(journal.groups[0].base_offset, LOG)) if journal.groups else None
        change = Change(location.topic_partition, journal.end_offset, expected, log or any_log(fs, location.path))
        checkpoints.change(location.log_dir, CLEANER_OFFSETS, change)
    if not journal.groups:
        discard_unfinished(fs, location.path)
        return
    for group in journal.groups:
        for written in group.files:
            _require_unchanged(fs, join(location.path, segment_file(group.base_offset, written.kind)), written)
    discard_unfinished(fs, location.path)
    remove_journal(fs, location.path)


_NEXT_RUN = "the next run puts the segments back that it replaced; check the disk, and what else works here"


def discard_unfinished(fs: FileSystem, log_path: str) -> int:
    """Remove what tasks or a broker's cleaner left: ``.clean``, ``.clean.<attempt>``, ``.cleaned``; how many files.

    A ``.cleaned`` file beside a ``.swap`` one stays: it says that the segments to be replaced are still those that count.
    """
    every = fs.listdir(log_path)
    swapping = any(name.endswith(SWAP) for name in every)
    names = [name for name in every if is_unfinished(name) and not (swapping and name.endswith(CLEANED))]
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
        rename_if_there(fs, log_path, name, name + DELETED)


def _promote(fs: FileSystem, path: str, group: SwapGroup) -> None:
    """Make an attempt's files the group's.

    :raises StorageError: one of them is not there as it was verified
    """
    for written in group.files:
        name = join(path, segment_file(group.base_offset, written.kind, group.suffix))
        if not _is_that(fs.stat(name), written):
            raise StorageError("output of this run has vanished or changed", path=name, hint="run again")
        if group.suffix != CLEAN:
            fs.rename(name, join(path, segment_file(group.base_offset, written.kind, CLEAN)))


def _record(fs: FileSystem, path: str, group: SwapGroup) -> JournalGroup:
    base = group.base_offset
    sources = tuple(source_at(fs, path, source) for source in sorted(group.source_base_offsets))
    if not sources or sources[0].base_offset != base:
        raise StorageError("the first segment of a group is not at its base offset", path=join(path, segment_file(base, LOG)))
    return JournalGroup(base, group.files, sources)


def _require_no_journal(fs: FileSystem, path: str) -> None:
    if fs.stat(join(path, JOURNAL)) is not None:
        hint = "let one run at a time work on a directory"
        raise StorageError("another run is swapping this log", path=join(path, JOURNAL), hint=hint)


def source_at(fs: FileSystem, path: str, base_offset: int, suffix: str = "") -> Source:
    """A segment's log as it is now.

    :raises StorageError: it is not there
    """
    name = join(path, segment_file(base_offset, LOG, suffix))
    found = fs.stat(name)
    if found is None:
        raise StorageError("segment has vanished", path=name, hint="make sure that nothing else works on this directory")
    return Source(base_offset, found.size, found.mtime_ns, found.inode)


def exists(fs: FileSystem, path: str, base_offset: int, kind: str, suffix: str) -> bool:
    """Whether a segment has a file of this kind and suffix."""
    return fs.stat(join(path, segment_file(base_offset, kind, suffix))) is not None


def rename_if_there(fs: FileSystem, path: str, source: str, target: str) -> None:
    """Rename a file of a directory, if there is such a file."""
    if fs.stat(join(path, source)) is not None:
        fs.rename(join(path, source), join(path, target))


def any_log(fs: FileSystem, path: str) -> str | None:
    """A segment's log file of a partition directory, if there is one."""
    return next((join(path, name) for name in fs.listdir(path) if name.endswith(LOG)), None)


def _discard_quietly(fs: FileSystem, path: str) -> None:
    """Clean up after an error without hiding it. If the journal is there, or nobody can tell, its outputs stay."""
    try:
        if fs.stat(join(path, JOURNAL)) is None:
            discard_unfinished(fs, path)
    except StorageError:
        return
