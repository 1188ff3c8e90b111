"""Transactions and producers of random logs are those of a plain replay by the oracle, for any index; and verdicts on batches
that no broker writes. ``tests/scenarios`` has named cases."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.errors import UnsupportedLogError
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.formats.record_batch import CONTROL, TRANSACTIONAL, EndTxnMarker, read_end_txn_marker
from compaction.kernels.tables import BATCH_ROW, NOT_CONTROL
from compaction.rules import producer_state
from compaction.rules.log_view import AbortedTxn, Segment
from compaction.rules.producer_state import ProducerStates
from compaction.rules.record_retention import ActiveProducers, RoundRules
from compaction.rules.transactions import (
    TXN_ROW,
    AbortedRanges,
    TxnKind,
    TxnResolution,
    aborted_for_map,
    resolve_cleaning,
    summarise,
)
from tests.kafka.encode import Producer, marker
from tests.oracle.logs import ABORT, COMMIT, LEADER_CHANGE, Batching, LogBuilder, Sent
from tests.oracle.random_logs import Flavour, random_log
from tests.oracle.records import KafkaRefuses
from tests.oracle.segments import NaiveSegment, txn_index_bytes
from tests.oracle.tables import as_segment, batch_table
from tests.oracle.txns import CleanedTransactions, collect_aborted

ONE = [Sent(b"k", b"v")]
P, Q = 7, 8


def txn(producer: int) -> Batching:
    return Batching(producer=producer, transactional=True)


def summaries(segments: Sequence[NaiveSegment], rng: random.Random | None = None) -> NDArray[np.void]:
    """The rows of all segments, each summarized as one slice or as random slices."""
    parts = [np.empty(0, dtype=TXN_ROW)]
    for index, segment in enumerate(segments):
        table = batch_table(segment)
        cuts = sorted(rng.sample(range(len(table) + 1), min(len(table), 3))) if rng else []
        parts += [summarise(piece, index) for piece in np.split(table, cuts)]
    return np.concatenate(parts)


def aborted_offsets(segments: Sequence[NaiveSegment], verdicts: TxnResolution) -> list[int]:
    """Last offsets of the transactional data batches in the aborted ranges."""
    batches = [batch for segment in segments for batch in segment.batches if batch.transactional and not batch.control]
    producers = np.array([batch.producer_id for batch in batches], dtype=np.int64)
    offsets = np.array([batch.last_offset for batch in batches], dtype=np.int64)
    return [int(offset) for offset in offsets[verdicts.aborted.contains(producers, offsets)]]


def test_a_log_without_transactions_has_no_rows() -> None:
    log = LogBuilder()
    log.batch(ONE)
    log.legacy(ONE, 1)
    segments = log.build()
    rows = summaries(segments)
    assert len(rows) == 0
    models = [as_segment(segment) for segment in segments]
    verdicts = resolve_cleaning(models, [models], 0, rows)
    assert len(verdicts.aborted) == 0
    assert not verdicts.aborted.contains(np.array([1]), np.array([1])).any()
    assert verdicts.discardable.dtype == np.int64


def test_a_summary_has_every_control_batch_and_the_ends_of_every_run() -> None:
    log = LogBuilder()
    for producer in (P, Q, P, P, Q):
        log.batch(ONE, txn(producer))  # 0..4
    log.batch(ONE, Batching(producer=P))  # 5: not transactional
    log.marker(P, COMMIT)  # 6
    log.batch(ONE, txn(P))  # 7
    log.batch(ONE, txn(Q))  # 8
    log.marker(-1, LEADER_CHANGE)  # 9
    log.marker(P, ABORT, empty=True)  # 10
    (segment,) = log.build()
    rows = summarise(batch_table(segment), 3)
    assert rows.dtype == TXN_ROW
    assert set(rows["segment_index"]) == {3}
    assert rows["last_offset"].tolist() == [0, 1, 3, 6, 7, 8, 9, 10]
    kinds = [TxnKind.DATA] * 3 + [TxnKind.COMMIT] + [TxnKind.DATA] * 2 + [TxnKind.OTHER_CONTROL, TxnKind.EMPTY_CONTROL]
    assert rows["kind"].tolist() == [int(kind) for kind in kinds]
    positions = {batch.last_offset: batch.position for batch in segment.batches}
    assert [positions[offset] for offset in rows["last_offset"].tolist()] == rows["position"].tolist()


def test_what_reads_like_transactions_in_an_old_batch_is_not_read() -> None:
    log = LogBuilder()
    log.batch(ONE, txn(P))
    log.marker(P, ABORT)
    table = batch_table(log.build()[0])
    table["magic"] = 1
    assert len(summarise(table, 0)) == 0


@dataclass
class Replayed:
    """What the oracle's state says batch by batch."""

    aborted: list[int] = field(default_factory=list)
    discardable: list[int] = field(default_factory=list)
    txn_index: list[tuple[AbortedTxn, ...]] = field(default_factory=list)


def replay(segments: Sequence[NaiveSegment], groups: Sequence[Sequence[int]], log_start: int) -> Replayed:
    indexes = [(segment.base_offset, segment.aborted_txns) for segment in segments]
    state, seen = CleanedTransactions(), Replayed()
    for group in groups:
        state.cleaned_index = []
        for place, at in enumerate(group):
            segment = segments[at]
            upper = segments[group[place + 1]].base_offset if place + 1 < len(group) else segment.next_offset
            state.add(collect_aborted(indexes, log_start, segment.base_offset, upper))
            for batch in segment.batches:
                if state.on_batch(batch):
                    (seen.discardable if batch.control else seen.aborted).append(batch.last_offset)
        seen.txn_index.append(tuple(state.cleaned_index))
    return seen


def random_groups(count: int, rng: random.Random) -> list[list[int]]:
    groups: list[list[int]] = []
    for at in range(count):
        if groups and rng.random() < 0.6:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def check_against_replay(segments: Sequence[NaiveSegment], log_start: int, rng: random.Random) -> None:
    groups = random_groups(rng.randrange(1, len(segments) + 1), rng)
    models = [as_segment(segment) for segment in segments]
    rows = summaries(segments, rng)
    rng.shuffle(order := list(range(len(rows))))

    def resolved() -> TxnResolution:
        return resolve_cleaning(models, [[models[at] for at in group] for group in groups], log_start, rows[order])

    try:
        expected = replay(segments, groups, log_start)
    except KafkaRefuses:
        with pytest.raises(UnsupportedLogError):
            resolved()
        return
    verdicts = resolved()
    cleaned = [segments[at] for group in groups for at in group]
    assert aborted_offsets(cleaned, verdicts) == expected.aborted
    assert verdicts.discardable.tolist() == expected.discardable
    assert list(verdicts.txn_index) == expected.txn_index


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(0, 1)),
        st.tuples(st.sampled_from(["abort", "commit", "emptied"]), st.integers(0, 1)),
        st.tuples(st.sampled_from(["plain", "roll", "gap"]), st.just(0)),
    ),
    min_size=1,
    max_size=30,
)
ENTRIES = st.lists(st.tuples(st.integers(0, 1), *[st.integers(0, 30)] * 3), max_size=6, unique_by=lambda entry: entry[:2])


def built(
    events: Sequence[tuple[str, int]], entries: Sequence[tuple[int, int, int, int]], rng: random.Random
) -> list[NaiveSegment]:
    """A log of these events whose transaction indexes hold these entries, wherever they belong."""
    log = LogBuilder()
    steps: dict[str, Callable[[int], object]] = {
        "data": lambda producer: log.batch(ONE, txn(producer)),
        "abort": lambda producer: log.marker(producer, ABORT),
        "commit": lambda producer: log.marker(producer, COMMIT),
        "emptied": lambda producer: log.marker(producer, ABORT, empty=True),
        "plain": lambda _: log.batch(ONE),
        "roll": lambda _: log.roll(1) if log.size_bytes else None,
        "gap": lambda _: log.skip(2),
    }
    for name, producer in events:
        steps[name](producer)
    segments = log.build()
    homes = sorted(rng.randrange(len(segments)) for _ in entries)
    for at, segment in enumerate(segments):
        held = [AbortedTxn(*entry) for home, entry in zip(homes, entries, strict=True) if home == at]
        segments[at] = replace(segment, txn_index=txn_index_bytes(held))
    return segments


@settings(max_examples=400)
@given(EVENTS, ENTRIES, st.integers(0, 5), st.randoms(use_true_random=False))
def test_any_index_resolves_as_a_naive_replay(
    events: list[tuple[str, int]], entries: list[tuple[int, int, int, int]], log_start: int, rng: random.Random
) -> None:
    check_against_replay(built(events, entries, rng), log_start, rng)


@settings(max_examples=300)
@given(EVENTS, ENTRIES, st.integers(0, 30), st.integers(0, 35), st.randoms(use_true_random=False))
def test_any_map_pass_excludes_what_a_naive_replay_excludes(
    events: list[tuple[str, int]], entries: list[tuple[int, int, int, int]], start: int, end: int, rng: random.Random
) -> None:
    segments = built(events, entries, rng)
    models: list[Segment] = [as_segment(segment) for segment in segments]
    first = max((at for at, segment in enumerate(segments) if segment.base_offset <= start), default=0)
    positions = [batch.position for batch in segments[first].batches if batch.base_offset <= start]
    first_position = rng.choice(positions or [0])
    spans = aborted_for_map(models, 0, start, end, first_position, summaries(segments, rng))
    state = CleanedTransactions()
    if start < end:
        state.add(collect_aborted([(s.base_offset, s.aborted_txns) for s in segments], 0, start, end))
    for at, segment in enumerate(segments):
        for batch in segment.batches:
            if at < first or (at == first and batch.position < first_position) or segment.base_offset >= end:
                continue
            expected = state.on_batch(batch)
            if batch.transactional and not batch.control:
                found = spans.contains(np.array([batch.producer_id]), np.array([batch.last_offset]))
                assert found.tolist() == [expected]


NOTHING = np.empty(0, np.int64)
RULES = RoundRules(
    AbortedRanges(NOTHING, NOTHING, NOTHING), NOTHING, ActiveProducers.of([]), retain_end_offset=1_000, now_ms=6_000
)


def test_a_batch_without_a_producer_is_no_producers_last_record() -> None:
    log = LogBuilder()
    log.batch(ONE)
    none = ActiveProducers.of([ProducerEntry(-1, 0, 0, 0, 0, 0, 0, -1)])
    assert not none.are_last_records(batch_table(log.build()[0])).any()


def test_message_sets_have_neither_transactions_nor_horizons() -> None:
    log = LogBuilder()
    log.legacy(ONE, 1)
    rows = batch_table(log.build()[0])
    rows["attributes"] = 0x70
    aborted = AbortedRanges(np.array([-1]), np.array([0]), np.array([9]))
    assert replace(RULES, aborted=aborted, discardable=np.array([0])).verdicts(rows).tolist() == [0]


def test_no_batches_give_no_verdicts() -> None:
    assert RULES.verdicts(batch_table(LogBuilder().build()[0])).tolist() == []


DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


def row(offset: int, producer_id: int, *, count: int = 1, sequence: int = 0, txn: bool = False) -> np.void:
    """A data batch of ``count`` offsets; its timestamp is now plus its last offset."""
    made: np.void = np.zeros(1, BATCH_ROW)[0]
    made["position"], made["base_offset"], made["last_offset"] = offset, offset, offset + count - 1
    made["producer_id"], made["base_sequence"] = producer_id, sequence
    made["max_timestamp"], made["magic"], made["control_type"] = NOW_MS + offset + count - 1, 2, NOT_CONTROL
    made["attributes"] = TRANSACTIONAL if txn else 0
    return made


def replayed(batches: Sequence[np.void] = (), loaded: Sequence[ProducerEntry] = ()) -> ProducerStates:
    states = ProducerStates()
    states.load(loaded, NOW_MS, DAY_MS)
    states.append(np.array([*batches], BATCH_ROW), lambda position: EndTxnMarker(5, NOW_MS + position))
    states.flush()
    return states


def entry(last: int, stamp_ms: int, *, sequence: int = 0, txn: int = -1) -> ProducerEntry:
    return ProducerEntry(1, 0, sequence, last, 0, stamp_ms, -1, txn)


def test_batches_without_a_producer_and_of_old_formats_are_ignored() -> None:
    old = row(1, 4)
    old["magic"] = 1
    assert replayed([row(0, -1), old]).entries() == ()


@pytest.mark.parametrize(("sequence", "last"), [(2**31 - 2, 1), (-1, -1)], ids=["wraps to zero", "none"])
def test_the_last_sequence_number_of_a_batch(sequence: int, last: int) -> None:
    assert replayed([row(0, 1, count=4, sequence=sequence)]).entries()[0].last_sequence == last


@pytest.mark.parametrize(("idle", "kept"), [(DAY_MS - 1, True), (DAY_MS, False), (DAY_MS + 1, False)])
@pytest.mark.parametrize("when", ["loading", "later"])
def test_a_producer_expires_after_the_expiration_time(idle: int, kept: bool, when: str) -> None:
    old = entry(0, NOW_MS - idle)
    states = ProducerStates()
    states.load([old], NOW_MS if when == "loading" else NOW_MS - idle, DAY_MS)
    states.expire(NOW_MS, DAY_MS)
    assert states.entries() == ((old,) if kept else ())


@pytest.mark.parametrize("old", [entry(0, -(2**63)), entry(-1, NOW_MS, sequence=-1)], ids=["the time since wraps", "no batch"])
def test_an_entry_of_a_snapshot_is_kept_as_by_kafka(old: ProducerEntry) -> None:
    assert replayed(loaded=[old]).entries() == (old,)


def test_an_open_transaction_keeps_its_producer_from_expiring() -> None:
    old = entry(0, 0, txn=0)
    states = replayed(loaded=[old])
    states.expire(NOW_MS, DAY_MS)
    assert states.entries() == (old,)
    assert states.first_unstable_offset(100) == 0


@pytest.mark.parametrize(("high_watermark", "unstable"), [(2, 0), (3, None)])
def test_a_transaction_is_unstable_until_its_marker_is_replicated(high_watermark: int, unstable: int | None) -> None:
    marker = row(2, 1, txn=True)
    marker["attributes"], marker["control_type"] = TRANSACTIONAL | CONTROL, ABORT
    states = replayed([row(0, 1, txn=True), marker])
    assert states.first_unstable_offset(high_watermark) == unstable


def test_the_first_unstable_offset_is_that_of_the_oldest_open_transaction() -> None:
    states = replayed([row(4, 1, txn=True), row(5, 2, txn=True), row(6, 1, txn=True)])
    assert states.first_unstable_offset(100) == 4


@pytest.mark.parametrize(
    ("given", "stamp_ms"),
    [({}, NOW_MS), ({"delete_horizon": NOW_MS + 99}, NOW_MS), ({"log_append_time": NOW_MS + 5}, NOW_MS + 5)],
)
def test_a_marker_has_its_own_timestamp_or_that_of_its_append(given: dict[str, int], stamp_ms: int) -> None:
    assert read_end_txn_marker(marker(7, NOW_MS, Producer(1), COMMIT, 11, **given)) == (11, stamp_ms)


@pytest.mark.parametrize(("seeds", "how"), [(range(60), "batches"), (range(60, 120), "segments"), (range(60, 120), "arrays")])
def test_random_logs_leave_the_producers_and_aborted_transactions_of_a_plain_replay(
    seeds: range, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_state, "_SHORT_RUN", 0 if how == "arrays" else 1 << 30)
    # of several that end in one append, each is stable from where the last one is
    aborted, compared = 0, 4 if how == "batches" else 3
    for seed in seeds:
        log = random_log(seed, Flavour(batches=80, producers=5, odd=0.4, settled=0.3))
        states = ProducerStates()
        for each in log.segments:
            found, rows = [], batch_table(each)
            for part in np.split(rows, range(1, len(rows))) if how == "batches" else [rows]:
                states.append(part, lambda position: read_end_txn_marker(each.log[position:]))  # noqa: B023 - called here
                found += [AbortedTxn(*txn) for txn in states.flush()]
            assert [txn[:compared] for txn in found] == [txn[:compared] for txn in each.aborted_txns], seed
            aborted += len(found)
        assert states.entries() == log.producers, seed
    assert aborted > 50
