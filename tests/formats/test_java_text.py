"""Text as Java and Jackson write it."""

from __future__ import annotations

import pytest

from compaction.formats.java_text import Json, java_text, json_text


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"plain", "plain"),
        ("ä€𝄞".encode(), "ä€𝄞"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2x", "\ufffdx"),
        (b"\xf0\x9f\x98x", "\ufffdx"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xf5\x80\x80\x80", "\ufffd" * 4),
    ],
)
def test_malformed_bytes_are_replaced_as_in_java(raw: bytes, expected: str) -> None:
    assert java_text(raw) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        (-7, "-7"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, {"b": None}], "c": False}, '{"a":[1,{"b":null}],"c":false}'),
        ('"\\/\n\t\r\b\f\x01\x1f\x7fä', '"\\"\\\\/\\n\\t\\r\\b\\f\\u0001\\u001F\x7fä"'),
        (0.0, "0.0"),
        (1.5, "1.5"),
        (1e-3, "0.001"),
        (1e-4, "1.0E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-123456789.125, "-1.23456789125E8"),
        (1e300, "1.0E300"),
        (2.5e-10, "2.5E-10"),
        (float("nan"), '"NaN"'),
        (float("-inf"), '"-Infinity"'),
    ],
)
def test_json_equals_jacksons(value: Json, expected: str) -> None:
    assert json_text(value) == expected
