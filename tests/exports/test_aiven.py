"""Objects of Aiven's plugin: golden ones are read as the log directory that they were made from, byte for byte; damaged chunks
and malformed manifests are errors that name the object and its bytes; no private key is shown.
``calls/damaged_exports.txt`` damages golden ones."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from compaction.errors import CorruptLogError, StorageError, UnsupportedLogError, UsageError
from compaction.exports import aiven_objects, aiven_writer
from compaction.exports.aiven_objects import Chunk, ChunkIndex, decode_sizes, parse_manifest
from compaction.files import contents, data_keys
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.contents import read_range
from compaction.files.data_keys import add_private_keys, data_key
from compaction.files.filesystem import File, FileRange, join
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.segment_file import SegmentReader
from compaction.files.uri import parse_uri
from compaction.log.discover import Selector, discover, require_logs
from tests.exports.aiven_objects import KEY_ID, new_key
from tests.exports.exchanged_uploads import Export, edit
from tests.exports.exports import LOG_NAME, aiven, read_all, require_cryptography, uploaded
from tests.files.remote_places import PLACE
from tests.log.logs import data_batch

CHUNK_BYTES = 100
SEALED_BYTES = CHUNK_BYTES + 28


def chosen(objects: Path, coding: str, name: str) -> Path:
    """One object of a set: the ``name``-th log, manifest and so on by suffix, e.g. ``2.log``."""
    number, _, suffix = name.partition(".")
    return sorted((objects / coding).rglob(f"*.{suffix}"))[int(number)]


def test_an_export_has_the_files_of_the_log_directory_that_it_was_made_from(coding: str, objects: Path, source: Path) -> None:
    address = aiven(objects / coding)
    assert MixedFileSystem().listdir(address) == [LOG_NAME]
    assert read_all(address, LOG_NAME) == uploaded(source)


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


@pytest.mark.parametrize("coding", ["zstd", "zstd-encrypted"], indirect=True)
def test_decoded_chunks_are_kept_up_to_a_limit_for_all_objects(
    coding: str, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiven_objects, "KEPT", aiven_objects.KeptBytes(600))
    read_all(aiven(objects / coding), LOG_NAME)
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

    def open_unless_refused(self: LocalFileSystem, path: str, *given: Any, **named: Any) -> File:
        if path == refused:
            raise StorageError("cannot read: Permission denied", path=path)
        return opened(self, path, *given, **named)

    monkeypatch.setattr(LocalFileSystem, "open", open_unless_refused)
    files, address = MixedFileSystem(), aiven(objects / "zstd")
    logs = discover(files, [address], Selector())
    # the run begins
    require_logs(files, logs, [address], Selector())
    with pytest.raises(StorageError, match="Permission denied") as error:
        files.listdir(logs[0].path)
    assert error.value.path == refused


def test_nothing_is_changed_in_an_export(objects: Path) -> None:
    files, path = MixedFileSystem(), join(aiven(objects / "plain"), LOG_NAME, f"{0:020d}.log")
    with pytest.raises(StorageError, match="the cluster's own metadata of these objects would no longer be true"):
        files.unlink(path)


#: a log that is stored in chunks of 100 bytes, the last one smaller
LOG = b"".join(map(data_batch, range(11)))
COUNT = -(-len(LOG) // CHUNK_BYTES)


def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> tuple[Export, Path]:
    """An export of this log, and the object that has it."""
    monkeypatch.setenv(KEYS_VARIABLE, f"{KEY_ID}={tmp_path}/key.pem")
    export = Export(tmp_path, layout, CHUNK_BYTES)
    return export, export.add(range(11), [(0, 0)])


def segment_of(export: Export) -> FileRange:
    """Where tasks find the log."""
    found = MixedFileSystem().real_path(join(export.address, "orders-0", f"{0:020d}.log"))
    assert found is not None
    return found


def change(log: Path, at: int, data: bytes) -> None:
    """Overwrites bytes of an object."""
    stored = log.read_bytes()
    log.write_bytes(stored[:at] + data + stored[at + len(data) :])


def read_log(segment: FileRange, files: MixedFileSystem | None = None) -> bytes:
    """A log, as a task reads it."""
    return b"".join(map(bytes, read_range(files or MixedFileSystem(), segment)))


@pytest.mark.parametrize("block_bytes", [120, 150, 210])
def test_batches_across_chunks_are_read_again_from_a_store(
    tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    """The next block begins in the chunk before, whose range of the object was read ahead earlier."""
    monkeypatch.setattr(contents, "_RANGE_BYTES", 60)
    small(tmp_path, monkeypatch, "aiven zstd")
    (tmp_path / "out").rename(bucket / "export")
    address = parse_uri(f"aiven+{PLACE}/export", "--log-dir")
    segment = MixedFileSystem().real_path(f"{address}/orders-0/{0:020d}.log")
    assert segment is not None
    with SegmentReader(MixedFileSystem(), segment.path, 0, segment.size, block_bytes=block_bytes) as reader:
        assert b"".join(block.raw.tobytes() for block in reader.blocks(check_crc=True)) == LOG


Fault = tuple[Callable[[Path], None], str, int, str]
FAULTS: dict[str, Fault] = {
    "a byte of a chunk differs": (
        lambda log: change(log, 2 * SEALED_BYTES + 40, b"\0\0\0"), "aiven encrypted", 2 * SEALED_BYTES,
        "chunk 2, bytes 256 to 383: the authentication tag does not match",
    ),
    "the manifest says that chunks are smaller": (
        lambda log: edit(
            log, "chunkIndex", transformedChunkSize=SEALED_BYTES - 1,
            finalTransformedChunkSize=log.stat().st_size - (COUNT - 1) * (SEALED_BYTES - 1),
        ), "aiven encrypted", 0, "chunk 0, bytes 0 to 126: the authentication tag does not match",
    ),
    "the manifest says that the log is larger": (
        lambda log: edit(log, "chunkIndex", originalFileSize=len(LOG) + 1), "aiven encrypted", -1,
        r"chunk \d+, bytes \d+ to \d+: has \d+ bytes of the log, the manifest says \d+",
    ),
    "a compressed chunk is damaged": (
        lambda log: change(log, 0, bytes(8)), "aiven zstd", 0, r"chunk 0, bytes 0 to \d+: cannot be decompressed",
    ),
    "the manifest says that compressed chunks have fewer bytes": (
        lambda log: edit(log, "chunkIndex", originalChunkSize=CHUNK_BYTES - 1, originalFileSize=len(LOG) - 5), "aiven zstd", 0,
        r"chunk 0, bytes 0 to \d+: has 100 bytes of the log, the manifest says 99",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_names_the_object_and_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    damage, layout, position, told = FAULTS[fault]
    export, log = small(tmp_path, monkeypatch, layout)
    damage(log)
    with pytest.raises(CorruptLogError, match=told) as error:
        read_log(segment_of(export))
    assert error.value.path == str(log)
    assert error.value.position == position or position < 0 <= (error.value.position or 0)


def test_an_object_that_is_truncated_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (export, log), task = small(tmp_path, monkeypatch, "aiven encrypted"), MixedFileSystem()
    segment = segment_of(export)
    assert task.stat(segment.path) is not None
    log.write_bytes(log.read_bytes()[:400])
    with pytest.raises(CorruptLogError, match="chunk 3, bytes 384 to 511: the object ends at byte 400") as error:
        read_log(segment, task)
    assert (error.value.path, error.value.position) == (str(log), 400)


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


def test_sizes_are_decoded_and_cut_ones_are_not() -> None:
    chance = random.Random(1)
    odd = [[], [7], [7, 3], [1000, 1000, 5], [300, 44, 0], [10, 300, 70_000, 20_000_000, 1], [0, 2**31 - 1, 2**31 - 1]]
    drawn = [[chance.randrange(2 ** chance.randint(1, 31)) for _ in range(chance.randint(1, 40))] for _ in range(200)]
    for values in (*odd, *drawn):
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


@pytest.mark.parametrize("short", [False, True])
def test_an_encrypted_export_with_another_private_key_is_an_error(
    objects: Path, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    """Also with one that is too short for the padding."""
    require_cryptography()
    new_key(file := objects / "other.pem")
    if short:
        file.write_text(f"-----BEGIN PRIVATE KEY-----{SHORT_KEY}-----END PRIVATE KEY-----\n")
    monkeypatch.setenv(KEYS_VARIABLE, f"{file}")
    data_keys.data_key.cache_clear()
    with pytest.raises(UnsupportedLogError, match="other.pem does not decrypt the data key of key id 'key1'"):
        read_all(aiven(objects / "encrypted"), LOG_NAME)
