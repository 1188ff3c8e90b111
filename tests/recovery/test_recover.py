"""Recovery: swaps without a journal, leftover files, torn tails, damage, leader epochs; the report that replaces reading the
segments again. Indexes that are missing, malformed, not flushed or contradicted by the batches get the bytes of a broker's,
from the batches alone; others are not touched."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from compaction.errors import CorruptLogError
from compaction.files.filesystem import join
from compaction.files.overlay import OverlayFileSystem
from compaction.formats import indexes
from compaction.formats.checkpoints import EpochEntry, EpochRange, assign_epochs, format_leader_epochs, parse_leader_epochs
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.log.checkpoint_store import Checkpoints
from compaction.log.read_log import ReadOptions, read_log, read_segments
from compaction.names import INDEX, LEADER_EPOCHS, LOG, TIMEINDEX, TXNINDEX
from compaction.recovery.indexes import rebuild_indexes
from compaction.recovery.interrupted_swap import finish_interrupted_swap
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
    served,
    tree,
    txn_batch,
)
from tests.oracle.segments import write_segment
from tests.recovery.small_logs import CLEAN, HERE, PATH, SMALL, UNKNOWN, flipped, killed, log_with, name

KINDS = (LOG, INDEX, TIMEINDEX)
EPOCHS = join(PATH, LEADER_EPOCHS)
CLEANED_0 = data_segment(0, [60, 150])
TRUNCATED_0 = Built(0, {LOG: CLEANED_0.files[LOG][:-3]})
DAMAGED_0 = Built(0, {LOG: flipped(CLEANED_0.files[LOG], 70)})


def three() -> FaultyFileSystem:
    return log_with(data_segment(0, [5, 60]), data_segment(100, [105, 150]), data_segment(200, [200]))


def put(fs: FaultyFileSystem, segment: Built, suffixes: dict[str, str]) -> None:
    """Write a segment's files with the given suffix for each kind."""
    for kind, suffix in suffixes.items():
        fs.put(name(segment.base_offset, kind, suffix), segment.files[kind])


LEFTOVERS = [".clean", ".cleaned", ".clean.0123abcd", ".clean.0123abcd.7.part", ".deleted", ".tmp"]
#: files beside those of a log
UNDONE: dict[str, list[tuple[Built, dict[str, str]]]] = {
    **{f"leftover {suffix}": [(CLEANED_0, dict.fromkeys(KINDS, suffix))] for suffix in LEFTOVERS},
    **{
        f"{len(renamed)} of 3 renamed, others {left}": [
            (CLEANED_0, {kind: ".swap" if kind in renamed else left for kind in KINDS})
        ]
        for left in (".clean", ".cleaned")
        for renamed in ((LOG,), (LOG, INDEX))
    },
    "a higher swap with a lower unfinished output": [
        (CLEANED_0, dict.fromkeys(KINDS, ".clean")),
        (data_segment(200, [200]), dict.fromkeys(KINDS, ".swap")),
    ],
    "a truncated swap": [(TRUNCATED_0, {LOG: ".swap"})],
    "a damaged swap": [(DAMAGED_0, {LOG: ".swap"})],
    "a piece of a split beside another that is unfinished": [
        (data_segment(100, [105]), dict.fromkeys(KINDS, ".cleaned")),
        (data_segment(150, [150]), dict.fromkeys(KINDS, ".swap")),
    ],
}


@pytest.mark.parametrize("left", UNDONE.values(), ids=UNDONE.keys())
def test_an_incomplete_swap_is_undone_while_its_sources_are_there(left: list[tuple[Built, dict[str, str]]]) -> None:
    fs = three()
    before = tree(fs, PATH)
    for segment, suffixes in left:
        put(fs, segment, suffixes)
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == before


def test_other_files_are_kept() -> None:
    fs = three()
    others = "partition.metadata", "notes.txt", "notes.clean", "notes.deleted", "leader-epoch-checkpoint"
    for other in (*others, f"{9:020d}.checkpoint.deleted"):
        fs.put(join(PATH, other), b"mine")
    before = tree(fs, PATH)
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == before


@pytest.mark.parametrize("gone", [(), (0,), (0, 100)])
def test_a_complete_swap_is_finished_with_or_without_its_sources(gone: tuple[int, ...]) -> None:
    fs = three()
    put(fs, CLEANED_0, dict.fromkeys(KINDS, ".swap"))
    for base in gone:
        for kind in KINDS:
            fs.rename(name(base, kind), name(base, kind, ".deleted"))
    finish_interrupted_swap(fs, HERE)
    assert sorted(served(fs, PATH)) == [60, 150, 200]
    assert not [file for file in fs.listdir(PATH) if file.endswith((".swap", ".deleted"))]


def test_the_last_step_of_a_swap_is_finished() -> None:
    fs = log_with(data_segment(200, [200]))
    put(fs, CLEANED_0, {LOG: "", INDEX: ".swap", TIMEINDEX: ".swap"})
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == tree(log_with(CLEANED_0, data_segment(200, [200])), PATH)


@pytest.mark.parametrize("last", [60, 99], ids=["a gap before it", "offsets go on"])
def test_a_swap_whose_sources_are_gone_is_finished_even_beside_an_old_leftover(last: int) -> None:
    fs = log_with(data_segment(0, [5, last]), *(data_segment(base, [base]) for base in (100, 200)))
    put(fs, data_segment(0, [1]), dict.fromkeys(KINDS, ".clean"))
    put(fs, data_segment(100, [150]), dict.fromkeys(KINDS, ".swap"))
    for kind in KINDS:
        fs.rename(name(100, kind), name(100, kind, ".deleted"))
    finish_interrupted_swap(fs, HERE)
    assert sorted(served(fs, PATH)) == [5, last, 150, 200]


@pytest.mark.parametrize("swap", [TRUNCATED_0, DAMAGED_0], ids=["truncated", "damaged"])
def test_a_broken_swap_without_sources_is_an_error(swap: Built) -> None:
    fs = log_with(data_segment(200, [200]))
    put(fs, swap, {LOG: ".swap"})
    with pytest.raises(CorruptLogError, match=r"00\.log\.swap at byte \d+"):
        finish_interrupted_swap(fs, HERE)


TAILS = {
    "half a batch": data_batch(108)[:-7],
    "less than a header": data_batch(108)[:9],
    "zeros": bytes(5000),
    "a batch whose end was not flushed": data_batch(108)[:-9] + bytes(9),
}
UNCLEAN_TAILS = {
    "0xff": bytes([255]) * 300,
    "a batch that fails its CRC": flipped(data_batch(201), 70),
    "half a batch, then garbage": data_batch(201)[:40] + bytes([7]) * 90,
    "zeros, then garbage": bytes(100) + bytes([7]) * 90,
    "an unknown magic": data_batch(201)[:16] + bytes([9]) + data_batch(201)[17:],
    "a length that runs past the end": data_batch(201)[:8] + (1 << 30).to_bytes(4, "big") + data_batch(201)[12:],
}


@pytest.mark.parametrize("alone", [False, True], ids=["", "the only segment"])
@pytest.mark.parametrize(
    ("tail", "state"),
    [*((tail, UNKNOWN) for tail in (*TAILS.values(), *UNCLEAN_TAILS.values())), *((tail, CLEAN) for tail in TAILS.values())],
    ids=[*TAILS, *UNCLEAN_TAILS, *(f"after a clean shutdown: {tail}" for tail in TAILS)],
)
def test_the_active_segment_may_end_in_a_torn_tail_and_after_an_unclean_shutdown_in_anything_which_is_kept(
    tail: bytes, state: Checkpoints, alone: bool
) -> None:
    fs = log_with(data_segment(200, [200])) if alone else three()
    active = name(200, LOG)
    size = len(fs.read_bytes(active))
    fs.put(active, fs.read_bytes(active) + tail)
    report = recover_log(fs, HERE, checkpoints=state)
    assert report.actions == [f"ignored {len(tail)} bytes after the last complete batch"]
    assert (report.segments[-1].size_bytes, report.segments[-1].next_offset) == (size, 201)
    assert fs.read_bytes(active).endswith(tail)


#: the segment that ends in it, what ends in it, and how the broker ended
DAMAGE: dict[str, tuple[int, bytes, Checkpoints]] = {
    **{f"of an inactive segment: {tail}": (100, data, UNKNOWN) for tail, data in TAILS.items()},
    **{f"after a clean shutdown: {tail}": (200, data, CLEAN) for tail, data in UNCLEAN_TAILS.items() if "length" not in tail},
    **{f"before a valid batch: {tail}": (200, data + data_batch(202), UNKNOWN) for tail, data in UNCLEAN_TAILS.items()},
    **{
        f"bit {at} of a batch in the middle": (200, flipped(data_batch(201), at) + data_batch(202), UNKNOWN)
        for at in (8, 9, 16, 20, 40, 70)
    },
}


@pytest.mark.parametrize(("base", "data", "state"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_that_is_not_a_torn_tail_is_an_error(base: int, data: bytes, state: Checkpoints) -> None:
    fs = three()
    size = len(fs.read_bytes(name(base, LOG)))
    fs.put(name(base, LOG), fs.read_bytes(name(base, LOG)) + data)
    with pytest.raises(CorruptLogError) as caught:
        recover_log(fs, HERE, checkpoints=state)
    assert (caught.value.path, caught.value.position) == (name(base, LOG), size)


def test_the_report_replaces_reading_the_segments_again() -> None:
    fs = log_with(data_segment(0, [1]), build(10, [idempotent_batch(10, 7)]), data_segment(20, [20]))
    put_snapshot(fs, PATH, 10)
    fs.unlink(name(0, INDEX))
    report = recover_log(fs, HERE)
    # segment 0 has a snapshot without transactional producers, so it was not scanned; segment 10 holds a producer's batch
    assert report.without_producers == {20}
    assert report.segments == read_segments(fs, PATH)
    checkpoints, options = Checkpoints("/logs"), ReadOptions(NOW_MS)
    view = read_log(fs, HERE, checkpoints, options, segments=report.segments, without_producers=report.without_producers)
    assert view == read_log(fs, HERE, checkpoints, options)


def text(*entries: tuple[int, int]) -> str:
    return format_leader_epochs(EpochEntry(*each) for each in entries)


def of_epochs(epochs: str | None) -> FaultyFileSystem:
    """Batches of epoch 0 at 0 and 3, of 2 at 100 and 103, of 4 at 200 and 203."""
    made = []
    for base, epoch in ((0, 0), (100, 2), (200, 4)):
        made.append(build(base, [data_batch(offset, leader_epoch=epoch) for offset in (base, base + 3)]))
    fs = log_with(*made)
    if epochs is not None:
        fs.put(EPOCHS, epochs.encode())
    return fs


ASSIGNED = {
    "the latest is missing": (text((0, 0), (2, 100)), [(0, 0), (2, 100), (4, 200)]),
    "all are missing": (text(), [(2, 100), (4, 200)]),
    "the file is missing": (None, [(2, 100), (4, 200)]),
    "of another log": (text((9, 0)), [(2, 100), (4, 200)]),
    "a later epoch than that of the batches": (text((0, 0), (2, 100), (3, 101), (4, 200)), [(0, 0), (2, 100), (4, 200)]),
    "begins after its first batch": (text((0, 0), (2, 101), (4, 203)), [(0, 0), (2, 100), (4, 200)]),
}


@pytest.mark.parametrize(("epochs", "assigned"), ASSIGNED.values(), ids=ASSIGNED.keys())
def test_leader_epochs_that_contradict_the_unflushed_batches_are_not_used(
    epochs: str | None, assigned: list[tuple[int, int]]
) -> None:
    fs = of_epochs(epochs)
    report = recover_log(fs, HERE, checkpoints=killed(100))
    assert report.actions == ["assigned leader epochs in leader-epoch-checkpoint"]
    assert parse_leader_epochs(fs.read_bytes(EPOCHS).decode(), EPOCHS) == [EpochEntry(*each) for each in assigned]
    assert recover_log(fs, HERE, checkpoints=killed(100)).actions == []


def epoch_at(entries: list[EpochEntry], offset: int) -> int:
    return max(each for each in entries if each.start_offset <= offset).epoch


@pytest.mark.parametrize("present", range(16))
def test_assigned_epochs_ascend_and_are_those_of_every_batch(present: int) -> None:
    starts = [0, 2, 4, 6]
    entries = [EpochEntry(epoch, start) for epoch, start in enumerate(starts) if present >> epoch & 1]
    for low, high in combinations(range(4), 2):
        ranges = [EpochRange(epoch, starts[epoch], starts[epoch] + 1) for epoch in (low, high)]
        found = assign_epochs(entries, ranges)
        assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(found))
        assert [epoch_at(found, offset) for each in ranges for offset in each[1:]] == [low, low, high, high]


def test_an_epoch_lower_than_before_assigns_none() -> None:
    """As in logs that no broker has written."""
    ranges = [EpochRange(0, 0, 4), EpochRange(1, 5, 6), EpochRange(0, 7, 8), EpochRange(1, 9, 9), EpochRange(0, 10, 10)]
    assigned = [EpochEntry(0, 0), EpochEntry(1, 5)]
    assert assign_epochs(assigned[:1], ranges) == assigned
    assert assign_epochs(assigned, ranges) == assigned


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
    # a dry run rebuilds in memory
    found, overlay = tree(fs, PATH), OverlayFileSystem(fs)
    recover_log(overlay, HERE, index_interval_bytes=SMALL, checkpoints=state)
    assert (tree(overlay, PATH), tree(fs, PATH)) == (before, found)
    caplog.clear()
    report = recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=state)
    assert len(report.actions) == len(actions) and all(map(str.startswith, report.actions, actions))
    told = [f"{PATH}: {action}" for action in report.actions if "transaction index" in action]
    assert caplog.messages == (told if all(damage.values()) else [])
    assert tree(fs, PATH) == before
    assert report.segments == read_segments(fs, PATH)
    assert recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=state).actions == []


WRONG_BELOW_100 = text((0, 0), (1, 2), (2, 100), (4, 200))
WITHOUT_BATCHES = text((0, 0), (1, 60), (2, 70), (3, 150), (4, 190), (5, 204), (6, 210))
#: a log, changes of its files, and what the checkpoints say
UNTOUCHED: dict[str, tuple[Log, Damage, Checkpoints]] = {
    "empty segments": (lambda: log_with(data_segment(0, []), data_segment(100, [])), {}, UNKNOWN),
    "no segment": (log_with, {}, UNKNOWN),
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
    "epochs that begin before their batches": (lambda: of_epochs(text((0, 0), (2, 50), (4, 110))), {}, killed(0)),
    "epochs without batches": (lambda: of_epochs(WITHOUT_BATCHES), {}, killed(0)),
    # no broker starts with them
    "malformed epochs": (lambda: of_epochs("0\n2\n0 0\n"), {}, killed(0)),
    "epochs that are wrong below the recovery point": (lambda: of_epochs(WRONG_BELOW_100), {}, killed(100)),
    "wrong epochs, after a clean shutdown": (lambda: of_epochs(WRONG_BELOW_100), {}, CLEAN),
    "wrong epochs, of no broker": (lambda: of_epochs(WRONG_BELOW_100), {}, UNKNOWN),
}  # fmt: skip


@pytest.mark.parametrize(("log", "changes", "state"), UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_what_is_right_or_is_not_examined_is_not_touched(log: Log, changes: Damage, state: Checkpoints) -> None:
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
