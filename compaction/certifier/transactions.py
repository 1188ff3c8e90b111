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

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from compaction.certifier.certificate import Findings
from compaction.certifier.find_pairs import LONG_MAX, LogPair, legacy_delete_horizon_ms, snapshot_offsets
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


#: an event with the ``outcome`` of its transaction (``ABORT``, ``COMMIT``, ``OPEN``) and the offset of its ``marker`` (or -1)
TXN_EVENT_ROW = np.dtype([*EVENT_ROW.descr, ("outcome", np.int8), ("marker", np.int64)])


def resolve(walks: Sequence[SegmentWalk]) -> Rows:
    """``TXN_EVENT_ROW[n]``: the events of a side's segments, sorted by producer and offset."""
    events = join_runs(np.concatenate([np.empty(0, EVENT_ROW), *(events for walk in walks for events in walk.events)]))
    txns = np.zeros(len(events), TXN_EVENT_ROW)
    for name in EVENT_ROW.names or ():
        txns[name] = events[name]
    ends = events[events["kind"] != DATA]
    row = following(ends, events["producer_id"], events["last"])
    txns["outcome"] = np.where(row >= 0, ends["kind"][row] if len(ends) else OPEN, OPEN)
    txns["marker"] = np.where(row >= 0, ends["last"][row] if len(ends) else -1, -1)
    return txns


def aborted_data(txns: Rows) -> Rows:
    """The runs of data that ABORT markers end, each up to its marker (``last``)."""
    aborted: Rows = txns[(txns["kind"] == DATA) & (txns["outcome"] == ABORT)]
    aborted["last"] = aborted["marker"]
    return aborted


def is_aborted(aborted: Rows, producer: Int64s, offset: Int64s) -> Bools:
    """Whether each batch, given by producer and last offset, is aborted: bool[m]."""
    row = following(aborted, producer, offset)
    inside: Bools = row >= 0
    # those of a producer do not overlap: only the first that ends at or past a batch can contain it
    inside[inside] = aborted["first"][row[inside]] <= offset[inside]
    return inside


def check_transactions(log: WalkedLog) -> Rows:
    """Check the transactions of a log; returns the aborted data of before."""
    before, after = resolve(log.before), resolve(log.after)
    _check_outcomes(before, after, log.findings)
    _check_markers(before, after, log.pair, log.findings)
    if log.pair.rules.erases:
        _check_retained(before, after, log)
    else:
        _check_open(before, log)
    _check_index(before, after, log)
    return aborted_data(before)


def _check_outcomes(before: Rows, after: Rows, findings: Findings) -> None:
    """Rule 1; a violation is at the first offset of a run."""
    runs = after[after["kind"] == DATA]
    row_of = following(before, runs["producer_id"], runs["first"])
    expected = np.where(row_of >= 0, before["outcome"][row_of] if len(before) else OPEN, OPEN)
    for kind, name in ((ABORT, "aborted"), (COMMIT, "committed"), (OPEN, "of an open transaction")):
        wrong = (expected == kind) & (runs["outcome"] != kind)
        findings.add_all(runs["first"][wrong], f"data was {name} before, but its transaction now ends differently")


def _check_markers(before: Rows, after: Rows, pair: LogPair, findings: Findings) -> None:
    """Rule 2; a violation is at the offset of a dropped marker."""
    rows = np.flatnonzero((before["kind"] != DATA) & ~np.isin(before["last"], after["last"][after["kind"] != DATA]))
    if not len(rows):
        return
    # a marker's data is the event before it, if that is a run of data of the same producer
    producer, first, dropped = before["producer_id"], before["first"], before[rows]
    data_first = np.full(len(before), -1, np.int64)
    data_first[1:] = np.where((before["kind"][:-1] == DATA) & (producer[:-1] == producer[1:]), first[:-1], -1)
    retained = after[after["kind"] == DATA]
    row_of = following(retained, dropped["producer_id"], data_first[rows])
    retained_first = np.where(row_of >= 0, retained["first"][row_of] if len(retained) else 0, np.int64(-1))
    has_data = (data_first[rows] >= 0) & (row_of >= 0) & (retained_first < dropped["last"])
    findings.add_all(dropped["last"][has_data], "transaction marker is missing though data of its transaction is retained")
    if pair.rules.mtime_only:
        mtime_ms = np.array([segment.mtime_ms for segment in pair.before.segments], np.int64)
        bases = np.array([segment.base_offset for segment in pair.before.segments], np.int64)
        early = mtime_ms[np.searchsorted(bases, dropped["last"], "right") - 1] > legacy_delete_horizon_ms(pair)
        message = "transaction marker is missing before its segment is old enough"
    else:
        early = dropped["horizon_ms"] > (LONG_MAX if pair.rules.several_rounds else pair.rules.now_ms)
        message = "transaction marker is missing before its delete horizon"
    findings.add_all(dropped["last"][~has_data & early], message)


def _check_open(before: Rows, log: WalkedLog) -> None:
    """Rule 4; a violation is at the first offset of an open transaction."""
    before_side, after_side = log.pair.before, log.pair.after
    if after_side.cleaned_to is not None and after_side.cleaned_to != before_side.cleaned_to:
        first = _open_data(before, log.before)["first"]
        past = first[(first < after_side.cleaned_to) & (first >= after_side.log_start_offset)]
        log.findings.add_all(past, f"{CLEANER_OFFSETS} is past this offset, the first of an open transaction")


def _check_retained(before: Rows, after: Rows, log: WalkedLog) -> None:
    """Rule 5; a violation is at the last offset of the producer's batch, or at the first of the transaction."""
    opened, still_open = (
        dict(_open_data(txns, walks)[["producer_id", "first"]].tolist())
        for txns, walks in ((before, log.before), (after, log.after))
    )
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


def _open_data(txns: Rows, walks: Sequence[SegmentWalk]) -> Rows:
    """The runs of data of transactions that a broker counts as open."""
    data: Rows = txns[(txns["kind"] == DATA) & (txns["outcome"] == OPEN)]
    if len(data):
        offset, known = _newest_snapshot(walks[-1])
        data = data[(data["last"] >= offset) | np.isin(data["producer_id"], list(known or ()))]
    return data


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


def _check_index(before_txns: Rows, after_txns: Rows, log: WalkedLog) -> None:
    """Rule 3; a violation is at the first offset of data without an entry, or at the marker of a wrong entry."""
    pair, after = log.pair, log.after
    source_entries = _entries(_consistent(log.before, before_txns, pair.before.log_start_offset))
    for segment, first, entry in _not_indexed(after, after_txns, pair.after.log_start_offset):
        if not after[segment].unchanged or entry in source_entries:
            log.findings.add(first, f"{TXNINDEX} has no entry for this aborted data")
    changed = [np.empty(0, TXN_ROW), *(walk.txns for walk in after if not walk.unchanged)]
    _check_entries(np.concatenate(changed), source_entries, after_txns, log.findings)


def _check_entries(
    entries: Rows, source_entries: dict[tuple[int, int], tuple[int, int]], txns: Rows, findings: Findings
) -> None:
    """Entries end at ABORT markers, equal those of ``before``, and cover aborted data only. Last stable offsets may be lower: a
    segment that was not flushed is indexed again, and a search of its entries ends no earlier."""
    abort_markers = _abort_markers(txns)
    for producer, first, last, stable in entries.tolist():
        if (producer, last) not in abort_markers:
            findings.add(last, f"{TXNINDEX} has an entry without an abort marker")
            continue
        source_first, source_stable = source_entries.get((producer, last), (first, stable))
        if source_first != first or source_stable < stable:
            findings.add(last, f"{TXNINDEX} entry differs from that of the source")
    covered = _covered(entries, txns)
    findings.add_all(covered[covered >= 0], f"{TXNINDEX} entry covers data that is not aborted")


def _consistent(walks: list[SegmentWalk], txns: Rows, log_start_offset: int) -> list[SegmentWalk]:
    """The segments of before whose transaction indexes fit the markers: a run rebuilds the others."""
    entries = np.concatenate([np.empty(0, TXN_ROW), *(walk.txns for walk in walks)])
    owner = np.repeat(np.arange(len(walks)), [len(walk.txns) for walk in walks])
    abort_markers = _abort_markers(txns)
    unfit = np.array([(producer, last) not in abort_markers for producer, _, last, _ in entries.tolist()], np.bool_)
    wrong = set(owner[unfit | (_covered(entries, txns) >= 0)].tolist())
    wrong.update(segment for segment, *_ in _not_indexed(walks, txns, log_start_offset))
    return [walk for number, walk in enumerate(walks) if number not in wrong]


def _abort_markers(txns: Rows) -> set[tuple[int, int]]:
    """Producer and offset of each ABORT marker."""
    return set(txns[["producer_id", "last"]][txns["kind"] == ABORT].tolist())


def _not_indexed(walks: list[SegmentWalk], txns: Rows, log_start_offset: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """The aborted data without an entry in the transaction index of its marker's segment: the segment's number, the first
    offset of the data, and its producer and marker."""
    ends = np.array([walk.next_offset for walk in walks], np.int64)
    indexed = [_entries([walk]) for walk in walks]
    aborted = aborted_data(txns[txns["last"] >= log_start_offset])
    for producer, first, marker in aborted[["producer_id", "first", "last"]].tolist():
        segment, entry = int(np.searchsorted(ends, marker, "right")), (producer, marker)
        if segment < len(walks) and indexed[segment].get(entry, entry[1:])[0] > first:
            yield segment, first, entry


def _covered(entries: Rows, txns: Rows) -> Int64s:
    """The first offset of data in each entry that is not aborted, -1 without any: int64[n]."""
    others = txns[(txns["kind"] == DATA) & (txns["outcome"] != ABORT)]
    row_of = following(others, entries["producer_id"], entries["first_offset"])
    first = np.full(len(entries), -1, np.int64)
    first[row_of >= 0] = others["first"][row_of[row_of >= 0]]
    first[first >= entries["last_offset"]] = -1
    return first


def _entries(walks: list[SegmentWalk]) -> dict[tuple[int, int], tuple[int, int]]:
    """First offset and last stable offset of each entry, by producer and marker."""
    return {(row[0], row[2]): (row[1], row[3]) for walk in walks for row in walk.txns.tolist()}


def following(rows: Rows, producer: Int64s, offset: Int64s) -> Int64s:
    """For each ``(producer, offset)``, int64[m], the row of that producer with the lowest ``last`` at or past the offset, -1 if
    there is none: int64[m].

    :param rows: ``producer_id`` and ``last``, in any order
    """
    producers, ends, result = rows["producer_id"], rows["last"], np.full(len(offset), -1, np.int64)
    if not len(producers) or not len(offset):
        return result
    is_row = np.repeat([0, 1], [len(offset), len(producers)]).astype(np.int8)
    order = np.lexsort((is_row, np.concatenate((offset, ends)), np.concatenate((producer, producers))))
    row_of = np.where(is_row[order] == 1, np.arange(len(order)), len(order))
    row_of = np.minimum.accumulate(row_of[::-1])[::-1]
    queries = order[is_row[order] == 0]
    positions = row_of[is_row[order] == 0]
    found = np.where(positions < len(order), order[np.minimum(positions, len(order) - 1)] - len(offset), -1)
    found[(found >= 0) & (producers[np.maximum(found, 0)] != producer[queries])] = -1
    result[queries] = found
    return result
