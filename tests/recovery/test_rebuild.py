"""Rebuilt indexes: the same bytes as a broker writes, from the batches alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from compaction.errors import CorruptLogError
from compaction.files.filesystem import real_file
from compaction.files.overlay import OverlayFileSystem
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.log.read_log import read_segments
from compaction.names import INDEX, LOG, TIMEINDEX, TXNINDEX
from compaction.recovery.indexes import rebuild_indexes
from compaction.recovery.recover import recover_log
from compaction.rules.log_view import AbortedTxn
from tests.disk import FaultyFileSystem
from tests.log.logs import (
    NOW_MS,
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
from tests.recovery.small_logs import HERE, PATH, SMALL, flipped, log_with, name


def big() -> Built:
    """An inactive segment with several index entries."""
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


@pytest.mark.parametrize("seed", range(4))
def test_rebuilt_indexes_are_those_of_appending_batch_by_batch(seed: int) -> None:
    rng = random.Random(seed)
    stamps = [NOW_MS + rng.randrange(-50, 50) * at for at in range(200)]
    batches = [data_batch(3 * at, timestamp=stamp) for at, stamp in enumerate(stamps)]
    appended = write_segment(0, batches, SMALL, NOW_MS)
    fs = log_with(replace(build(0, batches, interval=SMALL), files={LOG: appended.log}), data_segment(1000, [1005]))
    rebuild_indexes(fs, PATH, 0, active=False, interval_bytes=SMALL)
    assert (fs.read_bytes(name(0, INDEX)), fs.read_bytes(name(0, TIMEINDEX))) == (appended.index, appended.time_index)
    assert len(appended.index) // 8 > len(appended.time_index) // 12 > 3


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
def test_preallocated_index_bytes_are_not_damage(kind: str) -> None:
    fs = broken(rewrite(kind, lambda data: data + bytes(24 * 5000)))
    assert recover_log(fs, HERE, index_interval_bytes=SMALL).actions == []


def test_a_rebuilt_index_takes_mode_and_mtime_of_the_log() -> None:
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
    why = "no entry for the transaction that is aborted at offset 12"
    assert report.actions == [f"rebuilt the transaction index of segment 10: {why}"]
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
    put_snapshot(fs, PATH, 10, [ProducerEntry(7, 0, 0, 0, 0, NOW_MS, -1, 0), ProducerEntry(8, 0, 0, 1, 0, NOW_MS, -1, 1)])
    before = tree(fs, PATH)
    fs.unlink(name(10, TXNINDEX))
    recover_log(fs, HERE)
    assert tree(fs, PATH) == before


def test_an_abort_marker_without_data_needs_no_index() -> None:
    fs = log_with(build(0, [marker(12, 7, commit=False)]), data_segment(20, [20]))
    assert recover_log(fs, HERE).actions == []


def test_the_report_has_the_rebuilt_transaction_indexes() -> None:
    fs = log_with(*transactions())
    fs.unlink(name(10, TXNINDEX))
    assert recover_log(fs, HERE).segments == read_segments(fs, PATH)
