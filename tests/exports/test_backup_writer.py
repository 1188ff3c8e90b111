"""Logs as backup sets: what is in them, by the plain reader of the format, and that they are complete or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import CompactionError, CorruptLogError, UnsupportedLogError, UsageError
from compaction.exports import new_export
from compaction.exports.backup_writer import BackupTarget, write_set
from compaction.exports.new_export import require_empty
from compaction.files.local import LocalFileSystem
from compaction.formats.backup import Compression, parse_manifest
from compaction.log.discover import Selector
from compaction.names import TopicPartition
from tests.disk import Before, Operation, WatchedFileSystem
from tests.kafka.encode import ABORT, COMMIT, Batch, Producer, Record, marker
from tests.oracle.backup_segments import decode_segment

T0 = 1_700_000_000_000


def some_log(log_dir: Path, name: str, first: Batch, *more: Batch | bytes) -> None:
    log = log_dir / name
    log.mkdir(parents=True)
    data = first.encode() + b"".join(each if isinstance(each, bytes) else each.encode() for each in more)
    (log / f"{first.records[0].offset:020d}.log").write_bytes(data)


def batch(first: int, count: int, **more: Any) -> Batch:
    headers = ((b"h", b"x"), (b"n", None))
    records = [
        Record(at, T0 + at, b"k%d" % at if at % 4 else None, None if at % 3 else b"v" * 50, headers[: at % 3])
        for at in range(first, first + count)
    ]
    return Batch(tuple(records), **more)


def contents(place: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The records by log; checks each segment against the manifest."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    document = json.loads((place / "manifest.json").read_text())
    for topic in document["topics"]:
        for partition in topic["partitions"]:
            own = found.setdefault(f"{topic['name']}-{partition['partition_id']}", [])
            for entry in partition["segments"]:
                data = (place.parent / entry["key"]).read_bytes()
                assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["compressed_size"], entry["sha256"])
                header, records = decode_segment(data)
                assert header == (entry["record_count"], entry["start_offset"], entry["end_offset"])
                times = records[0].timestamp, records[-1].timestamp
                assert times == (entry["start_timestamp"], entry["end_timestamp"])
                own += [(*record[:4], tuple(map(tuple, record.headers))) for record in records]
    return found


def expected(*batches: Batch) -> list[tuple[Any, ...]]:
    return [
        (
            record.offset, record.timestamp, record.key, record.value,
            tuple((name if isinstance(name, str) else name.decode(), value) for name, value in record.headers),
        )
        for each in batches
        for record in each.records
    ]  # fmt: skip


@pytest.mark.parametrize("compression", list(Compression))
def test_a_set_has_the_records_of_the_logs(tmp_path: Path, compression: Compression) -> None:
    first, second = batch(5, 40), batch(60, 300, codec="zstd")
    some_log(tmp_path / "logs", "orders-0", first, second)
    some_log(tmp_path / "logs", "orders-3", batch(0, 1))
    target = BackupTarget(str(tmp_path / "sets" / "b2"), compression, segment_bytes=5000)
    written = write_set(str(tmp_path / "logs"), target, 77)
    assert contents(tmp_path / "sets" / "b2") == {"orders-0": expected(first, second), "orders-3": expected(batch(0, 1))}
    assert written.records == 341
    assert sorted(path.name for path in (tmp_path / "sets").iterdir()) == ["b2"]
    manifest = parse_manifest((tmp_path / "sets" / "b2" / "manifest.json").read_bytes())
    segments = manifest.partitions[TopicPartition("orders", 0)].segments
    assert len(segments) > 3
    covered = [segment.covered or (0, 0) for segment in segments]
    assert [start for start, _ in covered] == [5, *(end for _, end in covered[:-1])]
    assert covered[-1][1] == 360


def test_only_committed_records_are_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    txn = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    aborted, committed = batch(0, 5, base_sequence=0, **txn), batch(6, 5, base_sequence=5, **txn)
    open_txn = batch(20, 3, base_sequence=10, **txn)
    plain = batch(12, 2)
    some_log(
        tmp_path / "logs",
        "orders-0",
        aborted,
        marker(5, T0, Producer(7, 0), ABORT),
        committed,
        marker(11, T0, Producer(7, 0), COMMIT),
        plain,
        open_txn,
    )
    what = "orders-0: 3 offsets from 20 to 22 are not committed: open transaction of producer 7 from offset 20"
    with pytest.raises(UnsupportedLogError, match=f"^{what}; end it .*, or give --accept-loss uncommitted"):
        write_set(str(tmp_path / "logs"), BackupTarget(str(tmp_path / "b2")), 77)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]
    write_set(str(tmp_path / "logs"), BackupTarget(str(tmp_path / "b2"), committed_only=True), 77)
    assert f"{what}; the set does not have them" in caplog.text
    assert contents(tmp_path / "b2") == {"orders-0": expected(committed, plain)}
    manifest = parse_manifest((tmp_path / "b2" / "manifest.json").read_bytes())
    partition = manifest.partitions[TopicPartition("orders", 0)]
    assert (partition.segments[0].covered, partition.covered_through) == ((0, 20), 19)


def test_records_above_the_high_watermark_are_not_left_out_silently(tmp_path: Path) -> None:
    first, second = batch(0, 5), batch(5, 5)
    some_log(tmp_path / "logs", "orders-0", first, second)
    (tmp_path / "logs" / "replication-offset-checkpoint").write_text("0\n1\norders 0 5\n")
    what = "orders-0: 5 offsets from 5 to 9 are not committed: the high watermark is 5; take the log after a clean shutdown"
    with pytest.raises(UnsupportedLogError, match=what):
        write_set(str(tmp_path / "logs"), BackupTarget(str(tmp_path / "b2")), 77)
    write_set(str(tmp_path / "logs"), BackupTarget(str(tmp_path / "b2"), committed_only=True), 77)
    assert contents(tmp_path / "b2") == {"orders-0": expected(first)}


def test_a_set_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """What it says of its segments would be written with records of others."""
    some_log(tmp_path / "logs", "orders-0", batch(0, 5))
    (tmp_path / "b1").mkdir()
    (tmp_path / "b1" / "manifest.json").write_bytes(now := json.dumps({"backup_id": "b1", "topics": []}).encode())
    target = BackupTarget(str(tmp_path / "b2"), base=parse_manifest(now), source=str(tmp_path / "b1"))
    (tmp_path / "b1" / "manifest.json").write_text(json.dumps({"backup_id": "b1", "topics": [], "created_at": 7}))
    with pytest.raises(CorruptLogError, match="this backup set has changed while it was read; run the command again"):
        write_set(str(tmp_path / "logs"), target, 77)
    assert not (tmp_path / "b2").exists()
    (tmp_path / "b1" / "manifest.json").write_bytes(now)
    write_set(str(tmp_path / "logs"), target, 77)


def test_what_an_old_set_says_of_partitions_without_records_is_kept(tmp_path: Path) -> None:
    some_log(tmp_path / "logs", "orders-0", batch(0, 5))
    first = {"start_offset": 0, "end_offset": 0}
    pruned: dict[str, Any] = {"partition_id": 1, "segments": [], "covered_through": 0, "pruned": [first]}
    idle: dict[str, Any] = {"partition_id": 0, "segments": [], "covered_through": 9}
    topics: list[dict[str, Any]] = [
        {"name": "orders", "partitions": [pruned]},
        {"name": "idle", "configurations": {"x": "y"}, "partitions": [idle]},
        {"name": "new", "configurations": {"x": "z"}, "partitions": []},
        {"name": "others", "partitions": [{"partition_id": 0, "segments": []}]},
    ]
    base = parse_manifest(json.dumps({"backup_id": "b1", "topics": topics}).encode())
    target = BackupTarget(str(tmp_path / "b2"), base=base, selected=Selector.parse(["orders", "idle", "new"]).matches)
    write_set(str(tmp_path / "logs"), target, 77)
    written = {topic["name"]: topic for topic in json.loads((tmp_path / "b2" / "manifest.json").read_text())["topics"]}
    assert sorted(written) == ["idle", "new", "orders"]
    assert (written["idle"]["configurations"], written["new"]) == ({"x": "y"}, topics[2])
    assert written["idle"]["partitions"] == topics[1]["partitions"]
    assert [each["partition_id"] for each in written["orders"]["partitions"]] == [0, 1]
    assert written["orders"]["partitions"][1] == pruned


def watch(monkeypatch: pytest.MonkeyPatch, before: Before) -> None:
    """Calls this before each operation on an export's files."""
    monkeypatch.setattr(new_export, "LocalFileSystem", lambda: WatchedFileSystem(LocalFileSystem(), before))


def test_the_names_of_all_files_are_durable_before_the_set_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_log(tmp_path / "logs", "orders-0", batch(0, 40))
    some_log(tmp_path / "logs", "orders-1", batch(0, 40))
    done: list[tuple[str, str]] = []
    watch(monkeypatch, lambda operation: done.append((operation.name, operation.path)))
    write_set(str(tmp_path / "logs"), BackupTarget(str(tmp_path / "b2"), segment_bytes=1000), 77)
    appeared = next(at for at, (what, _) in enumerate(done) if what == "rename")
    last = {path.rpartition("/")[0]: at for at, (what, path) in enumerate(done) if what == "create"}
    assert len(last) == 3
    for directory, at in last.items():
        assert ("fsync_dir", directory) in done[at:appeared]


def test_a_record_larger_than_a_segment_is_written(tmp_path: Path) -> None:
    large = Batch((Record(0, T0, b"k", b"v" * 9000), Record(1, T0, b"k", b"w" * 9000)))
    some_log(tmp_path / "logs", "orders-0", large)
    write_set(str(tmp_path / "logs"), BackupTarget(str(tmp_path / "b2"), segment_bytes=64), 77)
    assert contents(tmp_path / "b2") == {"orders-0": expected(large)}


def test_nothing_is_left_of_a_set_that_cannot_be_written(tmp_path: Path) -> None:
    headers = tuple((b"h", None) for _ in range(65_536))
    some_log(tmp_path / "logs", "orders-0", batch(0, 5), Batch((Record(5, T0, b"k", b"v", headers),)))
    with pytest.raises(UnsupportedLogError, match="more than 65535 headers.*offset 5"):
        write_set(str(tmp_path / "logs"), BackupTarget(str(tmp_path / "sets" / "b2")), 77)
    assert list((tmp_path / "sets").iterdir()) == []


def test_what_a_killed_run_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_log(tmp_path / "logs", "orders-0", batch(0, 40))
    sets = tmp_path / "sets"
    (sets / f".b2.{'0' * 32}.partial" / "set").mkdir(parents=True)
    (sets / f".b3.{'0' * 32}.partial").mkdir()
    modes = []

    def look(operation: Operation) -> None:
        if operation.name == "create":
            modes.append([each.stat().st_mode & 0o777 for each in sets.iterdir() if each.name.startswith(".b2.")])

    watch(monkeypatch, look)
    write_set(str(tmp_path / "logs"), BackupTarget(str(sets / "b2")), 77)
    assert modes == [[0o700], [0o700]]
    assert sorted(path.name for path in sets.iterdir()) == [f".b3.{'0' * 32}.partial", "b2"]
    assert sorted(path.name for path in (sets / "b2").iterdir()) == ["manifest.json", "topics"]


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    some_log(tmp_path / "logs", "orders-0", batch(0, 5))
    (tmp_path / "b2").mkdir()
    require_empty(str(tmp_path / "b2"))
    (tmp_path / "b2" / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="exists and is not empty") as error:
        write_set(str(tmp_path / "logs"), BackupTarget(str(tmp_path / "b2")), 77)
    assert isinstance(error.value, CompactionError)
    assert (tmp_path / "b2" / "manifest.json").read_text() == "{}"
