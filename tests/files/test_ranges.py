"""Views of files: slices read only their bytes, and scans through windows find the same batches."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from compaction.errors import StorageError
from compaction.files.contents import View, view
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentScan
from tests.kafka.encode import Batch, Record


@pytest.mark.parametrize("seed", range(5))
def test_batches_are_found_through_windows_as_in_a_local_file(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([1, 100, 40_000, 70_000, 200_000]) for _ in range(60)]
    batches = [Batch([Record(i, 0, b"k", bytes(size))]).encode() for i, size in enumerate(sizes)]
    whole = b"".join(batches) + chance.choice([b"", bytes(30), batches[0][:-1], b"\xff" * 100])
    (tmp_path / "segment").write_bytes(whole)
    ranged = View("far", lambda start, length: whole[start : start + length], len(whole))
    near = SegmentScan(view(LocalFileSystem(), str(tmp_path / "segment")), check_crc=True)
    far = SegmentScan(ranged, check_crc=True)
    rows = [np.concatenate(list(scan)) for scan in (near, far)]
    assert np.array_equal(rows[0], rows[1])
    ends = [(scan.position, scan.error, scan.next_offset, scan.complete) for scan in (near, far)]
    assert ends[0] == ends[1]
    assert near.damage() == far.damage()


def test_slices_can_be_sliced() -> None:
    data = bytes(range(256)) * 1000
    ranged = View("far", lambda start, length: data[start : start + length], len(data))
    assert ranged[1000:][5:20].tobytes() == data[1005:1020]
    assert len(ranged[10:5]) == 0
    assert ranged[-3:].tobytes() == data[-3:]
    assert ranged[300_000:].tobytes() == b""
    assert ranged.any() and not ranged[0:1].any()


def test_a_file_truncated_after_the_view_was_made_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    found = view(LocalFileSystem(), str(path))
    path.write_bytes(b"0123")
    with pytest.raises(StorageError, match="at byte 4: file was truncated while it was read"):
        found.tobytes()


@pytest.mark.parametrize("last", [b"", b"x"])
def test_the_holes_of_a_file_are_not_read_to_find_a_byte(tmp_path: Path, last: bytes) -> None:
    path = tmp_path / "segment"
    with path.open("wb") as file:
        file.write(b"data")
        # it would take minutes to read
        file.seek(1 << 40)
        file.write(last)
        file.truncate((1 << 40) + 4096)
    assert view(LocalFileSystem(), str(path))[4:].any() == bool(last)
