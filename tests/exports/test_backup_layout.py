"""Backup sets as log directories: what is read of them, and what is wrong with damaged ones."""

from __future__ import annotations

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

from compaction.errors import CompactionError, CorruptLogError, StorageError, UnsupportedLogError, UsageError
from compaction.exports import backup as backup_reader
from compaction.exports.backup import MAX_MANIFEST_BYTES
from compaction.files.calls import OPTIONS_VARIABLE, call, temporary_directory
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import SPOOL, options_of, parse_uri
from compaction.formats.backup import SegmentStream
from compaction.formats.message_set import iter_batches
from compaction.formats.record_batch import Header, Record, RecordBatch
from compaction.screen.amounts import size
from tests.oracle.backup_segments import LZ4, NONE, ZSTD, encode_record, encode_segment

T0 = 1_700_000_000_000
EXTENSIONS = {NONE: "", ZSTD: ".zst", LZ4: ".lz4"}


@pytest.fixture(autouse=True)
def _own_places() -> Iterator[None]:
    with call():
        yield


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


def damage(path: Path, at: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)


def test_a_damaged_set_is_an_error_that_names_object_and_offsets(place: Path) -> None:
    entry = segment(place, some_records(3, 500), NONE)
    path = place.parent / entry["key"]
    whole = path.read_bytes()

    def error(**more: Any) -> str:
        with pytest.raises(CorruptLogError) as found:
            read(manifest(place, {**entry, **more}))
        return str(found.value)

    assert f"{path} at byte 8: segment has 497 records at offsets 3 to 499, 496 records" in error(record_count=496)
    assert f"offsets 3 to 499 has {len(whole)} bytes, 77 in the manifest" in error(compressed_size=77)
    assert "has SHA-256" in error(sha256="00" * 32)
    damage(path, 5000, b"\xff\xff\xff\xff")
    assert f"{path}: segment fails its CRC" in error()
    path.write_bytes(whole[:-100])
    assert "has offsets 3 to 499" in error(compressed_size=0)
    path.unlink()
    assert f"{path}: segment is missing; the manifest says that it has offsets 3 to 499" in error()


def test_what_is_no_set_is_an_error(place: Path) -> None:
    address = parse_uri(f"backup+file://{place.parent}", "--log-dir")
    manifest(place)
    with pytest.raises(StorageError, match=f"no backup set here.*give one of the sets below it, e.g. {place}"):
        MixedFileSystem().listdir(address)
    with pytest.raises(UnsupportedLogError, match="segments in JSON"):
        read(manifest(place, {**segment(place, some_records(0, 3)), "key": f"{place.name}/topics/orders/0/segment-0.json.zst"}))
    (place / "manifest.json").write_text("{")
    with pytest.raises(CorruptLogError, match=r"manifest.json.*manifest is not JSON"):
        MixedFileSystem().listdir(parse_uri(f"backup+file://{place}", "--log-dir"))


def test_a_manifest_that_is_too_large_is_not_read(place: Path) -> None:
    with (place / "manifest.json").open("wb") as sparse:
        sparse.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(CorruptLogError, match=r"manifest.json: is larger than 1024 MiB"):
        read(parse_uri(f"backup+file://{place}", "--log-dir"))


def test_a_set_that_may_have_aborted_data_is_warned_of(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = manifest(place, segment(place, some_records(0, 3)))
    text = (place / "manifest.json").read_text()
    (place / "manifest.json").write_text(text.replace("read_committed", "read_uncommitted"))
    read(address)
    assert "aborted data and markers of transactions in it are plain records" in caplog.text


def test_segments_are_converted_once_and_removed_with_the_run(place: Path, tmp_path: Path) -> None:
    address = manifest(place, segment(place, some_records(0, 300)))
    script = (
        "import sys; from pathlib import Path\n"
        "from compaction.files.uri import options_of, parse_uri; from compaction.files.mixed import MixedFileSystem\n"
        "address = parse_uri(sys.argv[1], '--log-dir')\n"
        "MixedFileSystem().read_bytes(address + f'/orders-0/{0:020d}.log')\n"
        "spool = Path(options_of(address)['spool']); (file,) = spool.iterdir()\n"
        "print(spool.stat().st_mode & 0o777, file.suffix, spool)\n"
    )
    env = {**os.environ, OPTIONS_VARIABLE: "{}", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, f"{address}?spool={tmp_path}/large"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
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


KILLED = """\
import os, signal, sys
from compaction.files.uri import parse_uri
from compaction.exports import backup as backup_reader
from compaction.files.calls import temporary_directory
from compaction.files.mixed import MixedFileSystem
address = parse_uri(sys.argv[1], "--log-dir")
MixedFileSystem().read_bytes(address + f"/orders-0/{0:020d}.log")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_removed_by_the_next_one(place: Path, tmp_path: Path) -> None:
    spool, records = tmp_path / "large", some_records(0, 300)
    root = manifest(place, segment(place, records))
    env = {**os.environ, OPTIONS_VARIABLE: "{}", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, f"{root}?spool={spool}"], env=env, check=False)
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


def test_a_segment_has_no_more_bytes_than_the_manifest_says(place: Path) -> None:
    entry = segment(place, some_records(0, 300))
    with pytest.raises(CorruptLogError, match="has more than the 5000 plain bytes of the manifest"):
        read(manifest(place, {**entry, "uncompressed_size": 5000}))


def test_some_space_is_left_free_whatever_the_manifest_says(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = manifest(place, {**segment(place, some_records(0, 300)), "uncompressed_size": 0})
    blocks, free = 1 << 20, (1 << 20) // 100
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_frsize=1, f_blocks=blocks, f_bavail=free + 10))
    with pytest.raises(StorageError, match=rf"would fill .*, which has {re.escape(size(free + 10))} free; .*\?spool=DIR"):
        read(address)
    assert list(Path(options_of(address)[SPOOL]).iterdir()) == []


def test_a_set_is_not_changed_in_place(place: Path) -> None:
    from compaction.files.uri import require_in_place

    address = manifest(place, segment(place, some_records(0, 3)))
    with pytest.raises(UsageError, match="cannot be compacted in place"):
        require_in_place([address], "compacted")
    assert issubclass(UsageError, CompactionError)
