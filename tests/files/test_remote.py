"""Object stores, simulated by a local file system of pyarrow: files are read as they are, and nothing is changed in place."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from compaction.errors import CorruptLogError, StorageError
from compaction.files import contents, object_store
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem, OutputFileSystem, RemoteFileSystem, file_system, open_sequential
from compaction.files.object_store import ObjectFile, ObjectOutput, read_whole, remote_errors
from compaction.files.overlay import OverlayFileSystem
from compaction.files.segment_file import SegmentReader
from compaction.files.uri import parse_uri
from compaction.log.discover import check_log_dirs
from compaction.log.read_log import read_segments
from compaction.recovery.recover import recover_log
from tests.files.remote_places import PLACE, TaggingStore, bucket, log, require_read_alike, serve
from tests.log.logs import location

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


def test_a_truncated_object_is_an_error(bucket: Path, log: str) -> None:
    path = f"{log}/{130:020d}.log"
    with pytest.raises(CorruptLogError, match="file ends here"), SegmentReader(MixedFileSystem(), path, 0, 10**6) as reader:
        list(reader.blocks(check_crc=True))


def test_an_output_appears_when_it_is_closed(bucket: Path) -> None:
    output = MixedFileSystem().create(f"{PLACE}/new", "/like/nothing")
    output.write([b"ab", memoryview(b"cd")])
    output.close(sync=True, mtime_ns=0)
    output.abandon()
    assert (bucket / "new").read_bytes() == b"abcd"
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


def test_file_names_never_enable_compression(bucket: Path) -> None:
    output = ObjectOutput(f"{PLACE}/notes.gz")
    output.write([b"not compressed"])
    output.close(sync=True)
    assert (bucket / "notes.gz").read_bytes() == b"not compressed" == read_whole(f"{PLACE}/notes.gz")


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


class _WithoutBucket:
    """A pyarrow file system that finds nothing, or whose requests fail."""

    def __init__(self, error: str) -> None:
        self._error = error

    def get_file_info(self, path: str) -> fs.FileInfo:
        if self._error:
            raise OSError(self._error)
        return fs.FileInfo(path, fs.FileType.NotFound)


@pytest.mark.parametrize("error", ["", "AWS Error ACCESS_DENIED during HeadBucket operation"])
def test_a_missing_bucket_is_named_but_not_one_that_may_not_be_looked_at(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    """And not as a missing log directory."""
    monkeypatch.setattr(object_store, "_connect", lambda *_: (_WithoutBucket(error), "backups"))
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


@dataclass
class OnlyMarked:
    """A store of files by path and size; a non-recursive listing has no directories without marker objects."""

    files: dict[str, int]
    type_name: str = "gcs"

    def get_file_info(self, selector: Any) -> list[Any]:
        """All files below a directory, or those directly in it."""
        below = {path: size for path, size in self.files.items() if path.startswith(f"{selector.base_dir}/")}
        if not below:
            raise OSError(f"No such file or directory '{selector.base_dir}'")
        start = len(selector.base_dir) + 1
        listed = [path for path in below if selector.recursive or "/" not in path[start:]]
        return [fs.FileInfo(path, fs.FileType.File, size=below[path], mtime_ns=5) for path in listed]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> OnlyMarked:
    made = OnlyMarked({"bucket/in/meta.properties": 7, "bucket/in/orders-0/0.log": 10, "bucket/in/orders-0/0.index": 8})
    monkeypatch.setattr(object_store, "located", lambda path: (made, path.removeprefix("gs://")))
    return made


def test_directories_are_found_by_their_objects(store: OnlyMarked) -> None:
    found = object_store.list_directory("gs://bucket/in")
    assert {name: (stat.is_dir, stat.is_file, stat.size) for name, stat in found.items()} == {
        "meta.properties": (False, True, 7),
        "orders-0": (True, False, 0),
    }
    assert set(object_store.list_directory("gs://bucket/in/orders-0")) == {"0.log", "0.index"}


def test_what_lies_below_has_its_whole_name(store: OnlyMarked) -> None:
    found = object_store.list_directory("gs://bucket/in", recursive=True)
    assert set(found) == {"meta.properties", "orders-0/0.log", "orders-0/0.index"}


def test_a_directory_that_is_not_there_is_told_as_such(store: OnlyMarked) -> None:
    with pytest.raises(StorageError, match="cannot list the directory: No such file or directory; check the URI") as told:
        object_store.list_directory("gs://bucket/nothing")
    assert isinstance(told.value.__cause__, FileNotFoundError)


def test_other_errors_keep_their_text() -> None:
    with pytest.raises(StorageError, match="cannot read: Input/output error") as told, remote_errors("gs://bucket/x", "read"):
        raise OSError("Input/output error")
    assert type(told.value.__cause__) is OSError
