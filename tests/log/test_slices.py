"""Byte ranges of a segment: they begin at batches, cover it without gaps, and never trust a damaged index."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.files.filesystem import join
from compaction.log.read_log import ByteRange, cut_segment, read_segments
from compaction.names import INDEX, LOG, segment_file
from tests.disk import FaultyFileSystem
from tests.log.logs import data_segment, location

PATH = location("/logs").path
OFFSETS = range(100, 1100)


@pytest.fixture
def fs() -> FaultyFileSystem:
    """A segment of a thousand batches with an index entry for every few of them."""
    made = FaultyFileSystem()
    made.mkdir(PATH)
    data_segment(100, OFFSETS, interval=500).put(made, PATH)
    return made


def cut(fs: FaultyFileSystem, target_bytes: int) -> tuple[ByteRange, ...]:
    segment = read_segments(fs, PATH)[0]
    return cut_segment(fs, PATH, segment, target_bytes)


@pytest.mark.parametrize("target_bytes", [1_000, 10_000, 50_000, 10**9])
def test_the_ranges_cover_the_segment_at_batch_boundaries(fs: FaultyFileSystem, target_bytes: int) -> None:
    ranges = cut(fs, target_bytes)
    data = fs.read_bytes(join(PATH, segment_file(100, LOG)))
    assert [each.start for each in ranges] == [0, *(each.end for each in ranges[:-1])]
    assert [each.first_offset for each in ranges] == [100, *(each.end_offset for each in ranges[:-1])]
    assert (ranges[-1].end, ranges[-1].end_offset) == (len(data), 1100)
    assert all(int.from_bytes(data[each.start : each.start + 8], "big") == each.first_offset for each in ranges)
    assert (len(ranges) > 1) == (target_bytes < len(data))


def test_a_segment_slightly_larger_than_the_target_is_one_range(fs: FaultyFileSystem) -> None:
    assert len(cut(fs, len(fs.read_bytes(join(PATH, segment_file(100, LOG)))) * 3 // 4)) == 1


@pytest.mark.parametrize("entry", ["other offset", "other position", "past the end"])
def test_an_index_entry_without_its_batch_is_not_a_boundary(fs: FaultyFileSystem, entry: str) -> None:
    name = join(PATH, segment_file(100, INDEX))
    segment = read_segments(fs, PATH)[0]
    index = bytearray(fs.read_bytes(name))
    for at in range(0, len(index), 8):
        if entry == "other offset":
            index[at + 3] ^= 1
        elif entry == "other position":
            index[at + 7] ^= 1
        else:
            index[at + 4 : at + 8] = (segment.size_bytes - 10 + at).to_bytes(4, "big")
    fs.put(name, bytes(index))
    assert cut_segment(fs, PATH, segment, 10_000) == (ByteRange(0, segment.size_bytes, 100, 1100),)


def test_a_batch_with_an_invalid_checksum_is_not_a_boundary(fs: FaultyFileSystem) -> None:
    segment = read_segments(fs, PATH)[0]
    before = cut_segment(fs, PATH, segment, 10_000)
    name = join(PATH, segment_file(100, LOG))
    data = bytearray(fs.read_bytes(name))
    data[before[1].start + 60] ^= 1
    fs.put(name, bytes(data))
    after = cut_segment(fs, PATH, segment, 10_000)
    assert before[1].start not in [each.start for each in after]
    assert len(after) == len(before) - 1


def test_a_missing_index_gives_one_range(fs: FaultyFileSystem) -> None:
    segment = read_segments(fs, PATH)[0]
    fs.unlink(join(PATH, segment_file(100, INDEX)))
    assert len(cut_segment(fs, PATH, replace(segment, index_bytes=0), 10_000)) == 1
