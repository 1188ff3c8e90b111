"""Names and file contents are escaped for terminals, reports and parsers."""

from __future__ import annotations

import io
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import CorruptLogError
from compaction.printable import TerminalOutput, printable, printable_json, printable_lines

#: terminal escapes, bidirectional controls, and a byte that is not UTF-8
ESCAPES = {
    "\x1b]0;title\x07": "\\x1b]0;title\\x07",
    "\x9b2J": "\\x9b2J",
    "\x7f": "\\x7f",
    "\r": "\\x0d",
    "a\u202eb": "a\\u202eb",
    "\u2066": "\\u2066",
    os.fsdecode(b"\xff"): "\\udcff",
    "é\U0001f600漢 \\": "é\U0001f600漢 \\",
}


@pytest.mark.parametrize("text", ESCAPES)
def test_control_characters_are_escaped(text: str) -> None:
    assert printable(text) == printable_lines(text) == ESCAPES[text]
    assert printable(ESCAPES[text]) == ESCAPES[text]


def test_line_feeds_and_tabs_are_kept_in_lines() -> None:
    assert (printable("a\tb\n"), printable_lines("a\tb\n")) == ("a\\x09b\\x0a", "a\tb\n")


@given(st.text(st.characters()))
def test_no_text_keeps_a_control_character(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(character >= " " and not "\x7f" <= character <= "\x9f" for character in shown)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_strings_keep_their_values(text: str) -> None:
    document = printable_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(document) == {text: [text]}
    assert printable(document) == document


def test_json_has_no_unpaired_surrogates() -> None:
    document = printable_json(json.dumps(os.fsdecode(b"/logs/\xff"), ensure_ascii=False))
    assert document.encode() == rb'"/logs/\\udcff"'
    assert json.loads(document) == "/logs/\\udcff"


@given(st.binary(max_size=30), st.integers(1, 4))
def test_chunks_of_any_size_give_the_same_output(data: bytes, size: int) -> None:
    expected, chunked = io.BytesIO(), io.BytesIO()
    TerminalOutput(expected).write(data + b"\n")
    output = TerminalOutput(chunked)
    for start in range(0, len(data) + 1, size):
        output.write((data + b"\n")[start : start + size])
    assert chunked.getvalue() == expected.getvalue()
    assert b"\x1b" not in chunked.getvalue()


def test_an_errors_message_is_one_printable_line() -> None:
    error = CorruptLogError("entry '\x1b[2J\u202e'", path=os.fsdecode(b"/logs/\xff\x1b\nx"), hint="remove it")
    assert str(error) == "/logs/\\udcff\\x1b x: entry '\\x1b[2J\\u202e'; remove it"
