"""Objects of Aiven's plugin: golden ones are read as the log directory that they were made from, byte for byte; damaged chunks
and malformed manifests are errors that name the object and its bytes; no private key is shown.
``calls/damaged_exports.txt`` damages golden ones."""

from __future__ import annotations

import base64
import json
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from compaction.errors import CorruptLogError, StorageError, UnsupportedLogError, UsageError
from compaction.exports import aiven_objects, aiven_writer
from compaction.exports.aiven_objects import Chunk, ChunkIndex, decode_sizes, parse_manifest
from compaction.files import contents, data_keys, text_files
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.contents import read_range
from compaction.files.data_keys import add_private_keys, data_key
from compaction.files.filesystem import File, FileRange, join
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.segment_file import SegmentReader
from compaction.files.uri import parse_uri
from compaction.log.discover import Selector, discover, require_logs
from tests.exports.aiven_objects import KEY_ID, AivenWriter, new_key
from tests.exports.exports import LOG_NAME, aiven, require_cryptography, second_upload
from tests.files.remote_places import PLACE
from tests.log.logs import build, data_batch

CHUNK_BYTES = 100
SEALED_BYTES = CHUNK_BYTES + 28


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


def test_an_export_has_the_files_of_the_log_directory_that_it_was_made_from(coding: str, objects: Path, source: Path) -> None:
    address = aiven(objects / coding)
    assert MixedFileSystem().listdir(address) == [LOG_NAME]
    expected = {file.name: file.read_bytes() for file in source.iterdir()}
    # no segment follows the last one
    assert read_all(address) == {name: data for name, data in expected.items() if not name.startswith(f"{217:020d}.log")}


def test_any_range_of_a_segment_is_read(coding: str, objects: Path, source: Path) -> None:
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


def put_unfinished(objects: Path) -> None:
    log = chosen(objects, "plain", "3.log")
    for suffix in (".log", ".indexes"):
        file = log.with_suffix(suffix)
        shutil.copy(file, file.with_name(file.name[:21] + "A" * 22 + suffix))


@pytest.mark.parametrize(
    ("add", "told"),
    [
        (put_unfinished, "1 upload without a manifest"),
        (lambda objects: second_upload(chosen(objects, "plain", "3.log")), "1 upload with offsets that another one has"),
    ],
)
def test_uploads_that_brokers_do_not_read_are_reported_and_ignored(
    add: Callable[[Path], object], told: str, objects: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = read_all(aiven(objects / "plain"))
    add(objects)
    with caplog.at_level(logging.WARNING):
        assert read_all(aiven(objects / "plain")) == whole
    assert f"ignored: {told}" in caplog.text


def large_manifest(objects: Path) -> Path:
    file = chosen(objects, "plain", "3.rsm-manifest")
    with file.open("r+b") as sparse:
        sparse.truncate(text_files.MAX_SMALL_BYTES + 1)
    return file


def large_indexes(objects: Path) -> Path:
    size, file = text_files.MAX_INDEX_BYTES + 1, chosen(objects, "plain", "3.indexes")
    manifest = chosen(objects, "plain", "3.rsm-manifest")
    document = json.loads(manifest.read_text())
    document["segmentIndexes"]["transaction"] = {"position": size - 8, "size": 8}
    manifest.write_text(json.dumps(document))
    with file.open("r+b") as sparse:
        sparse.truncate(size)
    return file


@pytest.mark.parametrize(
    ("change", "limit_bytes"), [(large_manifest, text_files.MAX_SMALL_BYTES), (large_indexes, text_files.MAX_INDEX_BYTES)]
)
def test_an_object_that_must_be_small_and_is_large_is_not_read(
    change: Callable[[Path], Path], limit_bytes: int, objects: Path
) -> None:
    path = change(objects)
    with pytest.raises(CorruptLogError, match=f"is larger than {limit_bytes >> 20} MiB, the limit for such objects") as error:
        read_all(aiven(objects / "plain"))
    assert error.value.path == str(path)


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


@pytest.mark.parametrize("coding", ["zstd", "zstd-encrypted"], indirect=True)
def test_decoded_chunks_are_kept_up_to_a_limit_for_all_objects(
    coding: str, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiven_objects, "KEPT", aiven_objects.KeptBytes(600))
    read_all(aiven(objects / coding))
    # chunks of 256 bytes
    assert 256 <= aiven_objects.KEPT.size_bytes <= 600


def test_a_chunk_is_decoded_once_for_several_reads(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones one at a time."""
    monkeypatch.setattr(aiven_objects, "_LARGE_BYTES", 100)
    files, path = MixedFileSystem(), join(aiven(objects / "zstd"), LOG_NAME, f"{104:020d}.log")
    files.listdir(join(aiven(objects / "zstd"), LOG_NAME))
    monkeypatch.setattr(aiven_objects, "KEPT", aiven_objects.KeptBytes(64 << 20))
    decoded, decode = [], aiven_objects.ChunkedObject.decoded

    def recorded(content: aiven_objects.ChunkedObject, chunk: Chunk, *more: Any) -> bytes:
        decoded.append(chunk.number)
        return decode(content, chunk, *more)

    monkeypatch.setattr(aiven_objects.ChunkedObject, "decoded", recorded)
    assert b"".join(files.read_bytes(path, at, 10) for at in range(0, 600, 10)) == files.read_bytes(path, 0, 600)
    assert decoded == [0, 1, 2]


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


@pytest.mark.parametrize("name", ["007", "٧", "-1"])
def test_a_directory_that_is_not_named_as_a_partition_is_not_one(objects: Path, name: str) -> None:
    (topic,) = (objects / "plain").iterdir()
    shutil.copytree(topic / "0", topic / name)
    assert MixedFileSystem().listdir(aiven(objects / "plain")) == [LOG_NAME]


def test_nothing_is_changed_in_an_export(objects: Path) -> None:
    files, path = MixedFileSystem(), join(aiven(objects / "plain"), LOG_NAME, f"{0:020d}.log")
    with pytest.raises(StorageError, match="the cluster's own metadata of these objects would no longer be true"):
        files.unlink(path)


class Export:
    """One segment in chunks of 100 bytes, the last one smaller."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coding: str) -> None:
        encrypted = "encrypted" in coding
        if encrypted:
            require_cryptography()
            monkeypatch.setenv(KEYS_VARIABLE, f"{KEY_ID}={tmp_path}/key.pem")
        log = tmp_path / "orders-0"
        log.mkdir()
        build(0, [data_batch(offset) for offset in range(11)]).put(LocalFileSystem(), str(log))
        self.log = (log / f"{0:020d}.log").read_bytes()
        key = new_key(tmp_path / "key.pem") if encrypted else None
        AivenWriter(compressed="zstd" in coding, key=key, chunk_bytes=CHUNK_BYTES).write(log, tmp_path / "export")
        (self.object,) = (tmp_path / "export").rglob("*.log")
        self.count = -(-len(self.log) // CHUNK_BYTES)
        self._manifest = self.object.with_suffix(".rsm-manifest")
        self.address = aiven(tmp_path / "export")

    def change_index(self, **values: Any) -> None:
        """Change what the manifest says of the chunks."""
        document = json.loads(self._manifest.read_text())
        document["chunkIndex"].update(values)
        self._manifest.write_text(json.dumps(document))

    def change(self, at: int, data: bytes) -> None:
        """Overwrite bytes of the object."""
        stored = bytearray(self.object.read_bytes())
        stored[at : at + len(data)] = data
        self.object.write_bytes(stored)

    def cut(self, size_bytes: int) -> None:
        """Truncate the object."""
        self.object.write_bytes(self.object.read_bytes()[:size_bytes])

    def segment(self) -> FileRange:
        """Where tasks find the log."""
        found = MixedFileSystem().real_path(join(self.address, "orders-0", f"{0:020d}.log"))
        assert found is not None
        return found


def read_log(segment: FileRange, files: MixedFileSystem | None = None) -> bytes:
    """A log, as a task reads it."""
    return b"".join(map(bytes, read_range(files or MixedFileSystem(), segment)))


@pytest.mark.parametrize("block_bytes", [120, 150, 210])
def test_batches_across_chunks_are_read_again_from_a_store(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    """The next block begins in the chunk before, whose range of the object was read ahead earlier."""
    monkeypatch.setattr(contents, "_RANGE_BYTES", 60)
    export = Export(tmp_path, monkeypatch, "zstd")
    (tmp_path / "export").rename(bucket / "export")
    address = parse_uri(f"aiven+{PLACE}/export", "--log-dir")
    segment = MixedFileSystem().real_path(f"{address}/orders-0/{0:020d}.log")
    assert segment is not None
    with SegmentReader(MixedFileSystem(), segment.path, 0, segment.size, block_bytes=block_bytes) as reader:
        assert b"".join(block.raw.tobytes() for block in reader.blocks(check_crc=True)) == export.log


#: what happened to an export, its coding, the byte and the text of the error
Fault = tuple[Callable[[Export], None], str, int, str]
FAULTS: dict[str, Fault] = {
    "a byte of a chunk differs": (
        lambda export: export.change(2 * SEALED_BYTES + 40, b"\0\0\0"), "encrypted", 2 * SEALED_BYTES,
        "chunk 2, bytes 256 to 383: the authentication tag does not match",
    ),
    "the manifest says that chunks are smaller": (
        lambda export: export.change_index(
            transformedChunkSize=SEALED_BYTES - 1,
            finalTransformedChunkSize=export.object.stat().st_size - (export.count - 1) * (SEALED_BYTES - 1),
        ), "encrypted", 0, "chunk 0, bytes 0 to 126: the authentication tag does not match",
    ),
    "the manifest says that the log is larger": (
        lambda export: export.change_index(originalFileSize=len(export.log) + 1), "encrypted", -1,
        r"chunk \d+, bytes \d+ to \d+: has \d+ bytes of the log, the manifest says \d+",
    ),
    "a compressed chunk is damaged": (
        lambda export: export.change(0, bytes(8)), "zstd", 0, r"chunk 0, bytes 0 to \d+: cannot be decompressed",
    ),
    "the manifest says that compressed chunks have fewer bytes": (
        lambda export: export.change_index(originalChunkSize=CHUNK_BYTES - 1, originalFileSize=len(export.log) - 5), "zstd", 0,
        r"chunk 0, bytes 0 to \d+: has 100 bytes of the log, the manifest says 99",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_names_the_object_and_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    change, coding, position, told = FAULTS[fault]
    export = Export(tmp_path, monkeypatch, coding)
    change(export)
    with pytest.raises(CorruptLogError, match=told) as error:
        read_log(export.segment())
    assert error.value.path == str(export.object)
    assert error.value.position == position or position < 0 <= (error.value.position or 0)


def test_an_object_that_is_truncated_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export, task = Export(tmp_path, monkeypatch, "encrypted"), MixedFileSystem()
    segment = export.segment()
    assert task.stat(segment.path) is not None
    export.cut(400)
    with pytest.raises(CorruptLogError, match="chunk 3, bytes 384 to 511: the object ends at byte 400") as error:
        read_log(segment, task)
    assert (error.value.path, error.value.position) == (str(export.object), 400)


def encode_sizes(values: list[int]) -> bytes:
    """The plugin's encoding, by its description."""
    data = len(values).to_bytes(4, "big")
    if len(values) > 1:
        base = min(values[:-1])
        width = max(1, -(-(max(values[:-1]) - base).bit_length() // 8))
        data += base.to_bytes(4, "big") + bytes([width])
        data += b"".join((value - base).to_bytes(width, "big") for value in values[:-1])
    return data + b"".join(value.to_bytes(4, "big") for value in values[-1:])


def document(**changes: Any) -> dict[str, Any]:
    section = {"position": 0, "size": 0}
    made: dict[str, Any] = {
        "version": "1",
        "chunkIndex": {
            "type": "fixed",
            "originalChunkSize": 100,
            "originalFileSize": 250,
            "transformedChunkSize": 128,
            "finalTransformedChunkSize": 78,
        },
        "segmentIndexes": dict.fromkeys(("offset", "timestamp", "producerSnapshot", "leaderEpoch"), section),
        "compression": False,
        "remoteLogSegmentMetadata": {
            "remoteLogSegmentId": {
                "topicIdPartition": {"topicId": "yRqOh", "topicPartition": {"topic": "orders", "partition": 3}}, "id": "zqOVM",
            },
            "startOffset": 10, "endOffset": 29, "eventTimestampMs": 1, "segmentLeaderEpochs": {"3": 10, "12": 20},
        },
    }  # fmt: skip
    for path, value in changes.items():
        *parents, name = path.split("__")
        target = made
        for each in parents:
            target = target[each]
        target[name] = value
    return made


def parsed(**changes: Any) -> Any:
    return parse_manifest(json.dumps(document(**changes)).encode(), "the-manifest")


@pytest.mark.parametrize(
    "values", [[], [7], [7, 3], [1000, 1000, 5], [300, 44, 0], [10, 300, 70_000, 20_000_000, 1], [0, 2**31 - 1, 2**31 - 1]]
)
def test_sizes_are_decoded(values: list[int]) -> None:
    assert decode_sizes(encode_sizes(values)).tolist() == values
    assert aiven_writer.encode_sizes(values) == encode_sizes(values)


def test_random_sizes_are_decoded_and_cut_ones_are_not() -> None:
    chance = random.Random(1)
    for _ in range(200):
        values = [chance.randrange(2 ** chance.randint(1, 31)) for _ in range(chance.randint(1, 40))]
        data = encode_sizes(values)
        assert (aiven_writer.encode_sizes(values), decode_sizes(data).tolist()) == (data, values)
        with pytest.raises(ValueError, match="sizes"):
            decode_sizes(data[: chance.randrange(len(data))] if len(data) > 8 else data[:-1])


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 200, 250])
@pytest.mark.parametrize("fixed", [True, False])
def test_each_byte_is_in_the_chunk_that_counting_finds(size: int, fixed: bool) -> None:
    sizes = [min(100, size - at) for at in range(0, size, 100)]
    stored = [each + 28 for each in sizes]
    index = ChunkIndex(size, 100, (128, stored[-1] if stored else 0) if fixed else np.array(stored, np.int64))
    assert index.stored_size == sum(stored)
    for position in range(size):
        chunk = index.at(position)
        assert chunk.start <= position < chunk.end and chunk.number == position // 100
        assert (chunk.start, chunk.end - chunk.start) == (chunk.number * 100, sizes[chunk.number])
        assert (chunk.stored_start, chunk.stored_end) == (sum(stored[: chunk.number]), sum(stored[: chunk.number + 1]))


def test_a_manifest_is_read() -> None:
    found = parsed()
    assert (found.start_offset, found.end_offset, found.chunks.stored_size) == (10, 30, 128 + 128 + 78)
    assert list(found.epochs) == [(3, 10), (12, 20)]
    assert found.name == "orders-yRqOh/3/00000000000000000010-zqOVM"
    assert found.encryption is None and not found.compressed


def test_a_manifest_with_variable_chunks_is_read() -> None:
    sizes = base64.b64encode(zstandard.compress(encode_sizes([40, 50, 7]))).decode()
    chunks = {"type": "variable", "originalChunkSize": 100, "originalFileSize": 250, "transformedChunks": sizes}
    assert parsed(chunkIndex=chunks).chunks.stored_size == 97
    with pytest.raises(CorruptLogError, match="expected 4 chunks for 350 bytes in chunks of 100, it lists 3"):
        parsed(chunkIndex={**chunks, "originalFileSize": 350})
    with pytest.raises(CorruptLogError, match="expected a list of sizes"):
        parsed(chunkIndex={**chunks, "transformedChunks": base64.b64encode(b"nothing").decode()})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"version": "2"}, "version is '2', expected '1'"),
        ({"chunkIndex": None}, "chunkIndex is not an object"),
        ({"chunkIndex__type": "other"}, "chunkIndex.type is 'other', expected fixed or variable"),
        ({"chunkIndex__originalChunkSize": 0}, "chunkIndex.originalChunkSize is 0, expected from 1 to 2147483647"),
        ({"chunkIndex__originalFileSize": -1}, "chunkIndex.originalFileSize is -1, expected from 0"),
        ({"chunkIndex__originalFileSize": True}, "chunkIndex.originalFileSize is True, expected of type int"),
        ({"segmentIndexes__offset": None}, "segmentIndexes.offset is None, expected a section"),
        ({"remoteLogSegmentMetadata__remoteLogSegmentId__id": 5}, "remoteLogSegmentId.id is 5, expected of type str"),
        ({"compression": "no"}, "compression is 'no', expected of type bool"),
        ({"encryption": {"dataKey": "k:", "aad": "%"}}, "encryption.aad is '%', expected base64"),
        ({"remoteLogSegmentMetadata": None}, "remoteLogSegmentMetadata is not an object"),
        ({"remoteLogSegmentMetadata__endOffset": 3}, "remoteLogSegmentMetadata.endOffset is 3, expected at least 10"),
        ({"remoteLogSegmentMetadata__segmentLeaderEpochs": {"x": 1}}, "segmentLeaderEpochs.x is 1, expected an offset by"),
    ],
)
def test_a_malformed_manifest_names_the_field(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(CorruptLogError, match="the-manifest: ") as error:
        parsed(**changes)
    assert told in str(error.value)


def test_chunks_that_do_not_fit_into_a_task_are_not_supported() -> None:
    chunks = document()["chunkIndex"]
    with pytest.raises(UnsupportedLogError, match="has chunks of 268435457 bytes, at most 268435456 are supported"):
        parsed(chunkIndex={**chunks, "originalChunkSize": (256 << 20) + 1, "originalFileSize": 1 << 30})
    # a smaller segment has one smaller chunk
    assert parsed(chunkIndex={**chunks, "originalChunkSize": 1 << 30}).chunks.count == 1


def test_a_manifest_that_is_not_json_is_an_error() -> None:
    for data in (b"", b"{", b"\xff", b"[]", b"[" * 100_000):
        with pytest.raises(CorruptLogError, match="the-manifest: "):
            parse_manifest(data, "the-manifest")


#: of 512 bits, which the package reads and does not generate
SHORT_KEY = """
MIIBVQIBADANBgkqhkiG9w0BAQEFAASCAT8wggE7AgEAAkEAq3nnE3HPUA03lwUA
vLBVJRsUa71MxzbwAU2N6EDAD3OG3wQiqwCNyvcaDi6LS2FJbaI0d9av3d7ELwum
FhM3nwIDAQABAkBFT37Bc00ytET1/AWyPywLVYjJi7iPBXu5axmi+RkopQYtFngu
JopRT30f9DCYBu1nWFpuSPWK7V0Wiy60zNVRAiEA2aY5uPdeza/50yFPd7FddruX
O6MJUdZ96Y4pbhN3n8UCIQDJsOOQ1cIZ3ceAkSC1loB5oRM/HwcfBT5Vf2yYdRKs
EwIhAJyVHx/4L6dQ/C2t4EsfOjuKeCH6iGDtLEbT9PBxZvV1AiB8+xsZLgy4gKDW
v5fYTqnQNQs7Kxv7kgE9c9e0ZZ+rdwIhALsfd+l2ZbkmWyzXzwu66qr0lwenqTHq
MLiJZGhIyRZ5
"""


@pytest.fixture
def pem(tmp_path: Path) -> str:
    require_cryptography()
    new_key(tmp_path / "a,b.pem")
    return (tmp_path / "a,b.pem").read_text()


@pytest.mark.parametrize("name", ["", "key1="])
@pytest.mark.parametrize("form", ["pem", "one line", "base64", "long"])
def test_a_key_in_place_of_its_path_is_refused_and_not_shown(
    name: str, form: str, pem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = pem.splitlines()[1:-1]
    given = {"pem": pem, "one line": " ".join(pem.splitlines()), "base64": "".join(lines), "long": lines[3] * 100}[form]
    with pytest.raises(UsageError, match="is given by the path of its file; this is not a path") as error:
        add_private_keys([name + given])
    assert not any(line in str(error.value) for line in lines)
    monkeypatch.setenv(KEYS_VARIABLE, name + given)
    with pytest.raises(UsageError, match="this is not a path"):
        data_key(f"key1:{base64.b64encode(bytes(256)).decode()}", "a.rsm-manifest")


@pytest.mark.usefixtures("pem")
def test_a_path_with_a_comma_is_refused(tmp_path: Path) -> None:
    """Workers would read two paths."""
    with pytest.raises(UsageError, match="name of a private key has a comma"):
        add_private_keys([f"key1={tmp_path}/a,b.pem"])


def test_a_key_that_is_too_short_for_the_padding_is_another_key(tmp_path: Path) -> None:
    require_cryptography()
    file = tmp_path / "short.pem"
    file.write_text(f"-----BEGIN PRIVATE KEY-----{SHORT_KEY}-----END PRIVATE KEY-----\n")
    add_private_keys([f"key1={file}"])
    with pytest.raises(UnsupportedLogError, match="short.pem does not decrypt the data key of key id 'key1'"):
        data_key(f"key1:{base64.b64encode(bytes(64)).decode()}", "a.rsm-manifest")
