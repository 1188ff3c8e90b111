"""Reads the state of one log for planning, as a broker has it after loading the log.

Mirrors ``LogLoader.load``, ``UnifiedLog.rebuildProducerState`` and ``UnifiedLog.updateHighWatermark``:

1. log start = the checkpoint's, at least the first segment's base offset
2. log end = the offset after the last complete batch
3. high watermark = the checkpoint's, within [log start, log end]; the log end without a checkpoint (an export)
4. producers = the newest valid snapshot in (log start, log end] and the batches after it; all batches without a snapshot. If a
   newer snapshot is malformed, those are retained that have expired since: a broker forgets them at its next check only. If the
   broker was killed, it recovers the segments from the recovery point on: it uses no later snapshot, and before each of these
   segments it forgets the producers that are expired
5. last stable offset = first offset of the oldest transaction that is open, or that ended at or past the high watermark; at
   most the high watermark. If that is below the log start, the base offset of the first batch that ends at or past the log
   start

Differences: no snapshot is removed or written. Without any snapshot, a broker that was shut down cleanly loses all producers,
while here the batches are replayed. A broker that recovers segments after a crash loses which of their transactions ended at or
past the high watermark, while here these bound the last stable offset. A log start past the log end is an error, while a broker
deletes every segment.

Also inspects the files of one segment (sizes, indexes, the batches after the last index entry, and their errors), cuts segments
into byte ranges at batch boundaries of the offset index, each verified in the log, and detects changes to a log since it was
read: a broker may run during a dry run, or another process may change a log before its replacement.

Mirrors ``LogSegment``: ``readNextOffset`` (scan from the last index entry), ``largestTimestamp``, ``getFirstBatchTimestamp``.
Difference: a broker counts an index file's full length as entries, while a preallocated tail is ignored here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import xxhash

from compaction.config.entries import DAY_MS, LONG_MAX
from compaction.errors import CorruptLogError, StorageError
from compaction.files.filesystem import FileStat, FileSystem, ReadableFileSystem, join
from compaction.files.segment_file import SegmentFile, SegmentScan
from compaction.files.text_files import MAX_INDEX_BYTES, read_confirmed, read_small
from compaction.formats import indexes
from compaction.formats.indexes import OFFSET_INDEX
from compaction.formats.primitives import FieldTable, FormatError
from compaction.formats.producer_snapshot import ProducerEntry, read_snapshot
from compaction.formats.record_batch import MAGIC, NO_TIMESTAMP
from compaction.log.checkpoint_store import Checkpoints
from compaction.names import (
    INDEX,
    LOG,
    LOG_STARTS,
    SNAPSHOT,
    TIMEINDEX,
    TXNINDEX,
    LogLocation,
    parse_segment_file,
    segment_file,
)
from compaction.rules.log_view import AbortedTxn, LogView, Segment
from compaction.rules.producer_state import ProducerStates

RESTORE_SEGMENT = "restore this segment from a replica or a backup"
_AGAIN = "make sure that nothing else works on this directory, check the disk, and run again"
#: index files up to this size are read completely
_SMALL_BYTES = 64 * 1024
_CHANGED_HINT = "make sure that no broker and no other job works on this directory, and run again"


@dataclass(frozen=True)
class ReadOptions:
    """Producers idle for ``producer_id_expiration_ms`` at ``now_ms`` are expired."""

    now_ms: int
    producer_id_expiration_ms: int = DAY_MS


def read_log(
    fs: FileSystem,
    location: LogLocation,
    checkpoints: Checkpoints,
    options: ReadOptions,
    *,
    segments: tuple[Segment, ...] | None = None,
    without_producers: Collection[int] = (),
) -> LogView:
    """The log at ``location``, which must have been recovered (``recover_log``).

    :param segments: from ``RecoveryReport.segments``; read if not given
    :param without_producers: base offsets of segments that need no replay (``RecoveryReport.without_producers``)
    :raises CorruptLogError: a checkpoint or the end of a segment is malformed
    """
    checkpoints.require_valid()
    name = location.topic_partition
    segments = read_segments(fs, location.path) if segments is None else segments
    checkpoint = checkpoints.log_starts.get(name, 0)
    log_start = max(checkpoint, segments[0].base_offset) if segments else checkpoint
    log_end = segments[-1].next_offset if segments else log_start
    if log_start > log_end:
        raise CorruptLogError(
            f"log ends at offset {log_end}, before its log start {log_start} in {LOG_STARTS}",
            path=location.path,
            hint="restore the missing segments; a broker that loads this log deletes the others",
        )
    high_watermark = min(max(checkpoints.high_watermarks.get(name, log_end), log_start), log_end)
    replayed = [segment for segment in segments if segment.base_offset not in without_producers]
    bounds = log_start, log_end
    first_unflushed = checkpoints.first_unflushed(name, (segment.base_offset for segment in segments))
    offsets = segment_bases(fs, location.path, SNAPSHOT) if first_unflushed == LONG_MAX else []
    newest = [offset for offset in offsets if log_start < offset <= log_end][-1:]
    hides_producers = any(_read_snapshot(fs, location.path, offset) is None for offset in newest)
    states = replay_producers(fs, location.path, replayed, bounds, options, first_unflushed=first_unflushed)
    unstable = states.first_unstable_offset(high_watermark)
    if unstable is not None and unstable < log_start:
        unstable = _batch_at(fs, location.path, segments, log_start)
    if not hides_producers:
        states.expire(options.now_ms, options.producer_id_expiration_ms)
    return LogView(
        topic_partition=name,
        log_dir=location.log_dir,
        path=location.path,
        segments=segments,
        log_start_offset=log_start,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark if unstable is None else min(unstable, high_watermark),
        log_end_offset=log_end,
        cleaner_checkpoint=checkpoints.cleaner_offsets.get(name),
        producers=states.entries(),
    )


def read_segments(fs: ReadableFileSystem, log_path: str) -> tuple[Segment, ...]:
    """The segments of a log, ascending; the last one is active."""
    bases = segment_bases(fs, log_path)
    return tuple(inspect_segment(fs, log_path, base, active=base == bases[-1]).segment for base in bases)


def replay_producers(
    fs: FileSystem,
    log_path: str,
    segments: Sequence[Segment],
    bounds: tuple[int, int],
    options: ReadOptions,
    *,
    from_snapshots: bool = True,
    first_unflushed: int = LONG_MAX,
) -> ProducerStates:
    """The producers at ``bounds[1]``, from the newest valid snapshot in ``(bounds[0], bounds[1]]`` and the batches after it.

    :param first_unflushed: a broker recovers the segments from this base offset on. Mirrors ``LogLoader.recoverSegment``: it
        uses no later snapshot, stores the producers after each segment, and loads them before the next one
    """
    (log_start, end), expiration_ms = bounds, options.producer_id_expiration_ms
    start, states = log_start, ProducerStates()
    usable = snapshots(fs, log_path) if from_snapshots else ()
    for offset, entries in (each for each in usable if log_start < each[0] <= min(end, first_unflushed)):
        start = offset
        states.load(entries, options.now_ms, expiration_ms)
        break
    for segment in segments:
        if segment.base_offset >= first_unflushed and segment.next_offset > log_start:
            states.expire(options.now_ms, expiration_ms)
        if segment.next_offset > start and segment.base_offset < end:
            replay_segment(fs, log_path, segment, (start, end), states)
    return states


def replay_segment(fs: FileSystem, log_path: str, segment: Segment, bounds: tuple[int, int], states: ProducerStates) -> None:
    """Apply the batches of one segment that end within ``[bounds[0], bounds[1])`` to ``states``, by their headers."""
    file = SegmentFile.of(fs, log_path, segment)
    scan = file.scan()
    for rows in scan:
        inside = (rows["last_offset"] >= bounds[0]) & (rows["base_offset"] < bounds[1])
        states.append(rows[inside], file.marker_at)
    if not scan.complete:
        raise CorruptLogError(scan.error or "segment ends within a batch", path=file.path, position=scan.position)
    states.flush()


def snapshots(fs: FileSystem, log_path: str) -> Iterator[tuple[int, list[ProducerEntry]]]:
    """The valid producer snapshots of a log, newest first: offset (exclusive end) and entries. Malformed ones are skipped."""
    for offset in reversed(segment_bases(fs, log_path, SNAPSHOT)):
        entries = _read_snapshot(fs, log_path, offset)
        if entries is not None:
            yield offset, entries


def _read_snapshot(fs: FileSystem, log_path: str, offset: int) -> list[ProducerEntry] | None:
    """The entries of a snapshot; ``None`` if it is malformed. It is read again then: the first read may have been wrong.

    :raises StorageError: repeated reads of a malformed one differ
    """
    for read in (read_small, read_confirmed):
        with suppress(CorruptLogError, FormatError):
            return read_snapshot(read(fs, join(log_path, segment_file(offset, SNAPSHOT)), "remove it"))
    return None


def _batch_at(fs: FileSystem, log_path: str, segments: Sequence[Segment], offset: int) -> int:
    """Base offset of the first batch that ends at or past ``offset`` (Kafka: ``LocalLog.convertToOffsetMetadataOrThrow``)."""
    for segment in segments:
        if segment.next_offset <= offset:
            continue
        for rows in SegmentFile.of(fs, log_path, segment).scan():
            for base in rows["base_offset"][rows["last_offset"] >= offset][:1].tolist():
                return int(base)
    return offset


@dataclass(frozen=True)
class SegmentState:
    """The state of one segment.

    ``segment`` is for planning. ``torn_bytes`` follow the last complete batch of an active segment, which begins at byte
    ``last_position``; ``ignored_damage`` is their error if only an unclean shutdown explains them. ``index_problem`` and
    ``txn_problem`` are the reasons to rebuild the offset and time index, or the transaction index.
    """

    segment: Segment
    torn_bytes: int = 0
    last_position: int = 0
    index_problem: str | None = None
    txn_problem: str | None = None
    ignored_damage: str | None = None


def segment_bases(fs: ReadableFileSystem, log_path: str, kind: str = LOG) -> list[int]:
    """Base offsets of the segments in a partition directory, ascending; or the offsets of its files of another ``kind``."""
    parsed = (parse_segment_file(name) for name in fs.listdir(log_path))
    return sorted(file.base_offset for file in parsed if file is not None and file.kind == kind and not file.suffix)


def inspect_segment(
    fs: ReadableFileSystem,
    log_path: str,
    base_offset: int,
    *,
    active: bool,
    unclean: bool = False,
    index_interval_bytes: int | None = None,
) -> SegmentState:
    """Read one segment's indexes, first batch and last batches.

    :param active: whether a torn tail is permitted
    :param unclean: whether that tail may have any bytes (``SegmentScan.damage``)
    :param index_interval_bytes: if given, detect truncated indexes: no batch may start more than twice this after the last
        entry
    :raises CorruptLogError: the end of the segment is malformed
    """
    file = SegmentFile(fs, join(log_path, segment_file(base_offset, LOG)))
    offsets, problem = _valid_entries(fs, log_path, base_offset, INDEX)
    times, time_problem = _valid_entries(fs, log_path, base_offset, TIMEINDEX)
    last_offset, start = _last_entry(indexes.OFFSET_ENTRY, offsets) or (0, 0)
    if offsets and not file.ends_with(start, base_offset + last_offset):
        problem = f"{INDEX} is stale: its last entry is not a batch of the segment"
        offsets, start = b"", 0
    scan = file.scan(0 if time_problem else start, check_crc=active)
    tail_timestamp, ignored = _read_tail(scan, file.path, base_offset, active=active, unclean=active and unclean)
    next_offset = base_offset if scan.next_offset is None else scan.next_offset
    first = file.batch_at(0)
    first_timestamp = int(first["max_timestamp"][0]) if len(first) else NO_TIMESTAMP
    last_timestamp, last_offset = _last_entry(indexes.TIME_ENTRY, times) or (NO_TIMESTAMP, -1)
    problem = problem or time_problem
    if problem is None and index_interval_bytes is not None and scan.last_position - start > 2 * index_interval_bytes:
        problem = f"{INDEX} is truncated: {scan.last_position - start} bytes follow its last entry"
    if problem is None and base_offset + last_offset >= next_offset:
        problem = f"{TIMEINDEX} is stale: its last entry lies past the segment's end"
    if problem is None and not active and last_timestamp < max(tail_timestamp, first_timestamp):
        problem = f"{TIMEINDEX} is truncated: the segment holds larger timestamps"
    txns, txn_problem = _aborted_txns(fs, log_path, base_offset)
    status = fs.stat(file.path)
    mtime_ns = 0 if status is None else status.mtime_ns
    largest = max(last_timestamp, tail_timestamp) if active or problem else last_timestamp
    segment = Segment(
        base_offset=base_offset,
        size_bytes=scan.position,
        mtime_ns=mtime_ns,
        index_bytes=len(offsets),
        time_index_bytes=len(times),
        largest_timestamp_ms=largest if largest >= 0 else mtime_ns // 1_000_000,
        first_batch_timestamp_ms=first_timestamp if first_timestamp >= 0 else LONG_MAX,
        next_offset=next_offset,
        aborted_txns=txns,
        identity=None if status is None or not status.inode else identity_of(status),
        # 60 bits: a larger number takes half as much memory again
        index_digest=xxhash.xxh3_64_intdigest(offsets + times) >> 4 if offsets or times else 0,
    )
    return SegmentState(segment, len(file.data) - scan.position, scan.last_position, problem, txn_problem, ignored)


def require_same_indexes(fs: ReadableFileSystem, log_path: str, segments: Iterable[Segment]) -> None:
    """Check that copied segments have the indexes that the log had when it was planned.

    :param segments: as planned; the log's last one may have a torn tail
    :raises CorruptLogError: the end of a segment is malformed
    :raises StorageError: indexes have changed
    """
    last = max(segment_bases(fs, log_path), default=-1)
    for planned in segments:
        state = inspect_segment(fs, log_path, planned.base_offset, active=planned.base_offset == last, unclean=True)
        problem = state.index_problem or state.txn_problem
        found = state.segment.index_digest, state.segment.aborted_txns
        if problem is not None or found != (planned.index_digest, planned.aborted_txns):
            path = join(log_path, segment_file(planned.base_offset, LOG))
            reason = problem or "other entries"
            raise StorageError(f"indexes have changed since they were read: {reason}", path=path, hint=_AGAIN)


def identity_of(status: FileStat) -> tuple[int, int, int]:
    """Device, inode and ctime, ns: they change with any replacement of the file or its bytes."""
    return status.device, status.inode, status.ctime_ns


def _valid_entries(fs: ReadableFileSystem, log_path: str, base_offset: int, kind: str) -> tuple[bytes, str | None]:
    """The valid entries of an offset or time index file; none, and the problem, if it is not an index."""
    path = join(log_path, segment_file(base_offset, kind))
    status = fs.stat(path)
    if status is None:
        return b"", f"{kind} is missing"
    index = indexes.SEGMENT_INDEXES[kind]
    data = fs.read_bytes(path) if status.size <= _SMALL_BYTES else _used_part(fs, path, status.size)
    if data is None:
        return b"", f"{kind} is larger than any index"
    used_bytes = (index.valid(data) if data else 0) * index.entry.size
    if len(data) % index.entry.size or any(data[used_bytes:]):
        return b"", _fault(index.check, data, kind)
    return data[:used_bytes], None


def _last_entry(table: FieldTable[Any], entries: bytes) -> tuple[int, int] | None:
    return tuple(table.unpack(entries, len(entries) - table.size)) if entries else None


def _read_tail(scan: SegmentScan, path: str, base_offset: int, *, active: bool, unclean: bool) -> tuple[int, str | None]:
    """Reads the batches from the last index entry on.

    :returns: their largest timestamp, and the error of an end that is ignored because the broker was not shut down cleanly
    :raises CorruptLogError: they are damaged; the segment is inactive and incomplete, or begins before its base offset
    """
    largest_timestamp, first_offset = NO_TIMESTAMP, base_offset
    for number, rows in enumerate(scan):
        if number == 0:
            first_offset = int(rows["base_offset"][0])
        largest_timestamp = max(largest_timestamp, int(rows["max_timestamp"].max()))
    damage, remaining = scan.damage(), len(scan.data) - scan.position
    ignored = damage if unclean else None
    if ignored is not None:
        damage = scan.damage(unclean=True)
    if damage is None and not active and remaining:
        damage = scan.error or f"{remaining} bytes after the last complete batch of an inactive segment"
    if damage is not None:
        raise CorruptLogError(damage, path=path, position=scan.position, hint=RESTORE_SEGMENT)
    if first_offset < base_offset:
        message = f"batch begins at offset {first_offset}, expected {base_offset} or more"
        raise CorruptLogError(message, path=path, position=scan.start, hint=RESTORE_SEGMENT)
    return largest_timestamp, ignored


def _used_part(fs: ReadableFileSystem, path: str, size: int) -> bytes | None:
    """An index file without its preallocated tail, in complete entries of either size (both divide 24); ``None`` if this is
    larger than any index.

    Not memory-mapped: a running broker may truncate the tail during a dry run.
    """
    step = 24 * 1024
    low, high = 0, -(-size // step)
    while low < high:
        middle = (low + high) // 2
        if any(fs.read_bytes(path, middle * step, step)):
            low = middle + 1
        else:
            high = middle
    return None if low * step > MAX_INDEX_BYTES + step else fs.read_bytes(path, 0, low * step)


def _fault(check: Callable[[bytes], None], data: bytes, kind: str) -> str:
    try:
        check(data)
    except FormatError as error:
        return error.message
    return f"{kind} is broken"


def _aborted_txns(fs: ReadableFileSystem, log_path: str, base_offset: int) -> tuple[tuple[AbortedTxn, ...], str | None]:
    path = join(log_path, segment_file(base_offset, TXNINDEX))
    if fs.stat(path) is None:
        return (), None
    try:
        data = read_confirmed(fs, path, RESTORE_SEGMENT, MAX_INDEX_BYTES)
    except CorruptLogError as error:
        return (), f"{TXNINDEX} {error.message}"
    try:
        indexes.check_txn_index(data, base_offset)
        rows = indexes.read_txn_index(data)
    except FormatError as error:
        return (), error.message
    problem = f"{TXNINDEX} ends within an entry" if len(data) % indexes.TXN_ENTRY.size else None
    return tuple(AbortedTxn(*row) for row in rows.tolist()), problem


class ByteRange(NamedTuple):
    """Bytes ``[start, end)`` of a segment's log file; its batches have offsets in ``[first_offset, end_offset)``."""

    start: int
    end: int
    first_offset: int
    end_offset: int


def cut_segment(fs: FileSystem, log_path: str, segment: Segment, target_bytes: int) -> tuple[ByteRange, ...]:
    """The byte ranges of one segment, of about ``target_bytes`` each, in order; a single one if the index has no boundary.

    An index entry has a batch's last offset and position. It is used only if a batch with that last offset and a valid checksum
    is there, so that a stale or damaged index reduces parallelism but never loses a record.
    """
    base_offset, size_bytes = segment.base_offset, segment.size_bytes
    cuts = [(0, base_offset)]
    if size_bytes > target_bytes + target_bytes // 2:
        cuts += _boundaries(fs, log_path, base_offset, size_bytes, target_bytes)
    cuts.append((size_bytes, segment.next_offset))
    return tuple(ByteRange(start, end, first, last) for (start, first), (end, last) in pairwise(cuts))


def _boundaries(
    fs: FileSystem, log_path: str, base_offset: int, size_bytes: int, target_bytes: int
) -> Iterator[tuple[int, int]]:
    file = SegmentFile(fs, join(log_path, segment_file(base_offset, LOG)), size_bytes)
    try:
        entries = OFFSET_INDEX.read(fs.read_bytes(f"{log_path}/{segment_file(base_offset, INDEX)}"), base_offset)
    except (StorageError, ValueError):
        return
    ranges = max(1, round(size_bytes / target_bytes))
    last = 0
    for k in range(1, ranges):
        entry = int(np.searchsorted(entries["position"], k * size_bytes // ranges))
        if entry >= len(entries) or entries["position"][entry] <= last:
            continue
        position = int(entries["position"][entry])
        first = _verified(file, position, int(entries["offset"][entry]))
        if first is not None and first > base_offset:
            last = position
            yield position, first


def _verified(file: SegmentFile, position: int, last_offset: int) -> int | None:
    """The base offset of the batch at ``position``, if it is valid and ends with ``last_offset``."""
    rows = file.batch_at(position, check_crc=True)
    if not len(rows) or rows["magic"][0] != MAGIC or rows["last_offset"][0] != last_offset:
        return None
    return int(rows["base_offset"][0])


def has_changed(fs: ReadableFileSystem, view: LogView) -> bool:
    """Whether segments were added, removed or written to since ``view`` was made."""
    try:
        require_unchanged(fs, fs, view.path, view.segments)
        return segment_bases(fs, view.path) != [segment.base_offset for segment in view.segments]
    except StorageError:
        return True


def require_unchanged(fs: ReadableFileSystem, disk: ReadableFileSystem, log_path: str, segments: Iterable[Segment]) -> None:
    """:raises StorageError: a segment has changed, or was replaced by another file

    :param fs: the file system from which the log was read, possibly an overlay
    :param disk: the file system below
    """
    for segment in segments:
        if _changed(fs, disk, log_path, segment):
            path = join(log_path, segment_file(segment.base_offset, LOG))
            raise StorageError("segment has changed since it was read; the log is unchanged", path=path, hint=_CHANGED_HINT)


def _changed(fs: ReadableFileSystem, disk: ReadableFileSystem, log_path: str, segment: Segment) -> bool:
    path = join(log_path, segment_file(segment.base_offset, LOG))
    if fs.stat(path) is None:
        return True
    real = fs.real_path(path)
    if real is None:
        return False
    status = disk.stat(real.path)
    if status is None or status.mtime_ns != segment.mtime_ns or status.size < segment.size_bytes:
        return True
    return segment.identity is not None and segment.identity != identity_of(status)
