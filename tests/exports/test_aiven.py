"""Objects that Aiven's plugin wrote are read as the log directory that they were made from, byte for byte."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import CorruptLogError, StorageError, UnsupportedLogError
from compaction.exports import aiven_objects
from compaction.exports.aiven_objects import Chunk
from compaction.files import data_keys, text_files
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.filesystem import File, join
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import parse_uri
from compaction.log.discover import Selector, discover, require_logs
from tests.files.layouts.exports import (
    CODINGS,
    LOG_NAME,
    aiven,
    no_exports_known,
    objects,
    require_cryptography,
    second_upload,
    source,
)

__all__ = ["no_exports_known", "objects", "source"]


def chosen(objects: Path, coding: str, name: str) -> Path:
    """One object of a set: the ``name``-th log, manifest and so on by suffix, e.g. ``2.log``."""
    number, _, suffix = name.partition(".")
    return sorted((objects / coding).rglob(f"*.{suffix}"))[int(number)]


def read_all(address: str) -> dict[str, bytes]:
    """Every file of the log, as a task reads it."""
    files, log = MixedFileSystem(), join(address, LOG_NAME)
    found = {}
    for name in files.listdir(log):
        real = files.real_path(join(log, name))
        data = files.read_bytes(join(log, name))
        if real is not None:
            # in a process that has not listed the export
            buffer, at = memoryview(bytearray(real.size)), 0
            reader = MixedFileSystem().open(real.path, real.start, real.start + real.size)
            while at < real.size and (n := reader.pread(buffer[at:], real.start + at)):
                at += n
            reader.close()
            assert bytes(buffer) == data
        stat = files.stat(join(log, name))
        assert stat is not None and stat.size == len(data)
        found[name] = data
    return found


@pytest.mark.parametrize("coding", CODINGS)
def test_an_export_has_the_files_of_the_log_directory_that_it_was_made_from(coding: str, objects: Path, source: Path) -> None:
    if "encrypted" in coding:
        require_cryptography()
    address = aiven(objects / coding)
    assert MixedFileSystem().listdir(address) == [LOG_NAME]
    expected = {file.name: file.read_bytes() for file in source.iterdir()}
    # no segment follows the last one
    assert read_all(address) == {name: data for name, data in expected.items() if not name.startswith(f"{217:020d}.log")}


@pytest.mark.parametrize("coding", CODINGS)
def test_any_range_of_a_segment_is_read(coding: str, objects: Path, source: Path) -> None:
    if "encrypted" in coding:
        require_cryptography()
    files, name = MixedFileSystem(), f"{104:020d}.log"
    path, data = join(aiven(objects / coding), LOG_NAME, name), (source / name).read_bytes()
    for start in (0, 1, 255, 256, 1000, len(data) - 1):
        for length in (1, 255, 256, 257, 5000):
            assert files.read_bytes(path, start, length) == data[start : start + length]
    reader, buffer = files.open(path, 300, 900), memoryview(bytearray(100))
    assert reader.pread(buffer, 300) and bytes(buffer[:10]) == data[300:310]
    assert reader.size() == len(data)


def test_plain_objects_are_read_in_place_like_any_file(objects: Path) -> None:
    files = MixedFileSystem()
    real = files.real_path(join(aiven(objects / "plain"), LOG_NAME, f"{0:020d}.log"))
    assert real is not None and (real.path, real.start) == (str(chosen(objects, "plain", "0.log")), 0)


def test_a_prefix_may_end_within_a_name(objects: Path, source: Path) -> None:
    (topic,) = (objects / "plain").iterdir()
    topic.rename(topic.with_name(f"cluster1-{topic.name}"))
    address = parse_uri(f"aiven+file://{objects}/plain?key.prefix=cluster1-", "--log-dir")
    assert MixedFileSystem().listdir(address) == [LOG_NAME]
    assert read_all(address)[f"{0:020d}.log"] == (source / f"{0:020d}.log").read_bytes()


def test_objects_without_a_manifest_are_reported_and_ignored(
    objects: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = read_all(aiven(objects / "plain"))
    log = chosen(objects, "plain", "3.log")
    for suffix in (".log", ".indexes"):
        file = log.with_suffix(suffix)
        shutil.copy(file, file.with_name(file.name[:21] + "A" * 22 + suffix))
    with caplog.at_level(logging.WARNING):
        assert read_all(aiven(objects / "plain")) == whole
    assert "ignored: 1 upload without a manifest" in caplog.text


def test_a_second_upload_of_the_same_offsets_is_reported_and_ignored(objects: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = read_all(aiven(objects / "plain"))
    second_upload(chosen(objects, "plain", "3.log"))
    with caplog.at_level(logging.WARNING):
        assert read_all(aiven(objects / "plain")) == whole
    assert "ignored: 1 upload with offsets that another one has" in caplog.text


def test_the_manifest_of_another_segment_is_an_error(objects: Path) -> None:
    """It has the same offsets, and the objects have the sizes that it lists."""
    mine = chosen(objects, "plain", "3.rsm-manifest")
    for id_fields in ("id",), ("topicIdPartition", "topicId"), ("topicIdPartition", "topicPartition", "topic"):
        manifest = json.loads(before := mine.read_text())
        fields = manifest["remoteLogSegmentMetadata"]["remoteLogSegmentId"]
        for name in id_fields[:-1]:
            fields = fields[name]
        fields[id_fields[-1]] = "B" * 22
        mine.write_text(json.dumps(manifest))
        with pytest.raises(CorruptLogError, match=rf"is the manifest of another segment, .*{'B' * 22}") as error:
            read_all(aiven(objects / "plain"))
        assert error.value.path == str(mine)
        mine.write_text(before)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_segment_that_ends_before_the_offset_in_its_manifest_is_an_error(coding: str, objects: Path) -> None:
    if "encrypted" in coding:
        require_cryptography()
    (last,) = (objects / coding).rglob("00000000000000000207-*.rsm-manifest")
    last.write_text(last.read_text().replace('"endOffset":216', '"endOffset":316'))
    with pytest.raises(CorruptLogError, match="ends at offset 216, its manifest says 316"):
        read_all(aiven(objects / coding))


def test_a_gap_names_the_offsets(objects: Path) -> None:
    for suffix in ("log", "indexes", "rsm-manifest"):
        chosen(objects, "plain", f"3.{suffix}").unlink()
    with pytest.raises(CorruptLogError, match="offsets 30 to 43 are not stored"):
        read_all(aiven(objects / "plain"))


def test_a_manifest_without_its_log_names_the_object_and_the_offsets(objects: Path) -> None:
    log = chosen(objects, "zstd", "3.log")
    log.unlink()
    with pytest.raises(CorruptLogError, match=r"is missing, and its manifest is there; it has offsets 30 to 43") as error:
        read_all(aiven(objects / "zstd"))
    assert error.value.path == str(log)


@pytest.mark.parametrize("name", ["3.log", "3.indexes"])
def test_an_object_of_another_size_than_its_manifest_says_is_an_error(objects: Path, name: str) -> None:
    file = chosen(objects, "plain", name)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptLogError, match=r"has \d+ bytes, its manifest lists \d+") as error:
        read_all(aiven(objects / "plain"))
    assert error.value.path == str(file)


def test_a_damaged_chunk_is_named_with_its_object_and_its_bytes(objects: Path) -> None:
    require_cryptography()
    file = chosen(objects, "encrypted", "4.log")
    data = bytearray(file.read_bytes())
    data[300] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptLogError, match=r"chunk 1, bytes 284 to 567: the authentication tag does not match") as error:
        read_all(aiven(objects / "encrypted"))
    assert (error.value.path, error.value.position) == (str(file), 284)


def test_a_damaged_index_section_is_named_with_its_object_and_its_bytes(objects: Path) -> None:
    require_cryptography()
    file = chosen(objects, "encrypted", "4.indexes")
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptLogError, match=r"section timestamp, bytes 0 to 39: the authentication tag"):
        read_all(aiven(objects / "encrypted"))


def test_a_chunk_that_cannot_be_decompressed_is_named(objects: Path) -> None:
    file = chosen(objects, "zstd", "4.log")
    data = bytearray(file.read_bytes())
    data[:8] = bytes(8)
    file.write_bytes(data)
    with pytest.raises(CorruptLogError, match=r"chunk 0, bytes 0 to \d+: cannot be decompressed") as error:
        read_all(aiven(objects / "zstd"))
    assert error.value.path == str(file)


@pytest.mark.parametrize("coding", ["zstd", "zstd-encrypted"])
def test_a_manifest_that_lies_about_the_size_of_chunks_is_an_error(objects: Path, coding: str) -> None:
    if "encrypted" in coding:
        require_cryptography()
    file = chosen(objects, coding, "4.rsm-manifest")
    manifest = json.loads(file.read_text())
    manifest["chunkIndex"]["originalChunkSize"] -= 1
    file.write_text(json.dumps(manifest))
    with pytest.raises(CorruptLogError, match=r"chunk 0, bytes 0 to \d+: has 256 bytes of the log, the manifest says 255"):
        read_all(aiven(objects / coding))


def test_an_encrypted_export_without_its_private_key_names_the_key(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, "key2=/nowhere.pem")
    with pytest.raises(UnsupportedLogError, match="no private key is given for key id 'key1'; give --private-key key1=FILE"):
        read_all(aiven(objects / "encrypted"))


def test_an_encrypted_export_with_another_private_key_is_an_error(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    other = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (objects / "other.pem").write_bytes(other)
    monkeypatch.setenv(KEYS_VARIABLE, f"{objects}/other.pem")
    data_keys.data_key.cache_clear()
    with pytest.raises(UnsupportedLogError, match="does not decrypt the data key of key id 'key1'"):
        read_all(aiven(objects / "encrypted"))


@pytest.mark.parametrize("coding", ["zstd", "zstd-encrypted"])
def test_decoded_chunks_are_kept_up_to_a_limit_for_all_objects(
    coding: str, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "encrypted" in coding:
        require_cryptography()
    monkeypatch.setattr(aiven_objects, "_KEPT_BYTES", 600)
    read_all(aiven(objects / coding))
    # chunks of 256 bytes
    assert 256 <= aiven_objects.KEPT.size_bytes <= 600


def test_a_chunk_is_decoded_once_for_several_reads(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones one at a time."""
    monkeypatch.setattr(aiven_objects, "_LARGE_BYTES", 100)
    files, path = MixedFileSystem(), join(aiven(objects / "zstd"), LOG_NAME, f"{104:020d}.log")
    files.listdir(join(aiven(objects / "zstd"), LOG_NAME))
    monkeypatch.setattr(aiven_objects, "KEPT", aiven_objects.KeptChunks())
    decoded, decode = [], aiven_objects.ChunkedObject._decoded

    def recorded(content: aiven_objects.ChunkedObject, chunk: Chunk, *more: Any) -> bytes:
        decoded.append(chunk.number)
        return decode(content, chunk, *more)

    monkeypatch.setattr(aiven_objects.ChunkedObject, "_decoded", recorded)
    assert b"".join(files.read_bytes(path, at, 10) for at in range(0, 600, 10)) == files.read_bytes(path, 0, 600)
    assert decoded == [0, 1, 2]


@pytest.mark.parametrize(("suffix", "limit"), [("rsm-manifest", "MAX_SMALL_BYTES"), ("indexes", "MAX_INDEX_BYTES")])
def test_an_object_that_must_be_small_and_is_large_is_not_read(objects: Path, suffix: str, limit: str) -> None:
    file = chosen(objects, "plain", f"3.{suffix}")
    size = getattr(text_files, limit) + 1
    if suffix == "indexes":
        manifest = chosen(objects, "plain", "3.rsm-manifest")
        document = json.loads(manifest.read_text())
        document["segmentIndexes"]["transaction"] = {"position": size - 8, "size": 8}
        manifest.write_text(json.dumps(document))
    with file.open("r+b") as sparse:
        sparse.truncate(size)
    with pytest.raises(CorruptLogError, match=f"is larger than {size >> 20} MiB, the limit for such objects") as error:
        read_all(aiven(objects / "plain"))
    assert error.value.path == str(file)


@pytest.mark.parametrize("suffix", ["log", "rsm-manifest"])
def test_an_object_that_cannot_be_read_fails_its_log_only(objects: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = str(chosen(objects, "zstd", f"3.{suffix}"))
    opened = LocalFileSystem.open

    def checked(path: str) -> None:
        if path == refused:
            raise StorageError("cannot read: Permission denied", path=path)

    def open_unless_refused(self: LocalFileSystem, path: str, start: int, end: int, *, uncached: bool = False) -> File:
        checked(path)
        return opened(self, path, start, end, uncached=uncached)

    monkeypatch.setattr(LocalFileSystem, "open", open_unless_refused)
    files, address = MixedFileSystem(), aiven(objects / "zstd")
    logs = discover(files, [address], Selector())
    # the run begins
    require_logs(files, logs, [address], Selector())
    with pytest.raises(StorageError, match="Permission denied") as error:
        files.listdir(logs[0].path)
    assert error.value.path == refused


def test_uploads_without_any_manifest_are_no_empty_log(objects: Path) -> None:
    for manifest in (objects / "plain").rglob("*.rsm-manifest"):
        manifest.unlink()
    with pytest.raises(CorruptLogError, match=r"no upload is complete: \d+ uploads without a manifest"):
        read_all(aiven(objects / "plain"))


@pytest.mark.parametrize("name", ["007", "٧", "-1"])
def test_a_directory_that_is_not_named_as_a_partition_is_not_one(objects: Path, name: str) -> None:
    (topic,) = (objects / "plain").iterdir()
    shutil.copytree(topic / "0", topic / name)
    assert MixedFileSystem().listdir(aiven(objects / "plain")) == [LOG_NAME]


def test_two_topics_of_one_name_are_an_error(objects: Path) -> None:
    (topic,) = (objects / "plain").iterdir()
    shutil.copytree(topic, topic.with_name(f"payments-{'A' * 22}"))
    with pytest.raises(CorruptLogError, match="has objects of several topics of one name"):
        read_all(aiven(objects / "plain"))


def test_nothing_is_changed_in_an_export(objects: Path) -> None:
    files, path = MixedFileSystem(), join(aiven(objects / "plain"), LOG_NAME, f"{0:020d}.log")
    with pytest.raises(StorageError, match="the cluster's own metadata of these objects would no longer be true"):
        files.unlink(path)
