"""Recovers a log before a run: finishes an interrupted swap, splits overflowing segments and rebuilds indexes.

Mirrors ``LogLoader.load``, ``loadSegmentFiles`` and ``LocalLog.splitOverflowedSegment`` (Kafka 4.4.0):

1. An interrupted swap is finished or undone, and leftover files are removed (``interrupted_swap``). All steps are
   rehearsed in memory before: a damaged log is not changed.
2. Segments whose offsets overflow are split (``split``).
3. Missing, stale or malformed indexes are rebuilt (``rebuild``).

Differences: the torn tail of the active segment is kept (a broker truncates it when it loads the log). A damaged inactive
segment is an error; a broker truncates it and deletes every later segment. A run passes an ``OverlayFileSystem``; one in place
carries out the repairs on the disk before it swaps the log (``write_repairs``).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from compaction.cleaning.log_view import Segment
from compaction.errors import CorruptLogError
from compaction.fs.filesystem import FileSystem, join
from compaction.fs.overlay import OverlayFileSystem
from compaction.locking.claim import NO_OWNER, Owner
from compaction.logdir.checkpoint_store import read_offsets
from compaction.logdir.read_log import snapshots
from compaction.logdir.segments import SegmentState, inspect_segment, segment_bases
from compaction.names import LOG, LOG_STARTS, TXNINDEX, LogLocation, segment_file
from compaction.output.segment_files import exists, remove_deleted
from compaction.recovery.interrupted_swap import finish_interrupted_swap
from compaction.recovery.rebuild import INDEX_INTERVAL_BYTES, look_for_producers, rebuild_indexes, rebuild_txn_index
from compaction.recovery.split import split_segment

#: the kernel that scans headers releases the GIL
_SCAN_THREADS = 4
_PARALLEL_SCAN_BYTES = 256 * 1024 * 1024
_HINT = "restore this segment from a replica or a backup"


@dataclass
class RecoveryReport:
    """What recovery did, one line for each action.

    ``segments`` are the log's, ascending; ``without_producers`` are the base offsets of segments known to hold no batch of a
    producer. ``read_log`` takes both, so that it need not read them again.
    """

    actions: list[str] = field(default_factory=list)
    torn_tail_bytes: int = 0
    segments: tuple[Segment, ...] = ()
    without_producers: frozenset[int] = frozenset()


def recover_log(
    fs: FileSystem,
    location: LogLocation,
    *,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    disk: FileSystem | None = None,
    owner: Owner = NO_OWNER,
) -> RecoveryReport:
    """Recover one log. Call it with the lock held, before the log directory's checkpoints are read.

    :param disk: where an interrupted swap is finished, if not on ``fs``
    :raises CorruptLogError: an inactive segment is damaged, or a swap can neither be finished nor undone
    :raises StorageError: the file system refused; the next run continues
    """

    disk, actions = disk or fs, []
    rehearsal = OverlayFileSystem(disk)
    if finish_interrupted_swap(rehearsal, location):
        _repair(rehearsal, location, index_interval_bytes)
        actions = finish_interrupted_swap(disk, location, owner)
    report = _repair(fs, location, index_interval_bytes)
    report.actions[:0] = actions
    return report


def _repair(fs: FileSystem, location: LogLocation, index_interval_bytes: int) -> RecoveryReport:
    """Splits overflowing segments and rebuilds indexes.

    :raises CorruptLogError: an inactive segment is damaged
    """
    report = RecoveryReport()
    states = _repair_segments(fs, location.path, index_interval_bytes, report)
    _check_order(location.path, states)
    report.torn_tail_bytes = states[-1].torn_bytes if states else 0
    if report.torn_tail_bytes:
        report.actions.append(f"ignored {report.torn_tail_bytes} bytes after the last complete batch")
    _repair_txn_indexes(fs, location, states, report)
    return report


def _repair_segments(fs: FileSystem, path: str, interval_bytes: int, report: RecoveryReport) -> list[SegmentState]:
    bases = segment_bases(fs, path)
    states: list[SegmentState] = []
    for base in bases:
        active = base == bases[-1]
        state = inspect_segment(fs, path, base, active=active, index_interval_bytes=interval_bytes)
        changed = [base]
        if state.overflows:
            changed = list(split_segment(fs, path, state.segment, interval_bytes))
            remove_deleted(fs, path)
            report.actions.append(f"split the overflowing segment {base} into {len(changed)}")
        elif state.index_problem is not None:
            rebuild_indexes(fs, path, base, active=active, interval_bytes=interval_bytes)
            report.actions.append(f"rebuilt the indexes of segment {base}: {state.index_problem}")
        else:
            states.append(state)
            continue
        states.extend(inspect_segment(fs, path, each, active=active and each == changed[-1]) for each in changed)
    return states


def _check_order(path: str, states: list[SegmentState]) -> None:
    """Base offsets are not covered by a checksum, and a wrong one would move data.

    :raises CorruptLogError: a segment overlaps the next one
    """
    for state, later in zip(states, states[1:], strict=False):
        segment, end = state.segment, later.segment.base_offset
        if segment.next_offset > end:
            what = f"last batch ends at offset {segment.next_offset - 1}, past the next segment's base {end}"
            name = join(path, segment_file(segment.base_offset, LOG))
            raise CorruptLogError(what, path=name, position=state.last_position, hint=_HINT)


def _repair_txn_indexes(
    fs: FileSystem, location: LogLocation, states: list[SegmentState], report: RecoveryReport
) -> None:
    path = location.path
    segments = tuple(state.segment for state in states)
    missing = {base for base in (s.base_offset for s in segments) if not exists(fs, path, base, TXNINDEX, "")}
    suspects = sorted(_may_hold_aborts(fs, path, segments) & missing) if missing else []
    scans = dict(zip(suspects, _scan_for_producers(fs, path, suspects, sum(s.size_bytes for s in segments)), strict=True))
    report.without_producers = frozenset(base for base, (producers, _) in scans.items() if not producers)
    repaired = list(segments)
    for at, state in enumerate(states):
        base = state.segment.base_offset
        if state.txn_problem is None and not scans.get(base, (False, False))[1]:
            continue
        lost = base in missing
        entries = rebuild_txn_index(fs, path, segments, base, log_start_offset=_log_start(fs, location), missing=lost)
        repaired[at] = replace(state.segment, aborted_txns=entries)
        if entries or state.txn_problem is not None:
            why = state.txn_problem or f"{TXNINDEX} is missing"
            report.actions.append(f"rebuilt the transaction index of segment {base}: {why}")
    report.segments = tuple(repaired)


def _log_start(fs: FileSystem, location: LogLocation) -> int:
    """The log start offset: cleaning drops transactions that ended before it."""
    try:
        return read_offsets(fs, location.log_dir, LOG_STARTS).get(location.topic_partition, 0)
    except CorruptLogError:
        # reported when the checkpoints are read
        return 0


def _scan_for_producers(fs: FileSystem, path: str, bases: list[int], size_bytes: int) -> list[tuple[bool, bool]]:
    if size_bytes < _PARALLEL_SCAN_BYTES:
        return [look_for_producers(fs, path, base) for base in bases]
    with ThreadPoolExecutor(_SCAN_THREADS) as pool:
        return list(pool.map(lambda base: look_for_producers(fs, path, base), bases))


def _may_hold_aborts(fs: FileSystem, path: str, segments: tuple[Segment, ...]) -> set[int]:
    """Segments that may hold abort markers: all but those with a snapshot at their end that has no transactional producer."""
    quiet = {
        offset
        for offset, entries in snapshots(fs, path)
        if all(entry.coordinator_epoch < 0 and entry.current_txn_first_offset < 0 for entry in entries)
    }
    ends = [segment.base_offset for segment in segments[1:]] + [segments[-1].next_offset]
    return {segment.base_offset for segment, end in zip(segments, ends, strict=True) if end not in quiet}
