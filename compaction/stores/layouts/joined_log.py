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
from compaction.fs.filesystem import FileRange, ReadableFileSystem
from compaction.fs.ranges import View
from compaction.names import INDEX, LEADER_EPOCHS, LOG, PARTITION_METADATA, SNAPSHOT, TXNINDEX, segment_file
from compaction.screen.amounts import counted
from compaction.stores.layouts.batch_positions import indexed_position, position_of
from compaction.stores.layouts.lineage import Piece, gap, newest_lineage, select
from compaction.stores.layouts.log_layout import LogFile, StoredLog, StoredSegment

_LOGGER = logging.getLogger(__name__)


def log_files(files: ReadableFileSystem, path: str, stored: StoredLog, tail: StoredLog | None) -> dict[str, LogFile]:
    """The files of a log's directory, by name.

    :param files: reads the ranges of ``stored``
    :param path: of the log, for messages
    :param tail: what a local log directory has of the log
    :raises CorruptLogError: offsets are missing, or a batch is malformed
    """
    if tail is not None and None not in (tail.topic_id, stored.topic_id) and tail.topic_id != stored.topic_id:
        what = f"the local tail has topic id {tail.topic_id}, the export has {stored.topic_id}"
        raise CorruptLogError(what, path=path, hint="the topic was created again; give the directory of the same topic")
    lineage = _lineage(stored, tail)
    exported = select(path, stored.segments, lineage)
    _report(path, stored, exported)
    pieces = [*exported, *_newer(path, exported, () if tail is None else tail.segments)]
    found = {name: file for piece in pieces for name, file in _piece_files(files, piece)}
    if not pieces:
        return found
    last = pieces[-1].segment
    if lineage:
        found[LEADER_EPOCHS] = _text_file(format_leader_epochs(lineage), last)
    topic_id = stored.topic_id or (None if tail is None else tail.topic_id)
    if topic_id is not None:
        found[PARTITION_METADATA] = _text_file(f"version: 0\ntopic_id: {topic_id}", last)
    return found


def _lineage(stored: StoredLog, tail: StoredLog | None) -> tuple[EpochEntry, ...]:
    """The local tail's leader epochs, and before its first one those of the export."""
    exported = tuple(newest_lineage(stored.segments))
    own = tuple(newest_lineage(tail.segments)) if tail is not None else ()
    if not own:
        return exported
    first = own[0]
    return tuple(each for each in exported if each.start_offset < first.start_offset and each.epoch < first.epoch) + own


def _newer(path: str, exported: Sequence[Piece], local: Sequence[StoredSegment]) -> Iterator[Piece]:
    """What the local segments have after the export. The active segment is included even if it is empty."""
    ordered = sorted(local, key=lambda segment: segment.start_offset)
    at = exported[-1].end_offset if exported else ordered[0].start_offset if ordered else 0
    for segment in ordered:
        if segment.end_offset > at or (segment is ordered[-1] and segment.start_offset >= at):
            if segment.start_offset > at:
                raise gap(path, at, segment.start_offset)
            yield Piece(segment, max(at, segment.start_offset), segment.end_offset)
            at = segment.end_offset


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
    data, index = view_of(files, segment.path, file), segment.files.get(INDEX)
    entries = b"" if index is None else read_file(files, index)
    start, end = (
        position_of(data, segment.path, indexed_position(entries, segment.start_offset, offset, file.size), offset)
        for offset in (piece.start_offset, piece.end_offset)
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


def read_file(files: ReadableFileSystem, file: LogFile, start: int = 0, length: int | None = None) -> bytes:
    """Up to ``length`` bytes of a file of a log from ``start``."""
    end = file.size if length is None else min(file.size, start + length)
    if not isinstance(file.content, FileRange):
        return (file.load() or b"")[start:end]
    return files.read_bytes(file.content.path, file.content.start + start, end - start) if end > start else b""


def view_of(files: ReadableFileSystem, path: str, file: LogFile) -> View:
    """A view of a file of a log; ``path`` is for errors."""
    return View(path, partial(read_file, files, file), file.size)
