"""File and directory names are parsed as Kafka parses them."""

from __future__ import annotations

import pytest

from compaction.names import (
    LOG,
    SNAPSHOT,
    SWAP,
    SegmentFile,
    TopicPartition,
    parse_partition_dir,
    parse_segment_file,
    segment_file,
)  # fmt: skip

HEX = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", TopicPartition("orders", 0)),
        ("a-b.c_d-12", TopicPartition("a-b.c_d", 12)),
        (f"{'t' * 249}-0", TopicPartition("t" * 249, 0)),
        (f"{'t' * 250}-0", None),
        (f"orders-0.{HEX}-delete", None),
        (f"orders-0.{HEX}-future", None),
        (f"orders-0.{HEX}-stray", None),
        ("orders-0.abc-1", TopicPartition("orders-0.abc", 1)),
        ("orders", None),
        ("orders-", None),
        ("orders-x", None),
        (".-0", None),
        ("..-0", None),
        ("or ders-0", None),
    ],
)
def test_a_partition_directory_is_a_topic_and_a_partition(name: str, expected: TopicPartition | None) -> None:
    assert parse_partition_dir(name) == expected
    assert expected is None or str(expected) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000007.log", SegmentFile(7, LOG, "")),
        ("00000000000000000007.log.swap", SegmentFile(7, LOG, SWAP)),
        ("00000000000000000007.snapshot.deleted", SegmentFile(7, SNAPSHOT, ".deleted")),
        ("00000000000000000007.log.clean.a-1", SegmentFile(7, LOG, ".clean.a-1")),
        ("7.log", None),
        ("00000000000000000007.logs", None),
        ("00000000000000000007.checkpoint", None),
        ("00000000000000000007", None),
    ],
)
def test_a_segment_file_is_a_base_offset_a_kind_and_a_suffix(name: str, expected: SegmentFile | None) -> None:
    assert parse_segment_file(name) == expected
    assert expected is None or segment_file(*expected) == name
