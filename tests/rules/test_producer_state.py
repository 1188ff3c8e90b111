"""The producer state of a partition: batch by batch, and of random logs that of a plain replay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.formats.record_batch import CONTROL, TRANSACTIONAL, EndTxnMarker, read_end_txn_marker
from compaction.kernels.tables import ABORT, BATCH_ROW, COMMIT, NOT_CONTROL
from compaction.rules import producer_state
from compaction.rules.log_view import AbortedTxn
from compaction.rules.producer_state import ProducerStates
from tests.kafka.encode import Producer, marker
from tests.oracle.random_logs import Flavour, random_log
from tests.oracle.tables import batch_table

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


def test_sequence_numbers_wrap_to_zero() -> None:
    states = replayed([row(0, 1, count=4, sequence=2**31 - 2)])
    assert states.entries()[0].last_sequence == 1


def test_a_batch_without_a_sequence_number_has_none() -> None:
    assert replayed([row(0, 1, count=4, sequence=-1)]).entries()[0].last_sequence == -1


@pytest.mark.parametrize(("idle", "kept"), [(DAY_MS - 1, True), (DAY_MS, False), (DAY_MS + 1, False)])
@pytest.mark.parametrize("when", ["loading", "later"])
def test_a_producer_expires_after_the_expiration_time(idle: int, kept: bool, when: str) -> None:
    old = entry(0, NOW_MS - idle)
    states = ProducerStates()
    states.load([old], NOW_MS if when == "loading" else NOW_MS - idle, DAY_MS)
    states.expire(NOW_MS, DAY_MS)
    assert states.entries() == ((old,) if kept else ())


def test_the_time_since_the_least_timestamp_wraps_as_kafkas_and_expires_nothing() -> None:
    old = entry(0, -(2**63))
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


def test_a_snapshot_entry_without_a_batch_is_kept() -> None:
    old = entry(-1, NOW_MS, sequence=-1)
    assert replayed(loaded=[old]).entries() == (old,)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("horizon", [None, NOW_MS + 99])
def test_markers_have_their_own_timestamp(commit: bool, horizon: int | None) -> None:
    data = marker(7, NOW_MS, Producer(1), COMMIT if commit else ABORT, 11, delete_horizon=horizon)
    assert read_end_txn_marker(data) == (11, NOW_MS)


def test_markers_of_log_append_time_have_the_append_time() -> None:
    data = marker(7, NOW_MS, Producer(1), COMMIT, log_append_time=NOW_MS + 5)
    assert read_end_txn_marker(data).timestamp_ms == NOW_MS + 5


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
