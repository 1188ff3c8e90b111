"""The files of a log directory that stored segments form, on request with the newer segments of a local log directory.

A segment that is used as a whole keeps its files. Of one that is cut, because the other offsets are another leader's or are in
the segment before, only the batches, the aborted transactions and the snapshot at its end are used: recovery rebuilds the
indexes.

Compares an upload of tiered storage with itself and with the log's lineage: it must be one inactive segment of one leader.

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
from functools import partial
from itertools import pairwise

import numpy as np

from compaction.errors import CorruptLogError
from compaction.formats import indexes
from compaction.formats.checkpoints import EpochEntry, format_leader_epochs
from compaction.formats.indexes import TXN_ENTRY
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import read_snapshot
from compaction.formats.record_batch import MAGIC
from compaction.names import INDEX, LEADER_EPOCHS, LOG, PARTITION_METADATA, SNAPSHOT, TIMEINDEX, TXNINDEX, segment_file
from compaction.screen.amounts import counted
from compaction.storage.contents import View
from compaction.storage.filesystem import FileRange, ReadableFileSystem
from compaction.storage.layouts.batch_positions import (
    batches_from,
    end_of_complete,
    first_batch,
    has_holes,
    position_of,
    read_file,
    view_before,
)
from compaction.storage.layouts.lineage import Piece, gap, newest_lineage, select, within
from compaction.storage.layouts.stored_objects import in_parallel
from compaction.storage.segment_file import Rows
from compaction.storage.stored_log import LogFile, StoredLog, StoredSegment

_HINT = "restore the objects of this upload from another copy"


def require_consistent(files: ReadableFileSystem, lineage: Sequence[EpochEntry], segment: StoredSegment) -> None:
    """Apply the rules to an upload; ``lineage`` has the leader epochs of the log.

    :raises CorruptLogError: a rule is violated
    """
    data, start = view_before(files, segment, segment.end_offset)
    end = end_of_complete(data, segment.path, start, segment.start_offset)
    if segment.end_is_stated:
        _require_stated_end(segment, data, end)
    _require_own_indexes(files, segment, data)
    own = () if segment.lineage is None else tuple(segment.lineage())
    _require_same_epochs(segment, own)
    _require_one_history(segment, own, lineage)
    for offset in (segment.start_offset, *(entry.start_offset for entry in segment.epochs[1:]), segment.end_offset):
        _require_epochs_around(files, segment, own, offset)


def _require_stated_end(segment: StoredSegment, data: View, end: int) -> None:
    if end > segment.end_offset or (end < segment.end_offset and not has_holes(data, segment.path, segment.start_offset)):
        raise _contradiction(segment, f"ends at offset {end - 1}, its manifest says {segment.end_offset - 1}")


def _require_own_indexes(files: ReadableFileSystem, segment: StoredSegment, data: View) -> None:
    """Malformed indexes are rebuilt; those of another segment show that an object was exchanged or cut."""
    first = next(map(int, first_batch(data, segment.path, 0)["base_offset"]), segment.start_offset)
    for kind, low, high in _indexed_offsets(files, segment, len(data)):
        if low < first or high >= segment.end_offset:
            offsets = f"{low if low < first else high}, its batches have {first} to {segment.end_offset - 1}"
            raise _contradiction(segment, f"its {kind} has offset {offsets}")


def _indexed_offsets(files: ReadableFileSystem, segment: StoredSegment, size: int) -> Iterator[tuple[str, int, int]]:
    """The lowest and highest offset in each index."""
    contents = {kind: read_file(files, file) for kind, file in segment.files.items() if kind in (INDEX, TIMEINDEX)}
    rows = indexes.read_offset_index(contents.get(INDEX, b""), segment.start_offset)
    if len(rows) and rows["position"][-1] >= size:
        problem = f"its offset index has an entry for byte {rows['position'][-1]}, the segment has {size} bytes"
        raise _contradiction(segment, problem)
    times = indexes.read_time_index(contents.get(TIMEINDEX, b""), segment.start_offset)
    for kind, offsets in (("offset index", rows["offset"]), ("time index", times["offset"])):
        if len(offsets):
            yield kind, int(offsets[0]), int(offsets[-1])
    last_offsets = _last_offsets(files, segment)
    if last_offsets:
        yield "producer snapshot or transaction index", segment.end_offset - 1, max(last_offsets)


def _last_offsets(files: ReadableFileSystem, segment: StoredSegment) -> list[int]:
    """The last offsets of producers and aborted transactions; none of a malformed file, an error of those that read it."""
    found: list[int] = []
    snapshot, txns = segment.files.get(SNAPSHOT), segment.files.get(TXNINDEX)
    with suppress(FormatError):
        found += [entry.last_data_offset for entry in read_snapshot(read_file(files, snapshot))] if snapshot is not None else []
        found += indexes.read_txn_index(read_file(files, txns))["last_offset"].tolist() if txns is not None else []
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


def _require_epochs_around(
    files: ReadableFileSystem, segment: StoredSegment, own: Sequence[EpochEntry], offset: int
) -> None:
    """Compare the batches from the index entry before an offset up to that offset."""
    data, start = view_before(files, segment, offset)
    for rows in batches_from(data, segment.path, start):
        for batch in _of_other_epochs(rows, own)[:1]:
            offsets = f"{batch['base_offset']} to {batch['last_offset']}"
            problem = f"the batch of offsets {offsets} has leader epoch {batch['leader_epoch']}, its checkpoint {_text(own)}"
            raise CorruptLogError(problem, path=segment.path, position=int(batch["position"]), hint=_HINT)
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


def log_files(files: ReadableFileSystem, path: str, stored: StoredLog, tail: StoredLog | None) -> dict[str, LogFile]:
    """The files of a log's directory, by name.

    :param files: reads the ranges of ``stored``
    :param path: of the log, for messages
    :param tail: what a local log directory has of the log
    :raises CorruptLogError: offsets are missing, a batch is malformed, or an upload contradicts itself or another one
    """
    if tail is not None and None not in (tail.topic_id, stored.topic_id) and tail.topic_id != stored.topic_id:
        message = f"the local tail has topic id {tail.topic_id}, the export has {stored.topic_id}"
        raise CorruptLogError(message, path=path, hint="the topic was created again; give the directory of the same topic")
    if stored.ignored and not stored.segments and (tail is None or not tail.segments):
        raise CorruptLogError(f"no upload is complete: {'; '.join(stored.ignored)}", path=path, hint=_INCOMPLETE)
    lineage = _lineage(path, stored, tail)
    uploads = [segment for segment in stored.segments if segment.lineage is not None]
    in_parallel(partial(require_consistent, files, lineage), uploads)
    exported = _with_complete_batch(files, select(path, stored.segments, lineage), lineage)
    _require_newest(path, exported, () if tail is None else tail.segments)
    _report(path, stored, exported)
    pieces = [*exported, *_newer(path, exported, () if tail is None else tail.segments)]
    files_by_name = {name: file for piece in pieces for name, file in _piece_files(files, piece)}
    if not pieces:
        return files_by_name
    last = pieces[-1].segment
    if lineage:
        begin = min(pieces[0].start_offset, lineage[0].start_offset)
        lineage = (lineage[0]._replace(start_offset=begin), *lineage[1:])
        files_by_name[LEADER_EPOCHS] = _text_file(format_leader_epochs(lineage), last)
    topic_id = stored.topic_id or (None if tail is None else tail.topic_id)
    if topic_id is not None:
        files_by_name[PARTITION_METADATA] = _text_file(f"version: 0\ntopic_id: {topic_id}", last)
    return files_by_name


def _lineage(path: str, stored: StoredLog, tail: StoredLog | None) -> tuple[EpochEntry, ...]:
    """The local tail's leader epochs, and before its first one those of the export.

    :raises CorruptLogError: the export has a later one, so that the tail is that of a replica which was left behind
    """
    exported = tuple(newest_lineage(stored.segments))
    own = tuple(newest_lineage(tail.segments)) if tail is not None else ()
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
    data, start = view_before(files, first.segment, first.start_offset)
    for batch in first_batch(data, first.segment.path, start, first.start_offset):
        if batch["base_offset"] < first.start_offset:
            base_offset = int(batch["base_offset"]) if batch["position"] else first.segment.start_offset
            return [first._replace(start_offset=base_offset), *pieces[1:]]
    return pieces


def _require_newest(path: str, exported: Sequence[Piece], local: Sequence[StoredSegment]) -> None:
    """:raises CorruptLogError: the local segments end before the export"""
    if exported and local:
        end = max(segment.end_offset for segment in local)
        if end < exported[-1].end_offset:
            exported_end = exported[-1].end_offset
            message = f"the local tail ends before offset {end}, the export before {exported_end}: it was left behind"
            raise CorruptLogError(message, path=path, hint=_NEWEST)


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
        data = b"" if txns is None else _aborted_in(piece, read_file(files, txns))
        if data and txns is not None:
            kinds[TXNINDEX] = LogFile(len(data), txns.mtime_ns, partial(bytes, data))
    for kind, file in kinds.items():
        yield segment_file(piece.start_offset, kind), file


def _cut(files: ReadableFileSystem, piece: Piece) -> LogFile:
    """The batches of a piece."""
    segment, file = piece.segment, piece.segment.files[LOG]
    start, end = (
        position_of(data, segment.path, before, offset)
        for offset in (piece.start_offset, piece.end_offset)
        for data, before in [view_before(files, segment, offset)]
    )
    if not isinstance(file.content, FileRange):
        return LogFile(end - start, file.mtime_ns, partial(_part_of, file, start, end))
    content = FileRange(file.content.path, file.content.start + start, end - start)
    return LogFile(end - start, file.mtime_ns, content)


def _part_of(file: LogFile, start: int, end: int) -> bytes:
    return (file.load() or b"")[start:end]


def _aborted_in(piece: Piece, data: bytes) -> bytes:
    """The entries of a transaction index whose markers are in the piece."""
    rows = TXN_ENTRY.array(data)
    return rows[(rows["last_offset"] >= piece.start_offset) & (rows["last_offset"] < piece.end_offset)].tobytes()


def _text_file(text: str, segment: StoredSegment) -> LogFile:
    data = text.encode()
    return LogFile(len(data), segment.files[LOG].mtime_ns, partial(bytes, data))
