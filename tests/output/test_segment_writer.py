"""Output segments: offsets that fit, bytes that are accepted only as written, in blocks of any size, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from compaction.errors import CorruptLogError, StorageError, UnsupportedLogError
from compaction.files import contents
from compaction.files.contents import READ_BYTES, FileDigest
from compaction.files.durable import run_alone
from compaction.files.filesystem import File, FileRange
from compaction.files.local import LocalFileSystem
from compaction.kernels.tables import OUT_ROW
from compaction.names import LOG
from compaction.output import segment_writer
from compaction.output.segment_writer import ReadBack, SegmentCheck, SegmentIndexes, SegmentWriter, copy_verified, new_suffix
from tests.disk import FaultyFileSystem, MemorySource, Operation, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.log.logs import data_batch

BASE = 7
BATCHES = [data_batch(offset) for offset in (3, 5, 9)]
DATA = b"".join(BATCHES)
PATH = "/logs/0.log"
VALUE = bytes(64 << 10)


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


def written(data: bytes, kind: str = LOG) -> FileDigest:
    return FileDigest(kind, len(data), xxhash.xxh3_128_hexdigest(data))


def of_part(data: bytes) -> FileDigest:
    return written(data, ".part")


def disk(data: bytes) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/logs")
    fs.put(PATH, data)
    return fs


def check(data: bytes, block_bytes: int, parts: tuple[FileDigest, ...] = (), *, batches: int = 3) -> FileDigest:
    """Check ``data`` as an output that should be ``DATA``."""
    checked = SegmentCheck("a.log", parts)
    array = np.frombuffer(data, np.uint8)
    for start in range(0, len(array), block_bytes):
        checked.feed(array[start : start + block_bytes])
    return checked.end(len(DATA), batches, None if parts else written(DATA).digest)


@pytest.mark.parametrize("block_bytes", [1, 7, len(BATCHES[0]), len(DATA)])
@pytest.mark.parametrize(
    "parts",
    [(), (of_part(BATCHES[0]), of_part(b""), of_part(BATCHES[1] + BATCHES[2]), of_part(b""))],
    ids=["one task", "joined"],
)
def test_an_output_is_accepted_in_blocks_of_any_size(block_bytes: int, parts: tuple[FileDigest, ...]) -> None:
    assert check(DATA, block_bytes, parts) == written(DATA)


FLIPPED = DATA[:-3] + bytes([DATA[-3] ^ 1]) + DATA[-2:]
#: a byte of the first batch's base offset: no checksum covers it
MOVED = bytes([0, 0, 0, 0, 0, 0, 0, 4]) + DATA[8:]


@pytest.mark.parametrize(
    ("data", "block_bytes", "told", "more"),
    [
        pytest.param(FLIPPED, 50, "CRC", {}, id="flipped bit"),
        pytest.param(MOVED, 50, "other bytes than were written", {}, id="another base offset"),
        pytest.param(BATCHES[0] + BATCHES[1], 50, r"\d+ bytes, \d+ were written", {}, id="a batch is missing"),
        pytest.param(DATA[:-1], 50, f"{len(DATA) - 1} bytes, {len(DATA)} were written", {}, id="truncated"),
        pytest.param(BATCHES[1] + BATCHES[0] + BATCHES[2], 50, "offsets run backwards", {}, id="batches exchanged"),
        pytest.param(
            BATCHES[0] + BATCHES[2] + BATCHES[1], 2 * len(BATCHES[0]), "offsets run backwards", {}, id="exchanged in two blocks"
        ),
        pytest.param(DATA, 50, "3 batches, 4 were written", {"batches": 4}, id="another number of batches"),
        pytest.param(
            DATA, 50, "other bytes than were written",
            {"parts": (of_part(data_batch(4)), of_part(DATA[len(BATCHES[0]) :]))}, id="joined of another part",
        ),
    ],
)  # fmt: skip
def test_an_output_that_differs_is_an_error(data: bytes, block_bytes: int, told: str, more: dict[str, Any]) -> None:
    with pytest.raises(StorageError, match=told):
        check(data, block_bytes, **more)


def test_a_verified_copy_is_durable_and_holds_the_byte_range() -> None:
    fs = disk(b"?" * 255 + DATA + b"torn")
    copy_verified(fs, fs, FileRange(PATH, 255, len(DATA) + 4), "/logs/target", len(DATA))
    fs.fsync_dir("/logs")
    assert fs.after_power_loss(None).read_bytes("/logs/target") == DATA + b"torn"


def test_a_damaged_batch_is_not_copied() -> None:
    fs = disk(FLIPPED)
    with pytest.raises(CorruptLogError, match="CRC"):
        copy_verified(fs, fs, FileRange(PATH, 0, len(DATA)), "/logs/target", len(DATA))


def test_a_copy_that_the_device_returns_differently_is_an_error() -> None:
    def corrupt(operation: Operation) -> None:
        if operation.path == "/logs/target":
            copied.put("/logs/target", FLIPPED)

    copied = disk(DATA)
    fs = WatchedFileSystem(copied, corrupt)
    with pytest.raises(StorageError, match="other bytes than were written"):
        copy_verified(fs, fs, FileRange(PATH, 0, len(DATA)), "/logs/target")


def batches(count: int) -> bytes:
    """Batches of a little more than 64 KiB."""
    return b"".join(Batch([Record(n, 0, b"key", VALUE)]).encode() for n in range(count))


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> int:
    """Follow from a few blocks on; returns the number of batches of an output that is followed."""
    monkeypatch.setattr(segment_writer, "_FOLLOW_BYTES", READ_BYTES)
    return 3 * READ_BYTES // len(VALUE)


def test_outputs_are_read_from_the_device_large_ones_while_they_are_written(
    following: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bool] = []
    real = FaultyFileSystem.open

    def watched(fs: FaultyFileSystem, path: str, *range_: int, uncached: bool = False) -> File:
        opened.append(uncached)
        return real(fs, path, *range_, uncached=uncached)

    monkeypatch.setattr(FaultyFileSystem, "open", watched)
    for count in (20, following):
        data = batches(count)
        check = ReadBack(disk(data), PATH, [])
        for size in range(0, len(data), READ_BYTES // 2):
            check.advance(size)
        assert (check._thread is not None) == (count == following)
        assert check.end(len(data), count, written(data).digest) == written(data)
    # not from the page cache
    assert opened == [True, True]


def test_an_object_is_not_read_before_it_is_complete(following: int) -> None:
    check = ReadBack(disk(b""), "s3://bucket/0.log", [])
    check.advance(10 * READ_BYTES)
    assert check._thread is None


def test_damage_found_while_following_is_raised_at_the_end(following: int) -> None:
    data = bytearray(batches(following))
    data[100] ^= 1
    check = ReadBack(disk(bytes(data)), PATH, [])
    check.advance(len(data))
    with pytest.raises(StorageError, match="CRC"):
        check.end(len(data), following, None)


def test_a_failing_reader_returns_its_buffer(following: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(MemorySource):
        def pread(self, view: memoryview, position: int) -> int:
            raise StorageError("cannot read", path=PATH)

    fs = disk(b"")
    monkeypatch.setattr(fs, "open", lambda *_, uncached: Failing(fs.inode(PATH)))
    monkeypatch.setattr(contents, "_spare", {})
    check = ReadBack(fs, PATH, [])
    check.advance(10 * READ_BYTES)
    with pytest.raises(StorageError, match="cannot read"):
        check.end(10 * READ_BYTES, 1, None)
    assert [len(spare) for spare in contents._spare.values()] == [1]


def test_an_abandoned_output_stops_its_reader(following: int) -> None:
    data = batches(following)
    check = ReadBack(disk(data), PATH, [])
    check.advance(len(data))
    check.abandon()
    assert check._thread is not None
    assert not check._thread.is_alive()
