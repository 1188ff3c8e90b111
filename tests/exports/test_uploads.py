"""How uploads form a log: cut by index and headers, joined with a local tail; those of several leaders, retries and gaps.
Uploads that contradict themselves or each other are an error that names one of them, in every layout of tiered storage."""

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
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.contents import View
from compaction.files.filesystem import FileRange, join
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.files.uri import add_tail, parse_uri
from compaction.formats.checkpoints import EpochEntry
from compaction.formats.indexes import OFFSET_INDEX, OFFSET_ROW, TXN_ROW, write_txn_index
from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot
from compaction.log.read_log import read_segments
from compaction.names import LogLocation, TopicPartition
from compaction.recovery.recover import recover_log
from tests.exports.aiven_objects import KEY_ID
from tests.exports.exchanged_uploads import EPOCHS, LAYOUTS, Export, edit, exchange, problems
from tests.exports.exports import TOPIC_ID, Epochs, local_tiered, offsets, offsets_in, read_all, upload, write_log_dir
from tests.files.test_lock import held_elsewhere
from tests.kafka.encode import Batch, Legacy, Record
from tests.log.logs import build, data_batch


def test_the_files_of_a_segment_are_those_that_were_uploaded(tmp_path: Path) -> None:
    logs = [upload(tmp_path, range(10)), upload(tmp_path, range(10, 25))]
    found = read_all(local_tiered(tmp_path))
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
    assert f"{12:020d}.log" in read_all(address)


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
    assert read_all(address)["leader-epoch-checkpoint"] == b"0\n4\n0 0\n1 12\n2 15\n3 22\n"


def test_the_lineage_of_the_tail_decides(tmp_path: Path) -> None:
    """The export has offsets that the new leader truncated before it uploaded anything."""
    upload(tmp_path / "export", range(20), [(0, 0)])
    address = local_tiered(tmp_path / "export")
    local = write_log_dir(tmp_path / "local", range(10, 14), epochs=((0, 0), (1, 12)))
    add_tail(address, str(local))
    assert offsets(address) == list(range(14))
    assert read_all(address)["leader-epoch-checkpoint"] == b"0\n2\n0 0\n1 12\n"


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
    assert read_all(address)["leader-epoch-checkpoint"] == b"0\n1\n0 100\n"


def test_a_segment_whose_first_batch_has_the_log_start_is_used_as_it_is(tmp_path: Path) -> None:
    log = upload(tmp_path, range(100, 200), [(0, 130)], records=50)
    assert read_all(local_tiered(tmp_path))[f"{100:020d}.index"] == log.with_suffix(".index").read_bytes()
    assert offsets(local_tiered(tmp_path)) == [100, 150]


def test_a_log_start_of_the_tail_within_a_batch_leaves_the_uploads_as_they_are(tmp_path: Path) -> None:
    upload(tmp_path / "export", range(200), [(0, 0), (1, 100)], records=50)
    address = local_tiered(tmp_path / "export")
    add_tail(address, str(write_log_dir(tmp_path / "local", range(200, 210), epochs=((1, 130), (2, 205)))))
    assert offsets(address) == [0, 50, 100, 150, *range(200, 210)]
    assert read_all(address)["leader-epoch-checkpoint"] == b"0\n3\n0 0\n1 100\n2 205\n"


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


@pytest.mark.parametrize(
    ("data", "offset", "told"),
    [
        (Batch([Record(at, 0, b"k", b"v") for at in range(5)]).encode(), 3, "offset 3 is within the batch of offsets 0 to 4"),
        (bytes(200), 3, "a.log at byte"),
        # no checksum covers a base offset
        (b"".join(map(data_batch, (0, 5, 2, 7))), 7, "batch begins at offset 2, expected 6 or more"),
    ],
)
def test_malformed_headers_are_an_error(data: bytes, offset: int, told: str) -> None:
    with pytest.raises(CorruptLogError, match=told):
        batches_of(data).position_of(offset)


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


FIRST, SECOND = ((0, 0), (1, 30)), ((0, 0), (2, 30))


@pytest.fixture(params=LAYOUTS)
def export(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    monkeypatch.setenv(KEYS_VARIABLE, f"{KEY_ID}={tmp_path}/key.pem")
    return Export(tmp_path, request.param)


def test_the_uploads_of_the_newest_leader_are_read(export: Export) -> None:
    for offsets_of_upload, epochs in ((range(30), FIRST[:1]), (range(30, 60), FIRST), (range(30, 60), SECOND)):
        export.add(offsets_of_upload, epochs)
    assert export.records() == [(at, 0 if at < 30 else 2) for at in range(60)]


@pytest.mark.parametrize("kind", ["log", "epochs"])
def test_exchanged_objects_of_two_leaders_are_an_error(export: Export, kind: str) -> None:
    """The batches would be those that the newest leader has truncated."""
    export.add(range(30), FIRST[:1])
    first, second = (export.add(range(30, 60), ((0, 0), (epoch, 30))) for epoch in (2, 3))
    exchange(first, second, ".log" if kind == "log" else EPOCHS if export.layout == "local-tiered" else ".indexes")
    assert str(first.with_suffix("")) in (told := export.error()) or str(second.with_suffix("")) in told
    assert "leader epoch" in told or "authentication tag" in told


@pytest.mark.parametrize("written", [((0, 0), (2, 201)), ((0, 0), (1, 99), (2, 200)), ((0, 0), (1, 100), (2, 199))])
def test_batches_of_other_leader_epochs_in_the_middle_of_an_upload_are_an_error(export: Export, written: Epochs) -> None:
    """Those at both ends agree with its lineage."""
    log = export.add(range(300), ((0, 0), (1, 100), (2, 200)), written)
    assert f"{log} at byte" in (told := export.error())
    assert "its checkpoint 0 from offset 0, 1 from offset 100, 2 from offset 200; restore the objects of this upload" in told


def test_an_upload_whose_leader_epochs_its_own_lineage_lacks_is_an_error(export: Export) -> None:
    """It was the newest, and none of its offsets valid: the log ended before it."""
    for base in (0, 30, 60):
        export.add(range(base, base + 30), ((0, 0), (2, 30)))
    if export.layout == "local-tiered":
        log = export.add(range(90, 120), ((0, 0), (2, 30)), written=((0, 0), (2, 30), (3, 90)))
        told = "the batch of offsets 90 to 90 has leader epoch 3, its checkpoint 0 from offset 0, 2 from offset 30"
    else:
        log = export.add(range(90, 120), ((0, 0), (2, 30)))
        edit(log, segmentLeaderEpochs={"3": 90})
        told = "its leader epochs are 3 from offset 90, in its leader epoch checkpoint 0 from offset 0, 2 from offset 30"
    assert f"{log}" in export.error() and told in export.error()


def test_a_manifest_without_leader_epochs_is_an_error(tmp_path: Path) -> None:
    """All its offsets would be taken for valid."""
    export = Export(tmp_path, "aiven")
    export.add(range(30, 60), SECOND)
    edit(log := export.add(range(30, 60), FIRST), segmentLeaderEpochs={}, eventTimestampMs=2**50)
    assert f"{log}: its leader epochs are empty, in its leader epoch checkpoint 0 from offset 0" in export.error()


def test_an_empty_leader_epoch_checkpoint_is_an_error(tmp_path: Path) -> None:
    (export := Export(tmp_path, "local-tiered")).add(range(30, 60), SECOND)
    log = export.add(range(30, 60), (), written=FIRST)
    assert str(log) in export.error()


@pytest.mark.parametrize(
    "newest", [((0, 0), (2, 60)), ((0, 0), (1, 30), (2, 60)), ((0, 0), (1, 10), (2, 30)), ((1, 0), (2, 30)), ((0, 5), (2, 31))]
)
def test_lineages_with_one_leader_and_different_histories_are_an_error(export: Export, newest: Epochs) -> None:
    """The newest upload agrees with itself, and with what an earlier leader has uploaded."""
    export.add(range(30), SECOND[:1])
    export.add(range(30, 60), FIRST)
    export.add(range(30, 60), SECOND)
    export.add(range(60, 90), newest)
    assert ", that of the newest leader " in (told := export.error()) and "its leader epoch checkpoint has " in told


def test_a_lineage_that_a_log_start_has_cut_agrees_with_the_others(export: Export) -> None:
    export.add(range(30), SECOND[:1])
    export.add(range(30, 60), ((0, 12), (2, 30)))
    export.add(range(60, 90), ((2, 41),))
    export.add(range(90, 120), ((2, 41), (5, 95)))
    assert export.records() == [(at, 2 if at < 95 else 5) for at in range(41, 120)]


def test_a_tail_whose_lineage_contradicts_that_of_the_export_is_an_error(export: Export, tmp_path: Path) -> None:
    export.add(range(30), SECOND[:1])
    export.add(range(30, 60), SECOND)
    address = export.address
    add_tail(address, str(write_log_dir(tmp_path / "local", range(50, 80), epochs=((0, 0), (2, 50)))))
    assert "its leader epoch checkpoint has 0 from offset 0, 2 from offset 30, that of the newest leader 0" in export.error()


@pytest.mark.parametrize("lost", [20, 0.5, "the last batch"])
def test_a_last_upload_that_was_cut_is_an_error(export: Export, lost: object) -> None:
    """An upload is an inactive segment, without the torn tail that an active one may have."""
    export.add(range(60), SECOND[:1])
    log = export.add(range(60, 120), SECOND[:1])
    data = log.read_bytes()
    lost_bytes = len(data_batch(119)) if isinstance(lost, str) else lost if isinstance(lost, int) else len(data) // 2
    log.write_bytes(data[: len(data) - int(str(lost_bytes))])
    assert str(log) in (told := export.error())
    if export.layout != "local-tiered":
        assert f"has {len(data) - int(str(lost_bytes))} bytes, its manifest lists {len(data)}" in told
    elif isinstance(lost, str):
        assert "its time index has offset 119, its batches have 60 to 118" in told
    else:
        assert "its complete batches end at byte" in told


def test_a_cut_upload_whose_manifest_was_cut_too_is_an_error(tmp_path: Path) -> None:
    log = (export := Export(tmp_path, "aiven")).add(range(60), SECOND[:1])
    log.write_bytes(data := log.read_bytes()[:-20])
    edit(log, "chunkIndex", originalFileSize=len(data), finalTransformedChunkSize=len(data) % 512)
    assert f"the segment has {len(data)} bytes" in export.error()


@pytest.mark.parametrize("count", [10, 200])
def test_the_batches_of_another_segment_are_an_error(export: Export, count: int) -> None:
    """Of the same sizes and leader epoch: an upload would have the offsets of two, and those of the first one would be lost."""
    first, second = (export.add(range(at, at + count), SECOND[:1]) for at in (1000, 1000 + count))
    shutil.copy(second, first)
    assert str(first) in export.error()


PAST_END = "its producer snapshot or transaction index has offset 200, its batches have 0 to 199"
#: of an upload of offsets 0 to 199: a file, its content, the error
CONTRADICTIONS = [
    (".snapshot", write_snapshot([ProducerEntry(1, 0, 0, 200, 0, 0, 0, -1)]), PAST_END),
    (".txnindex", write_txn_index(np.array([(1, 50, 200, 50)], TXN_ROW)), PAST_END),
    (".log", b"".join(map(data_batch, range(20))), "{log}: its offset index has an entry for byte"),
    (".log", b"".join(map(data_batch, range(200))) + bytes(100), ""),
]


@pytest.mark.parametrize(
    ("suffix", "data", "told"), CONTRADICTIONS, ids=["producers", "transactions", "index", "zeros at the end"]
)
def test_files_past_the_end_of_an_upload_and_zeros_after_its_batches_are_an_error(
    tmp_path: Path, suffix: str, data: bytes, told: str
) -> None:
    log = (export := Export(tmp_path, "local-tiered")).add(range(200), SECOND[:1])
    log.with_suffix(suffix).write_bytes(data)
    assert str(log) in (error := export.error()) and told.format(log=log) in error


@pytest.mark.parametrize("seed", range(25))
def test_random_uploads_with_exchanged_or_cut_objects_are_read_as_they_were_or_an_error(seed: int) -> None:
    assert problems(seed) == []
