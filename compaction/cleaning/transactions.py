"""Transaction resolution: which data batches are aborted, which control batches may go, which index entries stay.

Tasks read slices of segments in parallel and hand in a few ``TXN_ROW`` rows each; the driver replays Kafka's
``CleanedTransactionMetadata`` (4.3.0) over them in log order. The rules, ``p`` a producer, ``e`` an entry of a ``.txnindex``:

* ``e`` becomes known when a list holding it is added, and *consumed* by the first batch read afterwards, of any kind and
  producer, whose last offset is ≥ ``e.first_offset``. Consuming opens an aborted transaction of ``e.producer_id``, unless
  one is open already (``computeIfAbsent``: the later entry is forgotten, the earlier lasts until the next ABORT marker).
* A transactional data batch of ``p`` is aborted iff ``p`` has an open aborted transaction, which then counts as *observed*.
  Otherwise it marks ``p`` as having committed data.
* ABORT marker of ``p``: closes ``p``'s open aborted transaction. It may be discarded unless that transaction was observed, in
  which case its entry is appended to the transaction index of the output group.
* COMMIT marker of ``p``: may be discarded unless ``p`` is marked as having committed data; clears the mark. (An ABORT marker
  does not clear it, and a COMMIT marker closes no aborted transaction.)
* A control batch without records may be discarded and changes nothing. Any other control batch may not.

Batches of a log have strictly ascending last offsets, so a batch is known by its last offset, and a span of offsets of a
producer is a span of its batches.

Java's ``PriorityQueue`` breaks ties of the first offset arbitrarily, here they are broken by arrival. It makes no difference:
entries of different producers do not meet, and two transactions of one producer cannot begin at the same offset.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from compaction.cleaning.log_view import AbortedTxn, Segment
from compaction.cleaning.txn_tables import TXN_ROW, AbortedRanges, Bools, Int64s, Rows, TxnKind, rank, summarise
from compaction.errors import UnsupportedLogError

__all__ = ["TXN_ROW", "AbortedRanges", "TxnKind", "TxnResolution", "aborted_for_map", "resolve_cleaning", "summarise"]

_NO_END = int(np.iinfo(np.int64).max)
_BEFORE_ALL = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, eq=False)
class TxnResolution:
    """How transactions decide one cleaning pass.

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
    start_offset: int,
    end_offset: int,
    first_position_scanned: int,
    rows: Rows,
) -> AbortedRanges:
    """The aborted data that the offset map of [start, end) leaves out (Kafka: ``Cleaner.buildOffsetMap``).

    One list is added, before the first batch. Reading begins at the position that the offset index of the start segment gives
    for the start offset, so the marker of a transaction that ended before it is never read: later transactional batches of that
    producer count as aborted until its next ABORT marker. Kafka does the same (the keys of those batches are then missing from
    the map, so that older records survive beside them: too much is kept, never too little).

    :param segments: all segments of the log, ascending
    :param start_offset: first dirty offset, inclusive
    :param end_offset: first uncleanable offset, exclusive
    :param first_position_scanned: byte position in the segment that holds the start offset
    :param rows: ``TXN_ROW`` summaries of the dirty segments, any order
    """
    first_segment = _floor_segment(segments, start_offset)
    if start_offset >= end_offset or first_segment < 0:
        return _spans([])
    sweep = _Sweep()
    sweep.add(_TxnIndexes(segments, log_start_offset).collect(first_segment, end_offset), 0)
    for marker in _abort_markers(rows[_scanned(segments, rows, first_segment, first_position_scanned, end_offset)]):
        sweep.consume_up_to(marker.last_offset)
        sweep.close(marker, 0)
    sweep.consume_up_to(end_offset)
    return _spans(sweep.finish())


def resolve_cleaning(
    segments: Sequence[Segment], groups: Sequence[Sequence[Segment]], log_start_offset: int, rows: Rows
) -> TxnResolution:
    """Replay the cleaning pass over all groups (Kafka: ``Cleaner.cleanSegments`` and ``cleanInto``).

    Before each segment the aborted transactions of [its base, the next segment's base in the group, else its own next offset)
    are added; open transactions and committed data are carried across segments and groups.

    :param segments: all segments of the log, ascending: entries of a segment past the groups count as well
    :param groups: the groups of the round, in order; their segments belong to ``segments``
    :param rows: ``TXN_ROW`` summaries of the segments of the groups, any order
    :raises UnsupportedLogError: an output index would not ascend by last offset (``TransactionIndex.append`` refuses it too)
    """
    index_of = {segment.base_offset: index for index, segment in enumerate(segments)}
    cleaned = [index_of[segment.base_offset] for group in groups for segment in group]
    rows = rows[np.isin(rows["segment_index"], np.array(cleaned, dtype=np.int32))]
    closed = _sweep_groups(segments, groups, _TxnIndexes(segments, log_start_offset), index_of, rows)
    spans = _spans(closed)
    data = rows[rows["kind"] == TxnKind.DATA]
    observed = _observed(closed, data)
    keeping = {span.end for span, seen in zip(closed, observed, strict=True) if seen}
    entries: list[list[AbortedTxn]] = [[] for _ in groups]
    for span in sorted((s for s in closed if s.end in keeping), key=lambda s: s.end):
        entries[span.group].append(span.txn)
    for group in entries:
        _check_ascending(group)
    return TxnResolution(spans, _discardable(rows, data, spans, keeping), tuple(tuple(group) for group in entries))


class _Span(NamedTuple):
    """Aborted data of one producer from ``start`` to ``end`` (last offsets, inclusive), closed in group ``group``."""

    producer_id: int
    start: int
    end: int
    group: int
    txn: AbortedTxn


class _Marker(NamedTuple):
    """An ABORT marker that was read."""

    segment_index: int
    last_offset: int
    producer_id: int


@dataclass
class _Sweep:
    """The open aborted transactions while the log is walked, and the spans closed so far."""

    pending: list[tuple[int, int, int, AbortedTxn]] = field(default_factory=list)
    ongoing: dict[int, tuple[int, AbortedTxn]] = field(default_factory=dict)
    closed: list[_Span] = field(default_factory=list)
    arrivals: int = 0

    def add(self, txns: Iterable[AbortedTxn], segment_base: int) -> None:
        """A list of entries becomes known at the start of the segment with this base offset."""
        for txn in txns:
            heapq.heappush(self.pending, (txn.first_offset, self.arrivals, segment_base, txn))
            self.arrivals += 1

    def consume_up_to(self, offset: int) -> None:
        """A batch with this last offset is read."""
        while self.pending and self.pending[0][0] <= offset:
            first_offset, _, segment_base, txn = heapq.heappop(self.pending)
            self.ongoing.setdefault(txn.producer_id, (max(first_offset, segment_base), txn))

    def close(self, marker: _Marker, group: int) -> None:
        """An ABORT marker is read (after ``consume_up_to`` of its last offset)."""
        opened = self.ongoing.pop(marker.producer_id, None)
        if opened is not None:
            self.closed.append(_Span(marker.producer_id, opened[0], marker.last_offset, group, opened[1]))

    def finish(self) -> list[_Span]:
        """All spans; those still open have no end."""
        return self.closed + [_Span(pid, start, _NO_END, -1, txn) for pid, (start, txn) in self.ongoing.items()]


def _sweep_groups(
    segments: Sequence[Segment],
    groups: Sequence[Sequence[Segment]],
    indexes: _TxnIndexes,
    index_of: dict[int, int],
    rows: Rows,
) -> list[_Span]:
    """Walk the groups' segments and ABORT markers in order."""
    markers: dict[int, list[_Marker]] = {}
    for marker in _abort_markers(rows):
        markers.setdefault(marker.segment_index, []).append(marker)
    sweep = _Sweep()
    for group_index, group in enumerate(groups):
        for place, member in enumerate(group):
            upper = group[place + 1].base_offset if place + 1 < len(group) else member.next_offset
            index = index_of[member.base_offset]
            sweep.add(indexes.collect(index, upper), member.base_offset)
            for marker in markers.get(index, ()):
                sweep.consume_up_to(marker.last_offset)
                sweep.close(marker, group_index)
            if segments[index].size_bytes:
                sweep.consume_up_to(member.next_offset - 1)
    return sweep.finish()


class _TxnIndexes:
    """All transaction indexes of a log as one list, for ``LocalLog.collectAbortedTransactions``."""

    def __init__(self, segments: Sequence[Segment], log_start_offset: int) -> None:
        self._txns = [txn for segment in segments for txn in segment.aborted_txns]
        counts = [len(segment.aborted_txns) for segment in segments]
        self._begin = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        columns = np.array(self._txns, dtype=np.int64).reshape(-1, 4)
        self._first_offset: Int64s = columns[:, 1]
        self._last_stable_offset: Int64s = columns[:, 3]
        self._not_below_log_start: Bools = columns[:, 2] >= log_start_offset

    def collect(self, segment_index: int, end_offset: int) -> Iterator[AbortedTxn]:
        """Entries from this segment on that end at or after the log start and begin before ``end_offset``.

        The search ends with the first entry whose last stable offset is ≥ ``end_offset``, whether it was taken or not.
        """
        begin = int(self._begin[segment_index])
        stop = self._stop(begin, end_offset)
        chosen = self._not_below_log_start[begin:stop] & (self._first_offset[begin:stop] < end_offset)
        return (self._txns[begin + int(offset)] for offset in np.flatnonzero(chosen))

    def _stop(self, begin: int, end_offset: int) -> int:
        """One past the entry that ends the search; looked for in growing blocks, as it is mostly near."""
        block = 64
        while begin < len(self._txns):
            hits = np.flatnonzero(self._last_stable_offset[begin : begin + block] >= end_offset)
            if len(hits):
                return begin + int(hits[0]) + 1
            begin, block = begin + block, block * 2
        return len(self._txns)


def _floor_segment(segments: Sequence[Segment], offset: int) -> int:
    """Index of the last segment whose base is at or below ``offset``, -1 where there is none."""
    return bisect_right([segment.base_offset for segment in segments], offset) - 1


def _scanned(segments: Sequence[Segment], rows: Rows, first_segment: int, first_position: int, end_offset: int) -> Bools:
    """Which rows the map pass reads."""
    last_segment = _floor_segment(segments, end_offset - 1)
    index = rows["segment_index"]
    read: Bools = (index <= last_segment) & (
        (index > first_segment) | ((index == first_segment) & (rows["position"] >= first_position))
    )
    return read


def _abort_markers(rows: Rows) -> list[_Marker]:
    """The ABORT markers in log order."""
    aborts = rows[rows["kind"] == TxnKind.ABORT]
    aborts = aborts[np.argsort(aborts["last_offset"], kind="stable")]
    columns = (aborts["segment_index"].tolist(), aborts["last_offset"].tolist(), aborts["producer_id"].tolist())
    return [_Marker(*values) for values in zip(*columns, strict=True)]


def _spans(closed: Sequence[_Span]) -> AbortedRanges:
    ordered = sorted(closed, key=lambda span: (span.producer_id, span.start))
    columns = np.array([span[:3] for span in ordered], dtype=np.int64).reshape(-1, 3)
    return AbortedRanges(*(np.ascontiguousarray(columns[:, i]) for i in range(3)))


def _observed(closed: Sequence[_Span], data: Rows) -> Bools:
    """Which spans hold a data batch that was read and end with a marker, (n,) bool."""
    columns = np.array([span[:3] for span in closed], dtype=np.int64).reshape(-1, 3)
    producers, offsets = _by_producer(data)
    below_start = rank(producers, offsets, columns[:, 0], columns[:, 1])
    up_to_end = rank(producers, offsets, columns[:, 0], columns[:, 2], inclusive=True)
    seen: Bools = (up_to_end > below_start) & (columns[:, 2] != _NO_END)
    return seen


def _discardable(rows: Rows, data: Rows, spans: AbortedRanges, keeping: set[int]) -> Int64s:
    """Last offsets of the control batches that may be discarded, ascending; ``keeping`` has those of needed ABORT markers."""
    committed = data[~spans.contains(data["producer_id"], data["last_offset"])]
    commits = rows[rows["kind"] == TxnKind.COMMIT]
    markers, offsets = _by_producer(commits)
    previous = np.full(len(markers), _BEFORE_ALL, dtype=np.int64)
    same = np.flatnonzero(markers[1:] == markers[:-1]) + 1
    previous[same] = offsets[same - 1]
    data_producers, data_offsets = _by_producer(committed)
    unused = rank(data_producers, data_offsets, markers, offsets) == rank(data_producers, data_offsets, markers, previous)
    aborts = rows["last_offset"][rows["kind"] == TxnKind.ABORT]
    aborts = aborts[~np.isin(aborts, np.array(sorted(keeping), dtype=np.int64))]
    empty = rows["last_offset"][rows["kind"] == TxnKind.EMPTY_CONTROL]
    return np.sort(np.concatenate((offsets[unused], aborts, empty)))


def _by_producer(rows: Rows) -> tuple[Int64s, Int64s]:
    """Producer ids and last offsets, ascending by both."""
    order = np.lexsort((rows["last_offset"], rows["producer_id"]))
    return rows["producer_id"][order], rows["last_offset"][order]


def _check_ascending(entries: Sequence[AbortedTxn]) -> None:
    for before, after in zip(entries, entries[1:], strict=False):
        if before.last_offset >= after.last_offset:
            raise UnsupportedLogError(
                f"aborted transactions of a cleaned segment would not ascend by last offset ({before} before {after})",
                hint="the .txnindex files are not those of this log: let a broker recover the log first",
            )
