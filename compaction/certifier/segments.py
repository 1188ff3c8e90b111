"""Walks the segments of a log: CRCs, order of offsets, indexes, and what decides about its segments and its ends.

A walk keeps only small tables of transactions and cuts, no batches.

The rule for indexes: an entry of the offset index is a batch's last offset and its position. An entry of the time index is a
batch's last offset and the largest timestamp up to that batch. The last entry of an inactive segment's time index has its
largest timestamp. Mirrors ``OffsetIndex``, ``TimeIndex`` and ``LogSegment.onBecomeInactiveSegment``.

Of a log it checks the segments, start and end offset, cleaner checkpoint, and the segments deleted by the delete policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from compaction.certifier.certificate import Findings, LogCertificate, Violation
from compaction.certifier.find_pairs import LONG_MAX, LogPair, SegmentFiles
from compaction.certifier.reader import BatchKinds, ByteRange, Rows, is_torn, read_batches, same_bytes
from compaction.errors import CorruptLogError, LogError
from compaction.files.filesystem import FileSystem, join, parent
from compaction.files.mixed import file_system
from compaction.formats.checkpoints import EpochRange
from compaction.formats.indexes import SEGMENT_INDEXES, TXN_ROW, read_txn_index
from compaction.formats.primitives import FormatError
from compaction.names import CLEAN_SHUTDOWN, CLEANER_OFFSETS, INDEX, SEGMENT_KINDS, TIMEINDEX, TXNINDEX

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
    hold. ``findings``: violations in a segment of ``after``. ``fault``: why the rest of the file cannot be read. ``unchanged``:
    log and indexes equal those of the counterpart byte for byte; ``same_log``: the complete batches do.
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
    fault: Violation | None = None
    unchanged: bool = False
    same_log: bool = False


def walk_segment(task: WalkTask) -> SegmentWalk:
    """Walk one segment; errors are part of the result."""
    fs = file_system([task.files.directory, *([] if task.counterpart is None else [task.counterpart.directory])])
    walk = SegmentWalk(task, next_offset=task.files.base_offset)
    try:
        walk.unchanged = task.is_after and task.counterpart is not None and _same_files(fs, task.files, task.counterpart)
        checks = IndexChecks(fs, task.files) if task.is_after and not walk.unchanged else None
        _walk_batches(fs, walk, checks)
        if checks is not None:
            checks.finish(walk.findings)
        if task.is_after and task.files.last and task.counterpart is not None:
            walk.same_log = same_bytes(fs, task.files.path(), task.counterpart.path(), walk.size_bytes)
        walk.txns = _read_txns(fs, task)
    except (LogError, FormatError) as error:
        walk.fault = walk.fault or Violation(walk.next_offset, str(error))
    return walk


def _walk_batches(fs: FileSystem, walk: SegmentWalk, checks: IndexChecks | None) -> None:
    files = walk.task.files
    try:
        for block in read_batches(fs, byte_range(files, 0, files.size_bytes)):
            if not _take(walk, block.rows):
                return
            if checks is not None:
                checks.take(block.rows, walk.findings)
    except CorruptLogError as error:
        if error.position is None or error.position != walk.size_bytes or not (files.last and _is_torn(fs, walk)):
            walk.fault = Violation(_offset_at(fs, files, error.position, walk.next_offset), str(error))


def byte_range(files: SegmentFiles, start: int, end: int) -> ByteRange:
    """Bytes ``[start, end)`` of a segment's log."""
    return ByteRange(files.path(), start, end, files.mtime_ms)


def _take(walk: SegmentWalk, rows: Rows) -> bool:
    """Take one block of batches; ``False`` if their offsets are out of order."""
    # a v0 or v1 wrapper has only its last offset
    floors = np.append(walk.next_offset, rows["last_offset"][:-1] + 1)
    wrong = np.flatnonzero(rows["base_offset"] < floors)
    if len(wrong):
        row = int(wrong[0])
        first = int(rows["base_offset"][row])
        walk.fault = Violation(first, f"batch begins at offset {first}, expected {int(floors[row])} or more")
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
    return walk.fault is None


def _events(rows: Rows) -> Rows:
    kinds = BatchKinds.of(rows)
    chosen = (rows["producer_id"] >= 0) & (kinds.marker | kinds.transactional)
    rows, is_marker, dated = rows[chosen], kinds.marker[chosen], kinds.dated[chosen]
    events = np.empty(len(rows), EVENT_ROW)
    events["producer_id"] = rows["producer_id"]
    events["first"], events["last"] = rows["base_offset"], rows["last_offset"]
    events["kind"] = np.where(is_marker, rows["control_type"], DATA)
    events["horizon_ms"] = np.where(is_marker & dated, rows["base_timestamp"], LONG_MAX)
    return join_runs(events)


def _epochs(rows: Rows) -> Iterator[EpochRange]:
    rows = rows[(rows["magic"] >= 2) & (rows["leader_epoch"] >= 0)]
    for part in np.split(rows, np.flatnonzero(np.diff(rows["leader_epoch"])) + 1) if len(rows) else ():
        yield EpochRange(int(part["leader_epoch"][0]), int(part["base_offset"][0]), int(part["last_offset"][-1]))


def _producers(rows: Rows) -> Rows:
    """``PRODUCER_ROW`` of each batch of data and each marker."""
    kinds = BatchKinds.of(rows)
    chosen = kinds.v2 & (rows["producer_id"] >= 0) & (kinds.marker | ~kinds.control)
    rows = rows[chosen]
    producers = np.empty(len(rows), PRODUCER_ROW)
    sources = ("producer_id", "last_offset", "producer_epoch", "base_sequence", "max_timestamp")
    for name, source in zip(PRODUCER_ROW.names or (), sources, strict=False):
        producers[name] = rows[source]
    producers["is_marker"] = kinds.marker[chosen]
    return producers


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
    if files.size_bytes != counterpart.size_bytes:
        return False
    for kind in SEGMENT_KINDS:
        paths = files.path(kind), counterpart.path(kind)
        size, other_size = (None if stat is None else stat.size for stat in map(fs.stat, paths))
        if size != other_size or (size is not None and not same_bytes(fs, *paths, size)):
            return False
    return True


class IndexChecks:
    """The checks of one segment: ``take`` its batches in order, then ``finish``."""

    def __init__(self, fs: FileSystem, files: SegmentFiles) -> None:
        self._files = files
        self._problems: list[str] = []
        self._entries = {kind: index.read(self._read(fs, kind), files.base_offset) for kind, index in SEGMENT_INDEXES.items()}
        self._seen = {kind: np.zeros(len(entries), np.bool_) for kind, entries in self._entries.items()}
        self._largest = -1
        self._last_offset = files.base_offset

    def _read(self, fs: FileSystem, kind: str) -> bytes:
        path = self._files.path(kind)
        if fs.stat(path) is None:
            self._problems.append(f"{kind} is missing")
            return b""
        data = fs.read_bytes(path)
        try:
            SEGMENT_INDEXES[kind].check(data)
        except FormatError as error:
            self._problems.append(error.message)
        return data

    def take(self, rows: Rows, findings: Findings) -> None:
        """Check the entries of the next batches, ``BATCH_ROW[b]``."""
        last = rows["last_offset"]
        largest = np.maximum.accumulate(np.maximum(rows["max_timestamp"], self._largest))
        for kind, column, expected, message in (
            (INDEX, "position", rows["position"], "does not point to the batch with this last offset"),
            (TIMEINDEX, "timestamp", largest, "does not have the largest timestamp up to this offset"),
        ):
            entries = self._entries[kind]
            batch_rows = np.minimum(np.searchsorted(last, entries["offset"]), len(last) - 1)
            of_batch = last[batch_rows] == entries["offset"]
            self._seen[kind] |= of_batch
            wrong = of_batch & (entries[column] != expected[batch_rows])
            findings.add_all(entries["offset"][wrong], f"{kind} entry {message}")
        self._largest, self._last_offset = int(largest[-1]), int(last[-1])

    def finish(self, findings: Findings) -> None:
        """Report entries without a batch, and an incomplete time index."""
        for problem in self._problems:
            findings.add(self._files.base_offset, problem)
        for kind, entries in self._entries.items():
            findings.add_all(entries["offset"][~self._seen[kind]], f"{kind} entry is not the last offset of any batch")
        times = self._entries[TIMEINDEX]
        indexed = int(times["timestamp"][-1]) if len(times) else -1
        if not self._files.last and not self._problems and indexed < self._largest:
            findings.add(self._last_offset, f"{TIMEINDEX} lacks the segment's largest timestamp")


@dataclass(eq=False)
class WalkedLog:
    """A log whose segments were walked on both sides, each in order, with the violations and counts of all checks.
    ``error``: why it cannot be verified."""

    pair: LogPair
    before: list[SegmentWalk]
    after: list[SegmentWalk]
    findings: Findings = field(default_factory=Findings)
    counts: Counter[str] = field(default_factory=Counter)
    error: str | None = None

    @property
    def end_offset(self) -> int:
        """The log end offset before."""
        return self.before[-1].next_offset

    @property
    def epochs(self) -> list[EpochRange]:
        """The leader epochs of the batches before."""
        return [epoch for walk in self.before for epoch in walk.epochs]

    def certificate(self) -> LogCertificate:
        name, counts = self.pair.topic_partition, self.counts
        if self.error is not None:
            return LogCertificate.failed(name, self.error)
        balance = counts["records_before"] - counts["missing"] - counts["records_after"]
        if balance and not self.findings.count:
            message = f"record counts do not balance: {balance} more before than after"
            self.findings.add(self.pair.after.log_start_offset, message)
        return LogCertificate.of(name, self.findings, counts)


def check_segments(log: WalkedLog) -> None:
    """Check the segments of a log and its ends. A segment of ``after`` that is unreadable from some offset is a violation at
    that offset."""
    for walk in log.after:
        log.findings.join(walk.findings)
        if walk.fault is not None:
            log.findings.add(walk.fault.offset, walk.fault.what)
    _check_base_offsets(log)
    _check_ends(log)
    _check_checkpoint(log)
    _check_expiry(log)


def _check_base_offsets(log: WalkedLog) -> None:
    base_offsets = {walk.task.files.base_offset for walk in log.before} | {log.end_offset}
    for walk, following in zip(log.after, [*log.after[1:], None], strict=True):
        base = walk.task.files.base_offset
        # a segment whose offsets overflow its base is split at a batch
        if base >= log.pair.compared_from and base not in base_offsets and base != walk.first_offset:
            log.findings.add(base, "no segment of the source has this base offset")
        if following is not None and walk.next_offset > following.task.files.base_offset:
            log.findings.add(following.task.files.base_offset, "segment begins before the previous one ends")


def _check_ends(log: WalkedLog) -> None:
    end, expected, pair, findings = log.after[-1].next_offset, log.end_offset, log.pair, log.findings
    if end != expected:
        findings.add(min(end, expected), f"log ends at offset {end}, expected {expected}")
    start = pair.after.log_start_offset
    if start < pair.before.log_start_offset:
        findings.add(start, f"log starts at offset {start}, expected {pair.before.log_start_offset} or more")
    if start > expected:
        findings.add(start, f"log starts at offset {start}, past its end {expected}")
    if not pair.rules.include_active and start < expected:
        # the active segment is unchanged, except for a torn tail
        before, after = log.before[-1], log.after[-1]
        same = before.task.files.base_offset == after.task.files.base_offset and before.size_bytes == after.size_bytes
        if not (same and after.same_log):
            findings.add(before.task.files.base_offset, "active segment was changed")


def _check_checkpoint(log: WalkedLog) -> None:
    pair, cleaned_to, findings = log.pair, log.pair.after.cleaned_to, log.findings
    if cleaned_to == pair.before.cleaned_to:
        return
    if pair.rules.erases:
        entries = f"has {entry_text(cleaned_to)}, it had {entry_text(pair.before.cleaned_to)}"
        findings.add(pair.after.log_start_offset, f"{CLEANER_OFFSETS} {entries}: an erasure does not change it")
        return
    end = log.end_offset if pair.rules.include_active else log.before[-1].task.files.base_offset
    if cleaned_to is not None and cleaned_to > max(end, pair.after.log_start_offset):
        findings.add(cleaned_to, f"{CLEANER_OFFSETS} is past the first uncleanable offset, {end}")


def entry_text(offset: int | None) -> str:
    return "no entry" if offset is None else f"offset {offset}"


def _check_expiry(log: WalkedLog) -> None:
    """Each deleted segment is older than ``retention.ms``, or the rest of the log has ``retention.bytes``."""
    rules, start, findings = log.pair.rules, log.pair.after.log_start_offset, log.findings
    remaining_bytes = sum(walk.task.files.size_bytes for walk in log.before)
    ends = [walk.task.files.base_offset for walk in log.before[1:]] + [log.end_offset]
    if start > log.pair.before.log_start_offset and start not in ends:
        findings.add(start, "log start is not at the end of a segment")
    for walk, end in zip(log.before, ends, strict=True):
        size = walk.task.files.size_bytes
        remaining_bytes -= size
        if end > start or end <= log.pair.before.log_start_offset or not size:
            continue
        largest = walk.max_timestamp if walk.max_timestamp >= 0 else walk.task.files.mtime_ms
        by_time = 0 <= rules.retention_ms < rules.now_ms - largest
        by_size = 0 <= rules.retention_bytes <= remaining_bytes
        if not rules.deletes:
            findings.add(walk.task.files.base_offset, "segment was deleted though cleanup.policy does not include delete")
        elif not (by_time or by_size):
            findings.add(walk.task.files.base_offset, "segment was deleted before its retention ended")
