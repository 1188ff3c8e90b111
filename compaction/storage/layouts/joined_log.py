"""The files of a log directory that stored segments form, on request with the newer segments of a local log directory.

A segment that is used as a whole keeps its files. Of one that is cut, because the other offsets are another leader's or are in
the segment before, only the batches, the aborted transactions and the snapshot at its end are used: recovery rebuilds the
indexes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

from compaction.errors import CorruptLogError
from compaction.formats.checkpoints import EpochEntry, format_leader_epochs
from compaction.formats.indexes import TXN_ENTRY
from compaction.names import LEADER_EPOCHS, LOG, PARTITION_METADATA, SNAPSHOT, TXNINDEX, segment_file
from compaction.screen.amounts import counted
from compaction.storage.filesystem import FileRange, ReadableFileSystem
from compaction.storage.layouts.batch_positions import first_batch, position_of, read_file, view_before
from compaction.storage.layouts.lineage import Piece, gap, newest_lineage, select
from compaction.storage.layouts.stored_objects import in_parallel
from compaction.storage.layouts.upload_check import require_consistent
from compaction.storage.stored_log import LogFile, StoredLog, StoredSegment

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
