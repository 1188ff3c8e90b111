"""Tables of text that fit a width: a line per row, figures right-aligned, no word broken.

Optional columns without any text are omitted. If a table is too wide, its least important columns are omitted, too. Names that
take more than their share of the width are shortened in the middle, so that one long name does not hide a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import TextWrapper
from typing import Any, TextIO, TypeVar

from rich.cells import cell_len, set_cell_size

from compaction.printable import printable
from compaction.screen.amounts import counted

L = TypeVar("L", bound=Any)

_GAP = "  "
#: names are not shortened below this
_SHORTEST_NAME = 12
#: spaces at which no line is broken: before units, and around arrows
_TOGETHER = re.compile(r"(?<=\d) (?=(?:B|kB|MB|GB|TB|PB|%|s|ms|min|h)\b|%)| (?=->)|(?<=->) ")
#: the part of the width that names may take
_NAME_SHARE = 3 / 8
_NO_BREAK = "\u00a0"


@dataclass(frozen=True)
class Style:
    """The layout of lines: the ``width`` in cells, the sign for omitted text, and whether sentences are wrapped.

    :ivar all_rows: show every log
    :ivar details: show removals and reasons below each log
    """

    width: int = 80
    ellipsis: str = "…"
    wraps: bool = True
    all_rows: bool = False
    details: bool = False


@dataclass(frozen=True)
class Line:
    """A line of output; ``colour`` is a style of rich, for terminals."""

    text: str
    colour: str = ""


@dataclass(frozen=True)
class Column:
    """A column; those with the lowest ``rank`` are omitted first, rank 0 never."""

    title: str
    right: bool = True
    rank: int = 0


@dataclass(frozen=True)
class Row:
    """The cells of a row, the first of which is a name, and lines of details below it."""

    cells: Sequence[str]
    colour: str = ""
    details: Sequence[str] = ()


def table(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> list[Line]:
    every = list(rows)
    texts = [[printable(cell) for cell in row.cells] for row in every]
    filled = [(column, [column.title, *cells]) for column, *cells in zip(columns, *texts, strict=True)]
    shown = [(each, cells, max(map(cell_len, cells))) for each, cells in filled if not each.rank or any(cells[1:])]
    names, *_ = shown
    # the least important columns are omitted if names would have to be shortened below their share
    least_names = min(names[2], max(_SHORTEST_NAME, int(style.width * _NAME_SHARE)))
    while least_names + _others(shown) > style.width and (optional := [each for each in shown if each[0].rank]):
        shown.remove(min(optional, key=lambda each: each[0].rank))
    width = min(names[2], max(_SHORTEST_NAME, style.width - _others(shown)))
    padded = [[_padded(shortened(name, width, style.ellipsis), width, right=names[0].right) for name in names[1]]]
    padded += [[_padded(cell, width, right=column.right) for cell in cells] for column, cells, width in shown[1:]]
    head, *bodies = (_GAP.join(cells).rstrip() for cells in zip(*padded, strict=True))
    lines = [Line(head, "bold")]
    for row, text in zip(every, bodies, strict=True):
        lines += [Line(text, row.colour), *(line for detail in row.details for line in wrapped(detail, style, indent=4))]
    return lines


def _others(shown: Sequence[tuple[Column, Sequence[str], int]]) -> int:
    """The width of all columns but that of the names, with the gaps before them."""
    return sum(len(_GAP) + width for _, _, width in shown[1:])


def _padded(text: str, width: int, *, right: bool) -> str:
    spaces = " " * (width - cell_len(text))
    return spaces + text if right else text + spaces


def wrapped(text: str, style: Style, indent: int = 0, hanging: int = 0, colour: str = "") -> list[Line]:
    """A text in lines of at most the width, broken between words; a longer word has a line of its own.

    :param hanging: additional indentation of the lines after the first
    """
    if not style.wraps:
        return [Line(" " * indent + printable(text), colour)] if text else []
    wrapper = TextWrapper(
        style.width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = wrapper.wrap(_TOGETHER.sub(_NO_BREAK, printable(text)))
    return [Line(line.replace(_NO_BREAK, " "), colour) for line in lines]


def letter(number: int) -> str:
    """Stands for a policy, whose name may be long: ``A`` to ``Z``, ``AA``, …."""
    return chr(65 + number) if number < 26 else letter(number // 26 - 1) + letter(number % 26)


def shortened(name: str, width: int, ellipsis: str) -> str:
    """A name in at most ``width`` cells; its middle is omitted, because its end has the partition."""
    if cell_len(name) <= width:
        return name
    tail = (width - len(ellipsis)) // 2
    head = width - len(ellipsis) - tail
    return set_cell_size(name, head).rstrip() + ellipsis + _end(name, tail)


def _end(name: str, width: int) -> str:
    """The end of a name, of at most ``width`` cells."""
    start = len(name)
    while start and cell_len(name[start - 1 :]) <= width:
        start -= 1
    return name[start:]


#: rows that are shown by default
MOST_ROWS = 20


def log_table(
    columns: Sequence[Column],
    logs: Sequence[L],
    rank: Callable[[Sequence[L]], Any],
    row: Callable[[str, Sequence[L]], Row],
    total: Row,
    style: Style,
) -> list[Line]:
    """A row for each log, or of many logs for each topic, with the number of its partitions; and the total.

    :param columns: those after the names
    :param logs: values with ``topic`` and ``partition``
    :param rank: the sort key of a row; the one with the least is first
    """
    title, rows = "log", [(f"{log.topic}-{log.partition}", [log]) for log in logs]
    if not style.all_rows and len(logs) > MOST_ROWS:
        topics: dict[str, list[L]] = {}
        for log in logs:
            topics.setdefault(log.topic, []).append(log)
        title = "topic (partitions)"
        rows = [(f"{name} ({len(own)})" if own[1:] else f"{name}-{own[0].partition}", own) for name, own in topics.items()]
    rows.sort(key=lambda each: rank(each[1]))
    shown = rows if style.all_rows else rows[:MOST_ROWS]
    others = counted(len(rows) - len(shown), "more topic")
    hidden = f"{style.ellipsis} and {others}, in the report (--all shows every log)" if rows[len(shown) :] else ""
    *body, last = table([Column(title, right=False), *columns], [*(row(*each) for each in shown), total], style)
    return [*body, *wrapped(hidden, style, colour="dim"), last]


#: the width of tables that are not printed to a terminal
PIPE_WIDTH = 80


@dataclass(frozen=True)
class Screen:
    """A stream to print to.

    :ivar width: width of the terminal; for a pipe or a file, tables have ``PIPE_WIDTH``, and sentences are on one line, for
        tools that search lines
    :ivar all_rows, details: see ``Style``
    :ivar only_summary: show the last line only
    """

    stream: TextIO
    width: int | None = None
    colours: bool = False
    all_rows: bool = False
    details: bool = False
    only_summary: bool = False

    @cached_property
    def style(self) -> Style:
        """The style of its lines."""
        ellipsis = Style.ellipsis
        try:
            ellipsis.encode(getattr(self.stream, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            ellipsis = "..."
        return Style(self.width or PIPE_WIDTH, ellipsis, self.width is not None, self.all_rows, self.details)

    def print(self, lines: Iterable[Line]) -> None:
        """Print lines, which contain no control characters."""
        if not self.colours:
            self.stream.write("".join(f"{line.text}\n" for line in lines))
            return
        # the import takes a twentieth of a second
        from rich.console import Console
        from rich.text import Text

        console = Console(file=self.stream, force_terminal=True, width=self.style.width)
        for line in lines:
            console.print(Text(line.text, line.colour), soft_wrap=True)
