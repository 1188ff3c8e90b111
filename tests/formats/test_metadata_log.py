"""Configuration comes out of the metadata log as the controller would replay it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from compaction.formats.metadata_log import ClusterConfigs, parse_record
from compaction.formats.primitives import Buffer, FormatError, encode_unsigned
from tests.formats.golden import golden, unbase64
from tests.kafka.encode import Batch, Legacy, Record

GOLDEN = golden("metadata")
SEGMENTS = [unbase64(part) for part in GOLDEN["segment"]]


def batch(*values: bytes, base: int = 0) -> bytes:
    rows = [Record(base + index, 1, None, value) for index, value in enumerate(values)]
    return Batch(rows, base_offset=base).encode()


def framed(kind: int, message: bytes, version: int = 0, frame: int = 1) -> bytes:
    return encode_unsigned(frame) + encode_unsigned(kind) + encode_unsigned(version) + message + b"\x00"


def compact(text: str | None) -> bytes:
    return b"\x00" if text is None else encode_unsigned(len(text.encode()) + 1) + text.encode()


def config(resource: str, key: str, value: str | None, kind: int = 2) -> bytes:
    return framed(4, bytes([kind]) + compact(resource) + compact(key) + compact(value))


def topic(name: str, topic_id: bytes) -> bytes:
    return framed(2, compact(name) + topic_id)


def removal(topic_id: bytes) -> bytes:
    return framed(9, topic_id)


def feature(name: str, level: int) -> bytes:
    return framed(12, compact(name) + level.to_bytes(2, "big", signed=True))


def configs_in(buffers: Iterable[Buffer]) -> ClusterConfigs:
    configs = ClusterConfigs()
    for data in buffers:
        configs.read(data)
    return configs


BEGIN, END, ABORT = framed(23, b""), framed(24, b""), framed(25, b"")


@pytest.mark.parametrize("buffers", [SEGMENTS, [b"".join(SEGMENTS)]], ids=["apart", "together"])
def test_metadata_records_written_by_kafka_are_read(buffers: Sequence[bytes]) -> None:
    configs = configs_in(buffers)
    assert configs.topics == GOLDEN["topics"]
    assert configs.topic_ids == GOLDEN["topic_ids"]
    assert configs.brokers == GOLDEN["brokers"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([config("t", "a", "1"), config("t", "a", "2")], {"t": {"a": "2"}}),
        ([config("t", "a", "1"), config("t", "a", None)], {}),
        ([config("t", "a", None)], {}),
        ([config("t", "a", "1"), config("t", "b", ""), config("t", "a", None)], {"t": {"b": ""}}),
        ([config("t", "a", "1", 8), config("t", "a", "1", 32)], {}),
        ([topic("t", b"x" * 16), config("t", "a", "1"), removal(b"x" * 16)], {}),
        ([topic("t", b"x" * 16), config("t", "a", "1"), removal(b"y" * 16)], {"t": {"a": "1"}}),
        ([topic("t", b"x" * 16), removal(b"x" * 16), topic("t", b"y" * 16), config("t", "a", "2")], {"t": {"a": "2"}}),
        ([topic("t", b"x" * 16), config("t", "a", "1"), topic("t", b"y" * 16)], {}),
        ([BEGIN, config("t", "a", "1"), END], {"t": {"a": "1"}}),
        ([BEGIN, config("t", "a", "1"), ABORT], {}),
        ([BEGIN, config("t", "a", "1")], {}),
        ([BEGIN, config("t", "a", "1"), ABORT, config("t", "a", "2")], {"t": {"a": "2"}}),
        ([END, ABORT], {}),
        ([framed(3, b"any partition record", version=9)], {}),
    ],
)
def test_records_are_applied_in_order(values: list[bytes], expected: dict[str, dict[str, str]]) -> None:
    assert configs_in([batch(*values)]).topics == expected
    assert configs_in([batch(value, base=index) for index, value in enumerate(values)]).topics == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "ends inside a varint"),
        (framed(4, b"", frame=0), "frame version 0"),
        (framed(4, b"", frame=2), "frame version 2"),
        (framed(4, b"\x02", version=1), "type 4 has version 1"),
        (framed(2, b"", version=2), "type 2 has version 2"),
        (b"\x01\x04\x00", "empty configuration record"),
        (b"\x01\x04\x00\x02\x09abc", "ends inside a string"),
        (b"\x01\x04\x00\x02\x03\xff\xfe", "not UTF-8"),
        (b"\x01\x02\x00" + compact("t") + bytes(15), "ends inside an id"),
        (b"\x01\x09\x00" + bytes(15), "ends inside an id"),
        (b"\x01\x0c\x00" + compact("metadata.version"), "ends inside a feature's level"),
    ],
)
def test_damaged_records_are_errors(value: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        configs_in([batch(value)])


def test_damaged_batches_are_errors() -> None:
    data = bytearray(batch(config("t", "a", "1")))
    data[-1] ^= 1
    with pytest.raises(FormatError, match="fails its CRC"):
        configs_in([data])
    with pytest.raises(FormatError, match="metadata batch of magic 1"):
        configs_in([Legacy([Record(0, 1, None, b"")], 1).encode()])


def test_a_frame_contains_type_version_and_message() -> None:
    record = parse_record(framed(300, b"abc", version=2))
    assert (record.type, record.version, bytes(record.message)) == (300, 2, b"abc\x00")


def test_features_have_their_last_level() -> None:
    values = [feature("metadata.version", 7), feature("group.version", 1), feature("metadata.version", 30)]
    assert configs_in([batch(*values)]).features == {"metadata.version": 30, "group.version": 1}
