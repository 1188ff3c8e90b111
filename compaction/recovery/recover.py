"""Brings a log into order before a run: what an earlier run or a broker left half done is finished or undone.

Mirrors ``LogLoader.removeTempFilesAndCollectSwapFiles``, ``load`` and ``loadSegmentFiles`` (Kafka 4.3.0):

1. a swap with a journal is finished, group by group, as far as outputs are there with the recorded content and sources are
   those recorded; from the first group on where that is not so, sources get their names back
2. without a journal: ``.swap`` files at or above the lowest ``.clean`` or ``.cleaned`` one are undone, as long as what they
   would replace is still there; other complete ones, checksums included, are finished: segments from their base up to their
   next offset become ``.deleted`` and ``.swap`` is stripped
3. ``.clean``, ``.cleaned``, ``.deleted`` and temporary files are removed
4. segments whose offsets overflow are split; missing, stale or broken indexes are built anew

Differences: the torn tail of the active segment stays (a broker cuts it off when it loads the log, and until then it may tell
something to someone); a damaged closed segment is an error, where a broker truncates it and removes every segment after it.
A dry run calls this with an ``OverlayFileSystem``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from compaction.cleaning.log_view import Segment
from compaction.errors import CorruptLogError
from compaction.fs.contents import difference
from compaction.fs.durable import TMP, remove_temporary
from compaction.fs.filesystem import FileSystem, join
from compaction.fs.ranges import view
from compaction.locking.claim import NOBODY, Owner
from compaction.logdir.batch_scan import SegmentScan
from compaction.logdir.checkpoint_store import CheckpointFiles, read_offsets
from compaction.logdir.discover import LogLocation
from compaction.logdir.read_log import snapshots
from compaction.logdir.segments import SegmentState, inspect_segment, segment_bases
from compaction.names import (
    CLEAN,
    DELETED,
    LOG,
    LOG_STARTS,
    SEGMENT_KINDS,
    SWAP,
    TXNINDEX,
    parse_segment_file,
    segment_file,
)
from compaction.output.journal import Journal, JournalGroup, read_journal, remove_journal
from compaction.output.swap import (
    discard_unfinished,
    finish_group,
    finish_swap,
    is_unfinished,
    mark_deleted,
    remove_deleted,
)
from compaction.recovery.rebuild import INDEX_INTERVAL_BYTES, look_for_producers, rebuild_indexes, rebuild_txn_index
from compaction.recovery.rollback import roll_back
from compaction.recovery.split import split_segment

#: the kernel that walks headers lets other threads run
_SCAN_THREADS = 4
_WORTH_THREADS_BYTES = 256 * 1024 * 1024
_HINT = "restore this segment from a replica or a backup"


@dataclass
class RecoveryReport:
    """What recovery did, a line each; none when everything was in order.

    ``segments`` are the log's, ascending, and ``without_producers`` the base offsets of those seen to hold no batch of any
    producer: ``read_log`` takes both, so as not to look again.
    """

    actions: list[str] = field(default_factory=list)
    torn_tail_bytes: int = 0
    segments: tuple[Segment, ...] = ()
    without_producers: frozenset[int] = frozenset()


def recover_log(
    fs: FileSystem, location: LogLocation, *, index_interval_bytes: int = INDEX_INTERVAL_BYTES, owner: Owner = NOBODY
) -> RecoveryReport:
    """Recover one log; to be called with the lock held and before the log dir's checkpoints are read.

    :raises CorruptLogError: a closed segment is damaged, or a swap can neither be finished nor undone
    :raises StorageError: the file system refused; the next run goes on from there
    """
    actions = finish_interrupted_swap(fs, location, owner)
    log_start = partial(_log_start, fs, location)
    report = repair_log(fs, location.path, index_interval_bytes=index_interval_bytes, log_start=log_start)
    report.actions[:0] = actions
    return report


def finish_interrupted_swap(fs: FileSystem, location: LogLocation, owner: Owner = NOBODY) -> list[str]:
    """The part of ``recover_log`` that deals with what an earlier run or a broker left behind; segments stay as they are.

    :raises CorruptLogError: a swap can neither be finished nor undone
    """
    report = RecoveryReport()
    _settle(fs, location, report, owner)
    return report.actions


def repair_log(
    fs: FileSystem,
    log_path: str,
    *,
    index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    log_start: Callable[[], int] = lambda: 0,
) -> RecoveryReport:
    """The other part of ``recover_log``: overflowing segments are split, indexes built anew where need be. Files that a run has
    written for its own swap stay.

    :param log_start: tells the log start offset: of transactions that ended before it, cleaning leaves no trace
    :raises CorruptLogError: a closed segment is damaged
    """
    report = RecoveryReport()
    _mend_segments(fs, log_path, index_interval_bytes, log_start, report)
    return report


def _settle(fs: FileSystem, location: LogLocation, report: RecoveryReport, owner: Owner) -> None:
    path = location.path
    journal = read_journal(fs, path)
    if journal is not None:
        _resume(fs, location, journal, report, owner)
    _settle_swaps(fs, path, report)
    _sweep(fs, path, report)


def _resume(fs: FileSystem, location: LogLocation, journal: Journal, report: RecoveryReport, owner: Owner) -> None:
    path = location.path
    owner.require()
    good = next((n for n, group in enumerate(journal.groups) if not _resumable(fs, path, group)), len(journal.groups))
    done = [_without_lost_indexes(fs, path, group) for group in journal.groups[:good]]
    for group in done:
        finish_group(fs, path, group)
    if good == len(journal.groups):
        finish_swap(fs, location, replace(journal, groups=tuple(done)), CheckpointFiles(fs))
        report.actions.append(f"finished an earlier swap of {good} segments")
        return
    for group in reversed(journal.groups[good:]):
        roll_back(fs, path, group)
    discard_unfinished(fs, path)
    remove_journal(fs, path)
    report.actions.append("gave up the rest of an earlier swap: its output is damaged, or its sources have changed since")


def _resumable(fs: FileSystem, path: str, group: JournalGroup) -> bool:
    """Whether the group's output is whole, wherever its files are, and what is left of its sources is as recorded.

    Once its log has its final name, indexes do not matter: a broker that finished the swap has made its own.
    """
    base = group.base_offset
    places: dict[str, str] = {}
    for written in group.files:
        place = next((suffix for suffix in (CLEAN, SWAP, "") if _is_there(fs, path, base, written.kind, suffix)), None)
        if places.get(LOG) == "":
            continue
        if place is None or difference(fs, join(path, segment_file(base, written.kind, place)), written):
            return False
        places[written.kind] = place
    for source in group.sources:
        if source.base_offset == base and not places[LOG]:
            continue
        found = fs.stat(join(path, segment_file(source.base_offset, LOG)))
        if found is None:
            if places[LOG] == CLEAN:
                return False
        elif (found.size, found.mtime_ns) != (source.size_bytes, source.mtime_ns):
            return False
    return True


def _without_lost_indexes(fs: FileSystem, path: str, group: JournalGroup) -> JournalGroup:
    """A resumable group with the times that its files have now. If its log has its final name, indexes that are not as
    recorded are removed, and made anew later. A log is never removed: one that is suddenly read otherwise ends the swap."""
    base = group.base_offset
    is_final = not any(_is_there(fs, path, base, LOG, suffix) for suffix in (CLEAN, SWAP))
    kept = []
    for written in group.files:
        suffix = next((each for each in (CLEAN, SWAP) if _is_there(fs, path, base, written.kind, each)), "")
        name = join(path, segment_file(base, written.kind, suffix))
        found = fs.stat(name)
        if written.kind != LOG and is_final and (found is None or difference(fs, name, written) is not None):
            fs.unlink(name)
        else:
            kept.append(written if found is None else written._replace(mtime_ns=found.mtime_ns))
    return replace(group, files=tuple(kept))


def _settle_swaps(fs: FileSystem, path: str, report: RecoveryReport) -> None:
    """Finish or undo ``.swap`` files that no journal speaks of."""
    parsed = [(name, file) for name in fs.listdir(path) if (file := parse_segment_file(name)) is not None]
    swaps = sorted({file.base_offset for _, file in parsed if file.suffix == SWAP})
    unfinished = min((file.base_offset for name, file in parsed if is_unfinished(name)), default=None)
    # descending, as they were made: what is undone last is what decides
    for base in reversed(swaps):
        scan = _scan_swap(fs, path, base)
        if scan is None:
            continue
        suspect = not scan.complete or (unfinished is not None and base >= unfinished)
        if suspect and _sources_remain(fs, path, base, scan.next_offset or base):
            _undo(fs, path, base)
            report.actions.append(f"undid an unfinished swap at offset {base}")
        elif not scan.complete:
            name = join(path, segment_file(base, LOG, SWAP))
            raise CorruptLogError(scan.error or "segment ends within a batch", path=name, position=scan.position)
    for base in swaps:
        if any(_is_there(fs, path, base, kind, SWAP) for kind in SEGMENT_KINDS):
            _finish_swap(fs, path, base)
            report.actions.append(f"finished an earlier swap at offset {base}")


def _finish_swap(fs: FileSystem, path: str, base: int) -> None:
    scan = _scan_swap(fs, path, base)
    if scan is not None:
        end = base if scan.next_offset is None else scan.next_offset
        for other in segment_bases(fs, path):
            if base < other < end:
                mark_deleted(fs, path, other)
        mark_deleted(fs, path, base, SEGMENT_KINDS)
        fs.fsync_dir(path)
    elif not _is_there(fs, path, base, LOG, ""):
        _undo(fs, path, base)
        return
    for kind in SEGMENT_KINDS:
        if _is_there(fs, path, base, kind, SWAP):
            fs.rename(join(path, segment_file(base, kind, SWAP)), join(path, segment_file(base, kind)))
            fs.fsync_dir(path)


def _undo(fs: FileSystem, path: str, base: int) -> None:
    """Remove ``.swap`` files, the log last: an index left alone would be taken for the last step of a swap."""
    for kind in reversed(SEGMENT_KINDS):
        fs.unlink(join(path, segment_file(base, kind, SWAP)))
        fs.fsync_dir(path)


def _scan_swap(fs: FileSystem, path: str, base: int) -> SegmentScan | None:
    """The walk over a ``.log.swap``, checksums included; ``None`` if only indexes are ``.swap``."""
    if not _is_there(fs, path, base, LOG, SWAP):
        return None
    return SegmentScan(view(fs, join(path, segment_file(base, LOG, SWAP))), check_crc=True).finish()


def _sources_remain(fs: FileSystem, path: str, base: int, end: int) -> bool:
    """Whether the segments that a swap of ``[base, end)`` replaces are still there: they go in ascending order."""
    below = [other for other in segment_bases(fs, path) if other <= base]
    if not below:
        return False
    if below[-1] == base:
        return True
    scan = SegmentScan(view(fs, join(path, segment_file(below[-1], LOG)))).finish()
    return scan.next_offset is not None and scan.next_offset >= end


def _sweep(fs: FileSystem, path: str, report: RecoveryReport) -> None:
    removed = discard_unfinished(fs, path)
    for name in fs.listdir(path):
        file = parse_segment_file(name)
        if file is not None and file.suffix == TMP:
            fs.unlink(join(path, name))
            removed += 1
    removed += remove_temporary(fs, path)
    if removed:
        report.actions.append(f"removed {removed} unfinished files")
    if any(name.endswith(DELETED) for name in fs.listdir(path)):
        report.actions.append(f"removed {remove_deleted(fs, path)} bytes of deleted segments")


def _log_start(fs: FileSystem, location: LogLocation) -> int:
    """The log start in the checkpoint; a garbled one is for whoever reads the log to tell."""
    try:
        return read_offsets(fs, location.log_dir, LOG_STARTS).get(location.topic_partition, 0)
    except CorruptLogError:
        return 0


def _mend_segments(
    fs: FileSystem, path: str, interval_bytes: int, log_start: Callable[[], int], report: RecoveryReport
) -> None:
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
    _check_order(path, states)
    report.torn_tail_bytes = states[-1].torn_bytes if states else 0
    if report.torn_tail_bytes:
        report.actions.append(f"passed over {report.torn_tail_bytes} bytes after the last whole batch")
    _mend_txn_indexes(fs, path, states, log_start, report)


def _check_order(path: str, states: list[SegmentState]) -> None:
    """No segment may reach into the next one: no checksum covers base offsets, and a wrong one would move data."""
    for state, later in zip(states, states[1:], strict=False):
        segment, end = state.segment, later.segment.base_offset
        if segment.next_offset > end:
            what = f"last batch ends at offset {segment.next_offset - 1}, past the next segment's base {end}"
            name = join(path, segment_file(segment.base_offset, LOG))
            raise CorruptLogError(what, path=name, position=state.last_position, hint=_HINT)


def _mend_txn_indexes(
    fs: FileSystem, path: str, states: list[SegmentState], log_start: Callable[[], int], report: RecoveryReport
) -> None:
    segments = tuple(state.segment for state in states)
    missing = {base for base in (s.base_offset for s in segments) if not _is_there(fs, path, base, TXNINDEX, "")}
    suspects = sorted(_without_clean_record(fs, path, segments) & missing) if missing else []
    looks = dict(zip(suspects, _look_at_all(fs, path, suspects, sum(s.size_bytes for s in segments)), strict=True))
    report.without_producers = frozenset(base for base, (producers, _) in looks.items() if not producers)
    mended = list(segments)
    for at, state in enumerate(states):
        base = state.segment.base_offset
        if state.txn_problem is None and not looks.get(base, (False, False))[1]:
            continue
        lost = base in missing
        entries = rebuild_txn_index(fs, path, segments, base, log_start_offset=log_start(), missing=lost)
        mended[at] = replace(state.segment, aborted_txns=entries)
        if entries or state.txn_problem is not None:
            why = state.txn_problem or f"{TXNINDEX} is missing"
            report.actions.append(f"rebuilt the transaction index of segment {base}: {why}")
    report.segments = tuple(mended)


def _look_at_all(fs: FileSystem, path: str, bases: list[int], size_bytes: int) -> list[tuple[bool, bool]]:
    if size_bytes < _WORTH_THREADS_BYTES:
        return [look_for_producers(fs, path, base) for base in bases]
    with ThreadPoolExecutor(_SCAN_THREADS) as pool:
        return list(pool.map(lambda base: look_for_producers(fs, path, base), bases))


def _without_clean_record(fs: FileSystem, path: str, segments: tuple[Segment, ...]) -> set[int]:
    """Segments that may hold abort markers: all but those at whose end a snapshot knows of no producer with transactions."""
    quiet = {
        offset
        for offset, entries in snapshots(fs, path)
        if all(entry.coordinator_epoch < 0 and entry.current_txn_first_offset < 0 for entry in entries)
    }
    ends = [segment.base_offset for segment in segments[1:]] + [segments[-1].next_offset]
    return {segment.base_offset for segment, end in zip(segments, ends, strict=True) if end not in quiet}


def _is_there(fs: FileSystem, path: str, base_offset: int, kind: str, suffix: str) -> bool:
    return fs.stat(join(path, segment_file(base_offset, kind, suffix))) is not None
