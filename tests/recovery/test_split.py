"""Splitting a segment whose offsets overflow its indexes, and every interruption of the split."""

from __future__ import annotations

import pytest

from compaction.files.filesystem import FileSystem, real_file
from compaction.files.overlay import OverlayFileSystem
from compaction.formats.indexes import MAX_RELATIVE_OFFSET
from compaction.log.read_log import read_segments, segment_bases
from compaction.names import INDEX, LOG, TIMEINDEX, TXNINDEX
from compaction.output.segment_writer import new_suffix
from compaction.recovery.recover import recover_log, split_segment
from compaction.rules.log_view import AbortedTxn
from tests.disk import FaultyFileSystem, crash_states
from tests.log.broker_model import start_broker
from tests.log.logs import Built, build, data_batch, data_segment, location, served, tree

HERE = location("/logs")
FAR = 5 * 2**30
OFFSETS = [3, 7, FAR, FAR + 9, 2 * FAR]


def overflowing(base: int = 0, offsets: list[int] = OFFSETS, txns: tuple[AbortedTxn, ...] = ()) -> Built:
    """A segment that no current broker writes; its index covers only its start, as an old broker's would."""
    whole = build(offsets[0], [data_batch(offset) for offset in offsets[:1]])
    log = b"".join(data_batch(offset) for offset in offsets)
    files = {LOG: log, INDEX: b"", TIMEINDEX: whole.files[TIMEINDEX]}
    if txns:
        files[TXNINDEX] = build(base, [], txns=txns).files[TXNINDEX]
    return Built(base, files)


def log_with(segment: Built) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir(HERE.path)
    for each in (segment, data_segment(3 * FAR, [3 * FAR])):
        each.put(fs, HERE.path)
    return fs.settle()


def test_a_new_segment_begins_at_the_first_batch_that_does_not_fit() -> None:
    fs = log_with(overflowing())
    report = recover_log(fs, HERE)
    assert "split the overflowing segment 0 into 3" in report.actions
    assert segment_bases(fs, HERE.path) == [0, FAR, 2 * FAR, 3 * FAR]
    assert sorted(served(fs, HERE.path)) == [*OFFSETS, 3 * FAR]


def test_no_new_segment_overflows_and_the_bytes_are_the_same() -> None:
    fs = log_with(overflowing())
    source = fs.read_bytes(f"{HERE.path}/{0:020d}.log")
    recover_log(fs, HERE)
    segments = read_segments(fs, HERE.path)[:-1]
    assert all(segment.next_offset - 1 - segment.base_offset <= MAX_RELATIVE_OFFSET for segment in segments)
    assert b"".join(fs.read_bytes(f"{HERE.path}/{s.base_offset:020d}.log") for s in segments) == source
    assert recover_log(fs, HERE).actions == []


@pytest.mark.parametrize(
    ("last", "pieces"), [(MAX_RELATIVE_OFFSET, [0]), (MAX_RELATIVE_OFFSET + 1, [0, MAX_RELATIVE_OFFSET + 1])]
)
def test_the_largest_offset_that_fits_is_two_to_the_31_less_one(last: int, pieces: list[int]) -> None:
    fs = log_with(overflowing(offsets=[3, last]))
    recover_log(fs, HERE)
    assert segment_bases(fs, HERE.path) == [*pieces, 3 * FAR]


def test_a_first_batch_out_of_range_leaves_an_empty_segment_at_the_base() -> None:
    fs = log_with(overflowing(offsets=[FAR, FAR + 1]))
    recover_log(fs, HERE)
    assert segment_bases(fs, HERE.path) == [0, FAR, 3 * FAR]
    assert [segment.size_bytes > 0 for segment in read_segments(fs, HERE.path)] == [False, True, True]


def test_transaction_index_entries_move_with_their_markers() -> None:
    txns = (AbortedTxn(1, 3, 7, 8), AbortedTxn(2, 3, FAR + 9, FAR + 10))
    fs = log_with(overflowing(txns=txns))
    split_segment(fs, HERE.path, read_segments(fs, HERE.path)[0], 4096)
    assert [segment.aborted_txns for segment in read_segments(fs, HERE.path)] == [txns[:1], txns[1:], (), ()]


def test_new_segments_keep_the_mtime_of_the_source() -> None:
    fs = log_with(overflowing())
    before = fs.stat(f"{HERE.path}/{0:020d}.log")
    recover_log(fs, HERE)
    assert before is not None
    assert {segment.mtime_ns for segment in read_segments(fs, HERE.path)[:-1]} == {before.mtime_ns}


def test_a_dry_run_splits_in_memory_and_locates_the_bytes_on_disk() -> None:
    fs = log_with(overflowing())
    before = tree(fs, HERE.path)
    overlay = OverlayFileSystem(fs)
    recover_log(overlay, HERE)
    real = log_with(overflowing())
    recover_log(real, HERE)
    assert (tree(fs, HERE.path), tree(overlay, HERE.path)) == (before, tree(real, HERE.path))
    size = len(data_batch(3)) + len(data_batch(7))
    assert real_file(overlay, f"{HERE.path}/{FAR:020d}.log")[:2] == (f"{HERE.path}/{0:020d}.log", size)


@pytest.mark.parametrize("offsets", [OFFSETS, [FAR, FAR + 1]], ids=["fits", "first batch out of range"])
@pytest.mark.parametrize("with_broker", [False, True])
@pytest.mark.parametrize("attempt", [False, True], ids=["", "beside files of an attempt to clean"])
def test_no_interruption_of_a_split_loses_a_record(offsets: list[int], with_broker: bool, attempt: bool) -> None:
    def make(step: int | None) -> FaultyFileSystem:
        return log_with(overflowing(offsets=offsets)).run_until(step, lambda fs: recover_log(fs, HERE))

    undisturbed: FileSystem = make(None)
    for name, fs in crash_states(make):
        for base in (FAR, 2 * FAR) if attempt else ():
            fs.write_file(f"{HERE.path}/{base:020d}{INDEX}{new_suffix()}", b"")
        if with_broker:
            start_broker(fs, HERE.path)
            assert sorted(served(fs, HERE.path)) == [*offsets, 3 * FAR], name
        recover_log(fs, HERE)
        assert sorted(served(fs, HERE.path)) == [*offsets, 3 * FAR], name
        assert tree(fs, HERE.path) == tree(undisturbed, HERE.path), name
