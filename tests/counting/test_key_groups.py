"""Groups of keys: what is a group, and which keys are in none."""

from __future__ import annotations

import re
import struct

import pyarrow as pa
import pytest

from compaction.counting.key_totals import KeyGroups
from compaction.errors import UsageError

WINDOW = struct.pack(">q", 1_700_000_000_000)


@pytest.mark.parametrize(
    ("argument", "key", "group"),
    [
        ("prefix:3", b"abcdef", b"abc"),
        ("prefix:3", b"ab", b"ab"),
        ("prefix:3", None, None),
        (r"regex:^(\w+)-", b"orders-17\xff", None),
        (r"bytes:^(\w+)-", b"orders-17\xff", b"orders"),
        ("regex:^(.)", "Ärger".encode(), "Ä".encode()),
        ("bytes:^(.)", "Ärger".encode(), b"\xc3"),
        ("regex:(?i)^(ä)", "Ärger".encode(), "Ä".encode()),
        (r"regex:^([\pL]+)-", "Größe-1".encode(), "Größe".encode()),
        (r"bytes:^(\xc3.)", "Ärger".encode(), "Ä".encode()),
        (r"regex:^(\w+)-", b"orders", None),
        (r"regex:[0-9]+", b"a12b345", b"12"),
        (r"regex:(a)|b", b"xxb", b""),
        (r"regex:-(\d+)$", b"a\nb-5", b"5"),
        ("regex:^(?:a|b)c", b"bcd", b"bc"),
        ("window", b"user" + WINDOW, WINDOW),
        ("window", b"short", None),
        ("window", b"user" + bytes(8), bytes(8)),
        ("window", b"user" + struct.pack(">q", -1), None),
        ("window", b"user" + struct.pack(">q", -(2**63)), None),
        ("window", b"customer-17", None),
        ("window-store", b"user" + struct.pack(">q", -1) + b"\0\0\0\7", None),
        ("window-store", b"customer-17 of", None),
        ("window-store", b"user" + WINDOW + b"\0\0\0\7", WINDOW),
        ("window-store", WINDOW, None),
    ],
)
def test_the_group_of_a_key(argument: str, key: bytes | None, group: bytes | None) -> None:
    keys = pa.array([b"other", key, key], pa.binary()).slice(1)
    groups = KeyGroups.parse(argument)
    assert groups.of(keys).to_pylist() == [group, group]
    if groups.windowed and key is not None:
        assert (groups.windowed_key(key) or (None, None))[1] == group


def test_keys_that_are_not_text_do_not_hide_others() -> None:
    keys = pa.array([b"\xff-1", "ä-1".encode(), None, b"\xc3"], pa.binary())
    assert KeyGroups.parse("regex:^(.)-").of(keys).to_pylist() == [None, "ä".encode(), None, None]


@pytest.mark.parametrize(("expression", "reason"), [("bytes:ä", "is not ASCII"), ("regex:(", "missing )"), ("bytes:a)(b", "")])
def test_a_wrong_expression_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--group-by: the expression .*{re.escape(reason)}.*; give prefix:NUMBER, regex:"):
        KeyGroups.parse(expression)


def test_an_expression_is_not_shown() -> None:
    assert "secret" not in repr(KeyGroups.parse("regex:secret"))
