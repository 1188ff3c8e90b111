"""The producer state of a partition: batch by batch, and of random logs that of a plain replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.formats.record_batch import CONTROL, TRANSACTIONAL, EndTxnMarker, read_end_txn_marker
from compaction.kernels.tables import ABORT, BATCH_ROW, COMMIT, EMPTY_CONTROL, NOT_CONTROL
from compaction.rules.log_view import AbortedTxn
from compaction.rules.producer_state import ProducerStates
from tests.kafka.encode import Producer, marker
from tests.oracle.random_logs import Flavour, random_log
from tests.oracle.tables import batch_table

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


@pytest.mark.parametrize("seeds", [range(60), range(60, 120)], ids=["batch by batch", "segment by segment"])
def test_random_logs_leave_the_producers_and_aborted_transactions_of_a_plain_replay(seeds: range) -> None:
    aborted, by_batch = 0, seeds.start == 0
    for seed in seeds:
        log = random_log(seed, Flavour(batches=80, producers=5, odd=0.4, settled=0.3))
        states = ProducerStates()
        for each in log.segments:
            found, rows = [], batch_table(each)
            for row in np.split(rows, range(1, len(rows))) if by_batch else [rows]:
                states.append(row, lambda position: read_end_txn_marker(each.log[position:]))  # noqa: B023 - called here
                found += [AbortedTxn(*txn) for txn in states.flush()]
            # of several that end in one append, each is stable from where the last one is
            width = 4 if by_batch else 3
            assert [txn[:width] for txn in found] == [txn[:width] for txn in each.aborted_txns], seed
            aborted += len(found)
        assert states.entries() == log.producers, seed
    assert aborted > 50
