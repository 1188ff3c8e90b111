"""How stored segments form a log: cut by index and headers, joined with a local tail; uploads by several leaders, retries and
gaps, against a simulated partition. Exports are those of ``LocalTieredStorage``."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from compaction.errors import CorruptLogError, LockedError
from compaction.exports import LogFile, StoredLog, StoredSegment
from compaction.exports.layout_view import log_files
from compaction.exports.lineage import newest_lineage, select, within
from compaction.exports.stored_segments import Batches, read_file
from compaction.files.contents import View
from compaction.files.filesystem import FileRange, join
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.files.uri import add_tail, parse_uri
from compaction.formats.checkpoints import EpochEntry
from compaction.formats.indexes import OFFSET_INDEX, OFFSET_ROW
from compaction.log.read_log import read_segments
from compaction.names import LogLocation, TopicPartition
from compaction.recovery.recover import recover_log
from tests.exports.exports import TOPIC_ID, local_tiered, offsets_in, upload, write_log_dir
from tests.files.test_lock import held_elsewhere
from tests.kafka.encode import Batch, Legacy, Record
from tests.log.logs import build, data_batch


def read_log_files(address: str) -> dict[str, bytes]:
    files, log = MixedFileSystem(), join(address, "orders-0")
    return {name: files.read_bytes(join(log, name)) for name in files.listdir(log)}


def offsets(address: str) -> list[int]:
    """The offsets of the log's batches, segment by segment."""
    files, log = MixedFileSystem(), join(address, "orders-0")
    names = [name for name in files.listdir(log) if name.endswith(".log")]
    return [offset for name in names for offset in offsets_in(files, join(log, name))]


def test_the_files_of_a_segment_are_those_that_were_uploaded(tmp_path: Path) -> None:
    logs = [upload(tmp_path, range(10)), upload(tmp_path, range(10, 25))]
    found = read_log_files(local_tiered(tmp_path))
    assert sorted(found) == sorted(
        [f"{base:020d}{kind}" for base in (0, 10) for kind in (".log", ".index", ".timeindex")]
        + [f"{10:020d}.snapshot", f"{25:020d}.snapshot", "leader-epoch-checkpoint", "partition.metadata"]
    )
    for base, log in zip((0, 10), logs, strict=True):
        for kind in (".log", ".index", ".timeindex"):
            assert found[f"{base:020d}{kind}"] == log.with_suffix(kind).read_bytes()
    assert found["leader-epoch-checkpoint"] == b"0\n1\n0 0\n"
    assert found["partition.metadata"].decode().endswith(f"topic_id: {TOPIC_ID}")


def test_an_unfinished_upload_is_reported_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upload(tmp_path, range(10))
    upload(tmp_path, range(10, 20)).with_suffix(".snapshot").unlink()
    with caplog.at_level(logging.WARNING):
        assert offsets(local_tiered(tmp_path)) == list(range(10))
    assert "ignored: 1 incomplete upload" in caplog.text


def test_a_segment_that_was_cut_is_recovered_and_has_its_offsets_once(tmp_path: Path) -> None:
    """Two leaders rolled at other offsets; what the first one had at its end was truncated."""
    upload(tmp_path, range(40), [(1, 0)])
    upload(tmp_path, range(20, 60), [(1, 0), (2, 30)])
    address = local_tiered(tmp_path)
    assert offsets(address) == list(range(60))
    files = OverlayFileSystem(MixedFileSystem())
    report = recover_log(files, LogLocation(TopicPartition("orders", 0), address, join(address, "orders-0")))
    assert [action.partition(":")[0] for action in report.actions] == [f"rebuilt the indexes of segment {at}" for at in (0, 30)]
    found = read_segments(files, join(address, "orders-0"))
    assert [(segment.base_offset, segment.next_offset) for segment in found] == [(0, 30), (30, 60)]


@pytest.mark.parametrize(
    "segments",
    [(range(20, 25),), (range(10, 20), range(20, 25)), (range(5, 15), range(15, 25)), (range(25),), (range(18, 25),)],
)
def test_a_local_tail_continues_an_export_without_overlap(tmp_path: Path, segments: tuple[range, ...]) -> None:
    export = tmp_path / "export"
    upload(export, range(10))
    upload(export, range(10, 20))
    address = local_tiered(export)
    add_tail(address, str(write_log_dir(tmp_path / "local", *segments)))
    assert offsets(address) == list(range(25))
    assert MixedFileSystem().read_bytes(join(address, "log-start-offset-checkpoint")) == b"0\n1\norders 0 3\n"


def test_a_tail_is_given_in_the_address_too(tmp_path: Path) -> None:
    upload(tmp_path / "export", range(10))
    local = write_log_dir(tmp_path / "local", range(10, 12), range(12, 12))
    address = parse_uri(f"local-tiered+file://{tmp_path}/export?tail={local}", "--log-dir")
    assert offsets(address) == list(range(12))
    # the active segment, though it is empty
    assert f"{12:020d}.log" in read_log_files(address)


@pytest.mark.parametrize(
    "stored", ["0\n0\n", "0\n1\n0 0\n", "0\n2\n0 0\n1 12\n", "0\n2\n0 0\n7 3\n", "0\n3\n0 0\n1 12\n3 18\n"]
)
def test_leader_epochs_that_the_tails_batches_contradict_are_not_used(tmp_path: Path, stored: str) -> None:
    """As a broker that was killed leaves them. With these, offsets are missing or lost."""
    upload(tmp_path / "export", range(14), [(0, 0), (1, 12)])
    upload(tmp_path / "export", range(14, 20), [(0, 0), (1, 12), (2, 15)])
    address = local_tiered(tmp_path / "export")
    epochs = ((0, 0), (1, 12), (2, 15), (3, 22))
    local = write_log_dir(tmp_path / "local", range(10, 14), range(14, 20), range(20, 25), epochs=epochs)
    (local / "orders-0" / "leader-epoch-checkpoint").write_text(stored)
    add_tail(address, str(local))
    assert offsets(address) == list(range(25))
    assert read_log_files(address)["leader-epoch-checkpoint"] == b"0\n4\n0 0\n1 12\n2 15\n3 22\n"


def test_the_lineage_of_the_tail_decides(tmp_path: Path) -> None:
    """The export has offsets that the new leader truncated before it uploaded anything."""
    upload(tmp_path / "export", range(20), [(0, 0)])
    address = local_tiered(tmp_path / "export")
    local = write_log_dir(tmp_path / "local", range(10, 14), epochs=((0, 0), (1, 12)))
    add_tail(address, str(local))
    assert offsets(address) == list(range(14))
    assert read_log_files(address)["leader-epoch-checkpoint"] == b"0\n2\n0 0\n1 12\n"


def test_partitions_of_which_nothing_is_uploaded_are_read_from_the_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    upload(tmp_path / "export", range(10))
    address = local_tiered(tmp_path / "export")
    local = write_log_dir(tmp_path / "local", range(10, 20))
    shutil.copytree(local / "orders-0", local / "orders-1")
    shutil.copytree(local / "orders-0", local / "audit-0")
    shutil.copytree(local / "orders-0", local / "__consumer_offsets-0")
    add_tail(address, str(local))
    files = MixedFileSystem()
    with caplog.at_level(logging.WARNING):
        assert files.listdir(address) == ["log-start-offset-checkpoint", "orders-0", "orders-1"]
    assert "1 topic of the local tail without uploads, not read with this export: audit" in caplog.text
    assert offsets_in(files, join(address, f"orders-1/{10:020d}.log")) == list(range(10, 20))
    assert offsets(address) == list(range(20))


@pytest.mark.parametrize("by_option", [True, False])
def test_the_tail_of_a_live_broker_is_refused(tmp_path: Path, by_option: bool) -> None:
    upload(tmp_path / "export", range(10))
    local = write_log_dir(tmp_path / "local", range(10, 20))
    if by_option:
        address = local_tiered(tmp_path / "export")
        add_tail(address, str(local))
    else:
        address = parse_uri(f"local-tiered+file://{tmp_path}/export?tail={local}", "--log-dir")
    with held_elsewhere(local), pytest.raises(LockedError, match="log directory is in use"):
        offsets(address)


def test_a_log_start_within_a_batch_retains_the_batch(tmp_path: Path) -> None:
    """DeleteRecords truncates the leader epochs at any offset."""
    upload(tmp_path, range(200), [(0, 0)], records=50)
    upload(tmp_path, range(200, 300), [(0, 130)], records=50)
    address = local_tiered(tmp_path)
    assert offsets(address) == [100, 150, 200, 250]
    files = OverlayFileSystem(MixedFileSystem())
    recover_log(files, LogLocation(TopicPartition("orders", 0), address, join(address, "orders-0")))
    found = read_segments(files, join(address, "orders-0"))
    assert [(segment.base_offset, segment.next_offset) for segment in found] == [(100, 200), (200, 300)]
    assert read_log_files(address)["leader-epoch-checkpoint"] == b"0\n1\n0 100\n"


def test_a_segment_whose_first_batch_has_the_log_start_is_used_as_it_is(tmp_path: Path) -> None:
    log = upload(tmp_path, range(100, 200), [(0, 130)], records=50)
    assert read_log_files(local_tiered(tmp_path))[f"{100:020d}.index"] == log.with_suffix(".index").read_bytes()
    assert offsets(local_tiered(tmp_path)) == [100, 150]


def test_a_log_start_of_the_tail_within_a_batch_leaves_the_uploads_as_they_are(tmp_path: Path) -> None:
    upload(tmp_path / "export", range(200), [(0, 0), (1, 100)], records=50)
    address = local_tiered(tmp_path / "export")
    add_tail(address, str(write_log_dir(tmp_path / "local", range(200, 210), epochs=((1, 130), (2, 205)))))
    assert offsets(address) == [0, 50, 100, 150, *range(200, 210)]
    assert read_log_files(address)["leader-epoch-checkpoint"] == b"0\n3\n0 0\n1 100\n2 205\n"


def batches_of(data: bytes, index: bytes = b"", base_offset: int = 0) -> Batches:
    return Batches("a.log", View("a.log", lambda start, length: data[start : start + length], len(data)), base_offset, index)


@pytest.mark.parametrize("interval", [1, 300, 4096])
def test_positions_by_the_index_are_those_by_the_headers(interval: int) -> None:
    written = [data_batch(offset) for offset in range(100, 200)]
    built = build(100, written, interval=interval).files
    batches = batches_of(built[".log"], built[".index"], 100)
    for offset in range(100, 201):
        assert batches.position_of(offset) == sum(map(len, written[: offset - 100]))
    assert batches_of(built[".log"], b"nonsense", 100).before(150) == 0
    assert batches.end_offset(0) == batches.inactive_end_offset() == 200
    assert batches_of(built[".log"][:-1]).end_offset(0) == 199
    with pytest.raises(CorruptLogError, match="its complete batches end at byte"):
        batches_of(built[".log"][:-1]).inactive_end_offset()
    assert (batches_of(b"").end_offset(7), batches_of(b"", b"", 7).inactive_end_offset()) == (7, 7)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_last_message_that_is_shorter_than_a_batch_header_counts(magic: int) -> None:
    data = Legacy([Record(offset, 1, b"k", b"v") for offset in range(5)], magic).encode()
    assert len(data) < 5 * 61
    assert (batches_of(data).end_offset(0), batches_of(data).position_of(5)) == (5, len(data))


@pytest.mark.parametrize("shift", [1, 20])
def test_an_entry_that_points_to_a_later_batch_is_not_used(shift: int) -> None:
    """The batches before would be skipped."""
    written = [data_batch(offset) for offset in range(100, 200)]
    data, size = b"".join(written), len(written[0])
    for position, found in ((20 + shift) * size, 0), (20 * size, 20 * size), (17 * size, 17 * size), (17 * size + 1, 0):
        index = OFFSET_INDEX.write(np.array([(120, position)], OFFSET_ROW), 100)
        assert batches_of(data, index, 100).before(130) == found


def test_a_segment_that_was_compacted_has_holes() -> None:
    batches = [data_batch(offset) for offset in range(10)]
    assert not batches_of(b"".join(batches)).have_holes()
    assert batches_of(b"".join(batches[:4] + batches[5:])).have_holes()
    assert batches_of(b"".join(batches[1:])).have_holes()


def test_an_offset_within_a_batch_is_an_error() -> None:
    records = [Record(offset, 0, b"k", b"v") for offset in range(5)]
    with pytest.raises(CorruptLogError, match="offset 3 is within the batch of offsets 0 to 4"):
        batches_of(Batch(records).encode()).position_of(3)


def test_malformed_headers_are_an_error() -> None:
    with pytest.raises(CorruptLogError, match="a.log at byte"):
        batches_of(bytes(200)).position_of(3)


def test_a_segment_in_memory_is_cut_like_a_file() -> None:
    """A layout may build segments from something else."""
    first, second = (
        StoredSegment(name, offsets.start, offsets.stop, {".log": LogFile(len(data), 5, partial(bytes, data))})
        for name, offsets in (("first", range(10)), ("second", range(5, 15)))
        for data in [b"".join(map(data_batch, offsets))]
    )
    files = LocalFileSystem()
    found = log_files(files, "orders-0", StoredLog((first, second)), StoredLog(()))
    assert sorted(found) == [f"{0:020d}.log", f"{10:020d}.log"]
    assert read_file(files, found[f"{10:020d}.log"]) == b"".join(map(data_batch, range(10, 15)))
    assert read_file(files, found[f"{10:020d}.log"], 3, 4) == data_batch(10)[3:7]


def test_an_empty_log_has_no_files(tmp_path: Path) -> None:
    assert log_files(LocalFileSystem(), str(tmp_path), StoredLog(()), StoredLog(())) == {}


def test_offsets_that_decrease_are_an_error() -> None:
    """No checksum covers a base offset."""
    data = data_batch(0) + data_batch(5) + data_batch(2) + data_batch(7)
    with pytest.raises(CorruptLogError, match="batch begins at offset 2, expected 6 or more"):
        batches_of(data).position_of(7)


def segment(
    start: int, end: int, epochs: Sequence[tuple[int, int]] = (), *, name: str = "", written_ms: int = 0, known: object = None
) -> StoredSegment:
    """A stored segment; its broker knew the epochs ``known``, by default its own."""
    own = tuple(EpochEntry(*entry) for entry in epochs)
    lineage = own if known is None else tuple(EpochEntry(*entry) for entry in known)  # type: ignore[attr-defined]
    files = {".log": LogFile(end - start, 0, FileRange("x", 0, end - start))}
    return StoredSegment(name or f"{start}-{end}", start, end, files, own, lambda: lineage, written_ms)


def chosen(*segments: StoredSegment) -> list[tuple[str, int, int]]:
    pieces = select("orders-0", segments, newest_lineage(segments))
    return [(piece.segment.path, piece.start_offset, piece.end_offset) for piece in pieces]


OLD, NEW = segment(0, 5, name="old", written_ms=1), segment(0, 5, name="new", written_ms=2)


@pytest.mark.parametrize(
    ("segments", "pieces"),
    [
        ([segment(5, 9), segment(0, 5), segment(9, 12)], [("0-5", 0, 5), ("5-9", 5, 9), ("9-12", 9, 12)]),
        # of two uploads of the same offsets the later one is used
        ([OLD, NEW], [("new", 0, 5)]),
        ([NEW, OLD], [("new", 0, 5)]),
        # one that overlaps is cut, one within another is left out
        ([segment(0, 10), segment(6, 20)], [("0-10", 0, 10), ("6-20", 10, 20)]),
        ([segment(0, 10), segment(3, 7), segment(10, 11)], [("0-10", 0, 10), ("10-11", 10, 11)]),
        # the leader of epoch 3 uploaded offsets 80 to 99, which the leader of epoch 4 replaced by its own
        (
            [
                segment(50, 100, [(3, 50)], known=[(3, 0)]),
                segment(0, 50, [(3, 0)]),
                segment(60, 120, [(3, 60), (4, 80)], known=[(3, 0), (4, 80)]),
            ],
            [("0-50", 0, 50), ("50-100", 50, 80), ("60-120", 80, 120)],
        ),
        # the leader of epoch 2 never was in the lineage
        (
            [
                segment(0, 10, [(1, 0)]),
                segment(10, 30, [(2, 10)], name="stray", written_ms=9),
                segment(10, 20, [(5, 10)], known=[(1, 0), (5, 10)]),
            ],
            [("0-10", 0, 10), ("10-20", 10, 20)],
        ),
    ],
)
def test_each_offset_is_read_from_one_of_the_uploads(segments: list[StoredSegment], pieces: list[tuple[str, int, int]]) -> None:
    assert chosen(*segments) == pieces


@pytest.mark.parametrize(("segments", "told"), [(((0, 5), (7, 9)), "5 to 6"), (((0, 5), (5, 6), (1000, 1001)), "6 to 999")])
def test_a_gap_is_an_error_that_names_the_offsets(segments: tuple[tuple[int, int], ...], told: str) -> None:
    with pytest.raises(CorruptLogError, match=f"orders-0: offsets {told} are not stored"):
        chosen(*(segment(*each) for each in segments))


def test_the_lineage_is_that_of_the_highest_epoch() -> None:
    low, high = segment(0, 90, [(1, 0)]), segment(0, 10, [(2, 0)])
    assert newest_lineage([low, high]) == high.epochs
    assert newest_lineage([]) == ()


def test_the_epochs_of_a_range_start_with_it() -> None:
    lineage = [EpochEntry(1, 0), EpochEntry(3, 10), EpochEntry(4, 20)]
    assert within(lineage, 5, 15) == ((1, 5), (3, 10))
    assert within(lineage, 20, 21) == ((4, 20),)
    assert within((), 0, 10) == ()


@pytest.mark.parametrize("seed", range(40))
def test_the_log_of_the_last_leader_is_found_among_the_uploads_of_all(seed: int) -> None:
    """Leaders append, upload what they have in segments of their own, and lose their end at an election."""
    chance = random.Random(seed)
    log: list[int] = []
    uploads: list[StoredSegment] = []
    for epoch in range(chance.randint(1, 5)):
        del log[len(log) - chance.randint(0, min(6, len(log))) :]
        log += [epoch] * chance.randint(1, 20)
        epochs, at = epochs_of(log), 0
        while at < len(log):
            end = min(len(log), at + chance.randint(1, 9))
            own = within(epochs, at, end)
            uploads.append(segment(at, end, own, name=f"{epoch}:{at}", written_ms=len(uploads), known=epochs))
            at = end
    chance.shuffle(uploads)
    pieces = select("orders-0", uploads, newest_lineage(uploads))
    found: list[int] = []
    for piece in pieces:
        assert piece.start_offset == len(found)
        found += [epoch_at(piece.segment, offset) for offset in range(piece.start_offset, piece.end_offset)]
    assert found == log


def epochs_of(log: list[int]) -> list[EpochEntry]:
    """The leader epochs of a log, given the epoch of each offset."""
    return [EpochEntry(epoch, at) for at, epoch in enumerate(log) if at == 0 or log[at - 1] != epoch]


def epoch_at(stored: StoredSegment, offset: int) -> int:
    return max(entry.epoch for entry in stored.epochs if entry.start_offset <= offset)
