"""Compares an upload of tiered storage with itself and with the log's lineage: it must be one inactive segment of one leader.

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

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np

from compaction.errors import CorruptLogError
from compaction.formats import indexes
from compaction.formats.checkpoints import EpochEntry
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import read_snapshot
from compaction.formats.record_batch import MAGIC
from compaction.names import INDEX, SNAPSHOT, TIMEINDEX, TXNINDEX
from compaction.storage.filesystem import ReadableFileSystem
from compaction.storage.layouts.batch_positions import (
    batches_from,
    end_of_complete,
    first_batch,
    has_holes,
    read_file,
    view_before,
)
from compaction.storage.layouts.lineage import within
from compaction.storage.ranges import View
from compaction.storage.segment_file import Rows
from compaction.storage.stored_log import StoredSegment

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
        found += [entry.last_offset for entry in read_snapshot(read_file(files, snapshot))] if snapshot is not None else []
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
