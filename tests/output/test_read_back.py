"""Read-back: small outputs are read at the end, large ones while they are written, and a failure is not lost."""

from __future__ import annotations

import pytest
import xxhash

from compaction.errors import StorageError
from compaction.files import contents
from compaction.files.contents import READ_BYTES, FileDigest
from compaction.files.filesystem import File
from compaction.names import LOG
from compaction.output import segment_writer
from compaction.output.segment_writer import ReadBack
from tests.disk import FaultyFileSystem, MemorySource
from tests.kafka.encode import Batch, Record

PATH = "/logs/0.log"
VALUE = bytes(64 << 10)


def batches(count: int) -> bytes:
    """Batches of a little more than 64 KiB."""
    return b"".join(Batch([Record(n, 0, b"key", VALUE)]).encode() for n in range(count))


def written(data: bytes) -> FileDigest:
    return FileDigest(LOG, len(data), xxhash.xxh3_128_hexdigest(data))


def disk(data: bytes) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/logs")
    fs.put(PATH, data)
    return fs


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> int:
    """Follow from a few blocks on; returns the number of batches of an output that is followed."""
    monkeypatch.setattr(segment_writer, "_FOLLOW_BYTES", READ_BYTES)
    return 3 * READ_BYTES // len(VALUE)


def test_a_small_output_is_read_when_it_is_complete() -> None:
    data = batches(20)
    check = ReadBack(disk(data), PATH, [])
    check.advance(len(data))
    assert check._thread is None
    assert check.end(len(data), 20, written(data).digest) == written(data)


def test_a_large_output_is_read_while_it_is_written(following: int) -> None:
    data = batches(following)
    check = ReadBack(disk(data), PATH, [])
    for size in range(0, len(data), READ_BYTES // 2):
        check.advance(size)
    assert check._thread is not None
    assert check.end(len(data), following, written(data).digest) == written(data)


def test_outputs_are_read_from_the_device_and_not_from_the_page_cache(following: int, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bool] = []
    real = FaultyFileSystem.open

    def watched(fs: FaultyFileSystem, path: str, *range_: int, uncached: bool = False) -> File:
        opened.append(uncached)
        return real(fs, path, *range_, uncached=uncached)

    monkeypatch.setattr(FaultyFileSystem, "open", watched)
    for count in (20, following):
        data = batches(count)
        check = ReadBack(disk(data), PATH, [])
        check.advance(len(data))
        check.end(len(data), count, written(data).digest)
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
