"""Reads one segment's batch headers: checks CRCs, the order of offsets and the indexes, and collects transactions and cuts.

Only small tables of transactions and cuts are kept, no batches.

Checks the offset index and the time index of a segment against its batches.

The rule: an entry of the offset index is a batch's last offset and its position. An entry of the time index is a batch's last
offset and the largest timestamp up to that batch. The last entry of an inactive segment's time index has its largest timestamp.

Mirrors ``OffsetIndex``, ``TimeIndex`` and ``LogSegment.onBecomeInactiveSegment``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from compaction.certifier.checks.batches import is_torn, read_batches
from compaction.certifier.checks.log_pair import LONG_MAX, Int64s, Rows, SegmentFiles
from compaction.certifier.checks.violations import Findings
from compaction.errors import CorruptLogError, LogError
from compaction.formats.checkpoints import EpochRange
from compaction.formats.indexes import (
    TXN_ROW,
    check_offset_index,
    check_time_index,
    read_offset_index,
    read_time_index,
    read_txn_index,
)
from compaction.formats.primitives import FormatError
from compaction.kernels.tables import ABORT, COMMIT
from compaction.names import CLEAN_SHUTDOWN, INDEX, LOG, TIMEINDEX, TXNINDEX
from compaction.storage.filesystem import FileSystem, join, parent
from compaction.storage.mixed import file_system

TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x10, 0x20, 0x40

#: One row per transaction marker (``kind`` is ``ABORT`` or ``COMMIT``), and per run of data batches of a producer without a
#: marker of that producer in between (``DATA``). ``first``, ``last``: base offset of the first and last offset of the last
#: batch. ``horizon_ms``: a marker's delete horizon, ``LONG_MAX`` if it has none.
EVENT_ROW = np.dtype(
    [("producer_id", np.int64), ("first", np.int64), ("last", np.int64), ("horizon_ms", np.int64), ("kind", np.int8)]
)
DATA = 2
#: The last batch of a producer, or its last marker (``is_marker``). ``timestamp_ms``: the largest of its records.
PRODUCER_ROW = np.dtype(
    [
        ("producer_id", np.int64), ("last", np.int64), ("epoch", np.int16), ("sequence", np.int32),
        ("timestamp_ms", np.int64), ("is_marker", np.bool_),
    ]
)  # fmt: skip
#: least distance of two cuts of a segment
CUT_INTERVAL_BYTES = 16 << 20


@dataclass(frozen=True)
class WalkTask:
    """A segment to walk. ``counterpart``: for a segment of ``after``, that of ``before`` with the same base offset.
    ``producers``: also collect the last batches of producers. Batches below ``txns_from`` belong to no transaction."""

    log: int
    files: SegmentFiles
    is_after: bool
    counterpart: SegmentFiles | None = None
    producers: bool = False
    txns_from: int = 0


@dataclass(eq=False)
class SegmentWalk:
    """The result of a walk. The first ``size_bytes`` are complete, valid batches that end before ``next_offset``.

    ``epochs``: the leader epochs of its v2 batches. ``cuts``: pairs of a batch's position and the lowest offset that it can
    hold. ``findings``: violations in a segment of ``after``. ``error``: why the rest of the file cannot be read, from
    ``error_offset``. ``unchanged``: log and indexes equal those of the counterpart byte for byte; ``same_log``: the complete
    batches do.
    """

    task: WalkTask
    size_bytes: int = 0
    first_offset: int | None = None
    next_offset: int = 0
    max_timestamp: int = -1
    epochs: list[EpochRange] = field(default_factory=list)
    cuts: list[tuple[int, int]] = field(default_factory=list)
    events: list[Rows] = field(default_factory=list)
    producers: Rows = field(default_factory=lambda: np.empty(0, PRODUCER_ROW))
    txns: Rows = field(default_factory=lambda: np.empty(0, TXN_ROW))
    findings: Findings = field(default_factory=Findings)
    error: str | None = None
    error_offset: int = 0
    unchanged: bool = False
    same_log: bool = False

    def all_events(self) -> Rows:
        """``EVENT_ROW[n]`` of the segment."""
        return np.concatenate(self.events) if self.events else np.empty(0, EVENT_ROW)


def walk_segment(task: WalkTask) -> SegmentWalk:
    """Walk one segment; errors are part of the result."""
    fs = file_system([task.files.directory])
    walk = SegmentWalk(task, next_offset=task.files.base_offset)
    try:
        walk.unchanged = task.is_after and task.counterpart is not None and _same_files(fs, task.files, task.counterpart)
        checks = IndexChecks(fs, task.files) if task.is_after and not walk.unchanged else None
        _walk_batches(fs, walk, checks)
        if checks is not None:
            checks.finish(walk.findings)
        if task.is_after and task.files.last and task.counterpart is not None:
            walk.same_log = _same_bytes(fs, task.files.path(), task.counterpart.path(), walk.size_bytes)
        walk.txns = _read_txns(fs, task)
    except (LogError, FormatError) as error:
        walk.error = walk.error or str(error)
        walk.error_offset = walk.error_offset or walk.next_offset
    return walk


def _walk_batches(fs: FileSystem, walk: SegmentWalk, checks: IndexChecks | None) -> None:
    files = walk.task.files
    try:
        for block in read_batches(fs, files.path(), 0, files.size_bytes):
            if not _take(walk, block.rows):
                return
            if checks is not None:
                checks.take(block.rows, walk.findings)
    except CorruptLogError as error:
        if error.position is None or error.position != walk.size_bytes or not (files.last and _is_torn(fs, walk)):
            walk.error, walk.error_offset = str(error), _offset_at(fs, files, error.position, walk.next_offset)


def _take(walk: SegmentWalk, rows: Rows) -> bool:
    """Take one block of batches; ``False`` if their offsets are out of order."""
    # a v0 or v1 wrapper has only its last offset
    floors = np.append(walk.next_offset, rows["last_offset"][:-1] + 1)
    wrong = np.flatnonzero(rows["base_offset"] < floors)
    if len(wrong):
        row = int(wrong[0])
        walk.error_offset = int(rows["base_offset"][row])
        walk.error = f"batch begins at offset {walk.error_offset}, expected {int(floors[row])} or more"
        rows = rows[:row]
    if len(rows):
        if walk.first_offset is None:
            walk.first_offset = int(rows["base_offset"][0])
        if not walk.cuts or int(rows["position"][0]) - walk.cuts[-1][0] >= CUT_INTERVAL_BYTES:
            walk.cuts.append((int(rows["position"][0]), walk.next_offset))
        walk.size_bytes = int(rows["position"][-1]) + int(rows["size"][-1])
        walk.next_offset = int(rows["last_offset"][-1]) + 1
        walk.max_timestamp = max(walk.max_timestamp, int(rows["max_timestamp"].max()))
        walk.events.append(_events(rows[rows["last_offset"] >= walk.task.txns_from]))
        walk.epochs += _epochs(rows)
        if walk.task.producers:
            walk.producers = last_of_producers(np.concatenate((walk.producers, _producers(rows))))
    return walk.error is None


def _events(rows: Rows) -> Rows:
    rows = rows[(rows["magic"] >= 2) & (rows["producer_id"] >= 0)]
    control = (rows["attributes"] & CONTROL) != 0
    marker = control & ((rows["control_type"] == ABORT) | (rows["control_type"] == COMMIT))
    data = ~control & ((rows["attributes"] & TRANSACTIONAL) != 0)
    chosen = rows[marker | data]
    events = np.empty(len(chosen), EVENT_ROW)
    is_marker = (chosen["attributes"] & CONTROL) != 0
    events["producer_id"] = chosen["producer_id"]
    events["first"], events["last"] = chosen["base_offset"], chosen["last_offset"]
    events["kind"] = np.where(is_marker, chosen["control_type"], DATA)
    dated = is_marker & ((chosen["attributes"] & DELETE_HORIZON) != 0)
    events["horizon_ms"] = np.where(dated, chosen["base_timestamp"], LONG_MAX)
    return join_runs(events)


def _epochs(rows: Rows) -> Iterator[EpochRange]:
    rows = rows[(rows["magic"] >= 2) & (rows["leader_epoch"] >= 0)]
    for part in np.split(rows, np.flatnonzero(np.diff(rows["leader_epoch"])) + 1) if len(rows) else ():
        yield EpochRange(int(part["leader_epoch"][0]), int(part["base_offset"][0]), int(part["last_offset"][-1]))


def _producers(rows: Rows) -> Rows:
    """``PRODUCER_ROW`` of each batch of data and each marker."""
    rows = rows[(rows["magic"] >= 2) & (rows["producer_id"] >= 0)]
    control = (rows["attributes"] & CONTROL) != 0
    ends = (rows["control_type"] == ABORT) | (rows["control_type"] == COMMIT)
    producers = np.empty(len(rows), PRODUCER_ROW)
    sources = ("producer_id", "last_offset", "producer_epoch", "base_sequence", "max_timestamp")
    for name, source in zip(PRODUCER_ROW.names or (), sources, strict=False):
        producers[name] = rows[source]
    producers["is_marker"] = control
    chosen: Rows = producers[~control | ends]
    return chosen


def last_of_producers(rows: Rows) -> Rows:
    """Of ``PRODUCER_ROW[n]`` the last batch and the last marker of each producer; its batch comes first."""
    rows = rows[np.lexsort((rows["last"], rows["is_marker"], rows["producer_id"]))]
    same = (rows["producer_id"][1:] == rows["producer_id"][:-1]) & (rows["is_marker"][1:] == rows["is_marker"][:-1])
    last: Rows = rows[np.append(~same, True)[: len(rows)]]
    return last


def join_runs(events: Rows) -> Rows:
    """``EVENT_ROW[n]`` sorted by producer and offset, with consecutive rows of data joined into runs."""
    events = events[np.lexsort((events["last"], events["producer_id"]))]
    if not len(events):
        return events
    follows = np.zeros(len(events), np.bool_)
    follows[1:] = (events["producer_id"][1:] == events["producer_id"][:-1]) & (events["kind"][1:] == DATA)
    follows[1:] &= events["kind"][:-1] == DATA
    heads = np.flatnonzero(~follows)
    runs = events[heads].copy()
    runs["last"] = events["last"][np.append(heads[1:], len(events)) - 1]
    return runs


def _is_torn(fs: FileSystem, walk: SegmentWalk) -> bool:
    """Whether the bytes after the last complete batch are a torn tail rather than damage."""
    files = walk.task.files
    # in a log directory without a clean shutdown, a broker truncates any malformed end
    unclean = fs.stat(join(parent(files.directory), CLEAN_SHUTDOWN)) is None
    return is_torn(fs, files.path(), walk.size_bytes, files.size_bytes, walk.next_offset, unclean=unclean)


def _offset_at(fs: FileSystem, files: SegmentFiles, position: int | None, expected: int) -> int:
    """The base offset of the unreadable batch, or ``expected`` if that is implausible."""
    raw = b"" if position is None else fs.read_bytes(files.path(), position, 8)
    offset = int.from_bytes(raw, "big", signed=True) if len(raw) == 8 else -1
    return offset if expected <= offset < expected + 2**31 else expected


def _read_txns(fs: FileSystem, task: WalkTask) -> Rows:
    """The entries of the transaction index; a malformed one of ``before`` has none, as a run rebuilds it."""
    path = task.files.path(TXNINDEX)
    data = b"" if fs.stat(path) is None else fs.read_bytes(path)
    try:
        entries = read_txn_index(data)
    except FormatError:
        if task.is_after:
            raise
        return np.empty(0, TXN_ROW)
    if len(data) % 34 and task.is_after:
        raise FormatError(f"{path}: {TXNINDEX} ends within an entry")
    return entries[entries["last_offset"] >= task.txns_from]


def _same_files(fs: FileSystem, files: SegmentFiles, counterpart: SegmentFiles) -> bool:
    """Whether log and indexes of two segments are equal byte for byte."""
    return files.size_bytes == counterpart.size_bytes and all(
        _same_bytes(fs, files.path(kind), counterpart.path(kind)) for kind in (LOG, INDEX, TIMEINDEX, TXNINDEX)
    )


def _same_bytes(fs: FileSystem, path: str, other_path: str, size: int | None = None) -> bool:
    """Whether two files, or their first ``size`` bytes, are equal."""
    status, other_status = fs.stat(path), fs.stat(other_path)
    if status is None or other_status is None:
        return status is other_status is None
    if size is None and status.size != other_status.size:
        return False
    position, end = 0, status.size if size is None else size
    while position < end:
        step = min(8 << 20, end - position)
        if fs.read_bytes(path, position, step) != fs.read_bytes(other_path, position, step):
            return False
        position += step
    return True


class IndexChecks:
    """The checks of one segment: ``take`` its batches in order, then ``finish``."""

    def __init__(self, fs: FileSystem, files: SegmentFiles) -> None:
        self._files = files
        self._problems: list[str] = []
        offsets, times = self._read(fs, INDEX), self._read(fs, TIMEINDEX)
        self._offsets = read_offset_index(offsets, files.base_offset)
        self._times = read_time_index(times, files.base_offset)
        self._offsets_seen = np.zeros(len(self._offsets), np.bool_)
        self._times_seen = np.zeros(len(self._times), np.bool_)
        self._largest = -1
        self._last_offset = files.base_offset

    def _read(self, fs: FileSystem, kind: str) -> bytes:
        path = self._files.path(kind)
        if fs.stat(path) is None:
            self._problems.append(f"{kind} is missing")
            return b""
        data = fs.read_bytes(path)
        try:
            (check_offset_index if kind == INDEX else check_time_index)(data)
        except FormatError as error:
            self._problems.append(error.message)
        return data

    def take(self, rows: Rows, findings: Findings) -> None:
        """Check the entries of the next batches, ``BATCH_ROW[b]``."""
        last = rows["last_offset"]
        chosen, batch_rows = _entries_in(self._offsets["offset"], last)
        matches = rows["position"][batch_rows] == self._offsets["position"][chosen]
        self._offsets_seen[chosen] = True
        wrong = self._offsets["offset"][chosen[~matches]]
        findings.add_all(wrong, f"{INDEX} entry does not point to the batch with this last offset")
        chosen, batch_rows = _entries_in(self._times["offset"], last)
        largest = np.maximum.accumulate(np.maximum(rows["max_timestamp"], self._largest))
        matches = largest[batch_rows] == self._times["timestamp"][chosen]
        self._times_seen[chosen] = True
        wrong = self._times["offset"][chosen[~matches]]
        findings.add_all(wrong, f"{TIMEINDEX} entry does not have the largest timestamp up to this offset")
        self._largest, self._last_offset = int(largest[-1]), int(last[-1])

    def finish(self, findings: Findings) -> None:
        """Report entries without a batch, and an incomplete time index."""
        for problem in self._problems:
            findings.add(self._files.base_offset, problem)
        findings.add_all(self._offsets["offset"][~self._offsets_seen], f"{INDEX} entry is not the last offset of any batch")
        findings.add_all(self._times["offset"][~self._times_seen], f"{TIMEINDEX} entry is not the last offset of any batch")
        indexed = int(self._times["timestamp"][-1]) if len(self._times) else -1
        if not self._files.last and not self._problems and indexed < self._largest:
            findings.add(self._last_offset, f"{TIMEINDEX} lacks the segment's largest timestamp")


def _entries_in(entries: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """The entries that are the last offset of one of these batches, and the rows of those batches."""
    batch_rows = np.searchsorted(last, entries)
    chosen = np.flatnonzero((batch_rows < len(last)) & (last[np.minimum(batch_rows, len(last) - 1)] == entries))
    return chosen, batch_rows[chosen]
