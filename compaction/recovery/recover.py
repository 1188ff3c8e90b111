"""Recovers a log before a run: finishes an interrupted swap, splits overflowing segments and rebuilds indexes.

Mirrors ``LogLoader.load``, ``loadSegmentFiles`` and ``LocalLog.splitOverflowedSegment``:

1. An interrupted swap is finished or undone, and leftover files are removed (``interrupted_swap``). All steps are
   rehearsed in memory before: a damaged log is not changed.
2. Segments whose offsets overflow are split.
3. Missing, stale or malformed indexes are rebuilt, and transaction indexes that contradict the log (``indexes``).
4. If the broker was killed, the indexes of the segments from the recovery point on become those of their batches, whose leader
   epochs are assigned.

Differences: the torn tail of the active segment is kept and ignored (a broker truncates it when it loads the log); without a
clean shutdown it may have any bytes, but no valid batch. A damaged inactive segment is an error; a broker truncates it and
deletes every later segment. A run passes an ``OverlayFileSystem``; one in place carries out the repairs on the
disk when it swaps the log or deletes its segments (``write_repairs``), and not before: a log that fails is not changed.

A segment is split if its offsets do not fit its indexes (last offset - base offset > 2^31 - 1). A new segment begins at the
first batch whose last offset does not fit. The new segments are written as ``.cleaned``, a suffix that a broker knows: while
one of these exists, it removes the ``.swap`` files at or above it and keeps the source. They are renamed to ``.swap`` in
descending order, then the source to ``.deleted``, then ``.swap`` is removed in ascending order.

Differences: the first new segment keeps the source's base offset, and is empty if the first batch does not fit. Kafka names it
after its first batch, so that a broker that stops before the source is ``.deleted`` finds both the source and the new segments.
Transaction index entries move to the segment that holds their marker; Kafka drops them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from compaction.errors import CorruptLogError, StorageError
from compaction.files.durable import DurableSteps, names_in, verified_file, write_verified
from compaction.files.filesystem import FileRange, FileSystem, join, storage_of
from compaction.files.overlay import Copied, NamesSynced, Operation, OverlayFileSystem, Removed, Renamed, Written
from compaction.files.segment_file import SegmentFile
from compaction.formats import indexes
from compaction.formats.indexes import MAX_RELATIVE_OFFSET
from compaction.log.access import NO_OWNER, Owner
from compaction.log.checkpoint_store import Checkpoints, read_checkpoints
from compaction.log.read_log import (
    RESTORE_SEGMENT,
    SegmentState,
    inspect_segment,
    require_unchanged,
    segment_bases,
    snapshots,
)
from compaction.names import CLEANED, DELETED, INDEX, LEADER_EPOCHS, LOG, SWAP, TIMEINDEX, TXNINDEX, LogLocation, segment_file
from compaction.output.segment_files import change_suffixes, exists, remove_deleted
from compaction.output.segment_writer import IndexBuilder, copy_verified
from compaction.recovery.indexes import (
    INDEX_INTERVAL_BYTES,
    HeaderScan,
    ScanRange,
    TxnIndexes,
    contradictions,
    rebuild_indexes,
    repair_epochs,
    scan_headers,
    write_like_log,
    wrong_indexes,
)
from compaction.recovery.interrupted_swap import finish_interrupted_swap
from compaction.rules.log_view import Segment
from compaction.rules.transactions import TXN_ROW, joined


@dataclass
class _NewSegment:
    """The byte range ``[start, end)`` of the source that becomes a segment, and its indexes."""

    base_offset: int
    start: int
    end: int
    builder: IndexBuilder = field(compare=False)
    last_offset: int = -1


def split_segment(fs: FileSystem, log_path: str, segment: Segment, interval_bytes: int) -> tuple[int, ...]:
    """Replace an overflowing segment by segments that do not overflow; returns their base offsets.

    :raises CorruptLogError: a batch is damaged, or is read differently each time; the source is unchanged
    :raises StorageError: the file system refused; the source is unchanged
    """
    new_segments = _split_points(fs, log_path, segment, interval_bytes)
    # no checksum covers the offsets of batches: one wrong read would lose records
    if _split_points(fs, log_path, segment, interval_bytes) != new_segments:
        path = join(log_path, segment_file(segment.base_offset, LOG))
        raise CorruptLogError("returns other bytes each time it is read", path=path, hint="check the disk")
    for new in new_segments:
        _write(fs, log_path, new, segment)
    fs.fsync_dir(log_path)
    for new in reversed(new_segments):
        change_suffixes(fs, log_path, new.base_offset, CLEANED, SWAP)
        fs.fsync_dir(log_path)
    change_suffixes(fs, log_path, segment.base_offset, "", DELETED)
    fs.fsync_dir(log_path)
    for new in new_segments:
        change_suffixes(fs, log_path, new.base_offset, SWAP, "")
        fs.fsync_dir(log_path)
    return tuple(new.base_offset for new in new_segments)


def _split_points(fs: FileSystem, log_path: str, segment: Segment, interval_bytes: int) -> list[_NewSegment]:
    file = SegmentFile.of(fs, log_path, segment)
    scan = file.scan(check_crc=True)
    parts = [_NewSegment(segment.base_offset, 0, 0, IndexBuilder(segment.base_offset, interval_bytes))]
    for rows in scan:
        remaining = rows
        while len(remaining):
            fits = remaining["last_offset"] - parts[-1].base_offset <= MAX_RELATIVE_OFFSET
            count = len(remaining) if fits.all() else int(np.argmin(fits))
            taken, remaining = remaining[:count], remaining[count:]
            if count:
                parts[-1].builder.add(taken)
                parts[-1].end = int(taken["position"][-1] + taken["size"][-1])
                parts[-1].last_offset = int(taken["last_offset"][-1])
            if len(remaining):
                base, start = int(remaining["base_offset"][0]), int(remaining["position"][0])
                parts.append(_NewSegment(base, start, start, IndexBuilder(base, interval_bytes)))
    if not scan.complete:
        raise CorruptLogError(scan.damage() or "segment ends within a batch", path=file.path, position=scan.position)
    return parts


def _write(fs: FileSystem, log_path: str, new: _NewSegment, source: Segment) -> None:
    log = join(log_path, segment_file(source.base_offset, LOG))
    status = fs.stat(log)
    mtime_ns = None if status is None else status.mtime_ns
    target = join(log_path, segment_file(new.base_offset, LOG, CLEANED))
    copy_verified(fs, fs, FileRange(log, new.start, new.end - new.start), target)
    files = list(zip((INDEX, TIMEINDEX), new.builder.finish(), strict=True))
    txns = [txn for txn in source.aborted_txns if new.base_offset <= txn.last_offset <= new.last_offset]
    if txns:
        files.append((TXNINDEX, indexes.write_txn_index(np.array(txns, indexes.TXN_ROW))))
    for kind, data in files:
        path = join(log_path, segment_file(new.base_offset, kind, CLEANED))
        write_verified(fs, path, data, like=log, mtime_ns=mtime_ns)


_LOG = logging.getLogger(__name__)


@dataclass
class RecoveryReport:
    """The actions of recovery, one line each.

    ``segments`` are the log's, ascending; ``without_producers`` are the base offsets of segments known to hold no batch of a
    producer. ``read_log`` takes both, so that it need not read them again.
    """

    actions: list[str] = field(default_factory=list)
    segments: tuple[Segment, ...] = ()
    without_producers: frozenset[int] = frozenset()


def recover_log(
    fs: FileSystem,
    location: LogLocation,
    *,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    disk: FileSystem | None = None,
    owner: Owner = NO_OWNER,
    checkpoints: Checkpoints | None = None,
) -> RecoveryReport:
    """Recover one log. Call it with the lock held, before the log directory's checkpoints are read for the plan.

    :param disk: the file system on which an interrupted swap is finished, if it is not ``fs``
    :param checkpoints: of the log directory; read if not given
    :raises CorruptLogError: an inactive segment is damaged, or a swap can neither be finished nor undone
    :raises StorageError: the file system refused; the next run continues
    """

    disk, actions = disk or fs, []
    checkpoints = read_checkpoints(fs, location.log_dir) if checkpoints is None else checkpoints
    rehearsal = OverlayFileSystem(disk)
    if finish_interrupted_swap(rehearsal, location):
        _Repair(rehearsal, location, index_interval_bytes, checkpoints).run()
        actions = finish_interrupted_swap(disk, location, owner)
    report = _Repair(fs, location, index_interval_bytes, checkpoints).run()
    report.actions[:0] = actions
    return report


class _Repair:
    """Splits the overflowing segments of a log and rebuilds its indexes."""

    def __init__(self, fs: FileSystem, location: LogLocation, interval_bytes: int, checkpoints: Checkpoints) -> None:
        self._fs, self._location, self._path, self._checkpoints = fs, location, location.path, checkpoints
        self._unclean = not checkpoints.clean_shutdown and not storage_of(location.path).appears_whole
        self._log_start, self._interval_bytes = checkpoints.log_starts.get(location.topic_partition, 0), interval_bytes
        #: the segments, as they are after each step
        self._states: list[SegmentState] = []
        self._report = RecoveryReport()

    @property
    def _segments(self) -> tuple[Segment, ...]:
        return tuple(state.segment for state in self._states)

    def run(self) -> RecoveryReport:
        """:raises CorruptLogError: an inactive segment is damaged"""
        fs, path, report = self._fs, self._path, self._report
        self._repair_segments()
        self._check_order()
        self._note_torn_tail()
        bases = [segment.base_offset for segment in self._segments]
        unflushed = self._checkpoints.first_unflushed(self._location.topic_partition, bases)
        limits = ScanRange(self._log_start, unflushed, self._interval_bytes)
        selected = self._with_transactions(-1 if self._checkpoints.snapshots_may_lack else unflushed)
        scans = scan_headers(fs, path, self._segments, selected, limits)
        if repair_epochs(fs, path, bases, scans):
            report.actions.append(f"assigned leader epochs in {LEADER_EPOCHS}")
        complete_to = self._checkpoints.complete_to
        scans = {index: scan._replace(recovered=None) if bases[index] < complete_to else scan for index, scan in scans.items()}
        self._repair_unflushed(scans, limits)
        self._repair_txn_indexes(scans)
        return report

    def _repair_segments(self) -> None:
        bases = segment_bases(self._fs, self._path)
        for base in bases:
            active = base == bases[-1]
            state = self._inspect(base, active=active, interval_bytes=self._interval_bytes)
            changed = [base]
            # Kafka: ``LogSegment.hasOverflow`` (KAFKA-6264)
            if state.segment.next_offset - 1 - base > MAX_RELATIVE_OFFSET:
                changed = list(split_segment(self._fs, self._path, state.segment, self._interval_bytes))
                remove_deleted(self._fs, self._path)
                self._report.actions.append(f"split the overflowing segment {base} into {len(changed)}")
            elif state.index_problem is not None:
                interval_bytes, unclean = self._interval_bytes, self._unclean
                rebuild_indexes(self._fs, self._path, base, active=active, unclean=unclean, interval_bytes=interval_bytes)
                self._report.actions.append(f"rebuilt the indexes of segment {base}: {state.index_problem}")
            else:
                self._states.append(state)
                continue
            self._states += [self._inspect(each, active=active and each == changed[-1]) for each in changed]

    def _inspect(self, base: int, *, active: bool, interval_bytes: int | None = None) -> SegmentState:
        unclean = self._unclean
        return inspect_segment(self._fs, self._path, base, active=active, unclean=unclean, index_interval_bytes=interval_bytes)

    def _check_order(self) -> None:
        """Base offsets are not covered by a checksum, and a wrong one would move data.

        :raises CorruptLogError: a segment overlaps the next one
        """
        for state, later in pairwise(self._states):
            segment, end = state.segment, later.segment.base_offset
            if segment.next_offset > end:
                message = f"last batch ends at offset {segment.next_offset - 1}, past the next segment's base {end}"
                name = join(self._path, segment_file(segment.base_offset, LOG))
                raise CorruptLogError(message, path=name, position=state.last_position, hint=RESTORE_SEGMENT)

    def _note_torn_tail(self) -> None:
        for state in self._states[-1:]:
            if state.torn_bytes:
                self._report.actions.append(f"ignored {state.torn_bytes} bytes after the last complete batch")
                if state.ignored_damage is not None:
                    comparison = "as a broker does without a clean shutdown"
                    _LOG.warning("%s: %s, %s: %s", self._path, self._report.actions[-1], comparison, state.ignored_damage)

    def _with_transactions(self, usable: int) -> list[int]:
        """The indexes of segments that may hold transactions: all but those with a snapshot at their end that has no
        transactional producer. A snapshot past ``usable`` is not used, as by a broker that was killed."""
        segments = self._segments
        if not segments:
            return []
        quiet = {
            offset
            for offset, entries in snapshots(self._fs, self._path)
            if offset <= usable and all(entry.coordinator_epoch < 0 and entry.current_txn_first_offset < 0 for entry in entries)
        }
        ends = [segment.base_offset for segment in segments[1:]] + [segments[-1].next_offset]
        return [index for index, end in enumerate(ends) if end not in quiet or segments[index].aborted_txns]

    def _repair_unflushed(self, scans: Mapping[int, HeaderScan], limits: ScanRange) -> None:
        """Repairs indexes after a broker was killed.

        :raises CorruptLogError: two scans differ, which verify no checksums
        """
        fs, path, segments = self._fs, self._path, self._segments
        for index, scan in scans.items():
            base = segments[index].base_offset
            wrong = {} if scan.recovered is None else wrong_indexes(fs, path, base, scan.recovered)
            if not wrong:
                continue
            if scan_headers(fs, path, segments, [index], limits)[index].recovered != scan.recovered:
                name = join(path, segment_file(base, LOG))
                raise CorruptLogError("two reads of its batch headers differ", path=name, hint="check the disk, and run again")
            for kind, data in wrong.items():
                write_like_log(fs, path, base, kind, data)
            self._states[index] = self._inspect(base, active=index == len(segments) - 1)
            self._report.actions.append(f"rebuilt the indexes of segment {base}, which was not flushed")

    def _repair_txn_indexes(self, scans: Mapping[int, HeaderScan]) -> None:
        """Rebuilds the transaction indexes that are malformed or contradict the log."""
        fs, path, report, segments, start = self._fs, self._path, self._report, self._segments, self._log_start
        report.without_producers = frozenset(segments[index].base_offset for index, scan in scans.items() if not scan.producers)
        rows = joined(TXN_ROW, (scan.rows for scan in scans.values()))
        broken = contradictions(segments, scans, rows, start)
        broken |= {index: state.txn_problem for index, state in enumerate(self._states) if state.txn_problem is not None}
        bases = {index: segments[index].base_offset for index in sorted(broken)}
        wrong = {base for base in bases.values() if exists(fs, path, base, TXNINDEX, "")}
        report.segments = TxnIndexes(fs, path, segments, start).repair(rows, broken) if broken else segments
        for index, base in bases.items():
            report.actions.append(f"rebuilt the transaction index of segment {base}: {broken[index]}")
            if base in wrong:
                _LOG.warning("%s: %s", path, report.actions[-1])
        unflushed = [index for index, scan in scans.items() if scan.recovered is not None and index < len(segments) - 1]
        changed = TxnIndexes(fs, path, report.segments, start).recover_unflushed(unflushed)
        report.segments = tuple(changed.get(index, segment) for index, segment in enumerate(report.segments))
        for segment in changed.values():
            report.actions.append(f"rebuilt the transaction index of segment {segment.base_offset}, which was not flushed")


def write_repairs(
    overlay: OverlayFileSystem, disk: FileSystem, log_path: str, segments: Iterable[Segment]
) -> DurableSteps[None]:
    """Applies the changes of recovery to a log in ``overlay`` to ``disk``. New files are durable and read back from the device
    before they are renamed.

    :param segments: all segments of the log, as read through ``overlay``
    :raises StorageError: a segment has changed since, and nothing was changed; or the file system refused, and files that have
        no durable name yet are removed if possible
    """
    operations = overlay.operations(log_path)
    if operations:
        require_unchanged(overlay, disk, log_path, segments)
    unnamed: set[str] = set()
    try:
        for operation in operations:
            if isinstance(operation, Written | Copied) and disk.stat(operation.path) is None:
                unnamed.add(operation.path)
            yield from _carry_out(disk, operation, unnamed)
    except StorageError:
        for path in unnamed:
            with suppress(StorageError):
                disk.unlink(path)
        raise


def _carry_out(fs: FileSystem, operation: Operation, unnamed: set[str]) -> DurableSteps[None]:
    match operation:
        case Written(path, data, like, mtime_ns):
            yield from verified_file(fs, path, data, like=like, mtime_ns=mtime_ns)
        case Copied(source, path):
            copy_verified(fs, fs, source, path)
        case Renamed(source, path):
            fs.rename(source, path)
            unnamed.discard(source)
        case Removed(path):
            fs.unlink(path)
        case NamesSynced(path):
            yield names_in(path)
            # the next recovery recognizes these files by their names
            unnamed.clear()
