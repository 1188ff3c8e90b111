"""Presents exports as log directories, read-only: ``ROOT/<topic>-<partition>/<offset>.log``, and so on.

A log's files are found when its directory is first read. ``real_path`` leads to the stored object if that has the bytes of the
file as they are, so that tasks read it like any object; otherwise to the object's path in the layout (three names or more below
the root), which any process can open without listing the export.

The files of a log are those that stored segments form, on request with the newer segments of a local log directory.

A segment that is used as a whole keeps its files. Of one that is cut, because the other offsets are another leader's or are in
the segment before, only the batches, the aborted transactions and the snapshot at its end are used: recovery rebuilds the
indexes.

An upload of tiered storage is compared with itself and with the log's lineage: it must be one inactive segment of one leader.

1. Its batches end where the segment ends. The offset after the last batch is the one that a manifest states, unless the segment
   was compacted before it was uploaded.
2. The entries of its indexes and its producer snapshot are of its batches: of their positions and their offsets.
3. Its manifest, its own lineage (the leader epoch checkpoint that was uploaded with it) and its batches agree on the leader
   epoch of each offset. A lineage begins at the log start of its time; below that, offsets have no epoch. Batches around the
   first offset of each epoch and at the end are compared: between them, a log's leader epochs cannot decrease.
4. Two lineages with a leader epoch in common have all earlier ones in common, since a leader has one log.

A file that was cut between two batches is found by 1 if the end offset is stated, otherwise only by 2.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np

from compaction.errors import CorruptLogError, LogError, StorageError
from compaction.exports import LAYOUTS, ExportReader, LogFile, Place, StoredLog, StoredSegment
from compaction.exports.lineage import Piece, gap, newest_lineage, select, within
from compaction.exports.stored_segments import Batches, directories, in_parallel, local_log, read_file
from compaction.files.contents import InMemory, open_range
from compaction.files.filesystem import File, FileRange, FileStat, ReadableFileSystem, join, normal
from compaction.files.lock import require_unlocked
from compaction.files.object_store import object_stat
from compaction.files.segment_file import Rows
from compaction.files.uri import KEY_PREFIX, TAIL, layout_path, options_of
from compaction.formats import indexes
from compaction.formats.checkpoints import EpochEntry, format_leader_epochs
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import read_snapshot
from compaction.formats.record_batch import MAGIC
from compaction.names import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG,
    LOG_STARTS,
    PARTITION_METADATA,
    SNAPSHOT,
    TIMEINDEX,
    TXNINDEX,
    TopicPartition,
    parse_partition_dir,
    segment_file,
)
from compaction.screen.amounts import counted

_HINT = "restore the objects of this upload from another copy"


def require_consistent(files: ReadableFileSystem, lineage: Sequence[EpochEntry], segment: StoredSegment) -> None:
    """``CorruptLogError`` if an upload violates a rule; ``lineage`` has the leader epochs of the log."""
    batches = _batches_of(files, segment)
    end = batches.inactive_end_offset(segment.end_offset)
    if segment.end_is_stated and (end > segment.end_offset or (end < segment.end_offset and not batches.have_holes())):
        raise _contradiction(segment, f"ends at offset {end - 1}, its manifest says {segment.end_offset - 1}")
    _require_own_indexes(files, segment, batches)
    own = () if segment.lineage is None else tuple(segment.lineage())
    _require_same_epochs(segment, own)
    _require_one_history(segment, own, lineage)
    for offset in (segment.start_offset, *(entry.start_offset for entry in segment.epochs[1:]), segment.end_offset):
        _require_epochs_around(batches, own, offset)


def _batches_of(files: ReadableFileSystem, segment: StoredSegment) -> Batches:
    return Batches.of(files, segment.path, segment.start_offset, segment.files)


def _require_own_indexes(files: ReadableFileSystem, segment: StoredSegment, batches: Batches) -> None:
    """Malformed indexes are rebuilt; those of another segment show that an object was exchanged or cut."""
    first, end = next(map(int, batches.first(0)["base_offset"]), segment.start_offset), segment.end_offset
    rows = indexes.OFFSET_INDEX.read(batches.index, segment.start_offset)
    if len(rows) and rows["position"][-1] >= len(batches.data):
        problem = f"its offset index has an entry for byte {rows['position'][-1]}, the segment has {len(batches.data)} bytes"
        raise _contradiction(segment, problem)
    times = indexes.TIME_INDEX.read(read_file(files, segment.files.get(TIMEINDEX)), segment.start_offset)
    last_offsets = _last_offsets(files, segment)
    for kind, offsets in (
        ("offset index", rows["offset"]),
        ("time index", times["offset"]),
        ("producer snapshot or transaction index", [end - 1, max(last_offsets)] if last_offsets else []),
    ):
        if len(offsets) and (offsets[0] < first or offsets[-1] >= end):
            wrong = offsets[0] if offsets[0] < first else offsets[-1]
            raise _contradiction(segment, f"its {kind} has offset {wrong}, its batches have {first} to {end - 1}")


def _last_offsets(files: ReadableFileSystem, segment: StoredSegment) -> list[int]:
    """The last offsets of producers and aborted transactions; none of a malformed file, an error of those that read it."""
    found: list[int] = []
    with suppress(FormatError):
        if SNAPSHOT in segment.files:
            found += [entry.last_data_offset for entry in read_snapshot(read_file(files, segment.files[SNAPSHOT]))]
        found += indexes.read_txn_index(read_file(files, segment.files.get(TXNINDEX)))["last_offset"].tolist()
    return found


def _require_same_epochs(segment: StoredSegment, own: Sequence[EpochEntry]) -> None:
    if any(earlier >= later or earlier[1] >= later[1] for earlier, later in pairwise(own)):
        raise _contradiction(segment, f"its leader epoch checkpoint does not ascend: {_text(own)}")
    if not own and not segment.epochs:
        return
    begin = max(epochs[0].start_offset for epochs in (segment.epochs, own) if epochs)
    listed, known = (within(epochs, begin, segment.end_offset) for epochs in (segment.epochs, own))
    if listed != known or not known:
        problem = f"its leader epochs are {_text(segment.epochs)}, in its leader epoch checkpoint {_text(own)}"
        raise _contradiction(segment, problem)


def _require_one_history(segment: StoredSegment, own: Sequence[EpochEntry], lineage: Sequence[EpochEntry]) -> None:
    common = max({entry.epoch for entry in own} & {entry.epoch for entry in lineage}, default=None)
    if common is None:
        return
    begin = max(own[0].start_offset, lineage[0].start_offset)
    shared, expected = ([e for e in epochs if e.epoch <= common and e.start_offset > begin] for epochs in (own, lineage))
    if shared != expected:
        problem = f"its leader epoch checkpoint has {_text(own)}, that of the newest leader {_text(lineage)}"
        raise _contradiction(segment, problem)


def _require_epochs_around(batches: Batches, own: Sequence[EpochEntry], offset: int) -> None:
    """Compare the batches from the index entry before an offset up to that offset."""
    for rows in batches.tables(batches.before(offset)):
        for batch in _of_other_epochs(rows, own)[:1]:
            offsets = f"{batch['base_offset']} to {batch['last_offset']}"
            problem = f"the batch of offsets {offsets} has leader epoch {batch['leader_epoch']}, its checkpoint {_text(own)}"
            raise CorruptLogError(problem, path=batches.path, position=int(batch["position"]), hint=_HINT)
        if rows["last_offset"][-1] >= offset:
            break


def _of_other_epochs(rows: Rows, own: Sequence[EpochEntry]) -> Rows:
    """The batches that have another leader epoch than their offsets have in a lineage; those of v0/v1 have none."""
    rows = rows[(rows["magic"] == MAGIC) & (rows["leader_epoch"] >= 0)]
    if not own:
        return rows
    epochs, starts = np.array(own, np.int64).T
    rows = rows[rows["last_offset"] >= starts[0]]
    first, last = (
        epochs[np.maximum(np.searchsorted(starts, rows[column], "right") - 1, 0)] for column in ("base_offset", "last_offset")
    )
    wrong: Rows = rows[(first != rows["leader_epoch"]) | (last != rows["leader_epoch"])]
    return wrong


def _text(epochs: Sequence[EpochEntry]) -> str:
    return ", ".join(f"{epoch} from offset {start}" for epoch, start in epochs[-3:]) or "empty"


def _contradiction(segment: StoredSegment, problem: str) -> CorruptLogError:
    return CorruptLogError(problem, path=segment.path, hint=_HINT)


_LOGGER = logging.getLogger(__name__)
_INCOMPLETE = "restore the manifests or files from another copy; if nothing else was ever uploaded, give --tail DIR"
_NEWEST = "give the log directory of the partition's leader, or of a replica in sync with it"


def log_files(files: ReadableFileSystem, path: str, stored: StoredLog, tail: StoredLog) -> dict[str, LogFile]:
    """The files of a log's directory, by name.

    :param files: reads the ranges of ``stored``
    :param path: of the log, for messages
    :param tail: what a local log directory has of the log
    :raises CorruptLogError: offsets are missing, a batch is malformed, or an upload contradicts itself or another one
    """
    if None not in (tail.topic_id, stored.topic_id) and tail.topic_id != stored.topic_id:
        message = f"the local tail has topic id {tail.topic_id}, the export has {stored.topic_id}"
        raise CorruptLogError(message, path=path, hint="the topic was created again; give the directory of the same topic")
    if stored.ignored and not stored.segments and not tail.segments:
        raise CorruptLogError(f"no upload is complete: {'; '.join(stored.ignored)}", path=path, hint=_INCOMPLETE)
    lineage = _lineage(path, stored, tail)
    uploads = [segment for segment in stored.segments if segment.lineage is not None]
    in_parallel(partial(require_consistent, files, lineage), uploads)
    exported = _with_complete_batch(files, select(path, stored.segments, lineage), lineage)
    end = max((segment.end_offset for segment in tail.segments), default=None)
    if exported and end is not None and end < exported[-1].end_offset:
        exported_end = exported[-1].end_offset
        message = f"the local tail ends before offset {end}, the export before {exported_end}: it was left behind"
        raise CorruptLogError(message, path=path, hint=_NEWEST)
    _report(path, stored, exported)
    pieces = [*exported, *_newer(path, exported, tail.segments)]
    files_by_name = {name: file for piece in pieces for name, file in _piece_files(files, piece)}
    if not pieces:
        return files_by_name
    mtime_ns = pieces[-1].segment.files[LOG].mtime_ns
    if lineage:
        begin = min(pieces[0].start_offset, lineage[0].start_offset)
        lineage = (lineage[0]._replace(start_offset=begin), *lineage[1:])
        files_by_name[LEADER_EPOCHS] = LogFile.in_memory(format_leader_epochs(lineage).encode(), mtime_ns)
    topic_id = stored.topic_id or tail.topic_id
    if topic_id is not None:
        files_by_name[PARTITION_METADATA] = LogFile.in_memory(f"version: 0\ntopic_id: {topic_id}".encode(), mtime_ns)
    return files_by_name


def _lineage(path: str, stored: StoredLog, tail: StoredLog) -> tuple[EpochEntry, ...]:
    """The local tail's leader epochs, and before its first one those of the export.

    :raises CorruptLogError: the export has a later one, so that the tail is that of a replica which was left behind
    """
    exported, own = (tuple(newest_lineage(log.segments)) for log in (stored, tail))
    if not own:
        return exported
    newest = max((segment.epochs[-1].epoch for segment in stored.segments if segment.epochs), default=-1)
    if newest > own[-1].epoch:
        last = own[-1].epoch
        message = f"the local tail is not of the newest leader: its last leader epoch is {last}, the export has {newest}"
        raise CorruptLogError(message, path=path, hint=_NEWEST)
    # an increased log start has cut the tail's first epoch, not what was uploaded before
    same = (epochs for epochs in exported if epochs.epoch == own[0].epoch)
    first = min([own[0], *same], key=lambda epochs: epochs.start_offset)
    before = (epochs for epochs in exported if epochs.start_offset < first.start_offset and epochs.epoch < first.epoch)
    return (*before, first, *own[1:])


def _with_complete_batch(files: ReadableFileSystem, pieces: list[Piece], lineage: Sequence[EpochEntry]) -> list[Piece]:
    """The pieces; the first one begins with the batch of its first offset. The log start, with which the lineage begins, may be
    within a batch, which Kafka retains."""
    if not pieces or pieces[0].is_complete or not lineage or pieces[0].start_offset != lineage[0].start_offset:
        return pieces
    first = pieces[0]
    batches = _batches_of(files, first.segment)
    for batch in batches.first(batches.before(first.start_offset), first.start_offset):
        if batch["base_offset"] < first.start_offset:
            base_offset = int(batch["base_offset"]) if batch["position"] else first.segment.start_offset
            return [first._replace(start_offset=base_offset), *pieces[1:]]
    return pieces


def _newer(path: str, exported: Sequence[Piece], local: Sequence[StoredSegment]) -> Iterator[Piece]:
    """The local segments after the export. The active segment is included even if it is empty."""
    ordered = sorted(local, key=lambda segment: segment.start_offset)
    offset = exported[-1].end_offset if exported else ordered[0].start_offset if ordered else 0
    for segment in ordered:
        if segment.end_offset > offset or (segment is ordered[-1] and segment.start_offset >= offset):
            if segment.start_offset > offset:
                raise gap(path, offset, segment.start_offset)
            yield Piece(segment, max(offset, segment.start_offset), segment.end_offset)
            offset = segment.end_offset


def _report(path: str, stored: StoredLog, pieces: Sequence[Piece]) -> None:
    used = {id(piece.segment) for piece in pieces}
    ignored = list(stored.ignored)
    unused = [segment for segment in stored.segments if id(segment) not in used]
    if unused:
        text = f"{counted(len(unused), 'upload')} with offsets that another one has, or that another leader has truncated"
        ignored.append(f"{text}, e.g. {unused[0].path}")
    if ignored:
        _LOGGER.warning("%s: ignored: %s", path, "; ".join(ignored))


def _piece_files(files: ReadableFileSystem, piece: Piece) -> Iterator[tuple[str, LogFile]]:
    segment = piece.segment
    snapshot = segment.files.get(SNAPSHOT)
    if snapshot is not None and piece.end_offset == segment.end_offset:
        yield segment_file(segment.end_offset, SNAPSHOT), snapshot
    if piece.is_complete:
        kinds = {kind: file for kind, file in segment.files.items() if kind != SNAPSHOT}
    else:
        kinds = {LOG: _cut(files, piece)}
        txns = segment.files.get(TXNINDEX)
        data = indexes.txn_entries_between(read_file(files, txns), piece.start_offset, piece.end_offset)
        if data and txns is not None:
            kinds[TXNINDEX] = LogFile.in_memory(data, txns.mtime_ns)
    for kind, file in kinds.items():
        yield segment_file(piece.start_offset, kind), file


def _cut(files: ReadableFileSystem, piece: Piece) -> LogFile:
    file = piece.segment.files[LOG]
    start, end = map(_batches_of(files, piece.segment).position_of, (piece.start_offset, piece.end_offset))
    if isinstance(file.content, FileRange):
        return LogFile(end - start, file.mtime_ns, file.content.part(start, end))
    return LogFile(end - start, file.mtime_ns, partial(read_file, files, file, start, end - start))


#: of the local tail's checkpoints, those that apply to the log as a whole
_CHECKPOINTS = (LOG_STARTS, HIGH_WATERMARKS)
_OPEN_OBJECTS = 256
#: topics that a warning names
_NAMED = 20
#: names below the root from which on a path is the layout's own
_OWN = 3


def reader_at(files: ReadableFileSystem, root: str) -> ExportReader:
    """The export at an address.

    :param files: reads its place
    """
    location = layout_path(root)
    prefix = options_of(location.root).get(KEY_PREFIX, "")
    return LAYOUTS[location.layout].reader(Place(files, location.root, location.place, prefix))


class _Export:
    """One export: its reader, its logs as far as they were read, and its local tail."""

    def __init__(self, files: ReadableFileSystem, root: str) -> None:
        options = options_of(root)
        self._files, self._root = files, root
        self._tail = options.get(TAIL)
        self._reader = reader_at(files, root)
        self._uploaded: frozenset[TopicPartition] = frozenset()
        self._logs: tuple[TopicPartition, ...] | None = None
        self._found: dict[TopicPartition, dict[str, LogFile] | LogError] = {}
        self.opened = lru_cache(maxsize=_OPEN_OBJECTS)(self._reader.open)

    @property
    def logs(self) -> tuple[TopicPartition, ...]:
        """The logs, sorted; with a local tail, also the partitions of their topics of which nothing is uploaded yet.

        :raises LockedError: a live broker holds the directory of the local tail
        """
        if self._logs is None:
            self._uploaded = frozenset(self._reader.logs())
            self._logs = tuple(sorted(self._uploaded.union(self._not_uploaded())))
        return self._logs

    def _not_uploaded(self) -> list[TopicPartition]:
        if self._tail is None:
            return []
        require_unlocked(self._tail)
        topics = {log.topic for log in self._uploaded}
        local = sorted(filter(None, map(parse_partition_dir, directories(self._files, self._tail))))
        # Kafka never uploads its own topics
        others = sorted({log.topic for log in local if not log.topic.startswith("__")} - topics)
        if others:
            message = f"{counted(len(others), 'topic')} of the local tail without uploads, not read with this export"
            _LOGGER.warning("%s: %s: %s", self._root, message, ", ".join(others[:_NAMED]) + (", …" if others[_NAMED:] else ""))
        return [log for log in local if log.topic in topics]

    def checkpoints(self) -> dict[str, LogFile]:
        checkpoint_files: dict[str, LogFile] = {}
        for name in _CHECKPOINTS if self._tail is not None else ():
            path = join(str(self._tail), name)
            stat = self._files.stat(path)
            if stat is not None:
                checkpoint_files[name] = LogFile.of(path, stat)
        return checkpoint_files

    def log_in(self, parts: Sequence[str]) -> TopicPartition | None:
        log = parse_partition_dir(parts[0]) if parts else None
        return log if log is not None and log in self.logs else None

    def file(self, parts: Sequence[str]) -> LogFile | None:
        """The file of a path; ``None`` if there is none."""
        if len(parts) == 1:
            return self.checkpoints().get(parts[0])
        log = self.log_in(parts)
        return None if log is None else self.files_of(log).get(parts[1])

    def files_of(self, log: TopicPartition) -> dict[str, LogFile]:
        """The files of a log, by name; ``LogError`` if it cannot be read."""
        if log not in self._found:
            try:
                tail = StoredLog(()) if self._tail is None else local_log(self._files, join(self._tail, str(log)))
                stored = self._reader.stored(log) if log in self._uploaded else StoredLog(())
                self._found[log] = log_files(self._files, join(self._root, str(log)), stored, tail)
            except LogError as error:
                self._found[log] = error
        files = self._found[log]
        if isinstance(files, LogError):
            raise files
        return files


class LayoutFileSystem(ReadableFileSystem):
    """Exports by their addresses. They are assumed not to change: each is listed once.

    :param files: reads the places of exports
    """

    def __init__(self, files: ReadableFileSystem) -> None:
        self._files = files
        self._exports: dict[str, _Export] = {}

    def listdir(self, path: str) -> list[str]:
        export, parts = self._located(path)
        if not parts:
            return sorted([*map(str, export.logs), *export.checkpoints()])
        log = export.log_in(parts)
        if log is None or len(parts) > 1:
            raise StorageError("cannot list the directory: no such log in this export", path=path)
        return sorted(export.files_of(log))

    def stat(self, path: str) -> FileStat | None:
        export, parts = self._located(path)
        if len(parts) >= _OWN:
            content = export.opened("/".join(parts))
            return object_stat(content.size(), content.mtime_ns, is_dir=False)
        if not parts:
            place = self._files.stat(layout_path(normal(path)).place)
            return object_stat(0, 0, is_dir=True) if place is not None and place.is_dir else None
        if len(parts) == 1 and export.log_in(parts) is not None:
            return object_stat(0, 0, is_dir=True)
        file = export.file(parts)
        return None if file is None else object_stat(file.size, file.mtime_ns, is_dir=False)

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        export, parts = self._located(path)
        if len(parts) >= _OWN:
            content = export.opened("/".join(parts))
            return content if end is None else content.sequential(start, min(end, content.size()))
        file = export.file(parts)
        if file is None:
            raise StorageError("no such file in this export", path=path)
        part = file.content
        if not isinstance(part, FileRange):
            return InMemory(part())
        if end is None:
            return open_range(self._files, part, start)
        stat = None if part.start else self._files.stat(part.path)
        if stat is not None and stat.size == part.size:
            return self._files.open(part.path, start, min(end, part.size), uncached=uncached)
        return open_range(self._files, part, start, min(end, part.size), uncached=uncached)

    def real_path(self, path: str) -> FileRange | None:
        export, parts = self._located(path)
        file = None if len(parts) >= _OWN else export.file(parts)
        if file is None:
            stat = self.stat(path)
            return FileRange(path, 0, 0 if stat is None else stat.size)
        return file.content if isinstance(file.content, FileRange) else None

    def _located(self, path: str) -> tuple[_Export, list[str]]:
        """The export, and the names below its root."""
        location = layout_path(normal(path))
        export = self._exports.get(location.root)
        if export is None:
            export = self._exports[location.root] = _Export(self._files, location.root)
        return export, location.within.split("/") if location.within else []
