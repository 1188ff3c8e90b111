"""Backup sets: as log directories, and logs as new sets, by a plain reader and writer of the format; what is left of those that
cannot be written. ``calls/damaged_exports.txt`` has damage of golden ones."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compaction.errors import CorruptLogError, StorageError, UnsupportedLogError
from compaction.exports import backup as backup_reader
from compaction.exports import new_export
from compaction.exports.backup import MAX_MANIFEST_BYTES
from compaction.exports.backup_writer import BackupTarget
from compaction.files.calls import OPTIONS_VARIABLE, temporary_directory
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import SPOOL, options_of, parse_uri
from compaction.formats.backup import Compression, SegmentStream, parse_manifest
from compaction.formats.record_batch import Header, Record, RecordBatch
from compaction.log.discover import Selector
from compaction.names import TopicPartition
from compaction.screen.amounts import size
from tests.disk import Before, Operation, WatchedFileSystem
from tests.kafka import encode
from tests.kafka.encode import ABORT, COMMIT, Batch, Producer, marker
from tests.log.logs import iter_batches
from tests.oracle.backup_segments import LZ4, NONE, ZSTD, decode_segment, encode_record, encode_segment

T0 = 1_700_000_000_000
EXTENSIONS = {NONE: "", ZSTD: ".zst", LZ4: ".lz4"}


def some_records(start: int, end: int, step: int = 1) -> list[Record]:
    headers = (Header("x-original-offset", b"12345678"), Header("n", None))
    values = {at: None if at % 5 == 0 else b"v" * at for at in range(start, end, step)}
    return [Record(at, T0 + at, b"key%d" % (at % 7), value, headers) for at, value in values.items()]


def segment(place: Path, records: Sequence[Record], compression: int = ZSTD, **more: Any) -> dict[str, Any]:
    """Writes a segment of orders-0; its entry in the manifest."""
    name = f"topics/orders/partition=0/segment-{records[0].offset:020d}.bin{EXTENSIONS[compression]}"
    path = place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_segment(records, compression))
    return {
        "key": f"{place.name}/{name}",
        "start_offset": records[0].offset,
        "end_offset": records[-1].offset,
        "start_timestamp": records[0].timestamp,
        "end_timestamp": records[-1].timestamp,
        "record_count": len(records),
        "uncompressed_size": sum(len(encode_record(record)) for record in records),
        "compressed_size": path.stat().st_size,
        **more,
    }


def manifest(place: Path, *segments: dict[str, Any], **more: Any) -> str:
    """Writes the manifest; the set's address."""
    partition = {"partition_id": 0, "segments": list(segments), **more}
    document = {"backup_id": place.name, "created_at": 1, "isolation_level": "read_committed"}
    (place / "manifest.json").write_text(json.dumps({**document, "topics": [{"name": "orders", "partitions": [partition]}]}))
    return parse_uri(f"backup+file://{place}", "--log-dir")


def read(address: str) -> dict[str, list[Record]]:
    """The records of orders-0, by file."""
    files, log, found = MixedFileSystem(), f"{address}/orders-0", {}
    for name in files.listdir(log):
        data = files.read_bytes(f"{log}/{name}")
        stat = files.stat(f"{log}/{name}")
        assert stat is not None and stat.size == len(data)
        batches = list(iter_batches(data))
        for batch in batches:
            assert isinstance(batch, RecordBatch)
            batch.ensure_valid()
        found[name] = [record for batch in batches if isinstance(batch, RecordBatch) for record in batch.records()]
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "sets" / "nightly"
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize("compression", [NONE, ZSTD, LZ4])
def test_a_set_is_read_as_a_log(place: Path, compression: int) -> None:
    first, second = some_records(3, 500), some_records(500, 2000, 3)
    address = manifest(place, segment(place, second, compression), segment(place, first, compression))
    assert MixedFileSystem().listdir(address) == ["orders-0"]
    found = read(address)
    assert found == {f"{3:020d}.log": first, f"{500:020d}.log": second}
    # other processes read by the path of the object in the layout, in slices
    files = MixedFileSystem()
    real = files.real_path(f"{address}/orders-0/{500:020d}.log")
    assert real is not None and real.path.startswith(f"{address}/topics/orders/partition=0/")
    whole = files.read_bytes(f"{address}/orders-0/{500:020d}.log")
    source, view = MixedFileSystem().open(real.path, 100, 300), memoryview(bytearray(200))
    assert source.pread(view, 100) == 200
    assert bytes(view) == whole[100:300]
    source.close()


def test_what_covers_more_than_its_records_has_no_gap(place: Path) -> None:
    first = segment(place, some_records(3, 10), covered_start_offset=0, covered_end_offset=19)
    second = segment(place, some_records(40, 50), covered_start_offset=40, covered_end_offset=59)
    gaps = [{"start_offset": 20, "end_offset": 30, "reason": "offset_out_of_range", "detected_at": 1}]
    pruned = [{"start_offset": 30, "end_offset": 39, "segments": 1}]
    address = manifest(place, first, second, gaps=gaps, pruned=pruned)
    assert list(read(address)) == [f"{0:020d}.log", f"{40:020d}.log"]
    with pytest.raises(CorruptLogError, match="offsets 20 to 39 are not stored"):
        read(manifest(place, first, second))
    for each in (first, second):
        del each["covered_start_offset"], each["covered_end_offset"]
    assert list(read(manifest(place, first, second))) == [f"{3:020d}.log", f"{40:020d}.log"]


def test_a_manifest_that_is_too_large_is_not_read(place: Path) -> None:
    with (place / "manifest.json").open("wb") as sparse:
        sparse.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(CorruptLogError, match=r"manifest.json: is larger than 1024 MiB"):
        read(parse_uri(f"backup+file://{place}", "--log-dir"))


def in_another_process(script: str, address: str) -> subprocess.CompletedProcess[str]:
    """Reads a segment of a set, then calls the script."""
    read_one = """\
import os, signal, sys
from pathlib import Path
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import options_of, parse_uri
address = parse_uri(sys.argv[1], "--log-dir")
MixedFileSystem().read_bytes(address + f"/orders-0/{0:020d}.log")
"""
    env = {**os.environ, OPTIONS_VARIABLE: "{}", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", read_one + script, address]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_segments_are_converted_once_and_removed_with_the_run(place: Path, tmp_path: Path) -> None:
    address = manifest(place, segment(place, some_records(0, 300)))
    script = (
        "spool = Path(options_of(address)['spool']); (file,) = spool.iterdir()\n"
        "print(spool.stat().st_mode & 0o777, file.suffix, spool)\n"
    )
    done = in_another_process(script, f"{address}?spool={tmp_path}/large")
    mode, suffix, spool = done.stdout.split()
    assert (int(mode), suffix) == (0o700, ".log")
    assert spool.startswith(f"{tmp_path}/large/kafka-log-compaction-")
    assert list((tmp_path / "large").iterdir()) == []
    # another process, and one on another machine, find the same bytes
    before = MixedFileSystem().read_bytes(f"{address}/orders-0/{0:020d}.log")
    (file,) = Path(options_of(address)[SPOOL]).iterdir()
    file.write_bytes(b"converted once")
    assert MixedFileSystem().read_bytes(f"{address}/orders-0/{0:020d}.log") == b"converted once"
    file.unlink()
    assert MixedFileSystem().read_bytes(f"{address}/orders-0/{0:020d}.log") == before


def test_what_a_killed_run_left_is_removed_by_the_next_one(place: Path, tmp_path: Path) -> None:
    spool, records = tmp_path / "large", some_records(0, 300)
    root = manifest(place, segment(place, records))
    done = in_another_process("os.kill(os.getpid(), signal.SIGKILL)", f"{root}?spool={spool}")
    (left,) = spool.iterdir()
    assert (done.returncode, [file.suffix for file in left.iterdir()]) == (-signal.SIGKILL, [".log"])
    others = [spool / "kafka-log-compaction-1000", spool / f"kafka-log-compaction-{'0' * 31}g"]
    link = spool / f"kafka-log-compaction-{'1' * 32}"
    link.symlink_to(others[0])
    for each in others:
        each.mkdir()
    with temporary_directory(str(spool)) as first:
        assert not left.exists()
        with temporary_directory(str(spool)) as second:
            assert Path(second).stat().st_mode & 0o777 == 0o700
            assert sorted(spool.iterdir()) == sorted([*others, link, Path(first), Path(second)])
    assert sorted(spool.iterdir()) == sorted([*others, link])


def test_a_directory_that_was_removed_is_made_again(place: Path) -> None:
    address = manifest(place, segment(place, some_records(0, 300)))
    before, spool = read(address), options_of(address)[SPOOL]
    shutil.rmtree(spool)
    assert read(address) == before
    assert Path(spool).is_dir()


def test_few_lz4_segments_are_in_memory_at_a_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = set[object](), []

    class Counted(SegmentStream):
        def plain(self, step_bytes: int) -> Iterator[memoryview]:
            now.add(self)
            time.sleep(0.02)
            seen.append(len(now))
            yield from super().plain(step_bytes)
            now.remove(self)

    monkeypatch.setattr(backup_reader, "SegmentStream", Counted)
    read(manifest(place, *(segment(place, some_records(at, at + 5), LZ4) for at in range(0, 40, 5))))
    assert (len(seen), max(seen)) == (8, 2)


def test_too_little_space_is_an_error_before_anything_is_written(place: Path) -> None:
    address = manifest(place, {**segment(place, some_records(0, 3)), "uncompressed_size": 1 << 60})
    with pytest.raises(StorageError, match=r"records take about 1152.9 PB.*\?spool=DIR"):
        read(address)
    assert not Path(options_of(address)[SPOOL]).exists()


def test_a_segment_that_is_written_in_part_only_is_an_error(place: Path) -> None:
    records = [Record(at, T0, b"k%d" % at, bytes([at % 256]) * 1000, ()) for at in range(1000)]
    entry = segment(place, records, NONE)
    address = manifest(place, entry)
    read(address)
    (file,) = Path(options_of(address)[SPOOL]).iterdir()
    size = file.stat().st_size
    file.unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, limits[1]))
    try:
        # the last write is short, without an error
        with pytest.raises(StorageError, match="cannot write a temporary file"):
            read(address)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(file.parent.iterdir()) == []
    assert read(address) == {f"{0:020d}.log": records}


def test_some_space_is_left_free_whatever_the_manifest_says(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = manifest(place, {**segment(place, some_records(0, 300)), "uncompressed_size": 0})
    blocks, free = 1 << 20, (1 << 20) // 100
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_frsize=1, f_blocks=blocks, f_bavail=free + 10))
    with pytest.raises(StorageError, match=rf"would fill .*, which has {re.escape(size(free + 10))} free; .*\?spool=DIR"):
        read(address)
    assert list(Path(options_of(address)[SPOOL]).iterdir()) == []


def some_log(log_dir: Path, name: str, first: Batch, *more: Batch | bytes) -> None:
    log = log_dir / name
    log.mkdir(parents=True)
    data = first.encode() + b"".join(each if isinstance(each, bytes) else each.encode() for each in more)
    (log / f"{first.records[0].offset:020d}.log").write_bytes(data)


def batch(first: int, count: int, **more: Any) -> Batch:
    headers = ((b"h", b"x"), (b"n", None))
    records = [
        encode.Record(at, T0 + at, b"k%d" % at if at % 4 else None, None if at % 3 else b"v" * 50, headers[: at % 3])
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


def write(root: Path, **options: Any) -> None:
    """Writes the set ``b2`` of the logs."""
    BackupTarget(str(root / "b2"), **options).write(str(root / "logs"), 77)


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
    written = target.write(str(tmp_path / "logs"), 77)
    assert contents(tmp_path / "sets" / "b2") == {"orders-0": expected(first, second), "orders-3": expected(batch(0, 1))}
    assert written.startswith("341 records in ")
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
        write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]
    write(tmp_path, committed_only=True)
    assert f"{what}; the set does not have them" in caplog.text
    assert contents(tmp_path / "b2") == {"orders-0": expected(committed, plain)}
    manifest = parse_manifest((tmp_path / "b2" / "manifest.json").read_bytes())
    partition = manifest.partitions[TopicPartition("orders", 0)]
    assert (partition.segments[0].covered, partition.covered_through) == ((0, 20), 19)


def test_a_set_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """What it says of its segments would be written with records of others."""
    some_log(tmp_path / "logs", "orders-0", batch(0, 5))
    (tmp_path / "b1").mkdir()
    (tmp_path / "b1" / "manifest.json").write_bytes(now := json.dumps({"backup_id": "b1", "topics": []}).encode())
    target = BackupTarget(str(tmp_path / "b2"), base=parse_manifest(now), source=str(tmp_path / "b1"))
    (tmp_path / "b1" / "manifest.json").write_text(json.dumps({"backup_id": "b1", "topics": [], "created_at": 7}))
    with pytest.raises(CorruptLogError, match="this backup set has changed while it was read; run the command again"):
        target.write(str(tmp_path / "logs"), 77)
    assert not (tmp_path / "b2").exists()
    (tmp_path / "b1" / "manifest.json").write_bytes(now)
    target.write(str(tmp_path / "logs"), 77)


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
    target.write(str(tmp_path / "logs"), 77)
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
    write(tmp_path, segment_bytes=1000)
    appeared = next(at for at, (what, _) in enumerate(done) if what == "rename")
    last = {path.rpartition("/")[0]: at for at, (what, path) in enumerate(done) if what == "create"}
    assert len(last) == 3
    for directory, at in last.items():
        assert ("fsync_dir", directory) in done[at:appeared]


def test_a_record_larger_than_a_segment_is_written(tmp_path: Path) -> None:
    large = Batch((encode.Record(0, T0, b"k", b"v" * 9000), encode.Record(1, T0, b"k", b"w" * 9000)))
    some_log(tmp_path / "logs", "orders-0", large)
    write(tmp_path, segment_bytes=64)
    assert contents(tmp_path / "b2") == {"orders-0": expected(large)}


def test_nothing_is_left_of_a_set_that_cannot_be_written(tmp_path: Path) -> None:
    headers = tuple((b"h", None) for _ in range(65_536))
    some_log(tmp_path / "logs", "orders-0", batch(0, 5), Batch((encode.Record(5, T0, b"k", b"v", headers),)))
    with pytest.raises(UnsupportedLogError, match="more than 65535 headers.*offset 5"):
        BackupTarget(str(tmp_path / "sets" / "b2")).write(str(tmp_path / "logs"), 77)
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
    BackupTarget(str(sets / "b2")).write(str(tmp_path / "logs"), 77)
    assert modes == [[0o700], [0o700]]
    assert sorted(path.name for path in sets.iterdir()) == [f".b3.{'0' * 32}.partial", "b2"]
    assert sorted(path.name for path in (sets / "b2").iterdir()) == ["manifest.json", "topics"]
