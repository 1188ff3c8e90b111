"""Where a command prints its result."""

from __future__ import annotations

import io

from compaction.screen.text_table import PIPE_WIDTH, Line, Screen


def test_lines_are_printed_as_they_are_without_colours() -> None:
    stream = io.StringIO()
    Screen(stream).print([Line("[red]one", "red"), Line("")])
    assert stream.getvalue() == "[red]one\n\n"


def test_a_stream_without_a_width_has_tables_of_one_width_and_unbroken_sentences() -> None:
    assert (Screen(io.StringIO()).style.width, Screen(io.StringIO()).style.wraps) == (PIPE_WIDTH, False)
    assert (Screen(io.StringIO(), 60).style.width, Screen(io.StringIO(), 60).style.wraps) == (60, True)
