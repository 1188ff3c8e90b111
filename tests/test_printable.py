"""What names and file contents cannot do to a terminal, a report or a parser."""

from __future__ import annotations

import io
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.errors import CorruptLogError
from compaction.printable import TerminalOutput, printable, printable_json, printable_lines

#: what a terminal obeys, what turns the direction of writing, and a byte that is not UTF-8
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
def test_what_a_terminal_obeys_is_shown(text: str) -> None:
    assert printable(text) == printable_lines(text) == ESCAPES[text]
    assert printable(ESCAPES[text]) == ESCAPES[text]


def test_lines_and_tabs_stay_where_lines_are_wanted() -> None:
    assert (printable("a\tb\n"), printable_lines("a\tb\n")) == ("a\\x09b\\x0a", "a\tb\n")


@given(st.text(st.characters()))
def test_no_text_gets_through(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert all(character >= " " and not "\x7f" <= character <= "\x9f" for character in shown)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_json_keeps_what_is_unicode(text: str) -> None:
    document = printable_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(document) == {text: [text]}
    assert printable(document) == document


def test_json_has_no_half_surrogate_pairs_that_other_parsers_refuse() -> None:
    document = printable_json(json.dumps(os.fsdecode(b"/logs/\xff"), ensure_ascii=False))
    assert document.encode() == rb'"/logs/\\udcff"'
    assert json.loads(document) == "/logs/\\udcff"


@given(st.binary(max_size=30), st.integers(1, 4))
def test_pieces_of_any_size_give_a_terminal_the_same(data: bytes, size: int) -> None:
    whole, cut = io.BytesIO(), io.BytesIO()
    TerminalOutput(whole).write(data + b"\n")
    pieces = TerminalOutput(cut)
    for start in range(0, len(data) + 1, size):
        pieces.write((data + b"\n")[start : start + size])
    assert cut.getvalue() == whole.getvalue()
    assert b"\x1b" not in cut.getvalue()


def test_an_errors_one_line_does_a_terminal_no_harm() -> None:
    error = CorruptLogError("entry '\x1b[2J\u202e'", path=os.fsdecode(b"/logs/\xff\x1b\nx"), hint="remove it")
    assert str(error) == "/logs/\\udcff\\x1b x: entry '\\x1b[2J\\u202e'; remove it"
