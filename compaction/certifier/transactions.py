"""Resolves transactions from their markers, and checks their data and markers after cleaning.

The rule: a transactional batch belongs to the transaction that the next marker of its producer ends, and is aborted if that is
an ABORT marker. Cleaning must not change that, from the log start on:

1. retained data has the same outcome as before: aborted, committed or open;
2. a marker is dropped only if none of its transaction's data is retained and its delete horizon has passed (Kafka up to 3.0:
   its segment is old enough);
3. the transaction index has an entry for each aborted transaction with retained data, and no entry covers other data;
4. the cleaner checkpoint does not move past the first offset of an open transaction;
5. an erasure retains the first batch of each open transaction, so that the last stable offset does not move, and the last
   batch of each active producer (Kafka: ``ProducerStateManager``), so that its sequence and epoch remain.

A transaction without a marker is open unless a producer snapshot past its data lacks its producer: a broker loads the snapshot,
has no such transaction then, and reads its data as committed.

The cleaner's own resolution is not used. The transaction index of ``before`` serves only to compare entries with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compaction.certifier.certificate import Findings
from compaction.certifier.find_pairs import LogPair, legacy_delete_horizon_ms, snapshot_offsets
from compaction.certifier.reader import Bools, Int64s, Rows
from compaction.certifier.segments import DATA, EVENT_ROW, PRODUCER_ROW, SegmentWalk, WalkedLog, join_runs, last_of_producers
from compaction.config.entries import to_long
from compaction.files.filesystem import join
from compaction.files.mixed import file_system
from compaction.formats.indexes import TXN_ROW
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import read_snapshot
from compaction.kernels.tables import ABORT, COMMIT
from compaction.names import CLEANER_OFFSETS, SNAPSHOT, TXNINDEX, segment_file

#: the outcome of a transaction without a marker
OPEN = -1


@dataclass(frozen=True, eq=False)
class AbortedRanges:
    """The data of ``producer`` from offset ``first`` to its ABORT marker at ``last`` is aborted; int64[n] each."""

    producer: Int64s
    first: Int64s
    last: Int64s

    def within(self, first_offset: int, end_offset: int) -> AbortedRanges:
        """The ranges that overlap ``[first_offset, end_offset)``."""
        overlapping = (self.last >= first_offset) & (self.first < end_offset)
        return AbortedRanges(self.producer[overlapping], self.first[overlapping], self.last[overlapping])

    def contains(self, producer: Int64s, offset: Int64s) -> Bools:
        """Whether each batch, given by producer and last offset, is aborted: bool[m]."""
        row = following(producer, offset, self.producer, self.last)
        inside: Bools = row >= 0
        # ranges of a producer do not overlap: only the first that ends at or past a batch can contain it
        inside[inside] = self.first[row[inside]] <= offset[inside]
        return inside


class Transactions(NamedTuple):
    """The ``events`` of one side, ``EVENT_ROW[n]`` sorted by producer and offset, with the ``outcome`` of each event's
    transaction (``ABORT``, ``COMMIT``, ``OPEN``) and the offset of its ``marker``, -1 if open; int64[n] each."""

    events: Rows
    outcome: Int64s
    marker: Int64s

    @classmethod
    def of(cls, walks: list[SegmentWalk]) -> Transactions:
        """The transactions of a side's segments."""
        events = join_runs(np.concatenate([np.empty(0, EVENT_ROW), *(events for walk in walks for events in walk.events)]))
        ends = np.flatnonzero(events["kind"] != DATA)
        row = following(events["producer_id"], events["last"], events["producer_id"][ends], events["last"][ends])
        outcome, marker = np.full(len(events), OPEN, np.int64), np.full(len(events), -1, np.int64)
        ended = row >= 0
        outcome[ended], marker[ended] = events["kind"][ends[row[ended]]], events["last"][ends[row[ended]]]
        return cls(events, outcome, marker)

    @property
    def is_data(self) -> Bools:
        """Whether each event is a run of data, bool[n]."""
        data: Bools = self.events["kind"] == DATA
        return data

    def aborted(self) -> AbortedRanges:
        """The aborted data."""
        selected = self.is_data & (self.outcome == ABORT)
        return AbortedRanges(self.events["producer_id"][selected], self.events["first"][selected], self.marker[selected])


def check_transactions(log: WalkedLog) -> AbortedRanges:
    """Check the transactions of a log; returns the aborted data of before."""
    before, after = Transactions.of(log.before), Transactions.of(log.after)
    _check_outcomes(before, after, log.findings)
    _check_markers(before, after, log.pair, log.findings)
    if log.pair.rules.erases:
        _check_retained(before, after, log)
    else:
        _check_open(before, log)
    _check_index(before, after, log)
    return before.aborted()


def _check_outcomes(before: Transactions, after: Transactions, findings: Findings) -> None:
    """Rule 1; a violation is at the first offset of a run."""
    runs = after.events[after.is_data]
    outcome = after.outcome[after.is_data]
    row_of = _following(before.events, runs["producer_id"], runs["first"])
    expected = np.where(row_of >= 0, before.outcome[row_of] if len(before.outcome) else OPEN, OPEN)
    for kind, name in ((ABORT, "aborted"), (COMMIT, "committed"), (OPEN, "of an open transaction")):
        wrong = (expected == kind) & (outcome != kind)
        findings.add_all(runs["first"][wrong], f"data was {name} before, but its transaction now ends differently")


def _check_markers(before: Transactions, after: Transactions, pair: LogPair, findings: Findings) -> None:
    """Rule 2; a violation is at the offset of a dropped marker."""
    retained_markers = after.events[after.events["kind"] != DATA]
    dropped = (before.events["kind"] != DATA) & ~np.isin(before.events["last"], retained_markers["last"])
    dropped_rows = np.flatnonzero(dropped)
    if not len(dropped_rows):
        return
    # a marker's data is the event before it, if that is a run of data of the same producer
    producer, first = before.events["producer_id"], before.events["first"]
    after_data = (before.events["kind"][:-1] == DATA) & (producer[:-1] == producer[1:])
    data_first = np.full(len(before.events), -1, np.int64)
    data_first[1:] = np.where(after_data, first[:-1], -1)
    retained = after.events[after.is_data]
    row_of = _following(retained, producer[dropped_rows], data_first[dropped_rows])
    retained_first = np.where(row_of >= 0, retained["first"][row_of] if len(retained) else 0, np.int64(-1))
    has_data = (data_first[dropped_rows] >= 0) & (row_of >= 0) & (retained_first < before.events["last"][dropped_rows])
    message = "transaction marker is missing though data of its transaction is retained"
    findings.add_all(before.events["last"][dropped_rows[has_data]], message)
    if pair.rules.mtime_only:
        mtime_ms = np.array([segment.mtime_ms for segment in pair.before.segments], np.int64)
        bases = np.array([segment.base_offset for segment in pair.before.segments], np.int64)
        segment = np.searchsorted(bases, before.events["last"][dropped_rows], "right") - 1
        early = ~has_data & (mtime_ms[segment] > legacy_delete_horizon_ms(pair))
        findings.add_all(
            before.events["last"][dropped_rows[early]], "transaction marker is missing before its segment is old enough"
        )
    elif not pair.rules.several_rounds:
        early = ~has_data & (before.events["horizon_ms"][dropped_rows] > pair.rules.now_ms)
        findings.add_all(before.events["last"][dropped_rows[early]], "transaction marker is missing before its delete horizon")


def _check_open(before: Transactions, log: WalkedLog) -> None:
    """Rule 4; a violation is at the first offset of an open transaction."""
    before_side, after_side = log.pair.before, log.pair.after
    if after_side.cleaned_to is not None and after_side.cleaned_to != before_side.cleaned_to:
        first = before.events["first"][_is_open(before, log.before)]
        past = first[(first < after_side.cleaned_to) & (first >= after_side.log_start_offset)]
        log.findings.add_all(past, f"{CLEANER_OFFSETS} is past this offset, the first of an open transaction")


def _check_retained(before: Transactions, after: Transactions, log: WalkedLog) -> None:
    """Rule 5; a violation is at the last offset of the producer's batch, or at the first of the transaction."""
    opened, still_open = _first_of_open(before, log.before), _first_of_open(after, log.after)
    for producer, first in opened.items():
        if still_open.get(producer) != first:
            log.findings.add(first, "first batch of an open transaction is missing")
    states, states_after, (end, loaded) = _states(log.before), _states(log.after), _newest_snapshot(log.before[-1])
    if end < log.end_offset:
        loaded = None
    rules = log.pair.rules
    for producer, state in states.items():
        expired = to_long(rules.now_ms - state.timestamp_ms) >= rules.producer_expiration_ms
        is_active = producer in opened or not (expired or (loaded is not None and producer not in loaded))
        state_after = states_after.get(producer)
        if is_active and (state_after is None or state_after[:3] != state[:3]):
            log.findings.add(max(state.last, 0), f"last batch of producer {producer} is missing or differs")


def _newest_snapshot(last: SegmentWalk) -> tuple[int, set[int] | None]:
    """The offset of the newest valid producer snapshot up to the log end, and its producers; -1 and ``None`` without one."""
    directory = last.task.files.directory
    fs = file_system([directory])
    for offset in sorted(snapshot_offsets(fs, directory), reverse=True):
        if offset > last.next_offset:
            continue
        try:
            entries = read_snapshot(fs.read_bytes(join(directory, segment_file(offset, SNAPSHOT))))
        except FormatError:
            continue
        return offset, {entry.producer_id for entry in entries}
    return -1, None


def _is_open(txns: Transactions, walks: Sequence[SegmentWalk]) -> Bools:
    """Whether each event is data of a transaction that a broker counts as open: bool[n]."""
    events = txns.events
    is_open: Bools = txns.is_data & (txns.outcome == OPEN)
    if is_open.any():
        offset, known = _newest_snapshot(walks[-1])
        is_open &= (events["last"] >= offset) | np.isin(events["producer_id"], list(known or ()))
    return is_open


def _first_of_open(txns: Transactions, walks: Sequence[SegmentWalk]) -> dict[int, int]:
    """First offsets of open transactions, by producer."""
    events = txns.events[_is_open(txns, walks)]
    return dict(zip(events["producer_id"].tolist(), events["first"].tolist(), strict=True))


class _State(NamedTuple):
    """A broker's state of a producer. Offset and base sequence of its last batch are -1 after a marker with another epoch."""

    last: int
    epoch: int
    sequence: int
    timestamp_ms: int


def _states(walks: list[SegmentWalk]) -> dict[int, _State]:
    rows = last_of_producers(np.concatenate([np.empty(0, PRODUCER_ROW), *(walk.producers for walk in walks)]))
    states: dict[int, _State] = {}
    for producer, last, epoch, sequence, timestamp_ms, is_marker in rows.tolist():
        previous = states.get(producer, _State(-1, epoch, -1, timestamp_ms))
        if not is_marker:
            states[producer] = _State(last, epoch, sequence, timestamp_ms)
        elif last > previous.last:
            batch = previous if previous.epoch == epoch else _State(-1, epoch, -1, -1)
            states[producer] = batch._replace(timestamp_ms=timestamp_ms)
    return states


def _check_index(before_txns: Transactions, after_txns: Transactions, log: WalkedLog) -> None:
    """Rule 3; a violation is at the first offset of data without an entry, or at the marker of a wrong entry."""
    pair, after = log.pair, log.after
    source_entries = _entries(_consistent(log.before, before_txns, pair.before.log_start_offset))
    ends = np.array([walk.next_offset for walk in after], np.int64)
    indexed = [_entries([walk]) for walk in after]
    aborted = after_txns.is_data & (after_txns.outcome == ABORT) & (after_txns.events["last"] >= pair.after.log_start_offset)
    for event, marker in zip(after_txns.events[aborted].tolist(), after_txns.marker[aborted].tolist(), strict=True):
        segment = int(np.searchsorted(ends, marker, "right"))
        entry = (event[0], marker)
        if segment == len(after) or (after[segment].unchanged and entry not in source_entries):
            continue
        first, _ = indexed[segment].get(entry, (marker, marker))
        if first > event[1]:
            log.findings.add(event[1], f"{TXNINDEX} has no entry for this aborted data")
    changed = [np.empty(0, TXN_ROW), *(walk.txns for walk in after if not walk.unchanged)]
    _check_entries(np.concatenate(changed), source_entries, after_txns, log.findings)


def _check_entries(
    entries: Rows, source_entries: dict[tuple[int, int], tuple[int, int]], txns: Transactions, findings: Findings
) -> None:
    """Entries end at ABORT markers, equal those of ``before``, and cover aborted data only. Last stable offsets may be lower: a
    segment that was not flushed is indexed again, and a search of its entries ends no earlier."""
    markers = txns.events[txns.events["kind"] == ABORT]
    abort_markers = set(zip(markers["producer_id"].tolist(), markers["last"].tolist(), strict=True))
    for producer, first, last, stable in entries.tolist():
        if (producer, last) not in abort_markers:
            findings.add(last, f"{TXNINDEX} has an entry without an abort marker")
            continue
        source_first, source_stable = source_entries.get((producer, last), (first, stable))
        if source_first != first or source_stable < stable:
            findings.add(last, f"{TXNINDEX} entry differs from that of the source")
    covered = _covered(entries, txns)
    findings.add_all(covered[covered >= 0], f"{TXNINDEX} entry covers data that is not aborted")


def _consistent(walks: list[SegmentWalk], txns: Transactions, log_start_offset: int) -> list[SegmentWalk]:
    """The segments of before whose transaction indexes fit the markers: a run rebuilds the others."""
    entries = np.concatenate([np.empty(0, TXN_ROW), *(walk.txns for walk in walks)])
    owner = np.repeat(np.arange(len(walks)), [len(walk.txns) for walk in walks])
    markers = txns.events[txns.events["kind"] == ABORT]
    row_of = _following(markers, entries["producer_id"], entries["last_offset"])
    ends = row_of >= 0
    ends[ends] = markers["last"][row_of[ends]] == entries["last_offset"][ends]
    wrong = set(owner[~ends | (_covered(entries, txns) >= 0)].tolist())
    indexed, next_offsets = _entries(walks), np.array([walk.next_offset for walk in walks], np.int64)
    aborted = txns.is_data & (txns.outcome == ABORT) & (txns.events["last"] >= log_start_offset)
    for event, marker in zip(txns.events[aborted].tolist(), txns.marker[aborted].tolist(), strict=True):
        if indexed.get((event[0], marker), (marker, marker))[0] > event[1]:
            wrong.add(int(np.searchsorted(next_offsets, marker, "right")))
    return [walk for number, walk in enumerate(walks) if number not in wrong]


def _covered(entries: Rows, txns: Transactions) -> Int64s:
    """The first offset of data in each entry that is not aborted, -1 without any: int64[n]."""
    others = txns.events[txns.is_data & (txns.outcome != ABORT)]
    row_of = _following(others, entries["producer_id"], entries["first_offset"])
    first = np.full(len(entries), -1, np.int64)
    first[row_of >= 0] = others["first"][row_of[row_of >= 0]]
    first[first >= entries["last_offset"]] = -1
    return first


def _entries(walks: list[SegmentWalk]) -> dict[tuple[int, int], tuple[int, int]]:
    """First offset and last stable offset of each entry, by producer and marker."""
    return {(row[0], row[2]): (row[1], row[3]) for walk in walks for row in walk.txns.tolist()}


def _following(events: Rows, producer: Int64s, offset: Int64s) -> Int64s:
    """``following`` over events."""
    return following(producer, offset, events["producer_id"], events["last"])


def following(producer: Int64s, offset: Int64s, producers: Int64s, ends: Int64s) -> Int64s:
    """For each ``(producer, offset)`` the row of that producer with the lowest end at or past the offset, -1 if there is none.

    :param producer, offset: int64[m]
    :param producers, ends: int64[n], producer and end of each row, in any order
    :returns: int64[m]
    """
    result = np.full(len(offset), -1, np.int64)
    if not len(producers) or not len(offset):
        return result
    is_row = np.repeat([0, 1], [len(offset), len(producers)]).astype(np.int8)
    order = np.lexsort((is_row, np.concatenate((offset, ends)), np.concatenate((producer, producers))))
    row_of = np.where(is_row[order] == 1, np.arange(len(order)), len(order))
    row_of = np.minimum.accumulate(row_of[::-1])[::-1]
    queries = order[is_row[order] == 0]
    positions = row_of[is_row[order] == 0]
    rows = np.where(positions < len(order), order[np.minimum(positions, len(order) - 1)] - len(offset), -1)
    rows[(rows >= 0) & (producers[np.maximum(rows, 0)] != producer[queries])] = -1
    result[queries] = rows
    return result
