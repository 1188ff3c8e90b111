"""File and directory names are parsed as Kafka parses them."""

from __future__ import annotations

import pytest

from compaction.names import (
    LOG,
    SNAPSHOT,
    SWAP,
    SegmentFile,
    TopicPartition,
    is_log_dir_file,
    is_log_file,
    is_of_log_dir,
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


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("00000000000000000007.log", True),
        ("00000000000000000007.timeindex", True),
        ("00000000000000000007.snapshot", True),
        ("00000000000000000007-0000000003.checkpoint", True),
        ("leader-epoch-checkpoint", True),
        ("partition.metadata", True),
        ("quorum-state", True),
        ("00000000000000000007.log.orig", False),
        ("00000000000000000007.log.deleted", False),
        ("00000000000000000007.log~", False),
        (".00000000000000000007.log.swp", False),
        ("leader-epoch-checkpoint.tmp", False),
        ("core", False),
    ],
)
def test_a_broker_loads_files_of_its_own_names_only(name: str, loaded: bool) -> None:
    assert is_log_file(name) == loaded


def test_what_lies_beside_partition_directories_is_a_brokers_or_somebody_elses() -> None:
    copied = ["meta.properties", ".kafka_cleanshutdown", "bootstrap.checkpoint"]
    others = [".lock", "cleaner-offset-checkpoint", "orders-0", "__cluster_metadata-0", f"orders-0.{HEX}-stray"]
    assert [name for name in (*copied, *others, "keys.txt") if is_log_dir_file(name)] == copied
    assert [name for name in (*copied, *others, "keys.txt", "lost+found", "x.hprof") if is_of_log_dir(name)] == copied + others
