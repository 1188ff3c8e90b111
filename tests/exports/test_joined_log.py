"""Where stored segments are cut, by index and headers, and which of them form a log: uploads by several leaders, retries and
gaps, against a simulated partition."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from compaction.errors import CorruptLogError
from compaction.exports import LogFile, StoredLog, StoredSegment
from compaction.exports.layout_view import log_files
from compaction.exports.lineage import Piece, newest_lineage, select, valid_pieces, within
from compaction.exports.stored_segments import Batches, read_file
from compaction.files.contents import View
from compaction.files.filesystem import FileRange
from compaction.files.local import LocalFileSystem
from compaction.formats.checkpoints import EpochEntry
from compaction.formats.indexes import OFFSET_INDEX, OFFSET_ROW
from tests.kafka.encode import Batch, Legacy, Record
from tests.log.logs import build, data_batch


def batches_of(data: bytes, index: bytes = b"", base_offset: int = 0) -> Batches:
    return Batches("a.log", View("a.log", lambda start, length: data[start : start + length], len(data)), base_offset, index)


@pytest.mark.parametrize("interval", [1, 300, 4096])
def test_positions_by_the_index_are_those_by_the_headers(interval: int) -> None:
    written = [data_batch(offset) for offset in range(100, 200)]
    built = build(100, written, interval=interval).files
    batches = batches_of(built[".log"], built[".index"], 100)
    for offset in range(100, 201):
        assert batches.position_of(offset) == sum(map(len, written[: offset - 100]))
    assert batches_of(built[".log"], b"nonsense", 100).before(150) == 0
    assert batches.end_offset(0) == batches.inactive_end_offset() == 200
    assert batches_of(built[".log"][:-1]).end_offset(0) == 199
    with pytest.raises(CorruptLogError, match="its complete batches end at byte"):
        batches_of(built[".log"][:-1]).inactive_end_offset()
    assert (batches_of(b"").end_offset(7), batches_of(b"", b"", 7).inactive_end_offset()) == (7, 7)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_last_message_that_is_shorter_than_a_batch_header_counts(magic: int) -> None:
    data = Legacy([Record(offset, 1, b"k", b"v") for offset in range(5)], magic).encode()
    assert len(data) < 5 * 61
    assert (batches_of(data).end_offset(0), batches_of(data).position_of(5)) == (5, len(data))


@pytest.mark.parametrize("shift", [1, 20])
def test_an_entry_that_points_to_a_later_batch_is_not_used(shift: int) -> None:
    """The batches before would be skipped."""
    written = [data_batch(offset) for offset in range(100, 200)]
    data, size = b"".join(written), len(written[0])
    for position, found in ((20 + shift) * size, 0), (20 * size, 20 * size), (17 * size, 17 * size), (17 * size + 1, 0):
        index = OFFSET_INDEX.write(np.array([(120, position)], OFFSET_ROW), 100)
        assert batches_of(data, index, 100).before(130) == found


def test_a_segment_that_was_compacted_has_holes() -> None:
    batches = [data_batch(offset) for offset in range(10)]
    assert not batches_of(b"".join(batches)).have_holes()
    assert batches_of(b"".join(batches[:4] + batches[5:])).have_holes()
    assert batches_of(b"".join(batches[1:])).have_holes()


def test_an_offset_within_a_batch_is_an_error() -> None:
    records = [Record(offset, 0, b"k", b"v") for offset in range(5)]
    with pytest.raises(CorruptLogError, match="offset 3 is within the batch of offsets 0 to 4"):
        batches_of(Batch(records).encode()).position_of(3)


def test_malformed_headers_are_an_error() -> None:
    with pytest.raises(CorruptLogError, match="a.log at byte"):
        batches_of(bytes(200)).position_of(3)


def test_a_segment_in_memory_is_cut_like_a_file() -> None:
    """A layout may build segments from something else."""
    first, second = (
        StoredSegment(name, offsets.start, offsets.stop, {".log": LogFile(len(data), 5, partial(bytes, data))})
        for name, offsets in (("first", range(10)), ("second", range(5, 15)))
        for data in [b"".join(map(data_batch, offsets))]
    )
    files = LocalFileSystem()
    found = log_files(files, "orders-0", StoredLog((first, second)), StoredLog(()))
    assert sorted(found) == [f"{0:020d}.log", f"{10:020d}.log"]
    assert read_file(files, found[f"{10:020d}.log"]) == b"".join(map(data_batch, range(10, 15)))
    assert read_file(files, found[f"{10:020d}.log"], 3, 4) == data_batch(10)[3:7]


def test_an_empty_log_has_no_files(tmp_path: Path) -> None:
    assert log_files(LocalFileSystem(), str(tmp_path), StoredLog(()), StoredLog(())) == {}


def test_offsets_that_decrease_are_an_error() -> None:
    """No checksum covers a base offset."""
    data = data_batch(0) + data_batch(5) + data_batch(2) + data_batch(7)
    with pytest.raises(CorruptLogError, match="batch begins at offset 2, expected 6 or more"):
        batches_of(data).position_of(7)


def segment(
    start: int, end: int, epochs: Sequence[tuple[int, int]] = (), *, name: str = "", written_ms: int = 0, known: object = None
) -> StoredSegment:
    """A stored segment; its broker knew the epochs ``known``, by default its own."""
    own = tuple(EpochEntry(*entry) for entry in epochs)
    lineage = own if known is None else tuple(EpochEntry(*entry) for entry in known)  # type: ignore[attr-defined]
    files = {".log": LogFile(end - start, 0, FileRange("x", 0, end - start))}
    return StoredSegment(name or f"{start}-{end}", start, end, files, own, lambda: lineage, written_ms)


def chosen(*segments: StoredSegment) -> list[tuple[str, int, int]]:
    pieces = select("orders-0", segments, newest_lineage(segments))
    return [(piece.segment.path, piece.start_offset, piece.end_offset) for piece in pieces]


OLD, NEW = segment(0, 5, name="old", written_ms=1), segment(0, 5, name="new", written_ms=2)


@pytest.mark.parametrize(
    ("segments", "pieces"),
    [
        ([segment(5, 9), segment(0, 5), segment(9, 12)], [("0-5", 0, 5), ("5-9", 5, 9), ("9-12", 9, 12)]),
        # of two uploads of the same offsets the later one is used
        ([OLD, NEW], [("new", 0, 5)]),
        ([NEW, OLD], [("new", 0, 5)]),
        # one that overlaps is cut, one within another is left out
        ([segment(0, 10), segment(6, 20)], [("0-10", 0, 10), ("6-20", 10, 20)]),
        ([segment(0, 10), segment(3, 7), segment(10, 11)], [("0-10", 0, 10), ("10-11", 10, 11)]),
        # the leader of epoch 3 uploaded offsets 80 to 99, which the leader of epoch 4 replaced by its own
        (
            [
                segment(50, 100, [(3, 50)], known=[(3, 0)]),
                segment(0, 50, [(3, 0)]),
                segment(60, 120, [(3, 60), (4, 80)], known=[(3, 0), (4, 80)]),
            ],
            [("0-50", 0, 50), ("50-100", 50, 80), ("60-120", 80, 120)],
        ),
        # the leader of epoch 2 never was in the lineage
        (
            [
                segment(0, 10, [(1, 0)]),
                segment(10, 30, [(2, 10)], name="stray", written_ms=9),
                segment(10, 20, [(5, 10)], known=[(1, 0), (5, 10)]),
            ],
            [("0-10", 0, 10), ("10-20", 10, 20)],
        ),
    ],
)
def test_each_offset_is_read_from_one_of_the_uploads(segments: list[StoredSegment], pieces: list[tuple[str, int, int]]) -> None:
    assert chosen(*segments) == pieces


@pytest.mark.parametrize(("segments", "told"), [(((0, 5), (7, 9)), "5 to 6"), (((0, 5), (5, 6), (1000, 1001)), "6 to 999")])
def test_a_gap_is_an_error_that_names_the_offsets(segments: tuple[tuple[int, int], ...], told: str) -> None:
    with pytest.raises(CorruptLogError, match=f"orders-0: offsets {told} are not stored"):
        chosen(*(segment(*each) for each in segments))


def test_the_lineage_is_that_of_the_highest_epoch() -> None:
    low, high = segment(0, 90, [(1, 0)]), segment(0, 10, [(2, 0)])
    assert newest_lineage([low, high]) == high.epochs
    assert newest_lineage([]) == ()


def test_the_epochs_of_a_range_start_with_it() -> None:
    lineage = [EpochEntry(1, 0), EpochEntry(3, 10), EpochEntry(4, 20)]
    assert within(lineage, 5, 15) == ((1, 5), (3, 10))
    assert within(lineage, 20, 21) == ((4, 20),)
    assert within((), 0, 10) == ()


@pytest.mark.parametrize("seed", range(40))
def test_the_log_of_the_last_leader_is_found_among_the_uploads_of_all(seed: int) -> None:
    """Leaders append, upload what they have in segments of their own, and lose their end at an election."""
    chance = random.Random(seed)
    log: list[int] = []
    uploads: list[StoredSegment] = []
    for epoch in range(chance.randint(1, 5)):
        del log[len(log) - chance.randint(0, min(6, len(log))) :]
        log += [epoch] * chance.randint(1, 20)
        epochs, at = epochs_of(log), 0
        while at < len(log):
            end = min(len(log), at + chance.randint(1, 9))
            own = within(epochs, at, end)
            uploads.append(segment(at, end, own, name=f"{epoch}:{at}", written_ms=len(uploads), known=epochs))
            at = end
    chance.shuffle(uploads)
    pieces = select("orders-0", uploads, newest_lineage(uploads))
    found: list[int] = []
    for piece in pieces:
        assert piece.start_offset == len(found)
        found += [epoch_at(piece.segment, offset) for offset in range(piece.start_offset, piece.end_offset)]
    assert found == log


def epochs_of(log: list[int]) -> list[EpochEntry]:
    """The leader epochs of a log, given the epoch of each offset."""
    return [EpochEntry(epoch, at) for at, epoch in enumerate(log) if at == 0 or log[at - 1] != epoch]


def epoch_at(stored: StoredSegment, offset: int) -> int:
    return max(entry.epoch for entry in stored.epochs if entry.start_offset <= offset)


def test_a_piece_knows_whether_it_is_complete() -> None:
    whole = segment(0, 9)
    assert Piece(whole, 0, 9).is_complete and not Piece(whole, 1, 9).is_complete
    assert list(valid_pieces(whole, ())) == [Piece(whole, 0, 9)]
