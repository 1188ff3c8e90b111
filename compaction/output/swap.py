"""Replaces segments by their cleaned output so that neither a kill nor a power loss can lose a record.

Mirrors ``LocalLog.replaceSegments`` and ``UnifiedLog.deleteProducerSnapshots``, with ``.clean`` where Kafka
writes ``.cleaned``. Steps, each durable before the next:

1. Every output file is fsynced, verified and renamed to ``<base>.<kind>.clean``. Writing the journal is the commit point.
2. Group by group, in ascending order: ``.log.clean`` is renamed to ``.log.swap``, then ``.index``, ``.timeindex`` and
   ``.txnindex``.
3. The group's outputs must have the size and mtime that they had when they were read back. (After a kill, the next run reads
   their content again.) Then its sources are renamed to ``.deleted``, in ascending order, log first.
4. The ``.swap`` suffix is removed, log first. Snapshots of replaced segments are renamed to ``.deleted``.
5. After the last group the cleaner checkpoint is moved, except by an erasure, the outputs are checked under their final names,
   and the journal is removed.

Once the journal exists, no error path removes an output; as long as it exists, no source is removed. If an output turns out to
be damaged, the swap is rolled back: the ``.deleted`` files get their names back (``compaction.recovery.interrupted_swap``).

A broker that starts between two steps runs ``LogLoader``, which ignores ``.clean`` files and the journal:

* During step 1 it sees only the sources.
* During step 2 it finds ``<base>.log.swap``, deletes the segments from its base offset up to its next offset, with their
  ``.clean`` files, and renames it. The deleted segments start below the end of the cleaned log, so all their survivors are in
  the cleaned log. It rebuilds the missing offset and time indexes. A lost ``.txnindex`` is harmless: groups are swapped in
  ascending order, so its aborted data has been removed from this group and all earlier ones. (In descending order, or with
  several groups at once, aborted records of an older group would be read as committed, and segments between two groups would be
  deleted.) The log is renamed first because an index that became ``.swap`` without it would be renamed over the source's index.
* During step 3 it does the same. Sources past the end of the cleaned log remain with superseded records, which is harmless.
* During step 4 it removes the remaining ``.swap`` suffixes.

Groups that are not swapped yet are unchanged; a broker's own cleaner leaves the same state between two groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from compaction.errors import StorageError
from compaction.files.contents import FileDigest
from compaction.files.durable import DurableSteps, names_in
from compaction.files.filesystem import FileStat, FileSystem, join
from compaction.log.access import NO_OWNER, Owner
from compaction.log.checkpoint_store import Change, CheckpointFiles
from compaction.names import (
    CLEAN,
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
from compaction.output.journal import JOURNAL, Journal, JournalGroup, Source, remove_journal, write_journal
from compaction.output.segment_files import any_log, change_suffixes, discard_unfinished

_HINT = "the next run restores the segments that were replaced; check the disk, and what else writes to this directory"


@dataclass(frozen=True)
class SwapGroup:
    """One output segment and the segments that it replaces, ascending; it has the base offset of the first.

    ``files`` describes the output's files, now named ``<base>.log<suffix>``, ``.index<suffix>``, ``.timeindex<suffix>`` and, if
    needed, ``.txnindex<suffix>``. ``mtime_ms`` is their modification time, for object stores, which do not keep it.
    """

    source_base_offsets: tuple[int, ...]
    suffix: str = CLEAN
    mtime_ms: int = 0
    files: tuple[FileDigest, ...] = ()

    @property
    def base_offset(self) -> int:
        return self.source_base_offsets[0]


def replace_segments(
    fs: FileSystem,
    location: LogLocation,
    groups: Sequence[SwapGroup],
    *,
    end_offset: int | None,
    checkpoints: CheckpointFiles | None = None,
    owner: Owner = NO_OWNER,
) -> DurableSteps[None]:
    """Replaces each group's sources by its output, then moves the log's cleaner checkpoint to ``end_offset``.

    An error before the commit point leaves the log unchanged and removes the outputs. After an error past it, the log still
    serves every survivor, and the next run finishes the swap first. The sources remain as ``.deleted``.

    :param end_offset: ``None`` leaves the checkpoint as it is
    :param checkpoints: shared by swaps of several logs of the directory at once
    :param owner: this run's claim on the log directory, checked before each group
    :raises StorageError: the file system refused, or another run works on this directory
    :raises CorruptLogError: the cleaner checkpoint is malformed; nothing was changed
    """
    path, checkpoints = location.path, checkpoints or CheckpointFiles(fs)
    ordered = sorted(groups, key=lambda group: group.base_offset)
    try:
        owner.require()
        # before a rename replaces outputs of another run, and again before the commit
        _require_no_journal(fs, path)
        for group in ordered:
            _rename_to_clean(fs, path, group)
        previous = checkpoints.file(location.log_dir, CLEANER_OFFSETS).offset(location.topic_partition)
        sources = (tuple(source_at(fs, path, base) for base in group.source_base_offsets) for group in ordered)
        recorded = tuple(JournalGroup(group.base_offset, group.files, of) for group, of in zip(ordered, sources, strict=True))
        journal = Journal(recorded, previous, end_offset, owner.token)
        yield names_in(path)
        if ordered:
            _require_no_journal(fs, path)
            yield from write_journal(fs, path, journal, join(path, segment_file(ordered[0].base_offset, LOG)))
    except Exception:
        with suppress(StorageError):
            discard_outputs(fs, path)
        raise
    for committed in journal.groups:
        owner.require()
        yield from finish_group(fs, path, committed)
    owner.require()
    yield from finish_swap(fs, location, journal, checkpoints)


def has_replaced_segments(fs: FileSystem, path: str) -> bool:
    """Whether a swap, of a run or of a broker, was interrupted or has left the segments that it replaced."""
    try:
        names = fs.listdir(path)
    except StorageError:
        # reported when the log is read
        return False
    suffixes = (file.suffix for file in map(parse_segment_file, names) if file is not None)
    return JOURNAL in names or any(suffix == SWAP or suffix.endswith(DELETED) for suffix in suffixes)


def finish_group(fs: FileSystem, path: str, group: JournalGroup) -> DurableSteps[None]:
    """Finishes the swap of one group (steps 2 to 4), wherever it was interrupted. Idempotent.

    Each output file is named ``.clean``, ``.swap`` or finally. A file with a final name is a source as long as its output still
    has one of the suffixes.

    :raises StorageError: the output is not what the journal says; no source was changed
    """
    yield from _change_log_first(fs, path, group, CLEAN, SWAP)
    yield names_in(path)
    outputs = _require_output(fs, path, group)
    for source in group.sources:
        for kind in SEGMENT_KINDS:
            _delete_source(fs, join(path, segment_file(source.base_offset, kind)), outputs)
    yield names_in(path)
    yield from _change_log_first(fs, path, group, SWAP, "")
    for source in group.sources:
        if source.base_offset != group.base_offset:
            change_suffixes(fs, path, source.base_offset, "", DELETED, (SNAPSHOT,))
    yield names_in(path)


def _change_log_first(fs: FileSystem, path: str, group: JournalGroup, old: str, new: str) -> DurableSteps[None]:
    """Renames an output's files; the log's new name is durable before the indexes are renamed."""
    change_suffixes(fs, path, group.base_offset, old, new, (LOG,))
    yield names_in(path)
    change_suffixes(fs, path, group.base_offset, old, new, (kind for kind in group.kinds if kind != LOG))


def _delete_source(fs: FileSystem, name: str, outputs: Mapping[str, FileStat | None]) -> None:
    """Rename a source's file to ``.deleted``.

    If an output is about to replace the file, ``.deleted`` becomes a second hard link, and renaming the output replaces the
    first. So the name always exists. Nor is the output mistaken for the source if a broker starts meanwhile (locks may not
    work) and finishes the swap: the output has another inode. Without hard links the file is renamed, and renamed back if it
    was the output.

    :param outputs: as ``_require_output`` returned them; unless the output of this name is still ``.swap``, the source is gone
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
    """Whether a source already has its ``.deleted`` link."""
    stat = fs.stat(name + DELETED)
    return stat is not None and (stat.device, stat.inode) == (source.device, source.inode)


def _require_output(fs: FileSystem, path: str, group: JournalGroup) -> dict[str, FileStat | None]:
    """The output's ``.swap`` files by final name; ``None`` for those that have their final name.

    :raises StorageError: a file of the output, ``.swap`` or final, is not the one that was read back
    """
    found_as_swap: dict[str, FileStat | None] = {}
    sources = {source.inode for source in group.sources}
    for written in group.files:
        name = join(path, segment_file(group.base_offset, written.kind))
        found_as_swap[name] = fs.stat(name + SWAP)
        stat = found_as_swap[name] or fs.stat(name)
        # a source may have the size of its output, and has its mtime
        if not _matches(stat, written) or (stat is not None and stat.inode in sources):
            raise _changed(name)
    return found_as_swap


def _matches(stat: FileStat | None, written: FileDigest) -> bool:
    return stat is not None and (stat.size, stat.mtime_ns) == (written.size, written.mtime_ns)


def _changed(path: str) -> StorageError:
    return StorageError("output has changed since it was written", path=path, hint=_HINT)


def finish_swap(fs: FileSystem, location: LogLocation, journal: Journal, checkpoints: CheckpointFiles) -> DurableSteps[None]:
    """Moves the cleaner checkpoint, unless it has moved since the swap began, and removes the journal (step 5).

    :raises StorageError: an output is missing or has changed; the journal remains, and the next run rolls back
    """
    path = location.path
    if journal.end_offset is not None:
        expected = (journal.previous_checkpoint,)
        change = Change(location.topic_partition, journal.end_offset, expected, any_log(fs, path))
        yield from checkpoints.file(location.log_dir, CLEANER_OFFSETS).change(change)
    for group in journal.groups:
        for written in group.files:
            name = join(path, segment_file(group.base_offset, written.kind))
            if not _matches(fs.stat(name), written):
                raise _changed(name)
    discard_unfinished(fs, path)
    if journal.groups:
        yield from remove_journal(fs, path)


def _rename_to_clean(fs: FileSystem, path: str, group: SwapGroup) -> None:
    """Rename the files of the winning attempt.

    :raises StorageError: one of them is missing, or not as it was verified
    """
    for written in group.files:
        name = join(path, segment_file(group.base_offset, written.kind, group.suffix))
        if not _matches(fs.stat(name), written):
            raise StorageError("output of this run has vanished or changed", path=name, hint="run again")
        if group.suffix != CLEAN:
            fs.rename(name, join(path, segment_file(group.base_offset, written.kind, CLEAN)))


def _require_no_journal(fs: FileSystem, path: str) -> None:
    if fs.stat(join(path, JOURNAL)) is not None:
        hint = "let one run at a time work on a directory"
        raise StorageError("another run is swapping this log", path=join(path, JOURNAL), hint=hint)


def source_at(fs: FileSystem, path: str, base_offset: int) -> Source:
    """A segment's log as the journal records it.

    :raises StorageError: it is missing
    """
    name = join(path, segment_file(base_offset, LOG))
    stat = fs.stat(name)
    if stat is None:
        raise StorageError("segment has vanished", path=name, hint="make sure that nothing else works on this directory")
    return Source(base_offset, stat.size, stat.mtime_ns, stat.inode)


def discard_outputs(fs: FileSystem, path: str) -> None:
    """Removes the outputs of a log that are not swapped in. They are kept if a journal exists: their swap has begun.

    :raises StorageError: the file system refused
    """
    if fs.stat(join(path, JOURNAL)) is None:
        discard_unfinished(fs, path)
