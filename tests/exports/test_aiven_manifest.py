"""Manifests of Aiven's plugin: chunk indexes against chunks counted one by one, and malformed documents."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import numpy as np
import pytest
import zstandard

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.exports.aiven_objects import ChunkIndex, decode_sizes, parse_manifest


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
    "values", [[], [7], [7, 3], [1000, 1000, 5], [10, 300, 70_000, 20_000_000, 1], [0, 2**31 - 1, 2**31 - 1]]
)
def test_sizes_are_decoded(values: list[int]) -> None:
    assert decode_sizes(encode_sizes(values)).tolist() == values


def test_random_sizes_are_decoded_and_cut_ones_are_not() -> None:
    chance = random.Random(1)
    for _ in range(200):
        values = [chance.randrange(2 ** chance.randint(1, 31)) for _ in range(chance.randint(1, 40))]
        data = encode_sizes(values)
        assert decode_sizes(data).tolist() == values
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
