"""Recovery: swaps that no journal speaks of, indexes, torn tails and damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compaction.cleaning.log_view import AbortedTxn
from compaction.errors import CorruptLogError
from compaction.formats.producer_snapshot import SnapshotEntry
from compaction.fs.filesystem import join, real_file
from compaction.fs.overlay import OverlayFileSystem
from compaction.logdir.checkpoint_store import Checkpoints
from compaction.logdir.read_log import ReadOptions, read_log, read_segments
from compaction.names import INDEX, LOG, TIMEINDEX, TXNINDEX, segment_file
from compaction.recovery.recover import recover_log
from tests.fs.faults import FaultyFileSystem
from tests.logdir.logs import (
    NOW_MS,
    Built,
    build,
    data_batch,
    data_segment,
    idempotent_batch,
    location,
    marker,
    put_snapshot,
    served,
    tree,
    txn_batch,
)

HERE = location("/logs")
PATH = HERE.path
KINDS = (LOG, INDEX, TIMEINDEX)
SMALL = 256


def log_with(*segments: Built) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir(PATH)
    for segment in segments:
        segment.put(fs, PATH)
    return fs.settle()


def three() -> FaultyFileSystem:
    return log_with(data_segment(0, [5, 60]), data_segment(100, [105, 150]), data_segment(200, [200]))


def name(base: int, kind: str, suffix: str = "") -> str:
    return join(PATH, segment_file(base, kind, suffix))


def put(fs: FaultyFileSystem, segment: Built, suffixes: dict[str, str]) -> None:
    """A segment's files, each with a suffix of its own."""
    for kind, suffix in suffixes.items():
        fs.put(name(segment.base_offset, kind, suffix), segment.files[kind])


CLEANED_0 = data_segment(0, [60, 150])


def test_an_untouched_log_stays_as_it_is() -> None:
    fs = three()
    before = tree(fs, PATH)
    assert recover_log(fs, HERE).actions == []
    assert tree(fs, PATH) == before


@pytest.mark.parametrize("suffix", [".clean", ".cleaned", ".clean.0123abcd", ".clean.0123abcd.7.part", ".deleted", ".tmp"])
def test_leftovers_are_removed(suffix: str) -> None:
    fs = three()
    before = tree(fs, PATH)
    put(fs, CLEANED_0, dict.fromkeys(KINDS, suffix))
    recover_log(fs, HERE)
    assert tree(fs, PATH) == before


def test_other_files_are_left_alone() -> None:
    fs = three()
    for other in ("partition.metadata", "notes.txt", "00000000000000000009.checkpoint.deleted", "leader-epoch-checkpoint"):
        fs.put(join(PATH, other), b"mine")
    before = tree(fs, PATH)
    recover_log(fs, HERE)
    assert tree(fs, PATH) == before


@pytest.mark.parametrize("gone", [(), (0,), (0, 100)])
def test_a_complete_swap_is_finished_whatever_is_left_of_its_sources(gone: tuple[int, ...]) -> None:
    fs = three()
    put(fs, CLEANED_0, dict.fromkeys(KINDS, ".swap"))
    for base in gone:
        for kind in KINDS:
            fs.rename(name(base, kind), name(base, kind, ".deleted"))
    recover_log(fs, HERE)
    assert sorted(served(fs, PATH)) == [60, 150, 200]
    assert not [file for file in fs.listdir(PATH) if file.endswith((".swap", ".deleted"))]


def test_the_last_step_of_a_swap_is_finished() -> None:
    fs = log_with(data_segment(200, [200]))
    put(fs, CLEANED_0, {LOG: "", INDEX: ".swap", TIMEINDEX: ".swap"})
    recover_log(fs, HERE)
    assert tree(fs, PATH) == tree(log_with(CLEANED_0, data_segment(200, [200])), PATH)


@pytest.mark.parametrize("left", [".clean", ".cleaned"])
@pytest.mark.parametrize("renamed", [(LOG,), (LOG, INDEX)])
def test_an_incomplete_swap_is_undone(left: str, renamed: tuple[str, ...]) -> None:
    fs = three()
    before = tree(fs, PATH)
    put(fs, CLEANED_0, {kind: ".swap" if kind in renamed else left for kind in KINDS})
    recover_log(fs, HERE)
    assert tree(fs, PATH) == before


def test_a_higher_swap_is_undone_with_a_lower_unfinished_output() -> None:
    fs = three()
    before = tree(fs, PATH)
    put(fs, CLEANED_0, dict.fromkeys(KINDS, ".clean"))
    put(fs, data_segment(200, [200]), dict.fromkeys(KINDS, ".swap"))
    recover_log(fs, HERE)
    assert tree(fs, PATH) == before


def test_a_swap_whose_sources_are_gone_is_finished_even_beside_an_old_leftover() -> None:
    fs = three()
    put(fs, data_segment(0, [1]), dict.fromkeys(KINDS, ".clean"))
    put(fs, data_segment(100, [150]), dict.fromkeys(KINDS, ".swap"))
    for kind in KINDS:
        fs.rename(name(100, kind), name(100, kind, ".deleted"))
    recover_log(fs, HERE)
    assert sorted(served(fs, PATH)) == [5, 60, 150, 200]


def test_a_truncated_swap_is_undone_while_its_sources_are_there() -> None:
    fs = three()
    before = tree(fs, PATH)
    fs.put(name(0, LOG, ".swap"), CLEANED_0.files[LOG][:-3])
    recover_log(fs, HERE)
    assert tree(fs, PATH) == before


def test_a_truncated_swap_without_sources_is_an_error() -> None:
    fs = log_with(data_segment(200, [200]))
    fs.put(name(0, LOG, ".swap"), CLEANED_0.files[LOG][:-3])
    with pytest.raises(CorruptLogError, match=r"00\.log\.swap at byte \d+"):
        recover_log(fs, HERE)


def big() -> Built:
    """A closed segment with several index entries."""
    return build(0, [data_batch(offset) for offset in range(0, 90, 3)], interval=SMALL)


def broken(damage: Callable[[FaultyFileSystem], None]) -> FaultyFileSystem:
    fs = log_with(big(), data_segment(100, [105]))
    damage(fs)
    return fs


def remove(*kinds: str) -> Callable[[FaultyFileSystem], None]:
    def damage(fs: FaultyFileSystem) -> None:
        for kind in kinds:
            fs.unlink(name(0, kind))

    return damage


def rewrite(kind: str, change: Callable[[bytes], bytes]) -> Callable[[FaultyFileSystem], None]:
    return lambda fs: fs.put(name(0, kind), change(big().files[kind]))


DAMAGE = {
    "offset index missing": remove(INDEX),
    "time index missing": remove(TIMEINDEX),
    "both missing": remove(INDEX, TIMEINDEX),
    "offset index empty": rewrite(INDEX, lambda data: b""),
    "time index empty": rewrite(TIMEINDEX, lambda data: b""),
    "offset index cut at an entry": rewrite(INDEX, lambda data: data[: len(data) // 16 * 8]),
    "offset index cut within an entry": rewrite(INDEX, lambda data: data[:-3]),
    "time index cut within an entry": rewrite(TIMEINDEX, lambda data: data[:-5]),
    "time index cut at an entry": rewrite(TIMEINDEX, lambda data: data[:-12]),
    "offset index of other data": rewrite(INDEX, lambda data: data[:-4] + (7).to_bytes(4, "big")),
    "offset index past the end": rewrite(INDEX, lambda data: data + b"\0\0\1\0\0\1\0\0"),
    "time index past the end": rewrite(TIMEINDEX, lambda data: data + (2**60).to_bytes(8, "big") + (99999).to_bytes(4, "big")),
    "offset index that falls": rewrite(INDEX, lambda data: data + data[:8]),
    "offset index of zeros": rewrite(INDEX, lambda data: bytes(1024)),
    "time index of zeros": rewrite(TIMEINDEX, lambda data: bytes(1200)),
    "offset index of noise": rewrite(INDEX, lambda data: bytes(range(256))),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_broken_indexes_are_rebuilt_as_a_broker_would_have_written_them(damage: Callable[[FaultyFileSystem], None]) -> None:
    fs = broken(damage)
    report = recover_log(fs, HERE, index_interval_bytes=SMALL)
    assert len(report.actions) == 1
    assert report.actions[0].startswith("rebuilt the indexes of segment 0")
    assert tree(fs, PATH) == tree(log_with(big(), data_segment(100, [105])), PATH)
    assert recover_log(fs, HERE, index_interval_bytes=SMALL).actions == []


@pytest.mark.parametrize("kind", [INDEX, TIMEINDEX])
def test_a_preallocated_tail_is_no_damage(kind: str) -> None:
    fs = broken(rewrite(kind, lambda data: data + bytes(24 * 5000)))
    assert recover_log(fs, HERE, index_interval_bytes=SMALL).actions == []


def test_a_rebuilt_index_takes_mode_and_time_of_the_log() -> None:
    fs = broken(remove(INDEX))
    log = fs.stat(name(0, LOG))
    recover_log(fs, HERE, index_interval_bytes=SMALL)
    index = fs.stat(name(0, INDEX))
    assert log is not None and index is not None
    assert (index.mtime_ns, index.mode) == (log.mtime_ns, log.mode)


def test_a_dry_run_rebuilds_in_memory() -> None:
    fs = broken(remove(INDEX))
    before = tree(fs, PATH)
    overlay = OverlayFileSystem(fs)
    recover_log(overlay, HERE, index_interval_bytes=SMALL)
    assert tree(fs, PATH) == before
    assert tree(overlay, PATH) == tree(log_with(big(), data_segment(100, [105])), PATH)
    assert real_file(overlay, name(0, LOG)).path == name(0, LOG)


TAILS = {
    "half a batch": data_batch(108)[:-7],
    "less than a header": data_batch(108)[:9],
    "zeros": bytes(5000),
    "a batch whose end was not flushed": data_batch(108)[:-9] + bytes(9),
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_a_torn_tail_of_the_active_segment_is_passed_over_and_stays(tail: bytes) -> None:
    fs = three()
    active = name(200, LOG)
    fs.put(active, fs.read_bytes(active) + tail)
    report = recover_log(fs, HERE)
    assert report.torn_tail_bytes == len(tail)
    assert fs.read_bytes(active).endswith(tail)


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_a_torn_tail_of_a_closed_segment_is_an_error(tail: bytes) -> None:
    fs = three()
    size = len(fs.read_bytes(name(100, LOG)))
    fs.put(name(100, LOG), fs.read_bytes(name(100, LOG)) + tail)
    with pytest.raises(CorruptLogError) as caught:
        recover_log(fs, HERE)
    assert (caught.value.path, caught.value.position) == (name(100, LOG), size)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@pytest.mark.parametrize("at", [8, 9, 16, 20, 40, 70])
def test_damage_within_the_active_segment_is_no_torn_tail(at: int) -> None:
    fs = log_with(data_segment(0, [5]), data_segment(100, [105, 106, 107]))
    first = len(data_batch(105))
    fs.put(name(100, LOG), flipped(fs.read_bytes(name(100, LOG)), first + at))
    with pytest.raises(CorruptLogError) as caught:
        recover_log(fs, HERE)
    assert (caught.value.path, caught.value.position) == (name(100, LOG), first)


def test_damage_found_while_rebuilding_an_index_is_an_error() -> None:
    fs = broken(remove(INDEX))
    fs.put(name(0, LOG), flipped(fs.read_bytes(name(0, LOG)), 70))
    with pytest.raises(CorruptLogError, match="CRC"):
        recover_log(fs, HERE, index_interval_bytes=SMALL)


def transactions() -> list[Built]:
    """Producer 7 aborts across two segments, producer 8 commits; one aborted transaction is within an open one."""
    first = build(0, [txn_batch(0, 7), txn_batch(1, 8), idempotent_batch(2, 9)])
    txns = [AbortedTxn(7, 0, 12, 1), AbortedTxn(9, 13, 15, 1)]
    batches = [txn_batch(10, 7, sequence=1), marker(12, 7, commit=False), txn_batch(13, 9, sequence=1)]
    batches += [marker(15, 9, commit=False), marker(16, 8, commit=True)]
    return [first, build(10, batches, txns=txns), data_segment(20, [20])]


def test_a_missing_transaction_index_is_rebuilt() -> None:
    fs = log_with(*transactions())
    before = tree(fs, PATH)
    fs.unlink(name(10, TXNINDEX))
    report = recover_log(fs, HERE)
    assert report.actions == [f"rebuilt the transaction index of segment 10: {TXNINDEX} is missing"]
    assert tree(fs, PATH) == before


@pytest.mark.parametrize("damage", [lambda data: data[:-4], lambda data: b"\0\5" + data[2:], lambda data: bytes(34)])
def test_a_broken_transaction_index_is_rebuilt(damage: Callable[[bytes], bytes]) -> None:
    fs = log_with(*transactions())
    before = tree(fs, PATH)
    fs.put(name(10, TXNINDEX), damage(fs.read_bytes(name(10, TXNINDEX))))
    assert len(recover_log(fs, HERE).actions) == 1
    assert tree(fs, PATH) == before


def test_the_rebuild_starts_from_the_newest_snapshot_before_the_segment() -> None:
    fs = log_with(*transactions()[1:])
    put_snapshot(fs, PATH, 10, [SnapshotEntry(7, 0, 0, 0, 0, NOW_MS, -1, 0), SnapshotEntry(8, 0, 0, 1, 0, NOW_MS, -1, 1)])
    before = tree(fs, PATH)
    fs.unlink(name(10, TXNINDEX))
    recover_log(fs, HERE)
    assert tree(fs, PATH) == before


def test_an_abort_marker_whose_data_is_gone_needs_no_index() -> None:
    fs = log_with(build(0, [marker(12, 7, commit=False)]), data_segment(20, [20]))
    assert recover_log(fs, HERE).actions == []


def test_what_recovery_found_spares_reading_it_again() -> None:
    fs = log_with(data_segment(0, [1]), build(10, [idempotent_batch(10, 7)]), *transactions()[2:])
    put_snapshot(fs, PATH, 10)
    fs.unlink(name(0, INDEX))
    report = recover_log(fs, HERE)
    # a snapshot vouches for segment 0, so that nobody looked; segment 10 does hold a producer's batch
    assert report.without_producers == {20}
    assert report.segments == read_segments(fs, PATH)
    checkpoints, options = Checkpoints("/logs"), ReadOptions(NOW_MS)
    told = read_log(fs, HERE, checkpoints, options, segments=report.segments, without_producers=report.without_producers)
    assert told == read_log(fs, HERE, checkpoints, options)


def test_rebuilt_transaction_indexes_are_among_what_recovery_found() -> None:
    fs = log_with(*transactions())
    fs.unlink(name(10, TXNINDEX))
    assert recover_log(fs, HERE).segments == read_segments(fs, PATH)


def test_an_empty_log_is_in_order() -> None:
    fs = log_with()
    assert recover_log(fs, HERE).actions == []


def test_an_empty_segment_is_in_order() -> None:
    fs = log_with(data_segment(0, []), data_segment(100, []))
    assert recover_log(fs, HERE).actions == []
