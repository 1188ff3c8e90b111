"""Outputs as inputs: an object that differs from its manifest entry fails its log, with one line; any change of a manifest is
detected."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.errors import CorruptLogError, LogError, StorageError, UsageError
from compaction.files import contents, manifest, object_store
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MANIFEST, Entry, Manifest, Marker
from compaction.files.mixed import MixedFileSystem, RemoteFileSystem, open_sequential, require_finished
from compaction.files.segment_file import SegmentReader
from compaction.log.read_log import read_segments
from tests.files.remote_places import PLACE, Tagged, bucket, log, publish
from tests.log.logs import data_segment

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


def test_a_finished_output_is_read(out: Path) -> None:
    read_all(ORDERS)
    assert RemoteFileSystem().read_bytes(f"{OUT}/meta.properties") == (out / "meta.properties").read_bytes()


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


def test_a_log_without_its_listed_objects_fails(out: Path) -> None:
    shutil.rmtree(out / "orders-0")
    far = RemoteFileSystem()
    assert "orders-0" in far.listdir(OUT)
    found = far.stat(ORDERS)
    assert found is not None and found.is_dir
    with pytest.raises(CorruptLogError, match="is missing"):
        read_segments(far, ORDERS)


def test_a_log_that_is_not_listed_fails(out: Path) -> None:
    shutil.copytree(out / "orders-0", out / "orders-1")
    far = RemoteFileSystem()
    assert "orders-1" in far.listdir(OUT)
    with pytest.raises(CorruptLogError, match="is not listed"):
        read_segments(far, f"{OUT}/orders-1")


@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_a_directory_with_a_changed_file_fails(out: Path, damage: Callable[[Path], None]) -> None:
    damage(out / "meta.properties")
    told = "meta.properties: (is missing|has 19 bytes), _manifest.json lists it"
    with pytest.raises(StorageError, match=told):
        RemoteFileSystem().listdir(OUT)
    with pytest.raises(StorageError, match=told):
        RemoteFileSystem().stat(f"{OUT}/meta.properties")


def test_a_checkpoint_that_is_not_listed_fails_the_directory(out: Path) -> None:
    (out / "log-start-offset-checkpoint").write_text("0\n1\norders 0 130\n")
    with pytest.raises(StorageError, match="is not listed"):
        RemoteFileSystem().listdir(OUT)


def test_insignificant_files_are_ignored(out: Path) -> None:
    (out / "notes.txt").write_text("mine")
    (out / "orders-0" / ".compaction-swap").write_text("a journal")
    (out / "orders-0" / f"{FIRST}.swap").write_text("unfinished")
    assert "notes.txt" not in RemoteFileSystem().listdir(OUT)
    assert not {".compaction-swap", f"{FIRST}.swap"} & set(RemoteFileSystem().listdir(ORDERS))
    read_all(ORDERS)


@pytest.mark.parametrize("at", [0, 12, 40])
def test_a_task_refuses_an_object_with_another_etag(out: Path, at: int) -> None:
    size = (out / "orders-0" / FIRST).stat().st_size
    turn(out / "orders-0" / FIRST, at)
    path = f"{ORDERS}/{FIRST}"
    with pytest.raises(CorruptLogError, match="has ETag"), SegmentReader(MixedFileSystem(), path, 0, size) as reader:
        list(reader.blocks(check_crc=False))


@pytest.fixture
def copied(bucket: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory behind a copy of the output, with other ETags."""
    shutil.copytree(out, bucket / "copy")
    document = json.loads((out / MANIFEST).read_bytes())
    assert all(each["etag"] for each in document["files"])
    monkeypatch.setattr(Tagged, "metadata", lambda tagged: {"ETag": f"copy-{Path(tagged._key).name}".encode()})
    return bucket / "copy"


def test_a_copy_with_other_etags_is_read(copied: Path) -> None:
    read_all(f"{PLACE}/copy/orders-0")
    # it would be refused under its original URI
    path = f"{ORDERS}/{FIRST}"
    with pytest.raises(CorruptLogError, match="has ETag"), SegmentReader(MixedFileSystem(), path, 0, 100) as reader:
        list(reader.blocks(check_crc=False))


def test_objects_of_a_copy_are_compared_by_hash(copied: Path, tmp_path: Path) -> None:
    size = (copied / "orders-0" / FIRST).stat().st_size
    MixedFileSystem().copy(f"{PLACE}/copy/orders-0/{FIRST}", str(tmp_path / "here"))
    turn(copied / "orders-0" / FIRST, 3)
    path = f"{PLACE}/copy/orders-0/{FIRST}"
    for read in (
        lambda: RemoteFileSystem().read_bytes(path),
        lambda: MixedFileSystem().copy(path, str(tmp_path / "there")),
        lambda: [None for _ in SegmentReader(MixedFileSystem(), path, 0, size).blocks(check_crc=False)],
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
    path = f"{ORDERS}/{130:020d}.log"

    def read() -> bytes:
        size = (bucket / "out" / "orders-0" / f"{130:020d}.log").stat().st_size
        with SegmentReader(MixedFileSystem(), path, 0, size) as reader:
            return b"".join(block.raw.tobytes() for block in reader.blocks(check_crc=True))

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


def test_any_truncation_is_detected() -> None:
    whole = _MANIFEST.to_json()
    for size in range(len(whole) - 1):
        with pytest.raises(CorruptLogError, match="changed or truncated"):
            Manifest.parse(whole[:size], "m")


def test_a_removed_or_changed_entry_is_detected() -> None:
    document = json.loads(_MANIFEST.to_json())
    changes = [
        {**document, "files": document["files"][1:]},
        {**document, "files": [{**each, "size": 7} for each in document["files"]]},
        {**document, "files": [document["files"][0], *document["files"]]},
        {**document, "place": "s3://bucket/other"},
        {**document, "format": 1},
        {"format": 1, "files": document["files"]},
    ]
    for changed in changes:
        with pytest.raises(CorruptLogError, match="changed or truncated"):
            Manifest.parse(json.dumps(changed).encode(), "m")


def test_a_marker_names_its_run() -> None:
    assert Marker.parse(Marker("r").to_json()).run == "r"
    for data in (b"garbage", b"[]", b'{"run": 5}', b"\xff"):
        assert Marker.parse(data).run is None
