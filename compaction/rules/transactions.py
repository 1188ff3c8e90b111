"""Transaction resolution: finds aborted data, discardable control batches, and the remaining ``.txnindex`` entries.

Spark tasks read slices of segments in parallel and return a few ``TXN_ROW`` rows each. The driver replays Kafka's
``CleanedTransactionMetadata`` over these rows in log order. The rules, with ``p`` a producer and ``e`` an entry of a
``.txnindex``:

1. ``e`` is pending once its index was collected. It is *consumed* by the next batch, of any kind and producer, whose last
   offset is ≥ ``e.first_offset``. That opens an aborted transaction of ``e.producer_id``, unless one is open already
   (``computeIfAbsent``: the later entry is lost, the earlier one remains open until the next ABORT marker).
2. A transactional data batch of ``p`` is aborted iff ``p`` has an open aborted transaction, which then counts as *observed*.
   Otherwise ``p`` has committed data.
3. An ABORT marker of ``p`` closes ``p``'s open aborted transaction. It is discardable unless that transaction was observed. If
   it was, its entry is appended to the transaction index of the output group.
4. A COMMIT marker of ``p`` is discardable unless ``p`` has committed data. Afterwards ``p`` has none. (An ABORT marker does not
   reset that, and a COMMIT marker closes no aborted transaction.)
5. A control batch without records is discardable and has no other effect. Any other control batch is not discardable.

Last offsets strictly ascend in a log. So a last offset identifies a batch, and a range of offsets of a producer is a range of
its batches.

Java's ``PriorityQueue`` breaks ties of the first offset arbitrarily; here the earlier arrival wins. The result is the same:
entries of different producers are independent, and two transactions of one producer cannot begin at the same offset.

``TXN_ROW`` summarizes a slice, ``AbortedRanges`` is the result. A summary has two data batches per *run*: the batches of one
producer between two of its control batches in one slice, which is part of one segment. Two are enough. Index entries become
pending only at segment starts, and only an ABORT marker closes an aborted transaction, so a transaction that opens within a run
remains open until its end. A run is therefore a sequence of batches that are not aborted followed by a sequence of aborted
ones, either possibly empty; it changes at the first batch whose last offset is ≥ the entry's first offset. The first batch of
the run says whether any is not aborted, the last whether any is aborted; resolution needs no more. An entry that
``computeIfAbsent`` ignores does not change this.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import UnsupportedLogError
from compaction.formats.record_batch import ABORT, COMMIT, CONTROL, TRANSACTIONAL
from compaction.rules.log_view import AbortedTxn, LogView, Segment

_NO_END = int(np.iinfo(np.int64).max)
_BEFORE_ALL = int(np.iinfo(np.int64).min)

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.void]

#: One row per control batch, and per first and last transactional data batch of each run.
#:
#: ``segment_index`` index of the segment in the log's list of segments
#: ``position``      byte position of the batch in its segment
#: ``first_offset``  the batch's base offset
#: ``last_offset``   the batch's last offset (inclusive)
#: ``producer_id``   as stored
#: ``kind``          a :class:`TxnKind`
TXN_ROW = np.dtype(
    [
        ("segment_index", np.int32),
        ("position", np.int64),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("producer_id", np.int64),
        ("kind", np.int8),
    ]
)

#: One row per transactional data batch with records without a key, which are invalid only if the batch is not aborted.
KEYLESS_ROW = np.dtype([("producer_id", np.int64), ("last_offset", np.int64), ("keyless", np.int64)])


class TxnKind(IntEnum):
    """The kind of a ``TXN_ROW``."""

    DATA = 0
    ABORT = 1
    COMMIT = 2
    #: a control batch of another type, e.g. a leader change
    OTHER_CONTROL = 3
    #: a control batch whose record was dropped in an earlier round
    EMPTY_CONTROL = 4


@dataclass(frozen=True, eq=False)
class TxnResolution:
    """The outcome of transaction resolution for one cleaning pass.

    ``aborted`` are the ranges of aborted data. ``discardable`` are the last offsets of the control batches that may be
    discarded, ascending int64; no two batches of a log share a last offset. ``txn_index`` has one tuple of entries per group,
    in the order of its ``.txnindex``.
    """

    aborted: AbortedRanges
    discardable: Int64s
    txn_index: tuple[tuple[AbortedTxn, ...], ...]


def aborted_for_map(
    segments: Sequence[Segment],
    log_start_offset: int,
    first_dirty_offset: int,
    first_uncleanable_offset: int,
    first_position: int,
    rows: Rows,
) -> AbortedRanges:
    """The aborted data that is excluded from the offset map (Kafka: ``Cleaner.buildOffsetMap``).

    The indexes are collected once, before the first batch. Reading begins at the position that the offset index has for the
    first dirty offset, so the marker of a transaction that ended before it is not read: later transactional batches of that
    producer count as aborted until its next ABORT marker, in Kafka too. The map then misses their keys, and older records of
    these keys survive: more is retained, never less.

    :param segments: all segments of the log, ascending
    :param first_uncleanable_offset: exclusive
    :param first_position: byte position of the first batch that is read, in the segment that holds the first dirty offset
    :param rows: ``TXN_ROW`` summaries of the dirty segments, any order
    """
    first_segment = _floor_segment(segments, first_dirty_offset)
    if first_dirty_offset >= first_uncleanable_offset or first_segment < 0:
        return _aborted_ranges([])
    replay = _Replay()
    replay.add(_TxnIndexes(segments, log_start_offset).collect(first_segment, first_uncleanable_offset), 0)
    read = _read(segments, rows, first_segment, first_position, first_uncleanable_offset)
    for _, last_offset, producer_id in _abort_markers(rows[read]):
        replay.close(producer_id, last_offset, 0)
    replay.consume_up_to(first_uncleanable_offset)
    return _aborted_ranges(replay.finish())


def resolve_cleaning(
    segments: Sequence[Segment], groups: Sequence[Sequence[Segment]], log_start_offset: int, rows: Rows
) -> TxnResolution:
    """Replay the cleaning pass over all groups (Kafka: ``Cleaner.cleanSegments`` and ``cleanInto``).

    Before each segment the index entries of [its base, the base of the next segment in the group or its own next offset) are
    collected. Open transactions and committed data are carried over segments and groups.

    :param segments: all segments of the log, ascending; entries of segments above the groups count too
    :param groups: the groups of the round, in order, with segments of ``segments``
    :param rows: ``TXN_ROW`` summaries of the segments of the groups, any order
    :raises UnsupportedLogError: an output index would not ascend by last offset (``TransactionIndex.append`` refuses it too)
    """
    if not len(rows) and not any(segment.aborted_txns for segment in segments):
        # a run may be over thousands of logs, most of them without transactions
        return TxnResolution(_aborted_ranges(()), np.empty(0, np.int64), tuple(() for _ in groups))
    index_of = {segment.base_offset: index for index, segment in enumerate(segments)}
    cleaned = [index_of[segment.base_offset] for group in groups for segment in group]
    rows = rows[np.isin(rows["segment_index"], np.array(cleaned, dtype=np.int32))]
    ranges = _replay_groups(segments, groups, _TxnIndexes(segments, log_start_offset), index_of, rows)
    aborted = _aborted_ranges(ranges)
    observed = with_data(_columns(ranges), rows)
    needed = {range_.end for range_, seen in zip(ranges, observed, strict=True) if seen and range_.end != _NO_END}
    entries: list[list[AbortedTxn]] = [[] for _ in groups]
    for range_ in sorted((range_ for range_ in ranges if range_.end in needed), key=lambda range_: range_.end):
        entries[range_.group].append(range_.txn)
    for before, after in (pair for group in entries for pair in pairwise(group)):
        if before.last_offset >= after.last_offset:
            raise UnsupportedLogError(
                f"aborted transactions of a cleaned segment would not ascend by last offset ({before} before {after})",
                hint="the .txnindex files are not those of this log: let a broker recover the log first",
            )
    return TxnResolution(aborted, _discardable(rows, aborted, needed), tuple(tuple(group) for group in entries))


class _Range(NamedTuple):
    """Aborted data of one producer with last offsets in [``start``, ``end``]; ``group`` is that of the marker."""

    producer_id: int
    start: int
    end: int
    group: int
    txn: AbortedTxn


@dataclass
class _Replay:
    """The pending entries, the open aborted transactions and the closed ranges at one point of the log."""

    pending: list[tuple[int, int, int, AbortedTxn]] = field(default_factory=list)
    ongoing: dict[int, tuple[int, AbortedTxn]] = field(default_factory=dict)
    closed: list[_Range] = field(default_factory=list)
    arrivals: int = 0

    def add(self, txns: Iterable[AbortedTxn], segment_base: int) -> None:
        """Entries are collected before the segment with this base offset."""
        for txn in txns:
            heapq.heappush(self.pending, (txn.first_offset, self.arrivals, segment_base, txn))
            self.arrivals += 1

    def consume_up_to(self, offset: int) -> None:
        """A batch with this last offset is read."""
        while self.pending and self.pending[0][0] <= offset:
            first_offset, _, segment_base, txn = heapq.heappop(self.pending)
            self.ongoing.setdefault(txn.producer_id, (max(first_offset, segment_base), txn))

    def close(self, producer_id: int, last_offset: int, group: int) -> None:
        """An ABORT marker with this last offset is read."""
        self.consume_up_to(last_offset)
        opened = self.ongoing.pop(producer_id, None)
        if opened is not None:
            self.closed.append(_Range(producer_id, opened[0], last_offset, group, opened[1]))

    def finish(self) -> list[_Range]:
        """All ranges; those still open end at ``_NO_END``."""
        return self.closed + [_Range(pid, start, _NO_END, -1, txn) for pid, (start, txn) in self.ongoing.items()]


def _replay_groups(
    segments: Sequence[Segment],
    groups: Sequence[Sequence[Segment]],
    indexes: _TxnIndexes,
    index_of: dict[int, int],
    rows: Rows,
) -> list[_Range]:
    markers: dict[int, list[tuple[int, int]]] = {}
    for index, last_offset, producer_id in _abort_markers(rows):
        markers.setdefault(index, []).append((producer_id, last_offset))
    replay = _Replay()
    for group_index, group in enumerate(groups):
        for position, member in enumerate(group):
            upper = group[position + 1].base_offset if position + 1 < len(group) else member.next_offset
            index = index_of[member.base_offset]
            replay.add(indexes.collect(index, upper), member.base_offset)
            for marker in markers.get(index, ()):
                replay.close(*marker, group_index)
            if segments[index].size_bytes:
                replay.consume_up_to(member.next_offset - 1)
    return replay.finish()


class _TxnIndexes:
    """All transaction indexes of a log as one list (Kafka: ``LocalLog.collectAbortedTransactions``)."""

    def __init__(self, segments: Sequence[Segment], log_start_offset: int) -> None:
        self._txns = [txn for segment in segments for txn in segment.aborted_txns]
        counts = [len(segment.aborted_txns) for segment in segments]
        self._begin = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        columns = np.array(self._txns, dtype=np.int64).reshape(-1, 4)
        self._first_offset: Int64s = columns[:, 1]
        self._lowest_from: Int64s = np.minimum.accumulate(self._first_offset[::-1])[::-1]
        self._not_below_log_start: Bools = columns[:, 2] >= log_start_offset

    def collect(self, segment_index: int, end_offset: int) -> Iterator[AbortedTxn]:
        """The entries of this and later segments that end at or above the log start and begin below ``end_offset``.

        Kafka's search ends with the first entry whose last stable offset is ≥ ``end_offset``. That is the end of a segment, so
        all later entries of a broker's begin at or past it. Here a wrong last stable offset loses none.
        """
        begin = int(self._begin[segment_index])
        stop = begin + int(np.searchsorted(self._lowest_from[begin:], end_offset))
        selected = self._not_below_log_start[begin:stop] & (self._first_offset[begin:stop] < end_offset)
        return (self._txns[begin + int(offset)] for offset in np.flatnonzero(selected))


def _floor_segment(segments: Sequence[Segment], offset: int) -> int:
    """Index of the last segment whose base is ≤ ``offset``, -1 without one."""
    return bisect_right([segment.base_offset for segment in segments], offset) - 1


def _read(segments: Sequence[Segment], rows: Rows, first_segment: int, first_position: int, end_offset: int) -> Bools:
    """Which rows are of batches that the map pass reads, (n,) bool."""
    last_segment = _floor_segment(segments, end_offset - 1)
    index = rows["segment_index"]
    read: Bools = (index <= last_segment) & (
        (index > first_segment) | ((index == first_segment) & (rows["position"] >= first_position))
    )
    return read


def _abort_markers(rows: Rows) -> Iterable[tuple[int, int, int]]:
    """The ABORT markers in log order: segment index, last offset and producer id."""
    aborts = rows[rows["kind"] == TxnKind.ABORT]
    aborts = aborts[np.argsort(aborts["last_offset"], kind="stable")]
    return zip(*(aborts[name].tolist() for name in ("segment_index", "last_offset", "producer_id")), strict=True)


def _aborted_ranges(ranges: Sequence[_Range]) -> AbortedRanges:
    columns = _columns(sorted(ranges, key=lambda range_: (range_.producer_id, range_.start)))
    return AbortedRanges(*(np.ascontiguousarray(columns[:, i]) for i in range(3)))


def _columns(ranges: Sequence[_Range]) -> Int64s:
    return np.array([range_[:3] for range_ in ranges], dtype=np.int64).reshape(-1, 3)


def with_data(ranges: Int64s, rows: Rows) -> Bools:
    """Which ranges, given by producer, first and last offset (n, 3), contain a data batch of ``TXN_ROW`` rows: (n,) bool."""
    producers, offsets = _by_producer(rows[rows["kind"] == TxnKind.DATA])
    below_start = rank(producers, offsets, ranges[:, 0], ranges[:, 1])
    up_to_end = rank(producers, offsets, ranges[:, 0], ranges[:, 2], inclusive=True)
    contained: Bools = up_to_end > below_start
    return contained


def _discardable(rows: Rows, aborted: AbortedRanges, needed: set[int]) -> Int64s:
    """Last offsets of the discardable control batches, ascending; ``needed`` has those of the ABORT markers that are not."""
    data = rows[rows["kind"] == TxnKind.DATA]
    committed = data[~aborted.contains(data["producer_id"], data["last_offset"])]
    commits = rows[rows["kind"] == TxnKind.COMMIT]
    markers, offsets = _by_producer(commits)
    previous = np.full(len(markers), _BEFORE_ALL, dtype=np.int64)
    same = np.flatnonzero(markers[1:] == markers[:-1]) + 1
    previous[same] = offsets[same - 1]
    data_producers, data_offsets = _by_producer(committed)
    unused = rank(data_producers, data_offsets, markers, offsets) == rank(data_producers, data_offsets, markers, previous)
    aborts = rows["last_offset"][rows["kind"] == TxnKind.ABORT]
    aborts = aborts[~np.isin(aborts, np.array(sorted(needed), dtype=np.int64))]
    empty = rows["last_offset"][rows["kind"] == TxnKind.EMPTY_CONTROL]
    return np.sort(np.concatenate((offsets[unused], aborts, empty)))


def _by_producer(rows: Rows) -> tuple[Int64s, Int64s]:
    """Producer ids and last offsets, sorted."""
    order = np.lexsort((rows["last_offset"], rows["producer_id"]))
    return rows["producer_id"][order], rows["last_offset"][order]


@dataclass(frozen=True, eq=False)
class AbortedRanges:
    """Ranges of aborted data: three int64 arrays (n,), ascending by producer id, then offset; ranges do not overlap.

    A transactional data batch is aborted iff a range of its producer has ``first_offset`` ≤ its last offset ≤ ``last_offset``.
    ``last_offset`` is that of the ABORT marker, or 2⁶³−1 if none was read.
    """

    producer_id: Int64s
    first_offset: Int64s
    last_offset: Int64s

    def __len__(self) -> int:
        return len(self.producer_id)

    def contains(self, producer_id: Int64s, last_offset: Int64s) -> Bools:
        """Which of the transactional data batches, given by producer id and last offset (n,), are aborted: (n,) bool."""
        if not len(self):
            return np.zeros(len(producer_id), dtype=np.bool_)
        index = rank(self.producer_id, self.first_offset, producer_id, last_offset, inclusive=True) - 1
        nearest = np.maximum(index, 0)
        inside: Bools = (index >= 0) & (self.producer_id[nearest] == producer_id) & (last_offset <= self.last_offset[nearest])
        return inside


def aborted_of(view: LogView) -> AbortedRanges:
    """The aborted data of a log, by the entries of its transaction indexes; overlapping entries are joined."""
    ranges: list[list[int]] = []
    for producer, first, last, _ in sorted(txn for segment in view.segments for txn in segment.aborted_txns):
        if ranges and ranges[-1][0] == producer and first <= ranges[-1][2]:
            ranges[-1][2] = max(ranges[-1][2], last)
        else:
            ranges.append([producer, first, last])
    columns = np.array(ranges, np.int64).reshape(-1, 3).T
    return AbortedRanges(columns[0], columns[1], columns[2])


def summarise(rows: Rows, segment_index: int) -> Rows:
    """The ``TXN_ROW`` summary of one slice, (m,), in log order.

    :param rows: the ``BATCH_ROW`` table of the slice, (n,), in log order; a slice lies within one segment
    :param segment_index: index of that segment in the log's list of segments
    """
    v2 = rows["magic"] >= 2
    control = v2 & ((rows["attributes"] & CONTROL) != 0)
    data = v2 & ~control & ((rows["attributes"] & TRANSACTIONAL) != 0)
    if not control.any() and not data.any():
        return np.empty(0, dtype=TXN_ROW)
    selected = control.copy()
    selected[_ends_of_runs(rows["producer_id"], control, data)] = True
    batches = rows[selected]
    summary = np.empty(len(batches), dtype=TXN_ROW)
    summary["segment_index"] = segment_index
    summary["position"] = batches["position"]
    summary["first_offset"] = batches["base_offset"]
    summary["last_offset"] = batches["last_offset"]
    summary["producer_id"] = batches["producer_id"]
    summary["kind"] = _kinds(batches, control[selected])
    return summary


def joined(dtype: np.dtype[np.void], tables: Iterable[Rows]) -> Rows:
    """The rows of some tables of ``dtype``, in order. Most logs have none: ``numpy`` compares the fields of each table."""
    filled = [table for table in tables if len(table)]
    return np.concatenate(filled) if len(filled) > 1 else filled[0] if filled else np.empty(0, dtype)


def keyless_rows(rows: Rows, keyless: NDArray[np.int32]) -> Rows:
    """The ``KEYLESS_ROW`` table of a ``BATCH_ROW`` table (n,).

    :param keyless: records without a key in each batch, (n,) int32
    """
    data = (rows["magic"] >= 2) & ((rows["attributes"] & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL)
    selected = data & (keyless > 0)
    table = np.empty(np.count_nonzero(selected), KEYLESS_ROW)
    table["producer_id"], table["last_offset"] = rows["producer_id"][selected], rows["last_offset"][selected]
    table["keyless"] = keyless[selected]
    return table


def rank(
    producers: Int64s, offsets: Int64s, query_producers: Int64s, query_offsets: Int64s, *, inclusive: bool = False
) -> Int64s:
    """The number of ascending pairs (producer, offset) below each query pair, or up to it if ``inclusive``."""
    low = np.zeros(len(query_producers), dtype=np.int64)
    high = np.full(len(query_producers), len(producers), dtype=np.int64)
    while (open_ := low < high).any():
        middle = np.minimum((low + high) // 2, len(producers) - 1)
        producer, offset = producers[middle], offsets[middle]
        reached = offset <= query_offsets if inclusive else offset < query_offsets
        below = (producer < query_producers) | ((producer == query_producers) & reached)
        low = np.where(open_ & below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low


def _ends_of_runs(producer_id: Int64s, control: Bools, data: Bools) -> Int64s:
    """Indexes of the first and last data batch of every run."""
    order = np.argsort(producer_id, kind="stable")
    run = np.cumsum(control[order])
    kept = data[order]
    order, run = order[kept], run[kept]
    producer = producer_id[order]
    changes = (producer[1:] != producer[:-1]) | (run[1:] != run[:-1])
    first = np.concatenate(([True], changes))[: len(order)]
    last = np.concatenate((changes, [True]))[: len(order)]
    ends: Int64s = order[first | last]
    return ends


def _kinds(batches: Rows, control: Bools) -> NDArray[np.int8]:
    types = batches["control_type"]
    kinds = np.full(len(batches), TxnKind.DATA, dtype=np.int8)
    kinds[control] = TxnKind.OTHER_CONTROL
    kinds[control & (types == ABORT)] = TxnKind.ABORT
    kinds[control & (types == COMMIT)] = TxnKind.COMMIT
    kinds[control & (batches["count"] == 0)] = TxnKind.EMPTY_CONTROL
    return kinds
