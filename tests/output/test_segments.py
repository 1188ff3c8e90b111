"""Files of segments: offsets that fit, bytes that are accepted only as written, in blocks of any size; which are renamed and
removed, and that an interruption of a deletion loses no record that should be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from compaction.config.resolver import TopicConfig
from compaction.errors import CorruptLogError, StorageError, UnsupportedLogError
from compaction.files import contents
from compaction.files.contents import READ_BYTES, FileDigest
from compaction.files.durable import run_alone
from compaction.files.filesystem import File, FileRange, FileSystem, join
from compaction.files.local import LocalFileSystem
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.kernels.tables import OUT_ROW
from compaction.log.checkpoint_store import Checkpoints, read_checkpoints
from compaction.log.read_log import ReadOptions, read_log, snapshots
from compaction.names import DELETED, LEADER_EPOCHS, LOG, LOG_STARTS, SWAP
from compaction.output import segment_writer
from compaction.output.segment_files import any_log, delete_segments, discard_unfinished
from compaction.output.segment_writer import ReadBack, SegmentCheck, SegmentIndexes, SegmentWriter, copy_verified, new_suffix
from compaction.recovery.recover import recover_log
from compaction.rules.segment_retention import DeletionCause, DeletionPlan, Removal
from tests.disk import FaultyFileSystem, MemorySource, Operation, WatchedFileSystem, crash_states
from tests.kafka.encode import Batch, Record
from tests.log.broker_model import start_broker
from tests.log.logs import NOW_MS, TOPIC, data_batch, data_segment, location, put_snapshot, served

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


HERE = location("/logs")
PRODUCER = ProducerEntry(7, 0, 3, 205, 0, NOW_MS, -1, -1)


def log_of_three() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir(HERE.path)
    for segment in (data_segment(0, [5, 10]), data_segment(100, [105]), data_segment(200, [200, 205])):
        segment.put(fs, HERE.path)
    for offset in (100, 200):
        put_snapshot(fs, HERE.path, offset)
    fs.put(join(HERE.path, LEADER_EPOCHS), b"0\n3\n0 0\n1 50\n4 150\n")
    return fs.settle()


def delete(fs: FileSystem, bases: Sequence[int], *, start: int, producers: tuple[ProducerEntry, ...] = ()) -> None:
    """Delete these segments of a log that ends at offset 206; the log start moves to ``start``."""
    view = read_log(fs, HERE, Checkpoints("/logs"), ReadOptions(NOW_MS))
    view = replace(view, log_end_offset=206, producers=producers)
    found = {segment.base_offset: segment for segment in view.segments}
    removals = tuple(Removal(found[base], DeletionCause.TIME, "") for base in bases)
    plan = DeletionPlan(view, TopicConfig(), removals, replace(view, log_start_offset=start), "")
    run_alone(fs, delete_segments(fs, HERE, plan))


def names(fs: FileSystem) -> list[str]:
    return [name for name in fs.listdir(HERE.path) if not name.endswith(DELETED)]


def test_the_oldest_segments_are_deleted_with_their_snapshots() -> None:
    fs = log_of_three()
    delete(fs, [0, 100], start=200)
    assert any_log(fs, HERE.path) == join(HERE.path, f"{200:020d}.log")
    assert [name for name in names(fs) if name.startswith("0")] == [
        f"{200:020d}.{kind}" for kind in ("index", "log", "snapshot", "timeindex")
    ]
    assert read_checkpoints(fs, "/logs").log_starts == {TOPIC: 200}


@pytest.mark.parametrize(("swapping", "discarded"), [([], 6), ([SWAP], 3)])
def test_cleaned_files_are_kept_while_there_are_swap_files(swapping: list[str], discarded: int) -> None:
    fs = log_of_three()
    for suffix in (".clean.one", ".cleaned", *swapping):
        data_segment(0, [5]).put(fs, HERE.path, suffix)
    assert discard_unfinished(fs, HERE.path) == discarded
    assert any(name.endswith(".cleaned") for name in fs.listdir(HERE.path)) == bool(swapping)


def test_leader_epochs_begin_at_the_log_start() -> None:
    fs = log_of_three()
    delete(fs, [0], start=100)
    assert fs.read_bytes(join(HERE.path, LEADER_EPOCHS)) == b"0\n2\n1 100\n4 150\n"


def test_if_every_segment_is_deleted_an_empty_one_is_created() -> None:
    fs = log_of_three()
    delete(fs, [0, 100, 200], start=206, producers=(PRODUCER,))
    recover_log(fs, HERE)
    view = read_log(fs, HERE, read_checkpoints(fs, "/logs"), ReadOptions(NOW_MS))
    assert (view.log_start_offset, view.log_end_offset, len(view.segments)) == (206, 206, 1)
    assert dict(snapshots(fs, HERE.path)) == {206: [PRODUCER]}


def test_with_a_malformed_checkpoint_no_segment_is_deleted() -> None:
    fs = log_of_three()
    fs.put(join("/logs", LOG_STARTS), b"0\n7\n")
    with pytest.raises(CorruptLogError, match="7 entries declared"):
        delete(fs, [0], start=100)
    assert sorted(served(fs, HERE.path)) == [5, 10, 105, 200, 205]


@pytest.mark.parametrize("bases", [[0, 100], [0, 100, 200]])
@pytest.mark.parametrize("with_broker", [False, True])
def test_after_any_interruption_the_log_is_valid_and_can_be_deleted_from_again(bases: list[int], with_broker: bool) -> None:
    start = 200 if len(bases) == 2 else 206

    def make(step: int | None) -> FaultyFileSystem:
        return log_of_three().run_until(step, lambda fs: delete(fs, bases, start=start))

    kept = {offset for offset in (5, 10, 105, 200, 205) if offset >= start}
    for name, fs in crash_states(make):
        if with_broker:
            start_broker(fs, HERE.path)
        recover_log(fs, HERE)
        view = read_log(fs, HERE, read_checkpoints(fs, "/logs"), ReadOptions(NOW_MS))
        assert view.log_end_offset == 206, name
        assert kept <= set(served(fs, HERE.path)), name
        again = [base for base in bases if base in {segment.base_offset for segment in view.segments}]
        delete(fs, again, start=start)
        assert set(served(fs, HERE.path)) == kept, name
        assert read_log(fs, HERE, read_checkpoints(fs, "/logs"), ReadOptions(NOW_MS)).log_end_offset == 206, name
