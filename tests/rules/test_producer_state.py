"""The producer state of a partition: batch by batch, and equal to a naive replay for any history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.formats.record_batch import CONTROL, TRANSACTIONAL, EndTxnMarker, read_end_txn_marker
from compaction.kernels.tables import ABORT, BATCH_ROW, COMMIT, EMPTY_CONTROL, NOT_CONTROL
from compaction.rules.producer_state import ProducerStates
from tests.kafka.encode import Producer, marker

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
COORDINATOR = 5


def row(offset: int, producer_id: int, *, count: int = 1, epoch: int = 0, sequence: int = 0, txn: bool = False) -> np.void:
    """A data batch of ``count`` offsets; its timestamp is now plus its last offset."""
    made: np.void = np.zeros(1, BATCH_ROW)[0]
    made["position"], made["base_offset"], made["last_offset"] = offset, offset, offset + count - 1
    made["producer_id"], made["producer_epoch"], made["base_sequence"] = producer_id, epoch, sequence
    made["max_timestamp"], made["magic"], made["control_type"] = NOW_MS + offset + count - 1, 2, NOT_CONTROL
    made["attributes"] = TRANSACTIONAL if txn else 0
    return made


def control(offset: int, producer_id: int, kind: int, *, epoch: int = 0) -> np.void:
    made = row(offset, producer_id, epoch=epoch, sequence=-1, txn=True)
    made["attributes"] |= CONTROL
    made["control_type"] = kind
    return made


def marker_at(position: int) -> EndTxnMarker:
    return EndTxnMarker(COORDINATOR, NOW_MS + position)


def replayed(*segments: Sequence[np.void], loaded: Sequence[ProducerEntry] = ()) -> ProducerStates:
    states = ProducerStates()
    states.load(loaded, NOW_MS, DAY_MS)
    for segment in segments:
        states.append(np.array(segment, BATCH_ROW), marker_at)
        states.flush()
    return states


def entry(
    producer_id: int,
    last: int,
    *,
    epoch: int = 0,
    sequence: int = 0,
    delta: int = 0,
    stamp: int | None = None,
    coordinator: int = -1,
    txn: int = -1,
) -> ProducerEntry:
    at = NOW_MS + last if stamp is None else stamp
    return ProducerEntry(producer_id, epoch, sequence, last, delta, at, coordinator, txn)


def test_the_last_batch_is_remembered() -> None:
    states = replayed([row(10, 1, count=3), row(13, 1, count=2, sequence=3)])
    assert states.entries() == (entry(1, 14, sequence=4, delta=1),)


def test_batches_without_a_producer_and_of_old_formats_are_ignored() -> None:
    old = row(1, 4)
    old["magic"] = 1
    assert replayed([row(0, -1), old]).entries() == ()


def test_sequence_numbers_wrap_to_zero() -> None:
    states = replayed([row(0, 1, count=4, sequence=2**31 - 2)])
    assert states.entries()[0].last_sequence == 1


def test_a_batch_without_a_sequence_number_has_none() -> None:
    assert replayed([row(0, 1, count=4, sequence=-1)]).entries()[0].last_sequence == -1


def test_a_new_epoch_replaces_the_last_batch() -> None:
    states = replayed([row(0, 1, sequence=9)], [row(1, 1, epoch=2)])
    assert states.entries() == (entry(1, 1, epoch=2),)


def test_a_transaction_is_open_from_its_first_batch_to_its_marker() -> None:
    batches = [row(0, 1, txn=True), row(1, 1, txn=True, sequence=1), control(2, 1, COMMIT), row(3, 1, txn=True, sequence=2)]
    found = [replayed(batches[:count]).entries()[0].current_txn_first_offset for count in range(1, 5)]
    assert found == [0, 0, -1, 3]


def test_a_marker_keeps_the_last_data_batch_of_the_same_epoch() -> None:
    states = replayed([row(0, 1, txn=True)], [control(1, 1, COMMIT)])
    assert states.entries() == (entry(1, 0, stamp=NOW_MS + 1, coordinator=COORDINATOR),)


@pytest.mark.parametrize("segments", [1, 2])
def test_a_marker_that_bumps_the_epoch_forgets_the_data(segments: int) -> None:
    batches = [row(0, 1, txn=True), control(1, 1, COMMIT, epoch=1)]
    states = replayed(batches) if segments == 1 else replayed(batches[:1], batches[1:])
    expected = entry(1, -1, epoch=1, sequence=-1, stamp=NOW_MS + 1, coordinator=COORDINATOR)
    assert states.entries() == (expected,)


@pytest.mark.parametrize("kind", [EMPTY_CONTROL, 2, 7])
def test_other_control_batches_change_nothing(kind: int) -> None:
    states = replayed([row(0, 1, txn=True), control(1, 1, kind, epoch=3)])
    assert states.entries() == (entry(1, 0, txn=0),)


def test_a_marker_of_an_unknown_producer_is_remembered() -> None:
    states = replayed([control(5, 9, ABORT, epoch=2)])
    assert states.entries() == (entry(9, -1, epoch=2, sequence=-1, stamp=NOW_MS + 5, coordinator=COORDINATOR),)


@pytest.mark.parametrize(("idle", "kept"), [(DAY_MS - 1, True), (DAY_MS, False), (DAY_MS + 1, False)])
@pytest.mark.parametrize("when", ["loading", "later"])
def test_a_producer_expires_after_the_expiration_time(idle: int, kept: bool, when: str) -> None:
    old = entry(1, 0, stamp=NOW_MS - idle)
    states = ProducerStates()
    states.load([old], NOW_MS if when == "loading" else NOW_MS - idle, DAY_MS)
    states.expire(NOW_MS, DAY_MS)
    assert states.entries() == ((old,) if kept else ())


def test_the_time_since_the_least_timestamp_wraps_as_kafkas_and_expires_nothing() -> None:
    old = entry(1, 0, stamp=-(2**63))
    assert replayed(loaded=[old]).entries() == (old,)


def test_an_open_transaction_keeps_its_producer_from_expiring() -> None:
    old = entry(1, 0, stamp=0, txn=0)
    states = replayed(loaded=[old])
    states.expire(NOW_MS, DAY_MS)
    assert states.entries() == (old,)
    assert states.first_unstable_offset(100) == 0


@pytest.mark.parametrize(("high_watermark", "unstable"), [(2, 0), (3, None)])
def test_a_transaction_is_unstable_until_its_marker_is_replicated(high_watermark: int, unstable: int | None) -> None:
    states = replayed([row(0, 1, txn=True), control(2, 1, ABORT)])
    assert states.first_unstable_offset(high_watermark) == unstable


def test_the_first_unstable_offset_is_that_of_the_oldest_open_transaction() -> None:
    states = replayed([row(4, 1, txn=True), row(5, 2, txn=True), row(6, 1, txn=True)])
    assert states.first_unstable_offset(100) == 4


@pytest.mark.parametrize(("kind", "aborted"), [(ABORT, [(2, 1, 2, 0), (1, 0, 3, 4)]), (COMMIT, [(2, 1, 2, 0)])])
def test_aborted_transactions_have_the_last_stable_offset_after_them(kind: int, aborted: list[tuple[int, ...]]) -> None:
    states = ProducerStates()
    done = []
    for batch in [row(0, 1, txn=True), row(1, 2, txn=True), control(2, 2, ABORT), control(3, 1, kind)]:
        states.append(np.array([batch], BATCH_ROW), marker_at)
        done.extend(states.flush())
    assert done == aborted


def test_a_snapshot_entry_without_a_batch_is_kept() -> None:
    assert replayed(loaded=[entry(1, -1, sequence=-1, stamp=NOW_MS)]).entries() == (entry(1, -1, sequence=-1, stamp=NOW_MS),)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("horizon", [None, NOW_MS + 99])
def test_markers_have_their_own_timestamp(commit: bool, horizon: int | None) -> None:
    data = marker(7, NOW_MS, Producer(1), COMMIT if commit else ABORT, 11, delete_horizon=horizon)
    assert read_end_txn_marker(data) == (11, NOW_MS)


def test_markers_of_log_append_time_have_the_append_time() -> None:
    data = marker(7, NOW_MS, Producer(1), COMMIT, log_append_time=NOW_MS + 5)
    assert read_end_txn_marker(data).timestamp_ms == NOW_MS + 5


class Naive:
    """The rules one batch at a time, with nothing gathered and nothing skipped."""

    def __init__(self) -> None:
        self.entries: dict[int, list[int]] = {}

    def append(self, batch: np.void) -> None:
        kind = int(batch["control_type"])
        if int(batch["producer_id"]) < 0 or kind not in (NOT_CONTROL, ABORT, COMMIT):
            return
        epoch, first, last = int(batch["producer_epoch"]), int(batch["base_offset"]), int(batch["last_offset"])
        state = self.entries.setdefault(int(batch["producer_id"]), [epoch, -1, -1, 0, -1, -1, -1])
        if state[0] != epoch:
            state[:4] = [epoch, -1, -1, 0]
        state[4] = NOW_MS + last
        if kind == NOT_CONTROL:
            state[1:4] = [int(batch["base_sequence"]) + last - first, last, last - first]
            if int(batch["attributes"]) & TRANSACTIONAL and state[6] < 0:
                state[6] = first
        else:
            state[5:] = [COORDINATOR, -1]


@st.composite
def histories(draw: st.DrawFn) -> list[np.void]:
    """Batches of a few producers whose epochs only grow, as logs have them."""
    made: list[np.void] = []
    epochs = [0, 0, 0]
    offset = 0
    for _ in range(draw(st.integers(0, 150))):
        producer = draw(st.integers(-1, 2))
        kind = draw(st.sampled_from([NOT_CONTROL] * 12 + [ABORT, COMMIT, EMPTY_CONTROL]))
        if producer >= 0 and draw(st.integers(0, 9)) == 0:
            epochs[producer] += 1
        epoch = epochs[producer] if producer >= 0 else -1
        count = draw(st.integers(1, 3))
        if kind == NOT_CONTROL:
            made.append(row(offset, producer, count=count, epoch=epoch, sequence=offset, txn=draw(st.booleans())))
        else:
            made.append(control(offset, producer, kind, epoch=epoch))
        offset += count
    return made


@given(histories(), st.lists(st.integers(0, 150), max_size=4))
def test_any_history_in_any_segments_equals_a_naive_replay(history: list[np.void], cuts: list[int]) -> None:
    naive = Naive()
    for batch in history:
        naive.append(batch)
    bounds = [0, *sorted(cuts), len(history)]
    segments = [history[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]
    states = replayed(*(segment for segment in segments if segment))
    found = {e.producer_id: list(e[1:]) for e in states.entries()}
    assert found == {producer: state for producer, state in naive.entries.items() if producer >= 0}
