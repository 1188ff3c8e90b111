"""Manifests and segment files of kafka-backup, of its versions before and after 0.25, read in blocks of any size."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from compaction.formats.backup import (
    BackupPartition,
    BackupSegment,
    Compression,
    SegmentHeader,
    SegmentStream,
    encode_segment,
    format_manifest,
    parse_manifest,
)
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import Header, Record
from compaction.names import TopicPartition
from tests.oracle.backup_segments import LZ4, NONE, ZSTD, decode_segment, encode_record
from tests.oracle.backup_segments import encode_segment as plain_segment

KEY = "b1/topics/orders/partition=0/segment-00000000000000000000.bin.zst"
SEGMENT: dict[str, Any] = {
    "key": KEY,
    "start_offset": 0,
    "end_offset": 9,
    "start_timestamp": 5,
    "end_timestamp": 6,
    "record_count": 10,
}
ORDERS = TopicPartition("orders", 0)


def document(*segments: dict[str, Any], **more: Any) -> dict[str, Any]:
    topic = {"name": "orders", "configurations": {"cleanup.policy": "compact"}, "partitions": [{"partition_id": 0, **more}]}
    topic["partitions"][0]["segments"] = list(segments)  # type: ignore[index]
    return {"backup_id": "b1", "created_at": 1, "source_cluster_id": "c", "topics": [topic]}


def parse(given: dict[str, Any]) -> BackupPartition:
    return parse_manifest(json.dumps(given).encode()).partitions[ORDERS]


def test_a_manifest_of_an_old_version_is_read() -> None:
    found = parse_manifest(json.dumps(document(SEGMENT)).encode())
    assert (found.backup_id, found.isolation_level) == ("b1", None)
    partition = found.partitions[ORDERS]
    assert partition.segments == (BackupSegment(KEY[3:], 0, 9, 5, 6, 10, 0, 0),)
    assert (partition.absent, partition.end_offset) == ((), 10)


def test_what_a_segment_covers_and_what_is_absent_are_read() -> None:
    covering = {**SEGMENT, "covered_start_offset": 0, "covered_end_offset": 14, "sha256": "ab", "compressed_size": 3}
    later = {**SEGMENT, "key": KEY.replace("00.bin", "30.bin"), "start_offset": 30, "end_offset": 39}
    gaps = [{"start_offset": 15, "end_offset": 20, "reason": "offset_out_of_range", "detected_at": 1}]
    pruned = [{"start_offset": 20, "end_offset": 29, "segments": 1}]
    found = parse(document(later, covering, gaps=gaps, pruned=pruned, covered_through=44))
    assert [segment.start_offset for segment in found.segments] == [0, 30]
    assert found.segments[0].covered == (0, 15)
    assert (found.absent, found.end_offset) == (((15, 20), (20, 30)), 45)


#: a segment of a manifest, and what a partition says beside its segments
MALFORMED_SEGMENTS: list[tuple[dict[str, Any], str]] = [
    ({"key": "other/segment.bin"}, "is not below the set 'b1'"),
    ({"key": "b1/../x.bin"}, "is not below the set"),
    ({"key": "b1/a\0b.bin"}, "is not below the set"),
    ({"key": "b1/\ud800.bin"}, "is not below the set"),
    ({"key": 5}, "key is not of type str"),
    ({"start_offset": 1 << 63, "end_offset": (1 << 63) + 9}, "10 records at offsets 9223372036854775808"),
    ({"end_offset": -1}, "10 records at offsets 0 to -1"),
    ({"record_count": 11}, "11 records at offsets 0 to 9"),
    ({"record_count": True}, "record_count is not of type int"),
    ({"covered_start_offset": 1, "covered_end_offset": 9}, "outside of those that it covers"),
    ({"covered_start_offset": -1, "covered_end_offset": 9}, "outside of those that it covers"),
    ({"covered_start_offset": 0, "covered_end_offset": 1 << 70}, "outside of those that it covers"),
    ({"compressed_size": -1}, "malformed sizes"),
    ({"uncompressed_size": False}, "malformed sizes"),
    ({"sha256": 1}, "malformed sizes or digest"),
]
MALFORMED_STATEMENTS: list[tuple[dict[str, Any], str]] = [
    ({"gaps": None}, "orders-0: gaps is missing"),
    ({"gaps": 5}, "orders-0: gaps is not of type list"),
    ({"pruned": {}}, "orders-0: pruned is not of type list"),
    ({"pruned": [{"start_offset": -5, "end_offset": 1}]}, "pruned of orders-0 have offsets -5 to 1"),
    ({"gaps": [{"start_offset": 5, "end_offset": 1 << 70}]}, "gaps of orders-0 have offsets 5 to"),
    ({"covered_through": "9"}, "covered_through is not of type int"),
    ({"covered_through": 1 << 70}, "covered_through is 1180591620717411303424"),
]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        *((document({**SEGMENT, **change}), what) for change, what in MALFORMED_SEGMENTS),
        *((document(SEGMENT, **more), what) for more, what in MALFORMED_STATEMENTS),
    ],
)
def test_what_is_malformed_is_an_error(given: dict[str, Any], what: str) -> None:
    with pytest.raises(FormatError, match=what):
        parse(given)


def test_malformed_manifests_are_errors() -> None:
    overlapping = {**SEGMENT, "key": KEY.replace("00.bin", "05.bin"), "start_offset": 9, "end_offset": 20}
    with pytest.raises(FormatError, match="have the same offsets"):
        parse(document(SEGMENT, overlapping))
    for data, what in (
        (b"{", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "backup_id is missing"),
        (b'{"backup_id": "b"}', "topics is missing"),
    ):
        with pytest.raises(FormatError, match=what):
            parse_manifest(data)
    twice = document(SEGMENT)
    twice["topics"] *= 2
    with pytest.raises(FormatError, match="orders-0 twice"):
        parse(twice)


def test_what_two_segments_account_for_does_not_overlap() -> None:
    first = {**SEGMENT, "covered_start_offset": 0, "covered_end_offset": 14}
    second = {**SEGMENT, "key": KEY.replace("00.bin", "14.bin"), "start_offset": 14, "end_offset": 23}
    for segments in ((first, second), ({**second, "covered_start_offset": 9, "covered_end_offset": 23}, SEGMENT)):
        with pytest.raises(FormatError, match="have the same offsets"):
            parse(document(*segments))
    assert len(parse(document(SEGMENT, {**second, "covered_start_offset": 10, "covered_end_offset": 23})).segments) == 2


def test_a_segment_belongs_to_one_partition() -> None:
    given = document(SEGMENT)
    given["topics"][0]["partitions"].append({"partition_id": 1, "segments": [SEGMENT]})
    with pytest.raises(FormatError, match=r"segment 'topics/orders/partition=0/.*' is listed by orders-0 and orders-1"):
        parse(given)


@pytest.mark.parametrize(
    ("topic", "partition"), [("../x", 0), ("", 0), ("a b", 0), ("..", 0), ("orders", -1), ("orders", 1 << 31)]
)
def test_a_log_that_no_broker_can_have_is_an_error(topic: str, partition: int) -> None:
    given = document(SEGMENT)
    given["topics"][0]["name"], given["topics"][0]["partitions"][0]["partition_id"] = topic, partition
    with pytest.raises(FormatError, match=f"partition {partition} of topic '.*', which no broker can have"):
        parse(given)


def test_a_partition_whose_only_offset_is_0_ends_at_1() -> None:
    assert parse(document(covered_through=0)).end_offset == 1
    assert parse(document(covered_through=-1)).end_offset == 0


def test_a_written_manifest_keeps_what_describes_the_source() -> None:
    gap = {"start_offset": 15, "end_offset": 20, "reason": "offset_out_of_range", "detected_at": 1}
    base = parse_manifest(json.dumps(document(SEGMENT, gaps=[gap], covered_through=29)).encode())
    made = BackupSegment(KEY[3:], 2, 8, 5, 6, 3, 100, 50, "ff", (0, 15))
    data = format_manifest("b2", {ORDERS: BackupPartition((made,), (), 29)}, 77, base)
    found = parse_manifest(data)
    assert found.partitions[ORDERS] == BackupPartition((made,), ((15, 20),), 29)
    assert found.document["source_cluster_id"] == "c"
    assert found.document["topics"][0]["configurations"] == {"cleanup.policy": "compact"}
    assert (found.backup_id, found.isolation_level, found.document["created_at"]) == ("b2", None, 77)
    alone = parse_manifest(format_manifest("b2", {ORDERS: BackupPartition(())}, 77))
    assert alone.isolation_level == "read_committed"
    assert alone.partitions[ORDERS] == BackupPartition((), (), None)


RECORDS = [Record(offset, 1_700_000_000_000, b"key%d" % offset, b"v" * offset, (Header("h", None),)) for offset in range(7, 90)]
PLAIN = b"".join(map(encode_record, RECORDS))


def blocks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def read(data: bytes, listed_bytes: int | None = None) -> bytes:
    stream = SegmentStream(blocks(data, 1000), len(data) if listed_bytes is None else listed_bytes)
    plain = b"".join(stream.plain(100))
    stream.check_end()
    return plain


@pytest.mark.parametrize("compression", [NONE, ZSTD, LZ4])
@pytest.mark.parametrize("block_bytes", [1, 7, 1000, 10**6])
def test_a_segment_is_read_in_blocks_of_any_size(compression: int, block_bytes: int) -> None:
    data = plain_segment(RECORDS, compression)
    stream = SegmentStream(blocks(data, block_bytes), len(data))
    assert stream.header == (compression, len(RECORDS), 7, 89)
    parts = [bytes(part) for part in stream.plain(64)]
    assert b"".join(parts) == PLAIN and all(0 < len(part) <= 64 for part in parts)
    assert len(stream.check_end()) == 64


@pytest.mark.parametrize("compression", list(Compression))
def test_what_is_written_is_what_the_plain_reader_reads(compression: Compression) -> None:
    data = encode_segment(PLAIN, SegmentHeader(compression, len(RECORDS), 7, 89))
    assert decode_segment(data) == ((len(RECORDS), 7, 89), RECORDS)
    assert read(data) == PLAIN


@pytest.mark.parametrize("compression", [NONE, ZSTD, LZ4])
def test_any_changed_byte_is_an_error(compression: int) -> None:
    data = plain_segment(RECORDS, compression)
    for at in {*range(6), *range(8, 60), *range(60, len(data), 41), *range(len(data) - 9, len(data))}:
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(FormatError):
            read(bytes(changed))


@pytest.mark.parametrize("compression", [NONE, ZSTD, LZ4])
def test_a_segment_that_ends_early_is_an_error(compression: int) -> None:
    data = plain_segment(RECORDS, compression)
    for end in (0, 8, 39, 40, 50, len(data) - 8, len(data) - 1):
        with pytest.raises(FormatError):
            read(data[:end])
        with pytest.raises(FormatError, match="shorter than its listed size"):
            read(data[: max(end, 32)], len(data))


def signed(body: bytes, compression: int) -> bytes:
    data = b"KBAK" + struct.pack("<BBHQqq", 1, compression, 0, 1, 0, 0) + body
    return data + struct.pack("<I", zlib.crc32(data)) + b"BKAE"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (signed(b"abc", LZ4), "has no size"),
        (signed(struct.pack("<I", 2**32 - 1) + b"abc", LZ4), "declares 4294967295 plain bytes"),
        (signed(struct.pack("<I", 100) + b"abc", LZ4), "cannot be decompressed"),
        (signed(b"no zstd", ZSTD), "cannot be decompressed"),
        (signed(b"", 3), "unknown segment compression 3"),
        (signed(b"", NONE).replace(b"KBAK\x01", b"KBAK\x02"), "unknown segment version 2"),
        (b"[{" + b" " * 50, "begins with"),
        (signed(b"abc", NONE).replace(b"abc", b"abd"), r"fails its CRC \(stored 0x"),
    ],
)
def test_an_error_says_what_is_wrong(data: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        read(data)
