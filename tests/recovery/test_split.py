"""Splitting a segment whose offsets overflow its indexes, every interruption of the split, and a split in memory that is then
carried out on the disk."""

from __future__ import annotations

import pytest

from compaction.errors import StorageError
from compaction.files.durable import run_alone
from compaction.files.filesystem import FileSystem, real_file
from compaction.files.overlay import OverlayFileSystem
from compaction.formats.indexes import MAX_RELATIVE_OFFSET
from compaction.log.read_log import read_segments, segment_bases
from compaction.names import INDEX, LOG, TIMEINDEX, TXNINDEX
from compaction.output.segment_writer import new_suffix
from compaction.recovery.recover import recover_log, split_segment, write_repairs
from compaction.rules.log_view import AbortedTxn, Segment
from tests.disk import FaultyFileSystem, crash_states
from tests.log.broker_model import start_broker
from tests.log.logs import Built, build, data_batch, data_segment, served, tree
from tests.recovery.small_logs import HERE, PATH, log_with, name

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


def overflowing_log(offsets: list[int] = OFFSETS, txns: tuple[AbortedTxn, ...] = ()) -> FaultyFileSystem:
    return log_with(overflowing(offsets=offsets, txns=txns), data_segment(3 * FAR, [3 * FAR]))


def test_new_segments_begin_at_the_first_batch_that_does_not_fit_and_have_the_bytes_and_mtime_of_the_source() -> None:
    fs = overflowing_log()
    source, before = fs.read_bytes(name(0, LOG)), fs.stat(name(0, LOG))
    report = recover_log(fs, HERE)
    assert "split the overflowing segment 0 into 3" in report.actions
    assert segment_bases(fs, PATH) == [0, FAR, 2 * FAR, 3 * FAR]
    assert sorted(served(fs, PATH)) == [*OFFSETS, 3 * FAR]
    segments = read_segments(fs, PATH)[:-1]
    assert all(segment.next_offset - 1 - segment.base_offset <= MAX_RELATIVE_OFFSET for segment in segments)
    assert b"".join(fs.read_bytes(name(s.base_offset, LOG)) for s in segments) == source
    assert before is not None
    assert {segment.mtime_ns for segment in segments} == {before.mtime_ns}
    assert recover_log(fs, HERE).actions == []
    assert repaired_in_memory(fs)[0].operations(PATH) == ()


@pytest.mark.parametrize(
    ("offsets", "pieces"),
    [
        ([3, MAX_RELATIVE_OFFSET], [0]),
        ([3, MAX_RELATIVE_OFFSET + 1], [0, MAX_RELATIVE_OFFSET + 1]),
        ([3, MAX_RELATIVE_OFFSET, FAR], [0, FAR]),
        # an empty segment stays at the base
        ([FAR, FAR + 1], [0, FAR]),
    ],
)
def test_the_largest_offset_that_fits_is_two_to_the_31_less_one(offsets: list[int], pieces: list[int]) -> None:
    fs = overflowing_log(offsets)
    recover_log(fs, HERE)
    assert segment_bases(fs, PATH) == [*pieces, 3 * FAR]
    assert sorted(served(fs, PATH)) == [*offsets, 3 * FAR]


def test_transaction_index_entries_move_with_their_markers() -> None:
    txns = (AbortedTxn(1, 3, 7, 8), AbortedTxn(2, 3, FAR + 9, FAR + 10))
    fs = overflowing_log(txns=txns)
    split_segment(fs, PATH, read_segments(fs, PATH)[0], 4096)
    assert [segment.aborted_txns for segment in read_segments(fs, PATH)] == [txns[:1], txns[1:], (), ()]


@pytest.mark.parametrize("offsets", [OFFSETS, [FAR, FAR + 1]], ids=["fits", "first batch out of range"])
@pytest.mark.parametrize("with_broker", [False, True])
@pytest.mark.parametrize("attempt", [False, True], ids=["", "beside files of an attempt to clean"])
def test_no_interruption_of_a_split_loses_a_record(offsets: list[int], with_broker: bool, attempt: bool) -> None:
    def make(step: int | None) -> FaultyFileSystem:
        return overflowing_log(offsets).run_until(step, lambda fs: recover_log(fs, HERE))

    undisturbed: FileSystem = make(None)
    for state, fs in crash_states(make):
        for base in (FAR, 2 * FAR) if attempt else ():
            fs.write_file(name(base, INDEX, new_suffix()), b"")
        if with_broker:
            start_broker(fs, PATH)
            assert sorted(served(fs, PATH)) == [*offsets, 3 * FAR], state
        recover_log(fs, HERE)
        assert sorted(served(fs, PATH)) == [*offsets, 3 * FAR], state
        assert tree(fs, PATH) == tree(undisturbed, PATH), state


def repaired_in_memory(fs: FaultyFileSystem) -> tuple[OverlayFileSystem, tuple[Segment, ...]]:
    overlay = OverlayFileSystem(fs)
    return overlay, recover_log(overlay, HERE).segments


def test_a_split_in_memory_is_carried_out_as_recovery_itself_would_have_made_it_on_the_disk() -> None:
    fs, directly = overflowing_log(), overflowing_log()
    fs.log.clear()
    directly.log.clear()
    before = tree(fs, PATH)
    overlay, segments = repaired_in_memory(fs)
    repaired, size = tree(overlay, PATH), len(data_batch(3)) + len(data_batch(7))
    assert tree(fs, PATH) == before
    assert real_file(overlay, name(FAR, LOG))[:2] == (name(0, LOG), size)
    run_alone(fs, write_repairs(overlay, fs, PATH, segments))
    recover_log(directly, HERE)
    assert tree(fs, PATH) == tree(directly, PATH) == repaired

    def changes(log: list[str]) -> list[str]:
        return [each for each in log if ".tmp" not in each]

    assert changes(fs.log) == changes(directly.log) != []


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_an_error_leaves_the_log_as_it_was(failing: str) -> None:
    fs = overflowing_log()
    (overlay, segments), before = repaired_in_memory(fs), tree(fs, PATH)
    fs.fail = lambda operation, path: "no space" if operation == failing else None
    with pytest.raises(StorageError, match="no space"):
        run_alone(fs, write_repairs(overlay, fs, PATH, segments))
    fs.fail = lambda operation, path: None
    left = {file: data for file, data in tree(fs, PATH).items() if ".cleaned" not in file}
    assert left == before
    recover_log(fs, HERE)
    assert tree(fs, PATH) == tree(repaired_in_memory(overflowing_log())[0], PATH)


def test_a_segment_that_has_grown_since_is_not_split() -> None:
    fs = overflowing_log()
    overlay, segments = repaired_in_memory(fs)
    grown = fs.read_bytes(name(0, LOG)) + data_batch(2 * FAR + 1)
    fs.unlink(name(0, LOG))
    fs.write_file(name(0, LOG), grown)
    before = tree(fs, PATH)
    with pytest.raises(StorageError, match="has changed since it was read"):
        run_alone(fs, write_repairs(overlay, fs, PATH, segments))
    assert tree(fs, PATH) == before


def test_a_file_that_has_the_name_of_a_new_one_is_not_removed() -> None:
    fs = overflowing_log()
    overlay, segments = repaired_in_memory(fs)
    fs.write_file(name(FAR, LOG, ".cleaned"), b"another's")
    with pytest.raises(StorageError):
        run_alone(fs, write_repairs(overlay, fs, PATH, segments))
    assert fs.read_bytes(name(FAR, LOG, ".cleaned")) == b"another's"
