"""Names and file contents cannot control a terminal, or break a report or a parser."""

from __future__ import annotations

import io
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import CorruptLogError
from compaction.printable import TerminalOutput, printable, printable_json, printable_lines

#: terminal control sequences, characters that change the direction of text, and a byte that is not UTF-8
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
def test_terminal_control_sequences_are_escaped(text: str) -> None:
    assert printable(text) == printable_lines(text) == ESCAPES[text]
    assert printable(ESCAPES[text]) == ESCAPES[text]


def test_line_ends_and_tabs_are_kept_in_multiline_text() -> None:
    assert (printable("a\tb\n"), printable_lines("a\tb\n")) == ("a\\x09b\\x0a", "a\tb\n")


@given(st.text(st.characters()))
def test_no_text_contains_control_sequences_after_escaping(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(character >= " " and not "\x7f" <= character <= "\x9f" for character in shown)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_keeps_valid_unicode(text: str) -> None:
    document = printable_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(document) == {text: [text]}
    assert printable(document) == document


def test_json_has_no_half_surrogate_pairs_that_other_parsers_refuse() -> None:
    document = printable_json(json.dumps(os.fsdecode(b"/logs/\xff"), ensure_ascii=False))
    assert document.encode() == rb'"/logs/\\udcff"'
    assert json.loads(document) == "/logs/\\udcff"


@given(st.binary(max_size=30), st.integers(1, 4))
def test_text_in_chunks_of_any_size_is_escaped_alike(data: bytes, size: int) -> None:
    whole, cut = io.BytesIO(), io.BytesIO()
    TerminalOutput(whole).write(data + b"\n")
    pieces = TerminalOutput(cut)
    for start in range(0, len(data) + 1, size):
        pieces.write((data + b"\n")[start : start + size])
    assert cut.getvalue() == whole.getvalue()
    assert b"\x1b" not in cut.getvalue()


def test_the_line_of_an_error_is_escaped() -> None:
    error = CorruptLogError("entry '\x1b[2J\u202e'", path=os.fsdecode(b"/logs/\xff\x1b\nx"), hint="remove it")
    assert str(error) == "/logs/\\udcff\\x1b x: entry '\\x1b[2J\\u202e'; remove it"
