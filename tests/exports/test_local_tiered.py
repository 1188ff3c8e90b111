"""Exports of ``LocalTieredStorage``, and how segments are cut and joined with a local tail."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from compaction.errors import LockedError
from compaction.files.filesystem import join
from compaction.files.mixed import MixedFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.files.uri import add_tail, parse_uri
from compaction.log.read_log import read_segments
from compaction.names import LogLocation, TopicPartition
from compaction.recovery.recover import recover_log
from tests.exports.exports import TOPIC_ID, local_tiered, no_exports_known, offsets_in, upload
from tests.files.test_lock import held_elsewhere
from tests.log.logs import build, data_batch

__all__ = ["no_exports_known"]

OTHER_ID = "LWgrMmVrT0a__7a4SasuPA"


def read_log_files(address: str) -> dict[str, bytes]:
    files, log = MixedFileSystem(), join(address, "orders-0")
    return {name: files.read_bytes(join(log, name)) for name in files.listdir(log)}


def offsets(address: str) -> list[int]:
    """The offsets of the log's batches, segment by segment."""
    files, log = MixedFileSystem(), join(address, "orders-0")
    names = [name for name in files.listdir(log) if name.endswith(".log")]
    return [offset for name in names for offset in offsets_in(files, join(log, name))]


def put_segments(log: Path, *segments: range, epochs: str) -> None:
    log.mkdir(parents=True)
    starts = [(int(start), int(epoch)) for epoch, start in map(str.split, epochs.splitlines()[2:])]
    for each in segments:
        owners = [(at, max((start for start in starts if start[0] <= at), default=(0, 0))[1]) for at in each]
        batches = [data_batch(at, leader_epoch=epoch) for at, epoch in owners]
        for kind, data in build(each.start, batches).files.items():
            (log / f"{each.start:020d}{kind}").write_bytes(data)


def tail(directory: Path, *segments: range, epochs: str = "0\n1\n0 0\n", topic_id: str = TOPIC_ID) -> Path:
    """A log directory with segments of one-record batches, of these leader epochs."""
    log = directory / "orders-0"
    put_segments(log, *segments, epochs=epochs)
    (log / "leader-epoch-checkpoint").write_text(epochs)
    (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    (directory / "log-start-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    return directory


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
    add_tail(address, str(tail(tmp_path / "local", *segments)))
    assert offsets(address) == list(range(25))
    assert MixedFileSystem().read_bytes(join(address, "log-start-offset-checkpoint")) == b"0\n1\norders 0 3\n"


def test_a_tail_is_given_in_the_address_too(tmp_path: Path) -> None:
    upload(tmp_path / "export", range(10))
    local = tail(tmp_path / "local", range(10, 12), range(12, 12))
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
    local = tail(tmp_path / "local", range(10, 14), range(14, 20), range(20, 25), epochs="0\n4\n0 0\n1 12\n2 15\n3 22\n")
    (local / "orders-0" / "leader-epoch-checkpoint").write_text(stored)
    add_tail(address, str(local))
    assert offsets(address) == list(range(25))
    assert read_log_files(address)["leader-epoch-checkpoint"] == b"0\n4\n0 0\n1 12\n2 15\n3 22\n"


def test_the_lineage_of_the_tail_decides(tmp_path: Path) -> None:
    """The export has offsets that the new leader truncated before it uploaded anything."""
    upload(tmp_path / "export", range(20), [(0, 0)])
    address = local_tiered(tmp_path / "export")
    local = tail(tmp_path / "local", range(10, 14), epochs="0\n2\n0 0\n1 12\n")
    add_tail(address, str(local))
    assert offsets(address) == list(range(14))
    assert read_log_files(address)["leader-epoch-checkpoint"] == b"0\n2\n0 0\n1 12\n"


def test_partitions_of_which_nothing_is_uploaded_are_read_from_the_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    upload(tmp_path / "export", range(10))
    address = local_tiered(tmp_path / "export")
    local = tail(tmp_path / "local", range(10, 20))
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
    local = tail(tmp_path / "local", range(10, 20))
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
    add_tail(address, str(tail(tmp_path / "local", range(200, 210), epochs="0\n2\n1 130\n2 205\n")))
    assert offsets(address) == [0, 50, 100, 150, *range(200, 210)]
    assert read_log_files(address)["leader-epoch-checkpoint"] == b"0\n3\n0 0\n1 100\n2 205\n"
