"""Verification: bytes are accepted as written, in blocks of any size, and every difference is an error."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from compaction.errors import CorruptLogError, StorageError
from compaction.files.contents import FileDigest
from compaction.files.filesystem import FileRange
from compaction.names import LOG
from compaction.output.segment_writer import SegmentCheck, copy_verified
from tests.disk import FaultyFileSystem, Operation, WatchedFileSystem
from tests.log.logs import data_batch

BATCHES = [data_batch(offset) for offset in (3, 5, 9)]
DATA = b"".join(BATCHES)
DIGEST = xxhash.xxh3_128_hexdigest(DATA)


def part(data: bytes) -> FileDigest:
    return FileDigest(".part", len(data), xxhash.xxh3_128_hexdigest(data))


def check(data: bytes, block_bytes: int, parts: tuple[FileDigest, ...] = (), *, batches: int = 3) -> FileDigest:
    """Check ``data`` as an output that should be ``DATA``."""
    checked = SegmentCheck("a.log", parts)
    array = np.frombuffer(data, np.uint8)
    for start in range(0, len(array), block_bytes):
        checked.feed(array[start : start + block_bytes])
    return checked.end(len(DATA), batches, None if parts else DIGEST)


@pytest.mark.parametrize("block_bytes", [1, 7, len(BATCHES[0]), len(DATA)])
@pytest.mark.parametrize(
    "parts",
    [(), (part(BATCHES[0]), part(b""), part(BATCHES[1] + BATCHES[2]), part(b""))],
    ids=["one task", "joined"],
)
def test_an_output_is_accepted_in_blocks_of_any_size(block_bytes: int, parts: tuple[FileDigest, ...]) -> None:
    assert check(DATA, block_bytes, parts) == FileDigest(LOG, len(DATA), DIGEST)


FLIPPED = DATA[:-3] + bytes([DATA[-3] ^ 1]) + DATA[-2:]
#: a byte of the first batch's base offset: no checksum covers it
MOVED = bytes([0, 0, 0, 0, 0, 0, 0, 4]) + DATA[8:]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (FLIPPED, "CRC"),
        (MOVED, "other bytes than were written"),
        (DATA[: len(BATCHES[0]) + len(BATCHES[1])], f"{len(DATA) - len(BATCHES[2])} bytes, {len(DATA)} were written"),
        (DATA[:-1], f"{len(DATA) - 1} bytes, {len(DATA)} were written"),
        (BATCHES[1] + BATCHES[0] + BATCHES[2], "offsets run backwards"),
    ],
    ids=["flipped bit", "another base offset", "a batch is missing", "truncated", "batches exchanged"],
)
def test_an_output_that_differs_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        check(data, 50)


def test_a_joined_output_with_another_part_is_an_error() -> None:
    with pytest.raises(StorageError, match="other bytes than were written"):
        check(DATA, 50, (part(data_batch(4)), part(DATA[len(BATCHES[0]) :])))


def test_an_output_with_another_number_of_batches_is_an_error() -> None:
    with pytest.raises(StorageError, match="3 batches, 4 were written"):
        check(DATA, 50, batches=4)


def disk(data: bytes) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/logs")
    fs.put("/logs/source", data)
    return fs


def test_a_verified_copy_is_durable_and_holds_the_byte_range() -> None:
    fs = disk(b"??" + DATA + b"torn")
    copy_verified(fs, fs, FileRange("/logs/source", 2, len(DATA) + 4), "/logs/target", len(DATA))
    fs.fsync_dir("/logs")
    assert fs.after_power_loss(None).read_bytes("/logs/target") == DATA + b"torn"


def test_a_damaged_batch_is_not_copied() -> None:
    fs = disk(FLIPPED)
    with pytest.raises(CorruptLogError, match="CRC"):
        copy_verified(fs, fs, FileRange("/logs/source", 0, len(DATA)), "/logs/target", len(DATA))


def test_a_copy_that_the_device_returns_differently_is_an_error() -> None:
    def corrupt(operation: Operation) -> None:
        if operation.path == "/logs/target":
            copied.put("/logs/target", FLIPPED)

    copied = disk(DATA)
    fs = WatchedFileSystem(copied, corrupt)
    with pytest.raises(StorageError, match="other bytes than were written"):
        copy_verified(fs, fs, FileRange("/logs/source", 0, len(DATA)), "/logs/target")


def test_offsets_that_run_backwards_from_one_block_to_the_next_are_an_error() -> None:
    with pytest.raises(StorageError, match="offsets run backwards"):
        check(BATCHES[0] + BATCHES[2] + BATCHES[1], len(BATCHES[0]) + len(BATCHES[2]))
