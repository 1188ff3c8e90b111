"""Object stores, simulated by a local file system of pyarrow: files are read as they are, and nothing is changed in place.

Of an output as an input, an object that differs from its manifest entry fails its log, with one line; any change of a manifest
is detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import fs

from compaction.errors import CorruptLogError, LogError, StorageError, UsageError
from compaction.files import contents, manifest, object_store
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MANIFEST, Entry, Manifest, Marker
from compaction.files.mixed import (
    MixedFileSystem,
    OutputFileSystem,
    RemoteFileSystem,
    file_system,
    open_sequential,
    require_finished,
)
from compaction.files.object_store import ObjectFile, ObjectOutput, read_whole, remote_errors
from compaction.files.overlay import OverlayFileSystem
from compaction.files.segment_file import SegmentReader
from compaction.files.uri import parse_uri
from compaction.log.discover import check_log_dirs
from compaction.log.read_log import read_segments
from compaction.recovery.recover import recover_log
from tests.files.remote_places import PLACE, Tagged, TaggingStore, bucket, log, publish, require_read_alike, serve
from tests.log.logs import data_segment, location

__all__ = ["bucket", "log"]


def test_a_log_is_read_as_in_a_local_directory(bucket: Path, log: str) -> None:
    far, near = MixedFileSystem(), bucket / "in" / "orders-0"
    require_read_alike(near, far, log)
    assert {(near / name).stat().st_mtime_ns - far.stat(f"{log}/{name}").mtime_ns for name in far.listdir(log)} == {0}  # type: ignore[union-attr]
    assert far.listdir(f"{PLACE}/in/") == ["orders-0"]
    found = far.stat(f"{PLACE}/in")
    assert found is not None and found.is_dir
    assert far.stat(f"{PLACE}/in/nothing") is None
    assert far.stat(f"{log}/nothing") is None


def test_a_missing_object_is_an_error(bucket: Path) -> None:
    for read in (RemoteFileSystem().listdir, RemoteFileSystem().read_bytes):
        with pytest.raises(StorageError, match="No such file or directory; check the URI"):
            read(f"{PLACE}/nothing")


def test_nothing_is_changed_in_place(bucket: Path, log: str) -> None:
    far, name = MixedFileSystem(), f"{log}/{0:020d}.log"
    changes: tuple[Callable[[], object], ...] = (
        lambda: far.write_file(name, b""),
        lambda: far.copy(name, name + ".copy"),
        lambda: far.rename(name, name + ".deleted"),
        lambda: far.unlink(name),
        lambda: far.mkdir(log + "/new"),
        lambda: far.remove_tree(log),
    )
    for change in changes:
        with pytest.raises(StorageError, match="rename is not atomic there"):
            change()


def test_a_log_is_recovered_and_read_like_a_local_one(bucket: Path, log: str) -> None:
    (bucket / "in" / "orders-0" / f"{90:020d}.index").unlink()
    here = location(str(bucket / "in"))
    far = OverlayFileSystem(file_system([log]))
    near = OverlayFileSystem(LocalFileSystem())
    told = recover_log(far, location(f"{PLACE}/in")).actions
    assert told == recover_log(near, here).actions != []
    assert read_segments(far, log) == read_segments(near, here.path)


@pytest.mark.parametrize("seed", range(5))
def test_read_ahead_returns_the_same_bytes_at_any_pace(bucket: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    data = chance.randbytes(5000)
    (bucket / "object").write_bytes(data)
    start, end = sorted(chance.sample(range(5000), 2))
    monkeypatch.setattr(contents, "_RANGE_BYTES", chance.choice([1, 7, 100, 10_000]))
    reader = open_sequential(f"{PLACE}/object", start, end)
    at = start
    while at < end:
        buffer = memoryview(bytearray(min(chance.randint(1, 300), end - at)))
        n = reader.pread(buffer, at)
        assert n == len(buffer) and bytes(buffer) == data[at : at + n]
        # also before the ranges that are kept
        at = chance.choice([at, at + 1, at + n, at + n, chance.randint(at, at + n), chance.randint(start, at)])
    reader.close()


def blocks_of(path: str, size: int, *, check_crc: bool = False) -> bytes:
    """The first bytes of a segment, as a task reads them."""
    with SegmentReader(MixedFileSystem(), path, 0, size) as reader:
        return b"".join(block.raw.tobytes() for block in reader.blocks(check_crc=check_crc))


def test_a_truncated_object_is_an_error(bucket: Path, log: str) -> None:
    with pytest.raises(CorruptLogError, match="file ends here"):
        blocks_of(f"{log}/{130:020d}.log", 10**6, check_crc=True)


def test_an_output_appears_when_it_is_closed(bucket: Path) -> None:
    # its name does not enable compression
    output = MixedFileSystem().create(f"{PLACE}/new.gz", "/like/nothing")
    output.write([b"ab", memoryview(b"cd")])
    output.close(sync=True, mtime_ns=0)
    assert (bucket / "new.gz").read_bytes() == b"abcd" == read_whole(f"{PLACE}/new.gz")
    failed = ObjectOutput(f"{PLACE}/failed")
    failed.write([b"ab"])
    failed.remove()
    assert not (bucket / "failed").exists()


def _put(bucket: Path, name: str, data: bytes) -> str:
    (bucket / name).write_bytes(data)
    return f"{PLACE}/{name}"


def test_files_are_copied_between_disk_and_store(bucket: Path, tmp_path: Path) -> None:
    source = _put(bucket, "source", b"0123456789")
    os.utime(bucket / "source", ns=(5 * 10**9, 5 * 10**9))
    MixedFileSystem().copy(source, str(tmp_path / "here"), 2, 5)
    assert (tmp_path / "here").read_bytes() == b"23456"
    assert (tmp_path / "here").stat().st_mtime_ns == 5 * 10**9
    output = OutputFileSystem()
    output.copy(str(tmp_path / "here"), f"{PLACE}/up", 1, 3)
    output.copy(source, f"{PLACE}/whole")
    output.copy(source, f"{PLACE}/part", 4, 2)
    assert [(bucket / name).read_bytes() for name in ("up", "whole", "part")] == [b"345", b"0123456789", b"45"]
    with pytest.raises(StorageError, match="No such file or directory"):
        MixedFileSystem().copy(f"{PLACE}/nothing", str(tmp_path / "there"))


@pytest.mark.parametrize(
    ("opened", "told"),
    [
        ([False, True, True], ""),
        ([False, False], "cannot read bytes 4 to 6: .*check the credentials"),
        ([False, True, False], "cannot read bytes 4 to 6: the client reports a closed file"),
    ],
)
def test_a_file_that_the_client_could_not_open_is_retried_or_an_error(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, opened: list[bool], told: str
) -> None:
    path = _put(bucket, "object", b"0123456789")
    serve(monkeypatch, bucket, TaggingStore("gcs", opened))
    file = ObjectFile(path)
    if told:
        with pytest.raises(StorageError, match=told):
            file.pread(memoryview(bytearray(3)), 4)
    else:
        view = memoryview(bytearray(3))
        assert (file.pread(view, 4), bytes(view), file.size()) == (3, b"456", 10)


def test_removing_a_missing_directory_is_no_error(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OutputFileSystem().remove_tree(f"{PLACE}/nothing")
    serve(monkeypatch, bucket, TaggingStore("gcs"))
    OutputFileSystem().remove_tree(f"{PLACE}/nothing")


@pytest.mark.parametrize("field", ["ETag", "etag"])
def test_the_etag_is_found_under_any_spelling(bucket: Path, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    path = _put(bucket, "object", b"0123456789")
    serve(monkeypatch, bucket, TaggingStore(tag_field=field))
    assert ObjectFile(path).etag() == hashlib.md5(b"0123456789", usedforsecurity=False).hexdigest()


def test_requests_to_gs_are_retried_for_a_minute_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def from_uri(address: str) -> tuple[object, str]:
        asked.append(address)
        return object(), "bucket"

    monkeypatch.setattr(fs, "FileSystem", SimpleNamespace(from_uri=from_uri))
    object_store._connect("gs://bucket", {}, object_store._PATIENT)
    object_store._connect("gs://anonymous@bucket", {"scheme": "http", "retry_limit_seconds": "5"}, object_store._PATIENT)
    assert asked == ["gs://bucket/?retry_limit_seconds=60", "gs://anonymous@bucket/?retry_limit_seconds=5&scheme=http"]


def test_credentials_are_removed_from_error_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAHIDDEN")
    told = object_store.store_error(OSError("AWS Error ACCESS_DENIED for AKIAHIDDEN\nmore"), "s3://b/x", "read")
    assert str(told) == "s3://b/x: cannot read: AWS Error ACCESS_DENIED for …; check the credentials and what they may do there"


def test_a_response_that_overflows_the_clients_buffer_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_WAITS_S", (0.0, 0.0))
    answers: list[Exception | bytes] = [OSError("Failed to flush response stream (eof: 0, bad: 1)"), b"data"]

    def read() -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert object_store.repeated(read) == b"data"
    answers[:] = [OSError("other")]
    with pytest.raises(OSError, match="other"):
        object_store.repeated(read)


def test_no_store_is_opened_before_workers_are_forked() -> None:
    program = "import sys, compaction.engines.local as w; w._import_tasks(); sys.exit('pyarrow.fs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0


@pytest.mark.parametrize("error", ["", "AWS Error ACCESS_DENIED during HeadBucket operation"])
def test_a_missing_bucket_is_named_but_not_one_that_may_not_be_looked_at(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    """And not as a missing log directory."""

    def get_file_info(path: str) -> fs.FileInfo:
        if error:
            raise OSError(error)
        return fs.FileInfo(path, fs.FileType.NotFound)

    monkeypatch.setattr(object_store, "_connect", lambda *_: (SimpleNamespace(get_file_info=get_file_info), "backups"))
    monkeypatch.setattr(object_store, "_reached", set())
    if error:
        object_store.require_store("aiven+s3://backups/kafka-1")
        object_store.require_store("/a/local/path")
        return
    with pytest.raises(StorageError, match="s3://backups: no such bucket; check the name of the bucket"):
        check_log_dirs(file_system(["s3://backups/kafka-1"]), ["s3://backups/kafka-1"])


def test_a_dead_endpoint_is_an_error_within_seconds() -> None:
    """Of a closed port: a run would repeat its requests for half a minute, and name a missing log directory."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
        address = parse_uri(f"s3://backups/kafka-1?endpoint_override={endpoint}&scheme=http&region=eu-north-1", "--log-dir")
        began = time.monotonic()
        with pytest.raises(StorageError, match="cannot reach the store: .*check URI, region and network"):
            check_log_dirs(file_system([address]), [address])
    assert time.monotonic() - began < 10


def test_directories_are_found_by_their_objects(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the store whose client lists no directory without an object of its own, and raises an error of another type."""
    for name, data in (("meta.properties", b"1234567"), ("orders-0/0.log", b""), ("orders-0/0.index", b"")):
        (bucket / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (bucket / "in" / name).write_bytes(data)
    serve(monkeypatch, bucket, TaggingStore("gcs"))
    found = object_store.list_directory(f"{PLACE}/in")
    assert {name: (stat.is_dir, stat.is_file, stat.size) for name, stat in found.items()} == {
        "meta.properties": (False, True, 7),
        "orders-0": (True, False, 0),
    }
    assert set(object_store.list_directory(f"{PLACE}/in/orders-0")) == {"0.log", "0.index"}
    below = object_store.list_directory(f"{PLACE}/in", recursive=True)
    assert set(below) == {"meta.properties", "orders-0/0.log", "orders-0/0.index"}
    with pytest.raises(StorageError, match="cannot list the directory: No such file or directory; check the URI") as told:
        object_store.list_directory(f"{PLACE}/nothing")
    assert isinstance(told.value.__cause__, FileNotFoundError)


def test_other_errors_keep_their_text() -> None:
    with pytest.raises(StorageError, match="cannot read: Input/output error") as told, remote_errors("gs://bucket/x", "read"):
        raise OSError("Input/output error")
    assert type(told.value.__cause__) is OSError


__all__ = ["bucket", "log"]

OUT = f"{PLACE}/out"
ORDERS = f"{OUT}/orders-0"
FIRST = f"{0:020d}.log"


@pytest.fixture
def out(bucket: Path, log: str) -> Path:
    """The directory behind a finished output."""
    (bucket / "in" / "meta.properties").write_text("version=1\nnode.id=1\n")
    publish(f"{PLACE}/in", OUT)
    return bucket / "out"


def turn(path: Path, at: int = 20) -> None:
    data = bytearray(path.read_bytes())
    data[min(at, len(data) - 1)] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def extra(path: Path) -> None:
    shutil.copy(path, path.with_name(f"{500:020d}{path.suffix}"))


def read_all(directory: str) -> None:
    """Everything that a run may look at in a log."""
    far = RemoteFileSystem()
    read_segments(far, directory)
    for name in far.listdir(directory):
        far.stat(f"{directory}/{name}")
        far.read_bytes(f"{directory}/{name}")


@pytest.mark.parametrize("kind", [".log", ".timeindex"])
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (Path.unlink, r"is missing, _manifest.json lists it with \d+ bytes; copy the output again"),
        (cut, r"has \d+ bytes, _manifest.json lists it with \d+; copy the output again"),
        (turn, r"has (content hash|ETag) [0-9a-f]{32}, _manifest.json lists it with [0-9a-f]{32}; copy the output again"),
        (extra, r"exists, but is not listed in _manifest.json; remove it"),
    ],
)
def test_a_log_with_a_changed_object_fails(out: Path, kind: str, damage: Callable[[Path], None], told: str) -> None:
    path = (out / "orders-0" / FIRST).with_suffix(kind)
    damage(path)
    # the log is there, so that it is reported
    assert "orders-0" in RemoteFileSystem().listdir(OUT)
    RemoteFileSystem().listdir(ORDERS)
    with pytest.raises(CorruptLogError, match=told) as error:
        read_all(ORDERS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "name", "told"),
    [
        (lambda out: shutil.rmtree(out / "orders-0"), "orders-0", "is missing"),
        (lambda out: shutil.copytree(out / "orders-0", out / "orders-1"), "orders-1", "is not listed"),
    ],
    ids=["without its listed objects", "not listed"],
)
def test_a_log_fails_that_is(out: Path, change: Callable[[Path], object], name: str, told: str) -> None:
    change(out)
    far = RemoteFileSystem()
    assert name in far.listdir(OUT)
    found = far.stat(f"{OUT}/{name}")
    assert found is not None and found.is_dir
    with pytest.raises(CorruptLogError, match=told):
        read_segments(far, f"{OUT}/{name}")


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        ("meta.properties", Path.unlink, "meta.properties: is missing, _manifest.json lists it"),
        ("meta.properties", cut, "meta.properties: has 19 bytes, _manifest.json lists it"),
        ("log-start-offset-checkpoint", lambda path: path.write_text("0\n1\norders 0 130\n"), "is not listed"),
    ],
)
def test_a_directory_with_a_changed_file_fails(out: Path, name: str, damage: Callable[[Path], object], told: str) -> None:
    damage(out / name)
    for look in (RemoteFileSystem().listdir, lambda path: RemoteFileSystem().stat(f"{path}/{name}")):
        with pytest.raises(StorageError, match=told):
            look(OUT)


def test_insignificant_files_are_ignored(out: Path) -> None:
    (out / "notes.txt").write_text("mine")
    (out / "orders-0" / ".compaction-swap").write_text("a journal")
    (out / "orders-0" / f"{FIRST}.swap").write_text("unfinished")
    # late uploads of a killed run
    (out / "orders-0" / f"{FIRST}.clean.dead").write_bytes(b"late")
    (out / "left-out-3").mkdir()
    (out / "left-out-3" / f"{FIRST}.clean.dead.7.part").write_bytes(b"late")
    assert not {"notes.txt", "left-out-3"} & set(RemoteFileSystem().listdir(OUT))
    assert not {".compaction-swap", f"{FIRST}.swap", f"{FIRST}.clean.dead"} & set(RemoteFileSystem().listdir(ORDERS))
    assert RemoteFileSystem().stat(f"{ORDERS}/{FIRST}.clean.dead") is None
    assert RemoteFileSystem().read_bytes(f"{OUT}/meta.properties") == (out / "meta.properties").read_bytes()
    read_all(ORDERS)


@pytest.mark.parametrize("at", [0, 12, 40])
def test_a_task_refuses_an_object_with_another_etag(out: Path, at: int) -> None:
    size = (out / "orders-0" / FIRST).stat().st_size
    turn(out / "orders-0" / FIRST, at)
    with pytest.raises(CorruptLogError, match="has ETag"):
        blocks_of(f"{ORDERS}/{FIRST}", size)


@pytest.fixture
def copied(bucket: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory behind a copy of the output, with other ETags."""
    shutil.copytree(out, bucket / "copy")
    document = json.loads((out / MANIFEST).read_bytes())
    assert all(each["etag"] for each in document["files"])
    monkeypatch.setattr(Tagged, "metadata", lambda tagged: {"ETag": f"copy-{Path(tagged._key).name}".encode()})
    return bucket / "copy"


def test_objects_of_a_copy_with_other_etags_are_compared_by_hash(copied: Path, tmp_path: Path) -> None:
    read_all(f"{PLACE}/copy/orders-0")
    # it would be refused under its original URI
    with pytest.raises(CorruptLogError, match="has ETag"):
        blocks_of(f"{ORDERS}/{FIRST}", 100)
    size = (copied / "orders-0" / FIRST).stat().st_size
    path = f"{PLACE}/copy/orders-0/{FIRST}"
    MixedFileSystem().copy(path, str(tmp_path / "here"))
    turn(copied / "orders-0" / FIRST, 3)
    for read in (
        lambda: RemoteFileSystem().read_bytes(path),
        lambda: MixedFileSystem().copy(path, str(tmp_path / "there")),
        lambda: blocks_of(path, size),
    ):
        with pytest.raises(CorruptLogError, match="has content hash"):
            read()


@pytest.mark.parametrize("range_bytes", [1, 7, 100, 10_000])
def test_the_hash_is_compared_at_the_last_range(copied: Path, monkeypatch: pytest.MonkeyPatch, range_bytes: int) -> None:
    monkeypatch.setattr(contents, "_RANGE_BYTES", range_bytes)
    path, size = f"{PLACE}/copy/orders-0/{FIRST}", (copied / "orders-0" / FIRST).stat().st_size

    def read(end: int) -> int:
        reader, at, buffer = open_sequential(path, 0, end), 0, memoryview(bytearray(64))
        try:
            while at < end:
                at += reader.pread(buffer[: end - at], at)
        finally:
            reader.close()
        return at

    assert read(size) == size
    turn(copied / "orders-0" / FIRST, 3)
    assert read(size - 1) == size - 1
    with pytest.raises(CorruptLogError, match="has content hash"):
        read(size)


@pytest.mark.parametrize("change", ["cut", "turned"])
def test_a_changed_manifest_is_an_error(out: Path, change: str) -> None:
    data = (out / MANIFEST).read_bytes()
    digit = data.index(b'"size": ') + 8
    (out / MANIFEST).write_bytes(data[:-30] if change == "cut" else data[:digit] + bytes([data[digit] ^ 1]) + data[digit + 1 :])
    with pytest.raises(UsageError, match="changed or truncated"):
        require_finished(OUT)
    for look in (RemoteFileSystem().listdir, lambda path: RemoteFileSystem().stat(f"{path}/orders-0/{FIRST}")):
        with pytest.raises(CorruptLogError, match="changed or truncated"):
            look(OUT)


def test_an_output_with_a_manifest_of_format_1_is_read_and_checked(out: Path) -> None:
    files = json.loads((out / MANIFEST).read_bytes())["files"]
    old = [{name: value for name, value in each.items() if name != "xxh3_128"} for each in files]
    (out / MANIFEST).write_text(json.dumps({"format": 1, "files": old}))
    read_all(ORDERS)
    found = RemoteFileSystem().stat(f"{ORDERS}/{FIRST}")
    assert found is not None and found.mtime_ns == 7 * 10**9
    turn(out / "orders-0" / FIRST)
    with pytest.raises(CorruptLogError, match="has ETag"):
        read_all(ORDERS)


def test_an_export_without_a_manifest_is_read_as_it_is(bucket: Path, log: str) -> None:
    (bucket / "in" / "orders-0" / "notes.txt").write_text("mine")
    turn(bucket / "in" / "orders-0" / f"{130:020d}.timeindex", 0)
    far = RemoteFileSystem()
    assert "notes.txt" in far.listdir(log)
    for name in far.listdir(log):
        far.read_bytes(f"{log}/{name}")


def test_a_directory_named_like_a_partition_has_its_own_manifest(bucket: Path, log: str) -> None:
    publish(f"{PLACE}/in", f"{PLACE}/export-20260101")
    read_all(f"{PLACE}/export-20260101/orders-0")
    cut(bucket / "export-20260101" / "orders-0" / FIRST)
    with pytest.raises(CorruptLogError, match="lists it with"):
        read_all(f"{PLACE}/export-20260101/orders-0")


def test_directories_beside_an_output_of_several_are_not_part_of_it(bucket: Path, log: str, out: Path) -> None:
    """The log directories of an output are listed; an unlisted one is not part of it."""
    shutil.copytree(bucket / "in", out / "mine")
    read_all(f"{OUT}/mine/orders-0")


def test_a_task_with_a_cached_manifest_reads_the_output_that_replaced_it(bucket: Path, log: str) -> None:
    def read() -> bytes:
        name = f"orders-0/{130:020d}.log"
        return blocks_of(f"{OUT}/{name}", (bucket / "out" / name).stat().st_size, check_crc=True)

    publish(f"{PLACE}/in", OUT)
    first = read()
    shutil.rmtree(bucket / "out")
    data_segment(130, range(130, 170)).put(LocalFileSystem(), str(bucket / "in" / "orders-0"))
    data = (bucket / "in" / "orders-0" / f"{130:020d}.log").read_bytes()
    known = manifest.shared()._known.copy()
    publish(f"{PLACE}/in", OUT)
    manifest.shared()._known.update(known)
    assert read() == data != first


def test_a_failing_store_is_not_treated_as_one_without_a_manifest(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(paths: list[str]) -> list[object]:
        raise StorageError("cannot look", path=paths[0]) from cause

    monkeypatch.setattr(object_store, "stat_objects", failing)
    cause: OSError = OSError("NETWORK_CONNECTION")
    with pytest.raises(LogError, match="cannot look"):
        RemoteFileSystem().listdir(OUT)
    # who may not look there has no manifest there
    cause = PermissionError("Forbidden")
    assert manifest.Manifests().manifest(OUT) is None


_MANIFEST = Manifest(
    (Entry("orders-0/b", 2, 3, "x", "ab" * 16), Entry("a", 1, 2)),
    "run-1",
    "s3://bucket/out",
)


def test_a_manifest_is_read_back() -> None:
    found = Manifest.parse(_MANIFEST.to_json(), "m")
    assert (set(found.files), found.run, found.place) == (set(_MANIFEST.files), "run-1", "s3://bucket/out")
    assert found.folders == {"": ({"a": Entry("a", 1, 2)}, {"orders-0"}), "orders-0": ({"b": _MANIFEST.files[0]}, set())}


def test_malformed_content_is_an_error() -> None:
    for data in (b"", b"[]", b'{"format": 3, "files": []}', b'{"format": 1}', b'{"format": 1, "files": [{}]}', b"\xff" * 9):
        with pytest.raises(CorruptLogError, match="is not a manifest"):
            Manifest.parse(data, "m")


def test_any_flipped_bit_is_detected_or_has_no_effect() -> None:
    whole = _MANIFEST.to_json()
    told = 0
    for bit in range(8 * len(whole)):
        turned = bytearray(whole)
        turned[bit // 8] ^= 1 << bit % 8
        try:
            assert Manifest.parse(bytes(turned), "m") == Manifest.parse(whole, "m"), (bit, bytes(turned))
        except CorruptLogError:
            told += 1
    # what is left are blanks and line ends
    assert told > 7 * len(whole)


def test_a_truncation_and_a_removed_or_changed_entry_are_detected() -> None:
    whole = _MANIFEST.to_json()
    document = json.loads(whole)
    changes = [
        {**document, "files": document["files"][1:]},
        {**document, "files": [{**each, "size": 7} for each in document["files"]]},
        {**document, "files": [document["files"][0], *document["files"]]},
        {**document, "place": "s3://bucket/other"},
        {**document, "format": 1},
        {"format": 1, "files": document["files"]},
    ]
    for data in (*(json.dumps(changed).encode() for changed in changes), *(whole[:size] for size in range(len(whole) - 1))):
        with pytest.raises(CorruptLogError, match="changed or truncated"):
            Manifest.parse(data, "m")


def test_a_marker_names_its_run() -> None:
    assert Marker.parse(Marker("r").to_json()).run == "r"
    for data in (b"garbage", b"[]", b'{"run": 5}', b"\xff"):
        assert Marker.parse(data).run is None
