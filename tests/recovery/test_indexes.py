"""Indexes that are missing, malformed, not flushed or contradicted by the batches get the bytes of a broker's, from the batches
alone; others are not touched."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from compaction.errors import CorruptLogError
from compaction.files.filesystem import join, real_file
from compaction.files.overlay import OverlayFileSystem
from compaction.formats import indexes
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.log.checkpoint_store import Checkpoints
from compaction.log.read_log import read_segments
from compaction.names import INDEX, LEADER_EPOCHS, LOG, TIMEINDEX, TXNINDEX
from compaction.recovery.indexes import rebuild_indexes
from compaction.recovery.recover import recover_log
from compaction.rules.log_view import AbortedTxn
from tests.disk import FaultyFileSystem
from tests.log.logs import (
    NOW_MS,
    TOPIC,
    Built,
    build,
    data_batch,
    data_segment,
    idempotent_batch,
    marker,
    put_snapshot,
    tree,
    txn_batch,
)
from tests.oracle.segments import write_segment
from tests.recovery.small_logs import CLEAN, HERE, PATH, SMALL, UNKNOWN, flipped, killed, log_with, name

Log = Callable[[], FaultyFileSystem]
#: new bytes of files by the base offset of their segment and their kind, from the present ones; None removes a file
Damage = Mapping[tuple[int, str], Callable[[bytes], bytes] | None]


def broken(log: Log, damage: Damage) -> FaultyFileSystem:
    fs = log()
    for (base, kind), change in damage.items():
        if change is None:
            fs.unlink(name(base, kind))
        else:
            fs.put(name(base, kind), change(fs.read_bytes(name(base, kind)) if fs.stat(name(base, kind)) else b""))
    return fs


def log_of(*segments: Built) -> FaultyFileSystem:
    """A log of one leader epoch."""
    fs = log_with(*segments)
    fs.put(join(PATH, LEADER_EPOCHS), b"0\n1\n0 0\n")
    return fs


def indexed() -> FaultyFileSystem:
    """Two inactive segments with several index entries, and an active one."""
    first, second = ([data_batch(offset) for offset in range(base, base + 90, 3)] for base in (0, 100))
    return log_of(
        build(0, first, interval=SMALL), build(100, second, interval=SMALL), data_segment(200, [200, 203], interval=SMALL)
    )


FIRST = [AbortedTxn(7, 0, 3, 1)]
SECOND = [AbortedTxn(8, 1, 10, 11), AbortedTxn(7, 11, 13, 14)]


def transactions() -> FaultyFileSystem:
    """Producer 7 aborts, commits and aborts; producer 8 aborts what it began in the first segment."""
    batches = [txn_batch(0, 7), txn_batch(1, 8), txn_batch(2, 7, sequence=1), marker(3, 7, commit=False)]
    batches += [txn_batch(4, 7, sequence=2), marker(5, 7, commit=True)]
    more = [
        marker(10, 8, commit=False),
        txn_batch(11, 7, sequence=3),
        txn_batch(12, 7, sequence=4),
        marker(13, 7, commit=False),
    ]
    return log_of(build(0, batches, txns=FIRST), build(10, more, txns=SECOND), data_segment(20, [20]))


def with_snapshots(*offsets: int, entries: tuple[ProducerEntry, ...] = ()) -> Log:
    def log() -> FaultyFileSystem:
        fs = transactions()
        for offset in offsets:
            put_snapshot(fs, PATH, offset, entries)
        return fs

    return log


def nested(first: int = 0) -> FaultyFileSystem:
    """Producer 7 aborts across two segments, producer 8 commits; one aborted transaction is within an open one. A log that
    starts later has the state of the producers in a snapshot."""
    batches = [txn_batch(10, 7, sequence=1), marker(12, 7, commit=False), txn_batch(13, 9, sequence=1)]
    batches += [marker(15, 9, commit=False), marker(16, 8, commit=True)]
    started = build(0, [txn_batch(0, 7), txn_batch(1, 8), idempotent_batch(2, 9)])
    more = build(10, batches, txns=[AbortedTxn(7, 0, 12, 1), AbortedTxn(9, 13, 15, 1)])
    fs = log_of(*[started][first:], more, data_segment(20, [20]))
    if first:
        put_snapshot(fs, PATH, 10, [ProducerEntry(7, 0, 0, 0, 0, NOW_MS, -1, 0), ProducerEntry(8, 0, 0, 1, 0, NOW_MS, -1, 1)])
    return fs


def after_cleaning() -> FaultyFileSystem:
    """Producer 8 began at offset 1: its entry of the second segment says so, and no batch does."""
    first = build(0, [txn_batch(0, 7), marker(3, 7, commit=False)], txns=[AbortedTxn(7, 0, 3, 1)])
    second = build(10, [txn_batch(10, 8), marker(11, 8, commit=False)], txns=[AbortedTxn(8, 1, 11, 12)])
    return log_of(first, second, data_segment(20, [20]))


def followers_log() -> FaultyFileSystem:
    """Producer 7 aborts twice in one append. The last stable offset of its first entry is where that of producer 8 begins."""
    return one(
        txn_batch(0, 7), marker(1, 7, commit=False), txn_batch(2, 7, sequence=1), txn_batch(3, 8),
        marker(4, 7, commit=False), marker(5, 8, commit=False),
        txns=[AbortedTxn(7, 0, 1, 3), AbortedTxn(7, 2, 4, 3), AbortedTxn(8, 3, 5, 6)],
    )  # fmt: skip


def one(*batches: bytes, txns: list[AbortedTxn] | None = None) -> FaultyFileSystem:
    """A segment at 0, and an active one at 10."""
    return log_of(build(0, batches, txns=txns or []), data_segment(10, [10]))


def entries(*txns: AbortedTxn) -> Callable[[bytes], bytes]:
    return lambda _: indexes.write_txn_index(np.array(list(txns), indexes.TXN_ROW))


def lacking(size: int) -> Callable[[bytes], bytes]:
    """Without an entry in the middle: the index is valid, and its last entry is right."""
    return lambda data: data[:size] + data[2 * size :]


def unflushed(*bases: int) -> Damage:
    return {(base, kind): lacking(size) for base in bases for kind, size in ((INDEX, 8), (TIMEINDEX, 12))}


#: of the indexes of segment 0
MALFORMED: dict[str, dict[str, Callable[[bytes], bytes] | None]] = {
    "offset index missing": {INDEX: None},
    "time index missing": {TIMEINDEX: None},
    "both missing": {INDEX: None, TIMEINDEX: None},
    "offset index empty": {INDEX: lambda data: b""},
    "time index empty": {TIMEINDEX: lambda data: b""},
    "offset index cut at an entry": {INDEX: lambda data: data[: len(data) // 16 * 8]},
    "offset index cut within an entry": {INDEX: lambda data: data[:-3]},
    "time index cut within an entry": {TIMEINDEX: lambda data: data[:-5]},
    "time index cut at an entry": {TIMEINDEX: lambda data: data[:-12]},
    "offset index of other data": {INDEX: lambda data: data[:-4] + (7).to_bytes(4, "big")},
    "offset index past the end": {INDEX: lambda data: data + b"\0\0\1\0\0\1\0\0"},
    "time index past the end": {TIMEINDEX: lambda data: data + (2**60).to_bytes(8, "big") + (99999).to_bytes(4, "big")},
    "offset index that falls": {INDEX: lambda data: data + data[:8]},
    "offset index of zeros": {INDEX: lambda data: bytes(1024)},
    "time index of zeros": {TIMEINDEX: lambda data: bytes(1200)},
    "offset index of noise": {INDEX: lambda data: bytes(range(256))},
}
#: entries of segment 10 in place of ``SECOND``
CONTRADICTIONS = {
    "no entries": [],
    "the last entry is missing": SECOND[:1],
    "the first entry is missing": SECOND[1:],
    "an entry without a marker": [*SECOND, AbortedTxn(7, 14, 19, 20)],
    "an entry of another producer": [SECOND[0]._replace(producer_id=9), SECOND[1]],
    "an entry that ends at a data batch": [SECOND[0], SECOND[1]._replace(last_offset=12)],
    "an entry that covers committed data": [SECOND[0], SECOND[1]._replace(first_offset=4)],
    "an entry that begins too late": [SECOND[0], SECOND[1]._replace(first_offset=12)],
}
AT_0, AT_10 = (f"rebuilt the transaction index of segment {base}" for base in (0, 10))
UNFLUSHED = [f"rebuilt the indexes of segment {base}, which was not flushed" for base in (0, 100)]
NO_ENTRY = f"{AT_10}: no entry for the transaction that is aborted at offset 12"
STRANGER = ProducerEntry(7, 0, 0, 4, 0, NOW_MS, 3, 4)
#: a log as a broker wrote it, the damage, the actions of recovery, and how the broker ended
REBUILT: dict[str, tuple[Log, Damage, list[str], Checkpoints]] = {
    **{
        case: (indexed, {(0, kind): change for kind, change in damage.items()}, ["rebuilt the indexes of segment 0: "], UNKNOWN)
        for case, damage in MALFORMED.items()
    },
    **{case: (transactions, {(10, TXNINDEX): entries(*txns)}, [AT_10], UNKNOWN) for case, txns in CONTRADICTIONS.items()},
    "transaction index missing": (nested, {(10, TXNINDEX): None}, [NO_ENTRY], UNKNOWN),
    "transaction index missing, its data below the log": (lambda: nested(1), {(10, TXNINDEX): None}, [AT_10], UNKNOWN),
    "transaction index cut": (nested, {(10, TXNINDEX): lambda data: data[:-4]}, [AT_10], UNKNOWN),
    "transaction index of another version": (nested, {(10, TXNINDEX): lambda data: b"\0\5" + data[2:]}, [AT_10], UNKNOWN),
    "transaction index of zeros": (nested, {(10, TXNINDEX): lambda data: bytes(34)}, [AT_10], UNKNOWN),
    "the index of another segment": (
        transactions,
        {(0, TXNINDEX): entries(*SECOND), (20, TXNINDEX): entries(*SECOND)},
        [AT_0, "rebuilt the transaction index of segment 20"],
        UNKNOWN,
    ),
    "an entry without transactions": (lambda: one(data_batch(5)), {(0, TXNINDEX): entries(*FIRST)}, [AT_0], UNKNOWN),
    "entries without transactions": (lambda: one(data_batch(5)), {(0, TXNINDEX): entries(*SECOND)}, [AT_0], UNKNOWN),
    "with a snapshot of another log": (with_snapshots(10, entries=(STRANGER,)), {(10, TXNINDEX): entries()}, [AT_10], UNKNOWN),
    "an entry whose first batches are gone ends a search": (after_cleaning, {(0, TXNINDEX): entries()}, [AT_0], UNKNOWN),
    "all that was not flushed": (indexed, unflushed(0, 100), UNFLUSHED, killed(0)),
    "from the segment with the recovery point on": (indexed, unflushed(100), UNFLUSHED[1:], killed(150)),
    "a snapshot that a killed broker would write again": (with_snapshots(10, 20), {(10, TXNINDEX): None}, [AT_10], killed(10)),
}


@pytest.mark.parametrize(("log", "damage", "actions", "state"), REBUILT.values(), ids=REBUILT.keys())
def test_broken_indexes_are_rebuilt_as_a_broker_would_have_written_them(
    log: Log, damage: Damage, actions: list[str], state: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    before = tree(log(), PATH)
    assert recover_log(log(), HERE, index_interval_bytes=SMALL).actions == []
    fs = broken(log, damage)
    report = recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=state)
    assert len(report.actions) == len(actions) and all(map(str.startswith, report.actions, actions))
    told = [f"{PATH}: {action}" for action in report.actions if "transaction index" in action]
    assert caplog.messages == (told if all(damage.values()) else [])
    assert tree(fs, PATH) == before
    assert report.segments == read_segments(fs, PATH)
    assert recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=state).actions == []


#: a log, changes of its files, and what the checkpoints say
UNTOUCHED: dict[str, tuple[Log, Damage, Checkpoints]] = {
    "preallocated offset index": (indexed, {(0, INDEX): lambda data: data + bytes(24 * 5000)}, UNKNOWN),
    "preallocated time index": (indexed, {(0, TIMEINDEX): lambda data: data + bytes(24 * 5000)}, UNKNOWN),
    "entries lost, after a clean shutdown": (indexed, unflushed(0), CLEAN),
    "entries lost, of no broker": (indexed, unflushed(0), UNKNOWN),
    # as a read of committed records makes it
    "entries lost, in a search for aborted transactions": (indexed, unflushed(0), replace(CLEAN, snapshots_may_lack=True)),
    "entries lost, in segments that a killed broker had flushed": (indexed, unflushed(0), killed(150)),
    "entries lost, below the active segment": (indexed, unflushed(0, 100), killed(200)),
    "entries lost, below a recovery point past the end": (indexed, unflushed(0, 100), killed(10**6)),
    "an abort marker without data needs no index": (lambda: one(marker(4, 7, commit=False)), {}, UNKNOWN),
    "several transactions that a follower appended at once": (followers_log, {}, UNKNOWN),
    "flushed by a follower that was killed": (followers_log, {}, killed(10)),
    "a missing index whose segment's snapshot has no transaction": (with_snapshots(10, 20), {(10, TXNINDEX): None}, CLEAN),
    # the marker of an aborted transaction stays until its delete horizon, its data and entry do not
    "transactions that cleaning has emptied need no entry": (
        lambda: one(txn_batch(0, 7), marker(1, 7, commit=True), marker(4, 7, commit=False)),
        {},
        UNKNOWN,
    ),
    "an entry may begin before the first batch that cleaning left": (
        lambda: one(txn_batch(2, 7, sequence=1), marker(3, 7, commit=False), txns=[AbortedTxn(7, 0, 3, 1)]),
        {},
        UNKNOWN,
    ),
    # producer 8 had begun at offset 1: only the entry of producer 7 shows that
    "no last stable offset is raised because cleaning has removed a batch": (
        lambda: one(
            txn_batch(0, 7), marker(2, 7, commit=False), txn_batch(3, 8), marker(4, 8, commit=True),
            txns=[AbortedTxn(7, 0, 2, 1)],
        ),
        {},
        killed(0),
    ),
    # cleaning removes the markers there, so older data must not be taken for that of the next transaction
    "nothing is concluded from data below the log start": (
        lambda: one(txn_batch(0, 7), txn_batch(6, 7), marker(7, 7, commit=False), txns=[AbortedTxn(7, 6, 7, 8)]),
        {},
        Checkpoints("/logs", log_starts={TOPIC: 5}),
    ),
    "an index that is missing below the log start": (
        lambda: one(txn_batch(0, 7), txn_batch(6, 7), marker(7, 7, commit=False)),
        {},
        Checkpoints("/logs", log_starts={TOPIC: 7}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("log", "changes", "state"), UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_indexes_that_are_right_or_are_not_examined_are_not_touched(log: Log, changes: Damage, state: Checkpoints) -> None:
    fs = broken(log, changes)
    before = tree(fs, PATH)
    assert recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=state).actions == []
    assert tree(fs, PATH) == before


@pytest.mark.parametrize("seed", range(4))
def test_rebuilt_indexes_are_those_of_appending_batch_by_batch(seed: int) -> None:
    rng = random.Random(seed)
    stamps = [NOW_MS + rng.randrange(-50, 50) * at for at in range(200)]
    batches = [data_batch(3 * at, timestamp=stamp) for at, stamp in enumerate(stamps)]
    appended = write_segment(0, batches, SMALL, NOW_MS)
    fs = log_of(replace(build(0, batches, interval=SMALL), files={LOG: appended.log}), data_segment(1000, [1005]))
    rebuild_indexes(fs, PATH, 0, active=False, interval_bytes=SMALL)
    assert (fs.read_bytes(name(0, INDEX)), fs.read_bytes(name(0, TIMEINDEX))) == (appended.index, appended.time_index)
    assert len(appended.index) // 8 > len(appended.time_index) // 12 > 3


def test_a_rebuilt_index_takes_mode_and_mtime_of_the_log() -> None:
    fs = broken(indexed, {(0, INDEX): None})
    log = fs.stat(name(0, LOG))
    recover_log(fs, HERE, index_interval_bytes=SMALL)
    index = fs.stat(name(0, INDEX))
    assert log is not None and index is not None
    assert (index.mtime_ns, index.mode) == (log.mtime_ns, log.mode)


def test_a_dry_run_rebuilds_in_memory() -> None:
    fs = broken(indexed, {(0, INDEX): None})
    before = tree(fs, PATH)
    overlay = OverlayFileSystem(fs)
    recover_log(overlay, HERE, index_interval_bytes=SMALL)
    assert tree(fs, PATH) == before
    assert tree(overlay, PATH) == tree(indexed(), PATH)
    assert real_file(overlay, name(0, LOG)).path == name(0, LOG)


def test_damage_found_while_rebuilding_an_index_is_an_error() -> None:
    fs = broken(indexed, {(0, INDEX): None, (0, LOG): lambda data: flipped(data, 70)})
    with pytest.raises(CorruptLogError, match="CRC"):
        recover_log(fs, HERE, index_interval_bytes=SMALL)


def test_preallocated_indexes_of_a_killed_broker_are_not_written() -> None:
    # the time index has no entry for the largest timestamp yet
    preallocated = {INDEX: lambda data: data + bytes(24 * 5000), TIMEINDEX: lambda data: bytes(12 * 5000)}
    fs = broken(indexed, {(200, kind): change for kind, change in preallocated.items()})
    before = tree(fs, PATH)
    report = recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=killed(150))
    assert report.actions == ["rebuilt the indexes of segment 200, which was not flushed"]
    changed = {file for file, data in tree(fs, PATH).items() if before[file] != data}
    assert changed == {name(200, TIMEINDEX).rpartition("/")[2]}
    assert recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=killed(150)).actions == []


def test_what_a_killed_follower_had_not_flushed_is_indexed_batch_by_batch() -> None:
    fs = followers_log()
    found = recover_log(fs, HERE, checkpoints=killed(9))
    assert [action for action in found.actions if "transaction" in action] == [
        "rebuilt the transaction index of segment 0, which was not flushed"
    ]
    assert list(found.segments[0].aborted_txns) == [(7, 0, 1, 2), (7, 2, 4, 3), (8, 3, 5, 6)]
    assert recover_log(fs, HERE).segments == found.segments
