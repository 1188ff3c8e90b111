"""Transaction indexes that contradict the markers of the log are rebuilt, whatever they contain; valid ones are not touched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from compaction.formats import indexes
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.log.checkpoint_store import Checkpoints
from compaction.names import TXNINDEX
from compaction.recovery.recover import recover_log
from compaction.rules.log_view import AbortedTxn
from tests.disk import FaultyFileSystem
from tests.log.logs import NOW_MS, TOPIC, Built, build, data_segment, marker, put_snapshot, tree, txn_batch
from tests.recovery.small_logs import HERE, PATH, log_with, name

FIRST = [AbortedTxn(7, 0, 3, 1)]
SECOND = [AbortedTxn(8, 1, 10, 11), AbortedTxn(7, 11, 13, 14)]


def transactions() -> list[Built]:
    """Producer 7 aborts, commits and aborts; producer 8 aborts what it began in the first segment."""
    batches = [txn_batch(0, 7), txn_batch(1, 8), txn_batch(2, 7, sequence=1), marker(3, 7, commit=False)]
    batches += [txn_batch(4, 7, sequence=2), marker(5, 7, commit=True)]
    first = build(0, batches, txns=FIRST)
    more = [marker(10, 8, commit=False), txn_batch(11, 7, sequence=3), txn_batch(12, 7, sequence=4)]
    return [first, build(10, [*more, marker(13, 7, commit=False)], txns=SECOND), data_segment(20, [20])]


def write_index(fs: FaultyFileSystem, base: int, entries: Sequence[AbortedTxn]) -> None:
    fs.put(name(base, TXNINDEX), indexes.write_txn_index(np.array(list(entries), indexes.TXN_ROW)))


def test_the_indexes_of_a_broker_are_not_touched() -> None:
    fs = log_with(*transactions())
    before = tree(fs, PATH)
    assert recover_log(fs, HERE).actions == []
    assert tree(fs, PATH) == before


def followers_log() -> FaultyFileSystem:
    """Producer 7 aborts twice in one append. The last stable offset of its first entry is where that of producer 8 begins."""
    batches = [txn_batch(0, 7), marker(1, 7, commit=False), txn_batch(2, 7, sequence=1), txn_batch(3, 8)]
    batches += [marker(4, 7, commit=False), marker(5, 8, commit=False)]
    entries = [AbortedTxn(7, 0, 1, 3), AbortedTxn(7, 2, 4, 3), AbortedTxn(8, 3, 5, 6)]
    return log_with(build(0, batches, txns=entries), data_segment(10, [10]))


def test_the_index_of_a_follower_that_appended_several_transactions_at_once_is_not_touched() -> None:
    assert recover_log(followers_log(), HERE).actions == []


@pytest.mark.parametrize(("point", "recovered"), [(10, []), (9, [(7, 0, 1, 2), (7, 2, 4, 3), (8, 3, 5, 6)])])
def test_what_a_killed_follower_had_not_flushed_is_indexed_batch_by_batch(point: int, recovered: list[tuple[int, ...]]) -> None:
    fs = followers_log()
    found = recover_log(fs, HERE, checkpoints=Checkpoints("/logs", recovery_points={TOPIC: point}))
    assert [action for action in found.actions if "transaction" in action] == [
        "rebuilt the transaction index of segment 0, which was not flushed"
    ] * bool(recovered)
    assert list(found.segments[0].aborted_txns) == (recovered or [(7, 0, 1, 3), (7, 2, 4, 3), (8, 3, 5, 6)])
    assert recover_log(fs, HERE).segments == found.segments


def test_no_last_stable_offset_is_raised_because_cleaning_has_removed_a_batch() -> None:
    """Producer 8 had begun at offset 1: only the entry of producer 7 shows that."""
    batches = [txn_batch(0, 7), marker(2, 7, commit=False), txn_batch(3, 8), marker(4, 8, commit=True)]
    fs = log_with(build(0, batches, txns=[AbortedTxn(7, 0, 2, 1)]), data_segment(10, [10]))
    found = recover_log(fs, HERE, checkpoints=Checkpoints("/logs", recovery_points={TOPIC: 0}))
    assert list(found.segments[0].aborted_txns) == [(7, 0, 2, 1)]


CONTRADICTIONS = {
    "empty": [],
    "the last entry is missing": SECOND[:1],
    "the first entry is missing": SECOND[1:],
    "an entry without a marker": [*SECOND, AbortedTxn(7, 14, 19, 20)],
    "an entry of another producer": [SECOND[0]._replace(producer_id=9), SECOND[1]],
    "an entry that ends at a data batch": [SECOND[0], SECOND[1]._replace(last_offset=12)],
    "an entry that covers committed data": [SECOND[0], SECOND[1]._replace(first_offset=4)],
    "an entry that begins too late": [SECOND[0], SECOND[1]._replace(first_offset=12)],
}


@pytest.mark.parametrize("entries", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_an_index_that_contradicts_the_markers_is_rebuilt(entries: list[AbortedTxn], caplog: pytest.LogCaptureFixture) -> None:
    fs = log_with(*transactions())
    before = tree(fs, PATH)
    write_index(fs, 10, entries)
    report = recover_log(fs, HERE)
    assert [action.partition(":")[0] for action in report.actions] == ["rebuilt the transaction index of segment 10"]
    assert caplog.messages == [f"{PATH}: {report.actions[0]}"]
    assert tree(fs, PATH) == before
    assert [segment.aborted_txns for segment in report.segments] == [tuple(FIRST), tuple(SECOND), ()]
    assert recover_log(fs, HERE).actions == []


@pytest.mark.parametrize("entries", [FIRST, SECOND])
def test_an_index_of_a_log_without_transactions_is_removed(entries: list[AbortedTxn]) -> None:
    fs = log_with(data_segment(0, [5]), data_segment(10, [10]))
    before = tree(fs, PATH)
    write_index(fs, 0, entries)
    assert len(recover_log(fs, HERE).actions) == 1
    assert tree(fs, PATH) == before


def test_the_index_of_another_segment_is_replaced() -> None:
    fs = log_with(*transactions())
    before = tree(fs, PATH)
    fs.put(name(0, TXNINDEX), fs.read_bytes(name(10, TXNINDEX)))
    fs.put(name(20, TXNINDEX), fs.read_bytes(name(10, TXNINDEX)))
    recover_log(fs, HERE)
    assert tree(fs, PATH) == before


def test_a_snapshot_of_another_log_does_not_get_into_a_rebuilt_index() -> None:
    fs = log_with(*transactions())
    before = tree(fs, PATH)
    put_snapshot(fs, PATH, 10, [ProducerEntry(7, 0, 0, 4, 0, NOW_MS, 3, 4)])
    write_index(fs, 10, [])
    recover_log(fs, HERE)
    assert {**before, **tree(fs, PATH)} == tree(fs, PATH)


def test_transactions_that_cleaning_has_emptied_need_no_entry() -> None:
    """The marker of an aborted transaction stays until its delete horizon, its data and entry do not."""
    fs = log_with(build(0, [txn_batch(0, 7), marker(1, 7, commit=True), marker(4, 7, commit=False)]), data_segment(10, [10]))
    assert recover_log(fs, HERE).actions == []


def test_an_entry_may_begin_before_the_first_batch_that_cleaning_left() -> None:
    batches = [txn_batch(2, 7, sequence=1), marker(3, 7, commit=False)]
    fs = log_with(build(0, batches, txns=[AbortedTxn(7, 0, 3, 1)]), data_segment(10, [10]))
    assert recover_log(fs, HERE).actions == []


def test_a_rebuilt_index_ends_no_search_before_an_entry_whose_first_batches_are_gone() -> None:
    """Producer 8 began at offset 1: its entry of the next segment says so, and no batch does."""
    first = build(0, [txn_batch(0, 7), marker(3, 7, commit=False)], txns=[AbortedTxn(7, 0, 3, 1)])
    second = build(10, [txn_batch(10, 8), marker(11, 8, commit=False)], txns=[AbortedTxn(8, 1, 11, 12)])
    fs = log_with(first, second, data_segment(20, [20]))
    before = tree(fs, PATH)
    assert recover_log(fs, HERE).actions == []
    write_index(fs, 0, [])
    assert len(recover_log(fs, HERE).actions) == 1
    assert tree(fs, PATH) == before


def test_nothing_is_concluded_from_data_below_the_log_start() -> None:
    """Cleaning removes the markers there, so older data must not be taken for that of the next transaction."""
    batches = [txn_batch(0, 7), txn_batch(6, 7), marker(7, 7, commit=False)]
    fs = log_with(build(0, batches, txns=[AbortedTxn(7, 6, 7, 8)]), data_segment(10, [10]))
    assert recover_log(fs, HERE, checkpoints=Checkpoints("/logs", log_starts={TOPIC: 5})).actions == []
    fs.unlink(name(0, TXNINDEX))
    assert recover_log(fs, HERE, checkpoints=Checkpoints("/logs", log_starts={TOPIC: 7})).actions == []
    assert fs.stat(name(0, TXNINDEX)) is None


def test_a_snapshot_that_a_killed_broker_would_write_again_is_not_trusted() -> None:
    fs = log_with(*transactions())
    before = tree(fs, PATH)
    put_snapshot(fs, PATH, 10)
    put_snapshot(fs, PATH, 20)
    fs.unlink(name(10, TXNINDEX))
    assert recover_log(fs, HERE, checkpoints=Checkpoints("/logs", clean_shutdown=True)).actions == []
    recover_log(fs, HERE, checkpoints=Checkpoints("/logs", recovery_points={TOPIC: 10}))
    assert {**before, **tree(fs, PATH)} == tree(fs, PATH)
