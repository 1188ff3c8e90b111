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
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from compaction.cleaning.log_view import LogView, Segment
from compaction.cleaning.producer_state import ProducerStates
from compaction.errors import CorruptLogError
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import ProducerEntry, read_snapshot
from compaction.logdir.checkpoint_store import Checkpoints
from compaction.logdir.segments import inspect_segment, segment_bases
from compaction.names import LOG_STARTS, SNAPSHOT, LogLocation, parse_segment_file, segment_file
from compaction.storage.filesystem import FileSystem, ReadableFileSystem, join
from compaction.storage.segment_file import SegmentFile
from compaction.storage.text_files import read_small

#: Kafka's default of ``producer.id.expiration.ms``
DAY_MS = 86_400_000


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
    expires = checkpoints.recovery_points is not None or not _newest_is_malformed(fs, location.path, *bounds)
    if checkpoints.recovery_points is None:
        states = replay_producers(fs, location.path, replayed, bounds, options)
    else:
        point = checkpoints.recovery_points.get(name, 0)
        first = max((segment.base_offset for segment in segments if segment.base_offset <= point), default=log_start)
        states = _recover_producers(fs, location.path, replayed, (log_start, first, log_end), options)
    unstable = states.first_unstable_offset(high_watermark)
    if unstable is not None and unstable < log_start:
        unstable = _batch_at(fs, location.path, segments, log_start)
    if expires:
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
) -> ProducerStates:
    """The producers at ``bounds[1]``, from the newest valid snapshot in ``(bounds[0], bounds[1]]`` and the batches after it."""
    start, end = bounds
    states = ProducerStates()
    snapshot = _newest_snapshot(fs, log_path, start, end) if from_snapshots else None
    if snapshot is not None:
        start, entries = snapshot
        states.load(entries, options.now_ms, options.producer_id_expiration_ms)
    for segment in segments:
        if segment.next_offset > start and segment.base_offset < end:
            replay_segment(fs, log_path, segment, (start, end), states)
    return states


def _recover_producers(
    fs: FileSystem, log_path: str, segments: Sequence[Segment], bounds: tuple[int, int, int], options: ReadOptions
) -> ProducerStates:
    """The producers at ``bounds[2]`` after a broker has recovered the segments from ``bounds[1]`` on.

    Mirrors ``LogLoader.recoverSegment``: it stores the producers after each segment, and loads them before the next one.
    """
    start, first, end = bounds
    states = replay_producers(fs, log_path, segments, (start, first), options)
    for segment in segments:
        if segment.base_offset >= first and segment.next_offset > start:
            states.expire(options.now_ms, options.producer_id_expiration_ms)
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
    for offset in _snapshot_offsets(fs, log_path):
        entries = _read_snapshot(fs, log_path, offset)
        if entries is not None:
            yield offset, entries


def _snapshot_offsets(fs: FileSystem, log_path: str) -> list[int]:
    """Newest first."""
    files = map(parse_segment_file, reversed(fs.listdir(log_path)))
    return [file.base_offset for file in files if file is not None and file.kind == SNAPSHOT and not file.suffix]


def _read_snapshot(fs: FileSystem, log_path: str, offset: int) -> list[ProducerEntry] | None:
    """The entries of a snapshot; ``None`` if it is malformed."""
    try:
        return read_snapshot(read_small(fs, join(log_path, segment_file(offset, SNAPSHOT)), "remove it"))
    except (CorruptLogError, FormatError):
        return None


def _newest_is_malformed(fs: FileSystem, log_path: str, start: int, end: int) -> bool:
    newest = next((offset for offset in _snapshot_offsets(fs, log_path) if start < offset <= end), None)
    return newest is not None and _read_snapshot(fs, log_path, newest) is None


def _batch_at(fs: FileSystem, log_path: str, segments: Sequence[Segment], offset: int) -> int:
    """Base offset of the first batch that ends at or past ``offset`` (Kafka: ``LocalLog.convertToOffsetMetadataOrThrow``)."""
    for segment in segments:
        if segment.next_offset <= offset:
            continue
        for rows in SegmentFile.of(fs, log_path, segment).scan():
            for base in rows["base_offset"][rows["last_offset"] >= offset][:1].tolist():
                return int(base)
    return offset


def _newest_snapshot(fs: FileSystem, log_path: str, start: int, end: int) -> tuple[int, list[ProducerEntry]] | None:
    return next((snapshot for snapshot in snapshots(fs, log_path) if start < snapshot[0] <= end), None)
