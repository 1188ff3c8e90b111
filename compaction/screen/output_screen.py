"""Where a command prints its result: a stream, how wide its lines are, whether they are coloured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TextIO

from compaction.screen.text_table import Line, Style

#: the width of tables that are not printed to a terminal
PIPE_WIDTH = 80
_ELLIPSIS = "…"


@dataclass(frozen=True)
class Screen:
    """A stream to print to.

    :ivar width: that of the terminal; tables for a pipe or a file have ``PIPE_WIDTH``, and sentences are on one line there, for
        tools that search lines
    :ivar all_rows: show every log, however many there are
    :ivar details: show below each log what was removed, and why
    :ivar only_summary: show the last line only
    """

    stream: TextIO
    width: int | None = None
    colours: bool = False
    all_rows: bool = False
    details: bool = False
    only_summary: bool = False
    style: Style = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "style", Style(self.width or PIPE_WIDTH, _ellipsis(self.stream), self.width is not None))

    def print(self, lines: Iterable[Line]) -> None:
        """Print lines, which contain no control characters."""
        if not self.colours:
            self.stream.write("".join(f"{line.text}\n" for line in lines))
            return
        # takes a twentieth of a second to import
        from rich.console import Console
        from rich.text import Text

        console = Console(file=self.stream, force_terminal=True, width=self.style.width)
        for line in lines:
            console.print(Text(line.text, line.colour), soft_wrap=True)


def _ellipsis(stream: TextIO) -> str:
    try:
        _ELLIPSIS.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "..."
    return _ELLIPSIS
