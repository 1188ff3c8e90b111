"""How transactions ended, from their markers alone, and what must be left of them.

The rule: a transactional batch belongs to the transaction that the next end marker of its producer ends; it is aborted if that
is an ABORT marker. What cleaning leaves must mean the same:

1. data that is left ends with the same kind of marker;
2. a marker is dropped only with the data of its transaction, and once its delete horizon has passed;
3. the transaction index has an entry for each aborted transaction of which data is left, and entries of others cover no data;
4. what may yet be aborted is not cleaned: the checkpoint does not move past an open transaction's first offset.

Nothing of the cleaner's own resolution is used, and the transaction index of ``before`` only as a source of entries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.certifier.checks.log_pair import AbortedRanges, Findings, Int64s, LogPair, Rows
from compaction.certifier.checks.segment_walk import DATA, EVENT_ROW, SegmentWalk, join_runs
from compaction.formats.indexes import TXN_ROW
from compaction.kernels.reading.tables import ABORT, COMMIT
from compaction.names import CLEANER_OFFSETS, TXNINDEX

Bools = NDArray[np.bool_]
#: no marker follows
OPEN = -1


class Transactions(NamedTuple):
    """The events of one side, sorted by producer and offset: ``EVENT_ROW[n]``; of each how its transaction ends (``ABORT``,
    ``COMMIT``, ``OPEN``) and where, int8[n], int64[n]."""

    events: Rows
    outcome: Int64s
    marker: Int64s

    @classmethod
    def of(cls, walks: list[SegmentWalk]) -> Transactions:
        """Those of a side's segments."""
        events = join_runs(np.concatenate([np.empty(0, EVENT_ROW), *(walk.all_events() for walk in walks)]))
        ends = np.flatnonzero(events["kind"] != DATA)
        row = following(events["producer_id"], events["last"], events["producer_id"][ends], events["last"][ends])
        outcome, marker = np.full(len(events), OPEN, np.int64), np.full(len(events), -1, np.int64)
        known = row >= 0
        outcome[known], marker[known] = events["kind"][ends[row[known]]], events["last"][ends[row[known]]]
        return cls(events, outcome, marker)

    @property
    def is_data(self) -> Bools:
        """Which events are runs of data, bool[n]."""
        data: Bools = self.events["kind"] == DATA
        return data

    def aborted(self) -> AbortedRanges:
        """The aborted data."""
        some = self.is_data & (self.outcome == ABORT)
        return AbortedRanges(self.events["producer_id"][some], self.events["first"][some], self.marker[some])


def check_outcomes(before: Transactions, after: Transactions, findings: Findings) -> None:
    """Rule 1, at the first offset of each run that means something else."""
    runs = after.events[after.is_data]
    outcome = after.outcome[after.is_data]
    place = _following(before.events, runs["producer_id"], runs["first"])
    expected = np.where(place >= 0, before.outcome[place] if len(before.outcome) else OPEN, OPEN)
    for kind, name in ((ABORT, "aborted"), (COMMIT, "committed"), (OPEN, "of an open transaction")):
        wrong = (expected == kind) & (outcome != kind)
        findings.add_all(runs["first"][wrong], f"data that was {name} is so no more: its transaction ends otherwise")


def check_markers(before: Transactions, after: Transactions, pair: LogPair, findings: Findings) -> None:
    """Rule 2, at each marker that had to stay."""
    gone = (before.events["kind"] != DATA) & (before.events["last"] >= pair.after.log_start_offset)
    left = after.events[after.events["kind"] != DATA]
    gone &= ~np.isin(before.events["last"], left["last"])
    at = np.flatnonzero(gone)
    if not len(at):
        return
    # the transaction's data lies between the marker and the producer's event before its first run, if that is a marker
    runs = np.full(len(before.events), -1, np.int64)
    runs[1:] = np.where(
        (before.events["kind"][:-1] == DATA) & (before.events["producer_id"][:-1] == before.events["producer_id"][1:]),
        before.events["first"][:-1],
        -1,
    )
    data = after.events[after.is_data]
    place = _following(data, before.events["producer_id"][at], runs[at])
    first = np.where(place >= 0, data["first"][place] if len(data) else 0, np.int64(-1))
    holds = (runs[at] >= 0) & (place >= 0) & (first < before.events["last"][at])
    findings.add_all(before.events["last"][at[holds]], "transaction marker is missing though data of its transaction is left")
    if not pair.rules.several_rounds:
        early = ~holds & (before.events["horizon_ms"][at] > pair.rules.now_ms)
        findings.add_all(before.events["last"][at[early]], "transaction marker is missing before its delete horizon")


def check_open(before: Transactions, pair: LogPair, findings: Findings) -> None:
    """Rule 4, at the first offset of each open transaction below the checkpoint."""
    if pair.after.cleaned_to is not None and pair.after.cleaned_to != pair.before.cleaned_to:
        first = before.events["first"][before.is_data & (before.outcome == OPEN)]
        past = first[(first < pair.after.cleaned_to) & (first >= pair.after.log_start_offset)]
        findings.add_all(past, f"{CLEANER_OFFSETS} lies past this offset, where a transaction is open")


def check_index(
    before: list[SegmentWalk], after: list[SegmentWalk], after_txns: Transactions, pair: LogPair, findings: Findings
) -> None:
    """Rule 3: at the first offset of data without an entry, at the marker's offset of a wrong entry."""
    known = _entries(before)
    ends = np.array([walk.next_offset for walk in after], np.int64)
    indexed = [_entries([walk]) for walk in after]
    aborted = after_txns.is_data & (after_txns.outcome == ABORT) & (after_txns.events["last"] >= pair.after.log_start_offset)
    for event, marker in zip(after_txns.events[aborted].tolist(), after_txns.marker[aborted].tolist(), strict=True):
        at = int(np.searchsorted(ends, marker, "right"))
        entry = (event[0], marker)
        if at == len(after) or (after[at].unchanged and entry not in known):
            continue
        first, _ = indexed[at].get(entry, (marker, marker))
        if first > event[1]:
            findings.add(event[1], f"{TXNINDEX} has no entry for this aborted data")
    changed = [np.empty(0, TXN_ROW), *(walk.txns for walk in after if not walk.unchanged)]
    _check_entries(np.concatenate(changed), known, after_txns, findings)


def _check_entries(
    entries: Rows, known: dict[tuple[int, int], tuple[int, int]], txns: Transactions, findings: Findings
) -> None:
    """That entries end at abort markers, are those of the source, and cover no data that is not aborted."""
    markers = txns.events[txns.events["kind"] == ABORT]
    there = set(zip(markers["producer_id"].tolist(), markers["last"].tolist(), strict=True))
    for producer, first, last, stable in entries.tolist():
        if (producer, last) not in there:
            findings.add(last, f"{TXNINDEX} has an entry without an abort marker")
        elif known.get((producer, last), (first, stable)) != (first, stable):
            findings.add(last, f"{TXNINDEX} entry differs from that of the source")
    others = txns.events[txns.is_data & (txns.outcome != ABORT)]
    place = _following(others, entries["producer_id"], entries["first_offset"])
    covered = others["first"][place[place >= 0]]
    covered = covered[covered < entries["last_offset"][place >= 0]]
    findings.add_all(covered, f"{TXNINDEX} entry counts data as aborted that is not")


def _entries(walks: list[SegmentWalk]) -> dict[tuple[int, int], tuple[int, int]]:
    """First and last stable offset of the entries of a side, by producer and marker."""
    return {(row[0], row[2]): (row[1], row[3]) for walk in walks for row in walk.txns.tolist()}


def _following(events: Rows, producer: Int64s, offset: Int64s) -> Int64s:
    """Of each producer and offset, the row of the first event of that producer that ends at or past it, -1 without one."""
    return following(producer, offset, events["producer_id"], events["last"])


def in_aborted_ranges(ranges: AbortedRanges, producer: Int64s, offset: Int64s) -> Bools:
    """Which batches, by producer and last offset, are aborted: bool[m]."""
    row = following(producer, offset, ranges.producer, ranges.last)
    inside: Bools = row >= 0
    # ranges of a producer do not overlap: only the first that ends at or past a batch may hold it
    inside[inside] = ranges.first[row[inside]] <= offset[inside]
    return inside


def following(producer: Int64s, offset: Int64s, known: Int64s, ends: Int64s) -> Int64s:
    """Of each ``(producer, offset)`` the row of that producer that is the first to end at or past the offset, -1 without one.

    :param producer, offset: int64[m]
    :param known, ends: int64[n], producer and last offset of each row, in any order
    """
    found = np.full(len(offset), -1, np.int64)
    if not len(known) or not len(offset):
        return found
    is_row = np.repeat([0, 1], [len(offset), len(known)]).astype(np.int8)
    order = np.lexsort((is_row, np.concatenate((offset, ends)), np.concatenate((producer, known))))
    place = np.where(is_row[order] == 1, np.arange(len(order)), len(order))
    place = np.minimum.accumulate(place[::-1])[::-1]
    queries = order[is_row[order] == 0]
    at = place[is_row[order] == 0]
    rows = np.where(at < len(order), order[np.minimum(at, len(order) - 1)] - len(offset), -1)
    rows[(rows >= 0) & (known[np.maximum(rows, 0)] != producer[queries])] = -1
    found[queries] = rows
    return found
