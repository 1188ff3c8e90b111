"""Where segments are cut: positions by index and headers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from compaction.errors import CorruptLogError
from compaction.exports import LogFile, StoredLog, StoredSegment
from compaction.exports.layout_view import log_files
from compaction.exports.stored_segments import end_offset_of, has_holes, indexed_position, position_of, read_file
from compaction.files.contents import View
from compaction.files.local import LocalFileSystem
from compaction.formats.indexes import OFFSET_ROW, write_offset_index
from tests.kafka.encode import Batch, Legacy, Record
from tests.log.logs import build, data_batch


def view_of(data: bytes) -> View:
    return View("a.log", lambda start, length: data[start : start + length], len(data))


@pytest.mark.parametrize("interval", [1, 300, 4096])
def test_positions_by_the_index_are_those_by_the_headers(interval: int) -> None:
    batches = [data_batch(offset) for offset in range(100, 200)]
    built = build(100, batches, interval=interval).files
    data, index = view_of(built[".log"]), built[".index"]
    for offset in range(100, 201):
        start = indexed_position(index, 100, offset, data)
        assert position_of(data, "a.log", start, offset) == sum(map(len, batches[: offset - 100]))
    assert indexed_position(b"nonsense", 100, 150, data) == 0
    assert end_offset_of(data, "a.log", indexed_position(index, 100, 10**6, data), 0) == 200
    assert end_offset_of(data[: len(data) - 1], "a.log", 0, 0) == 199
    assert end_offset_of(data[:0], "a.log", 0, 7) == 7


@pytest.mark.parametrize("magic", [0, 1])
def test_a_last_message_that_is_shorter_than_a_batch_header_counts(magic: int) -> None:
    data = Legacy([Record(offset, 1, b"k", b"v") for offset in range(5)], magic).encode()
    assert len(data) < 5 * 61
    assert end_offset_of(view_of(data), "a.log", 0, 0) == 5
    assert position_of(view_of(data), "a.log", 0, 5) == len(data)


@pytest.mark.parametrize("shift", [1, 20])
def test_an_entry_that_points_to_a_later_batch_is_not_used(shift: int) -> None:
    """The batches before would be skipped."""
    batches = [data_batch(offset) for offset in range(100, 200)]
    data, size = view_of(b"".join(batches)), len(batches[0])
    rows = np.array([(120, size * (20 + shift))], OFFSET_ROW)
    assert indexed_position(write_offset_index(rows, 100), 100, 130, data) == 0
    for batches_before in (20, 17):
        rows["position"] = size * batches_before
        assert indexed_position(write_offset_index(rows, 100), 100, 130, data) == size * batches_before
    rows["position"] += 1
    assert indexed_position(write_offset_index(rows, 100), 100, 130, data) == 0


def test_a_segment_that_was_compacted_has_holes() -> None:
    batches = [data_batch(offset) for offset in range(10)]
    assert not has_holes(view_of(b"".join(batches)), "a.log", 0)
    assert has_holes(view_of(b"".join(batches[:4] + batches[5:])), "a.log", 0)
    assert has_holes(view_of(b"".join(batches[1:])), "a.log", 0)


def test_an_offset_within_a_batch_is_an_error() -> None:
    records = [Record(offset, 0, b"k", b"v") for offset in range(5)]
    with pytest.raises(CorruptLogError, match="offset 3 is within the batch of offsets 0 to 4"):
        position_of(view_of(Batch(records).encode()), "a.log", 0, 3)


def test_malformed_headers_are_an_error() -> None:
    with pytest.raises(CorruptLogError, match="a.log at byte"):
        position_of(view_of(bytes(200)), "a.log", 0, 3)


def test_a_segment_in_memory_is_cut_like_a_file() -> None:
    """A layout may build segments from something else."""
    first, second = (
        StoredSegment(name, offsets.start, offsets.stop, {".log": LogFile(len(data), 5, partial(bytes, data))})
        for name, offsets in (("first", range(10)), ("second", range(5, 15)))
        for data in [b"".join(map(data_batch, offsets))]
    )
    files = LocalFileSystem()
    found = log_files(files, "orders-0", StoredLog((first, second)), None)
    assert sorted(found) == [f"{0:020d}.log", f"{10:020d}.log"]
    assert read_file(files, found[f"{10:020d}.log"]) == b"".join(map(data_batch, range(10, 15)))
    assert read_file(files, found[f"{10:020d}.log"], 3, 4) == data_batch(10)[3:7]


def test_an_empty_log_has_no_files(tmp_path: Path) -> None:
    assert log_files(LocalFileSystem(), str(tmp_path), StoredLog(()), None) == {}


def test_offsets_that_decrease_are_an_error() -> None:
    """No checksum covers a base offset."""
    data = data_batch(0) + data_batch(5) + data_batch(2) + data_batch(7)
    with pytest.raises(CorruptLogError, match="batch begins at offset 2, expected 6 or more"):
        position_of(view_of(data), "a.log", 0, 7)
