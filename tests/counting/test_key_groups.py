"""Groups of keys: what is a group, and which keys are in none."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from compaction.counting.key_groups import KeyGroups

WINDOW = struct.pack(">q", 1_700_000_000_000)


@pytest.mark.parametrize(
    ("argument", "key", "group"),
    [
        ("prefix:3", b"abcdef", b"abc"),
        ("prefix:3", b"ab", b"ab"),
        ("prefix:3", None, None),
        (r"regex:^(\w+)-", b"orders-17\xff", b"orders"),
        (r"regex:^(\w+)-", b"orders", None),
        (r"regex:[0-9]+", b"a12b345", b"12"),
        (r"regex:(a)|b", b"xxb", b""),
        (r"regex:-(\d+)$", b"a\nb-5", b"5"),
        ("regex:^(?:a|b)c", b"bcd", b"bc"),
        ("window", b"user" + WINDOW, WINDOW),
        ("window", b"short", None),
        ("window-store", b"user" + WINDOW + b"\0\0\0\7", WINDOW),
        ("window-store", WINDOW, None),
    ],
)
def test_the_group_of_a_key(argument: str, key: bytes | None, group: bytes | None) -> None:
    keys = pa.array([b"other", key, key], pa.binary()).slice(1)
    assert KeyGroups.parse(argument).of(keys).to_pylist() == [group, group]


def test_an_expression_is_not_shown() -> None:
    assert "secret" not in repr(KeyGroups.parse("regex:secret"))
