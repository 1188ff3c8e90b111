"""Indexes narrow the read of a segment, and a wrong index only widens it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.files.mixed import MixedFileSystem
from compaction.log.checkpoint_store import read_checkpoints
from compaction.log.discover import Selector, discover
from compaction.log.read_log import ReadOptions, read_log
from compaction.rules.log_view import Segment
from compaction.source.read_plan import first_offset_since, positions_of
from tests.oracle.segments import NaiveSegment
from tests.source.random_partition import write_random

FS = MixedFileSystem()


def largest(log_dir: Path, flavour: str = "plain") -> tuple[str, Segment, NaiveSegment]:
    """The largest segment of a random log: the log's path, the segment, and its twin that the plain reader made."""
    path, made = write_random(log_dir, flavour, 3)
    (location,) = discover(FS, [str(log_dir)], Selector())
    view = read_log(FS, location, read_checkpoints(FS, str(log_dir)), ReadOptions(now_ms=0))
    naive = max(made.segments, key=lambda segment: len(segment.log))
    return str(path), next(each for each in view.segments if each.base_offset == naive.base_offset), naive


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_without_a_usable_index_the_whole_segment_is_read(tmp_log_dir: Path, kind: str) -> None:
    path, segment, _ = largest(tmp_log_dir)
    index = Path(path) / f"{segment.base_offset:020d}.{kind}"
    data = index.read_bytes()
    contents = [None, b"x"] if kind == "timeindex" else [None, b"x", bytes(each ^ (i % 8 == 7) for i, each in enumerate(data))]
    for content in contents:
        index.unlink(missing_ok=True)
        if content is not None:
            index.write_bytes(content)
        if kind == "index":
            middle = (segment.base_offset + segment.next_offset) // 2
            assert positions_of(FS, path, segment, middle, middle) == (0, segment.size_bytes)
        else:
            assert first_offset_since(FS, path, segment, segment.largest_timestamp_ms) == segment.base_offset


def test_records_below_the_first_offset_since_a_time_are_older(tmp_log_dir: Path) -> None:
    path, segment, naive = largest(tmp_log_dir)
    records = [record for batch in naive.batches for record in batch.records()]
    found = {first_offset_since(FS, path, segment, each.timestamp): each.timestamp for each in records}
    assert len(found) > 2
    for offset, time in found.items():
        assert all(record.timestamp < time for record in records if record.offset < offset)
