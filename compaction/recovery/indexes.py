"""Rebuilds indexes of segments from their batches: malformed ones, those that were not flushed, and those of transactions.

Mirrors ``LogSegment.recover``: an offset index entry (last offset, position) for a batch that starts more than
``index.interval.bytes`` after the last entry's batch; with it a time index entry if the largest timestamp has grown; one more
time index entry at the end.

Difference: a batch that fails its CRC in an inactive segment is an error; Kafka truncates the log there.

If a broker was killed, it recovers the segments from the one that contains the recovery point on (``LogLoader.recoverLog``,
``LeaderEpochFileCache.assign``):

1. offset and time indexes become those of the batches;
2. the leader epochs of the batches are assigned (``formats.checkpoints``).

Files with the bytes that recovery writes, and then zeros only, are not written. Checksums are verified by the passes.

The batch headers of a log's segments are scanned once (``scan_headers``), for this and for their transactions.

Transaction indexes are rebuilt if they contradict the batch headers of their log. A transaction is the data of a producer
between two of its markers. With *data* at or past the log start only, an index contradicts the log if

1. it lacks the entry of an ABORT marker whose transaction has data;
2. it has an entry without an ABORT marker of this producer at this offset in this segment;
3. an entry begins after the first batch of its transaction, or covers data before the previous marker of its producer.

No broker leaves such an index. The cleaner removes an entry only with the last batch of its transaction
(``CleanedTransactionMetadata.onControlBatchRead``), never the marker alone, and never a marker before its data. Below the log
start the cleaner removes markers whose data remains, so nothing is concluded there.

An index is rebuilt as ``LogSegment.recover`` does, from the newest producer snapshot before it, or without snapshots if the
result would contradict the log too. Difference: transactions that ended below the log start or have lost all data are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from compaction.config.entries import LONG_MAX
from compaction.errors import CorruptLogError
from compaction.files.contents import view
from compaction.files.durable import replace_file
from compaction.files.filesystem import FileSystem, join
from compaction.files.segment_file import SegmentFile, epoch_ranges
from compaction.files.text_files import read_small_text
from compaction.formats import indexes
from compaction.formats.checkpoints import EpochRange, assign_epochs, format_leader_epochs, parse_leader_epochs
from compaction.formats.record_batch import CONTROL
from compaction.log.read_log import RESTORE_SEGMENT, ReadOptions, replay_producers, replay_segment
from compaction.names import INDEX, LEADER_EPOCHS, LOG, TIMEINDEX, TXNINDEX, segment_file
from compaction.output.segment_writer import IndexBuilder
from compaction.rules.log_view import AbortedTxn, LogView, Segment
from compaction.rules.producer_state import ProducerStates
from compaction.rules.transactions import TXN_ROW, Bools, Int64s, Rows, TxnKind, joined, rank, summarise, with_data

#: Kafka's default of ``index.interval.bytes``
INDEX_INTERVAL_BYTES = 4096
#: the kernel that scans headers releases the GIL
_SCAN_THREADS = 4
_PARALLEL_SCAN_BYTES = 256 * 1024 * 1024
_LOG = logging.getLogger(__name__)
_UNEXPIRED = ReadOptions(now_ms=0, producer_id_expiration_ms=LONG_MAX)
_RESTORE_LOG = "restore this log from a replica or a backup"


def rebuild_indexes(
    fs: FileSystem,
    log_path: str,
    base_offset: int,
    *,
    active: bool,
    unclean: bool = False,
    interval_bytes: int = INDEX_INTERVAL_BYTES,
) -> None:
    """Rebuild a segment's offset and time index; each file is replaced atomically, with the log's mode, owner and mtime.

    :raises CorruptLogError: a batch is damaged, or an inactive segment ends within one
    """
    path = join(log_path, segment_file(base_offset, LOG))
    scan = SegmentFile(fs, path).scan(check_crc=True)
    builder = IndexBuilder(base_offset, interval_bytes)
    for rows in scan:
        builder.add(rows)
    damage = scan.damage(unclean=active and unclean)
    if damage is None and not active and not scan.complete:
        damage = "inactive segment ends within a batch"
    if damage is not None:
        raise CorruptLogError(damage, path=path, position=scan.position, hint=RESTORE_SEGMENT)
    for kind, data in zip((INDEX, TIMEINDEX), builder.finish(), strict=True):
        write_like_log(fs, log_path, base_offset, kind, data)


def write_like_log(fs: FileSystem, log_path: str, base_offset: int, kind: str, data: bytes) -> None:
    """Replace one of a segment's files, with the log's mode, owner and mtime."""
    path = join(log_path, segment_file(base_offset, LOG))
    log = fs.stat(path)
    mtime_ns = None if log is None else log.mtime_ns
    replace_file(fs, join(log_path, segment_file(base_offset, kind)), data, like=path, mtime_ns=mtime_ns)


def wrong_indexes(fs: FileSystem, log_path: str, base_offset: int, recovered: Recovered) -> dict[str, bytes]:
    """What the indexes of a segment should be, by kind, of those that are not the indexes of its batches."""
    data = {INDEX: recovered.offset_index, TIMEINDEX: recovered.time_index}
    return {
        kind: right for kind, right in data.items() if not _holds(fs, join(log_path, segment_file(base_offset, kind)), right)
    }


def _holds(fs: FileSystem, path: str, data: bytes) -> bool:
    """Whether a file has these bytes, and then zeros only."""
    if fs.stat(path) is None:
        return False
    content = view(fs, path)
    return content[: len(data)].tobytes() == data and not content[len(data) :].any()


def repair_epochs(fs: FileSystem, log_path: str, bases: Sequence[int], scans: Mapping[int, HeaderScan]) -> bool:
    """Writes the leader epochs of a log if its batches contradict them; whether it did. A malformed file is not touched: a
    broker does not start with it.

    :param bases: base offsets of the segments, ascending
    :param scans: of the unflushed segments, by their indexes in ``bases``; others are ignored
    """
    recovered = [scans[index].recovered for index in sorted(scans)]
    ranges = [batches for files in recovered if files is not None for batches in files.epochs]
    path = join(log_path, LEADER_EPOCHS)
    try:
        text = "" if fs.stat(path) is None else read_small_text(fs, path, "")
        entries = parse_leader_epochs(text, path) if text else []
    except CorruptLogError:
        return False
    assigned = assign_epochs(entries, ranges)
    if assigned == entries:
        return False
    replace_file(fs, path, format_leader_epochs(assigned).encode(), like=join(log_path, segment_file(bases[-1], LOG)))
    return True


class Recovered(NamedTuple):
    """The results of a broker's recovery of a segment: the bytes of its indexes, and the leader epochs of its batches."""

    offset_index: bytes
    time_index: bytes
    epochs: Sequence[EpochRange]


class HeaderScan(NamedTuple):
    """The contents of a segment by its batch headers: its ``TXN_ROW`` summary, whether a batch has a producer id, and, if a
    broker recovers the segment, the results."""

    rows: Rows
    producers: bool
    recovered: Recovered | None = None


@dataclass(frozen=True)
class ScanRange:
    """Batches that end before ``log_start_offset`` are not summarised. A broker recovers the segments from the one with base
    offset ``first_unflushed`` on, with ``index.interval.bytes`` of ``interval_bytes``."""

    log_start_offset: int
    first_unflushed: int = LONG_MAX
    interval_bytes: int = INDEX_INTERVAL_BYTES


def scan_headers(
    fs: FileSystem, log_path: str, segments: Sequence[Segment], selected: Sequence[int], limits: ScanRange
) -> dict[int, HeaderScan]:
    """Reads the batch headers of some segments.

    :param selected: indexes of these in ``segments``
    """

    def scan(index: int) -> HeaderScan:
        segment, producers = segments[index], False
        summaries: list[Rows] = []
        builder = IndexBuilder(segment.base_offset, limits.interval_bytes)
        epochs: list[EpochRange] = []
        unflushed = segment.base_offset >= limits.first_unflushed
        for rows in SegmentFile.of(fs, log_path, segment).scan():
            producers = producers or bool((rows["producer_id"] >= 0).any())
            summaries.append(summarise(rows[rows["last_offset"] >= limits.log_start_offset], index))
            if unflushed:
                builder.add(rows)
                epochs += epoch_ranges(rows)
        recovered = Recovered(*builder.finish(), epochs) if unflushed else None
        return HeaderScan(joined(TXN_ROW, summaries), producers, recovered)

    if sum(segments[index].size_bytes for index in selected) < _PARALLEL_SCAN_BYTES:
        return {index: scan(index) for index in selected}
    with ThreadPoolExecutor(_SCAN_THREADS) as pool:
        return dict(zip(selected, pool.map(scan, selected), strict=True))


def _first_open(rows: Rows, log_start_offset: int) -> int:
    """The first offset of the oldest transaction without a marker in ``rows``, of the remaining data; ``LONG_MAX`` without
    one."""
    rows = _ordered(rows, log_start_offset)
    producer, count = rows["producer_id"], len(rows)
    following = np.minimum.accumulate(np.where(rows["kind"] == TxnKind.DATA, count, np.arange(count))[::-1])[::-1]
    ended = following < count
    ended[ended] = producer[following[ended]] == producer[ended]
    return int(rows["first_offset"][~ended].min(initial=LONG_MAX))


def _ordered(rows: Rows, log_start_offset: int) -> Rows:
    """The data and the markers at or past the log start, by producer and offset."""
    rows = rows[(rows["kind"] <= TxnKind.COMMIT) & (rows["producer_id"] >= 0) & (rows["last_offset"] >= log_start_offset)]
    ordered: Rows = rows[np.lexsort((rows["last_offset"], rows["producer_id"]))]
    return ordered


class Transactions(NamedTuple):
    """The transactions that ABORT markers end, ascending by producer and marker, after a row of -1; int64[n] each.

    ``marker`` is the marker's last offset, ``segment`` the index of its segment. ``first_data`` is the last offset of the
    transaction's first batch, -1 without data; ``data_before`` that of the producer's last batch before the previous marker.
    """

    producer: Int64s
    marker: Int64s
    segment: Int64s
    first_data: Int64s
    data_before: Int64s

    @classmethod
    def of(cls, rows: Rows, log_start_offset: int) -> Transactions:
        rows = _ordered(rows, log_start_offset)
        producer, last, is_data = rows["producer_id"], rows["last_offset"], rows["kind"] == TxnKind.DATA
        positions = np.arange(len(rows))
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = (producer[1:] != producer[:-1]) | ~is_data[:-1]
        first = np.maximum.accumulate(np.where(begins, positions, 0))
        newest_data = np.concatenate(([-1], np.maximum.accumulate(np.where(is_data, positions, -1))))
        ends = np.flatnonzero(rows["kind"] == TxnKind.ABORT)
        first, before = first[ends], newest_data[first[ends]]
        same = (before >= 0) & (producer[before] == producer[ends])
        columns = (
            producer[ends],
            last[ends],
            rows["segment_index"][ends],
            np.where(first < ends, last[first], -1),
            np.where(same, last[before], -1),
        )
        return cls(*(np.concatenate((np.array([-1], np.int64), column)) for column in columns))


def contradictions(segments: Sequence[Segment], scanned: Iterable[int], rows: Rows, log_start_offset: int) -> dict[int, str]:
    """The segments whose transaction indexes contradict the log, by index, each with the reason.

    :param segments: all segments of the log, ascending
    :param scanned: indexes of those whose markers are in ``rows``: only their entries are compared with markers
    :param rows: ``TXN_ROW`` summaries of these and of all segments that hold data of their transactions
    """
    read = np.array(sorted(scanned), np.int64)
    columns = [(index, *txn) for index in read.tolist() for txn in segments[index].aborted_txns]
    if not columns and not len(rows):
        return {}
    txns = Transactions.of(rows, log_start_offset)
    entries = np.array(columns, np.int64).reshape(-1, 5)
    entries = entries[entries[:, 3] >= log_start_offset]
    reasons: dict[int, str] = {}
    matched, txn_rows = _matches(entries, txns)
    lacking = (txns.first_data >= 0) & np.isin(txns.segment, read)
    lacking[txn_rows[matched]] = False
    for row in np.flatnonzero(lacking).tolist():
        message = f"no entry for the transaction that is aborted at offset {txns.marker[row]}"
        reasons.setdefault(int(txns.segment[row]), message)
    first, first_data = entries[:, 2], txns.first_data[txn_rows]
    valid = matched & (first > txns.data_before[txn_rows]) & ((first_data < 0) | (first <= first_data))
    for row in np.flatnonzero(~valid).tolist():
        index, producer, begin, end, _ = entries[row].tolist()
        reasons.setdefault(index, f"no transaction of producer {producer} is aborted from offset {begin} to {end}")
    return reasons


def _matches(entries: Int64s, txns: Transactions) -> tuple[Bools, Int64s]:
    """For each entry, whether it ends with a transaction's marker, in its segment, and the row of that: bool[n], int64[n]."""
    rows = np.minimum(rank(txns.producer, txns.marker, entries[:, 1], entries[:, 3]), len(txns.marker) - 1)
    matched = (txns.producer[rows] == entries[:, 1]) & (txns.marker[rows] == entries[:, 3])
    return matched & (txns.segment[rows] == entries[:, 0]), rows


def repaired_after_scan(fs: FileSystem, view: LogView, rows: Rows, end_offset: int) -> LogView:
    """``view`` with the transaction indexes rebuilt that contradict the rows of pass 1; the same object if none does.

    A transaction may begin below ``end_offset`` and have no marker at all. The snapshots decide, as in a broker, which has no
    such transaction and reads its data as committed: it replays nothing when it is truncated over a marker, all its producers
    having expired (``UnifiedLog.rebuildProducerState``), and no later marker of the producer can abort that data.

    :param rows: ``TXN_ROW`` summaries of the log's first segments; if a transaction has no marker there, the others are read
    :param end_offset: all transactions that begin below have ended, by the producer snapshots
    """
    segments, start = view.segments, view.log_start_offset
    if not len(rows) and not any(segment.aborted_txns for segment in segments):
        return view
    read = range(int(rows["segment_index"].max(initial=-1)) + 1)
    if _first_open(rows, start) < end_offset:
        above = range(len(read), len(segments))
        scans = scan_headers(fs, view.path, segments, above, ScanRange(start)).values()
        rows, read = np.concatenate([rows, *(scan.rows for scan in scans)]), range(len(segments))
        if (first := _first_open(rows, start)) < end_offset:
            _LOG.warning(
                "%s: the transaction from offset %d on has no marker, and the producer snapshots do not have it: its data"
                " counts as committed, as for a broker", view.path, first
            )  # fmt: skip
    broken = contradictions(segments, read, rows, start)
    return replace(view, segments=TxnIndexes(fs, view.path, segments, start).repair(rows, broken)) if broken else view


class TxnIndexes:
    """Rebuilds transaction indexes of a log.

    :param segments: all segments of the log, ascending
    """

    def __init__(self, fs: FileSystem, log_path: str, segments: Sequence[Segment], log_start_offset: int) -> None:
        self._fs, self._path, self._segments, self._log_start = fs, log_path, segments, log_start_offset

    def repair(self, rows: Rows, broken: Mapping[int, str]) -> tuple[Segment, ...]:
        """Rebuilds the indexes of the segments in ``broken`` (by index, with the reason); returns all segments.

        :param rows: as for ``contradictions``
        :raises CorruptLogError: a control batch cannot be read, or no index fits the markers
        """
        for snapshots in (True, False):
            repaired, lowest = list(self._segments), LONG_MAX
            rebuilt = self._rebuilt(sorted(broken), snapshots=snapshots)
            for index in reversed(range(len(repaired))):
                if index in broken:
                    entries = _with_data(rebuilt[index], rows, self._log_start)
                    repaired[index] = replace(repaired[index], aborted_txns=_bounded(entries, lowest))
                lowest = min([lowest, *(txn.first_offset for txn in repaired[index].aborted_txns)])
            remaining = contradictions(repaired, broken, rows, self._log_start)
            if not remaining:
                break
        else:
            index, reason = next(iter(remaining.items()))
            path = join(self._path, segment_file(self._segments[index].base_offset, LOG))
            raise CorruptLogError(f"its {TXNINDEX} cannot be rebuilt: {reason}", path=path, hint=_RESTORE_LOG)
        for index in broken:
            self._write(repaired[index])
        return tuple(repaired)

    def recover_unflushed(self, unflushed: Sequence[int]) -> dict[int, Segment]:
        """Rewrites the entries of segments that a broker recovers after it was killed: an append of several batches leaves
        higher last stable offsets than ``LogSegment.recover``, which replays single batches. None is raised: cleaning may have
        removed the batch that shows that another transaction was open.

        :param unflushed: indexes of these segments, but for the active one, which a run does not change
        :returns: those that have changed, by index
        """
        selected = sorted(index for index in unflushed if self._segments[index].aborted_txns)
        changed = {}
        for index, entries in self._rebuilt(selected, snapshots=True).items() if selected else ():
            found = self._segments[index].aborted_txns
            same = [entry[:3] for entry in entries] == [entry[:3] for entry in found]
            if same and (lower := tuple(map(min, entries, found))) != found:
                changed[index] = replace(self._segments[index], aborted_txns=lower)
                self._write(changed[index])
        return changed

    def _rebuilt(self, selected: Sequence[int], *, snapshots: bool) -> dict[int, tuple[AbortedTxn, ...]]:
        """The aborted transactions of the segments ``selected``, by index, ascending."""
        fs, path, segments, start, first = self._fs, self._path, self._segments, self._log_start, selected[0]
        bounds = start, segments[first].base_offset
        states = replay_producers(fs, path, segments[:first], bounds, _UNEXPIRED, from_snapshots=snapshots)
        rebuilt = {}
        for index in range(first, selected[-1] + 1):
            if index in selected:
                rebuilt[index] = self._aborted_in(segments[index], states)
            else:
                replay_segment(fs, path, segments[index], (start, LONG_MAX), states)
        return rebuilt

    def _aborted_in(self, segment: Segment, states: ProducerStates) -> tuple[AbortedTxn, ...]:
        file, aborted = SegmentFile.of(self._fs, self._path, segment), []
        for batches in file.scan():
            rows = batches[batches["last_offset"] >= self._log_start]
            control = np.flatnonzero((rows["attributes"] & CONTROL) != 0)
            for part in np.split(rows, control + 1):
                states.append(part, file.marker_at)
                aborted.extend(states.flush())
        return tuple(aborted)

    def _write(self, segment: Segment) -> None:
        """Without aborted transactions there is no file, as in Kafka."""
        if segment.aborted_txns:
            data = indexes.write_txn_index(np.array(list(segment.aborted_txns), indexes.TXN_ROW))
            write_like_log(self._fs, self._path, segment.base_offset, TXNINDEX, data)
        else:
            self._fs.unlink(join(self._path, segment_file(segment.base_offset, TXNINDEX)))
            self._fs.fsync_dir(self._path)


def _bounded(entries: Sequence[AbortedTxn], lowest: int) -> tuple[AbortedTxn, ...]:
    """Entries whose last stable offsets are not past the first offsets of later entries, of which ``lowest`` is the lowest in
    later segments: cleaning may have removed the batch that shows that they were open."""
    bounded = []
    for txn in reversed(entries):
        bounded.append(txn._replace(last_stable_offset=min(txn.last_stable_offset, lowest)))
        lowest = min(lowest, txn.first_offset)
    return tuple(reversed(bounded))


def _with_data(entries: Iterable[AbortedTxn], rows: Rows, log_start_offset: int) -> tuple[AbortedTxn, ...]:
    """The transactions that end at or past the log start, and of which the log still holds a batch: cleaning removes others."""
    table = np.array(list(entries), np.int64).reshape(-1, 4)
    retained = with_data(table[:, :3], rows[rows["last_offset"] >= log_start_offset])
    return tuple(AbortedTxn(*entry) for entry in table[retained].tolist())
