"""Output segments: offsets that do not fit the indexes are refused, and no file is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.files.durable import run_alone
from compaction.files.local import LocalFileSystem
from compaction.kernels.tables import OUT_ROW
from compaction.output.segment_writer import SegmentIndexes, SegmentWriter, new_suffix
from tests.kafka.encode import Batch, Record

BASE = 7


def write(directory: Path, last_offset: int) -> list[str]:
    """Write a segment of one batch that ends at this offset; returns the names of its files."""
    like = directory / "like.log"
    like.touch()
    row = np.zeros(1, OUT_ROW)
    batch = Batch([Record(last_offset, 0, b"k", b"v")]).encode()
    row["size"], row["last_offset"], row["max_timestamp"] = len(batch), last_offset, -1
    try:
        stem = (str(directory), BASE, new_suffix())
        with SegmentWriter(LocalFileSystem(), stem, index_interval_bytes=1, like=str(like)) as segment:
            segment.append([batch], row)
            run_alone(LocalFileSystem(), segment.close(0, []))
    finally:
        like.unlink()
    return sorted(path.name for path in directory.iterdir())


def test_the_largest_offset_that_fits_the_index_is_written(tmp_path: Path) -> None:
    kinds = [name.split(".")[1] for name in write(tmp_path, BASE + 2**31 - 1)]
    assert kinds == ["index", "log", "timeindex"]


def test_an_offset_that_does_not_fit_the_index_is_refused_and_no_file_is_left(tmp_path: Path) -> None:
    with pytest.raises(CorruptLogError, match=f"offset {BASE + 2**31}, too far for an index with base offset {BASE}"):
        write(tmp_path, BASE + 2**31)
    assert list(tmp_path.iterdir()) == []


def test_a_segment_is_refused_that_a_broker_would_not_open() -> None:
    """As ``FileRecords.append``; brokers after 4.4 begin another segment (KAFKA-20036)."""
    rows = np.zeros(2, OUT_ROW)
    rows["last_offset"], rows["size"] = [BASE, BASE + 1], [2**30, 2**30 - 1]
    indexes = SegmentIndexes(BASE, 4096, "7.log")
    indexes.append(rows)
    rows["last_offset"], rows["size"] = BASE + 2, [1, 0]
    with pytest.raises(UnsupportedLogError, match=r"segment 7 would have 2147483648 bytes, more than a broker opens"):
        indexes.append(rows)
