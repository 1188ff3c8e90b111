"""Headers read by themselves give the same rows as a scan of all bytes, whatever the file contains."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from compaction.files.contents import View, view
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentScan
from compaction.kernels.batches import IO_ERROR, header_buffer, walk_headers
from compaction.kernels.tables import BATCH_ROW
from tests.kafka.encode import ABORT, COMMIT, Batch, Legacy, Producer, Record, marker


def batches(chance: random.Random) -> list[bytes]:
    """Large and small ones of every kind."""
    made: list[bytes] = []
    for base in range(0, 40 * 4, 4):
        size = chance.choice([1, 100, 5_000, 9_000, 70_000])
        record = Record(base, 1_000 + base, b"k", bytes(size))
        kind = chance.random()
        if kind < 0.1:
            made.append(Legacy([record], chance.choice([0, 1])).encode())
        elif kind < 0.3:
            made.append(marker(base, 1_000, Producer(7), chance.choice([ABORT, COMMIT])))
        else:
            made.append(Batch([record], producer_id=3, producer_epoch=0, base_sequence=base).encode())
    return made


@pytest.mark.parametrize("seed", range(12))
def test_reading_headers_only_gives_the_same_rows_as_reading_all_bytes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(b"".join(batches(chance)))
    harm = chance.choice(["none", "cut", "turned", "zeros"])
    if harm == "cut":
        del data[chance.randrange(len(data)) :]
    elif harm == "turned":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif harm == "zeros":
        data += bytes(500)
    path = tmp_path / "segment"
    path.write_bytes(data)
    plain = View("plain", lambda start, length: bytes(data[start : start + length]), len(data))
    near, far = SegmentScan(view(LocalFileSystem(), str(path))), SegmentScan(plain)
    found = [np.concatenate([np.empty(0, BATCH_ROW), *scan]) for scan in (near, far)]
    assert found[0].tolist() == found[1].tolist()
    assert (near.position, near.error, near.next_offset) == (far.position, far.error, far.next_offset)
    assert near.damage() == far.damage()


def test_headers_of_a_byte_range_are_read_from_its_start(tmp_path: Path) -> None:
    first, second = (Batch([Record(base, 0, b"k", bytes(90_000))]).encode() for base in (0, 1))
    (tmp_path / "segment").write_bytes(first + second)
    whole = view(LocalFileSystem(), str(tmp_path / "segment"))
    rows = np.concatenate(list(SegmentScan(whole[len(first) :])))
    assert rows["position"].tolist() == [0]
    assert rows["base_offset"].tolist() == [1]


def test_an_unreadable_file_gives_an_error_code_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(Batch([Record(0, 0, b"k", bytes(9_000))]).encode())
    size = path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    path.write_bytes(b"short")
    assert walk_headers(descriptor, 0, size, header_buffer(), np.empty(4, BATCH_ROW)) == (0, 0, IO_ERROR)
    os.close(descriptor)
    assert walk_headers(descriptor, 0, size, header_buffer(), np.empty(4, BATCH_ROW)) == (0, 0, IO_ERROR)
