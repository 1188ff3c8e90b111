"""Text, JSON and property files as Java and Jackson write and read them."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.errors import ConfigError, CorruptLogError
from compaction.formats.java_text import (
    Json,
    MetaProperties,
    Property,
    as_dict,
    java_text,
    json_text,
    parse_meta_properties,
    parse_properties,
)
from tests.formats.golden import golden


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


FILES = golden("files")


@pytest.mark.parametrize("case", FILES["properties"], ids=lambda case: case["text"][:20])
def test_java_reads_the_same(case: dict[str, Any]) -> None:
    assert as_dict(parse_properties(case["text"], "f")) == case["values"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", []),
        ("# only\n! comments\n\n   \n", []),
        ("a=1", [Property("a", "1", 1)]),
        ("\n\na=1\r\nb:2\rc 3", [Property("a", "1", 3), Property("b", "2", 4), Property("c", "3", 5)]),
        ("a=one \\\n  two\\\n three\nb=2", [Property("a", "one twothree", 1), Property("b", "2", 4)]),
        ("a=x\\\\\nb=y", [Property("a", "x\\", 1), Property("b", "y", 2)]),
        ("a=x\\\n# not a comment\n", [Property("a", "x# not a comment", 1)]),
        ("  log.dirs = /a,/b  ", [Property("log.dirs", "/a,/b  ", 1)]),
        ("a==b", [Property("a", "=b", 1)]),
        ("a = : b", [Property("a", ": b", 1)]),
        ("a", [Property("a", "", 1)]),
        ("a\\ b\\=c\\u003D = \\u20AC\\n", [Property("a b=c=", "\u20ac\n", 1)]),
        ("a=1\na=2", [Property("a", "1", 1), Property("a", "2", 2)]),
    ],
)
def test_entries_and_lines(text: str, entries: list[Property]) -> None:
    assert parse_properties(text, "f") == entries


@pytest.mark.parametrize(("text", "line"), [("a=\\u12", 1), ("\n# c\na=\\uxyz1", 3), ("b=1\n\\u00g0=1", 2), ("a=b\\\n\\u", 1)])
def test_a_malformed_escape_is_an_error_with_source_and_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=f"server.properties: line {line}: malformed"):
        parse_properties(text, "server.properties")


def test_kafkas_meta_properties() -> None:
    case = FILES["meta_properties"]
    expected = MetaProperties(case["cluster_id"], case["node_id"])
    assert parse_meta_properties(case["text"], "meta.properties") == expected


def test_meta_properties_of_version_0_have_a_broker_id() -> None:
    assert parse_meta_properties("version=0\nbroker.id=3\nnode.id=4\n", "f") == MetaProperties(None, 3)
    assert parse_meta_properties("", "f") == MetaProperties()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("version=2\n", "version '2'"),
        ("version=1\nnode.id=x\n", "node.id: 'x'"),
        (f"version=1\nnode.id={'7' * 100_000}\n", "node.id: '7{80}'… is not an integer"),
        # of a broker's file, which is no error of the call
        ("cluster.id=\\u12\n", "line 1: malformed"),
    ],
)
def test_malformed_meta_properties_are_errors(text: str, what: str) -> None:
    with pytest.raises(CorruptLogError, match=what):
        parse_meta_properties(text, "meta.properties")
