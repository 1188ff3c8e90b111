"""Help that fits the terminal: paragraphs, lists and commands are broken at its width, which is 80 columns in a pipe."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from textwrap import wrap

#: the console command, and the launcher on clusters
PROGRAM = "kafka-log-compaction"
SUBMIT = "spark-submit"
#: lines are not longer than this on a wider terminal
_MOST_COLUMNS = 100
#: a term and its explanation, or the number of an item
_TERM = re.compile(r" *(?:\S+(?: \S+)*? {2,}|\d\. )(?=\S)")
_COMMAND = re.compile(rf" *(?:{PROGRAM}|{SUBMIT}) ")
#: an option with its values, a redirection, or what precedes the first one
_CHUNK = re.compile(r"(?:^|(?<= )(?:--?\w|>))(?:'[^']*'|\"[^\"]*\"| (?!--?\w|>)|[^ '\"])*")


def width() -> int:
    return min(shutil.get_terminal_size().columns, _MOST_COLUMNS)


class HelpFormatter(argparse.HelpFormatter):
    """Breaks descriptions and epilogs as ``filled``. The usage has the required options alone."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return filled(text, width)

    def add_usage(self, usage: object, actions: object, groups: object, prefix: str | None = None) -> None:
        needed = [action for action in list(actions) if action.required]  # type: ignore[call-overload]
        super().add_usage(f"{self._prog} {self._named(needed)}[OPTION ...]", [], [], prefix)

    def _named(self, needed: list[argparse.Action]) -> str:
        parts = [" ".join([*action.option_strings[:1], self._format_args(action, action.dest)]) for action in needed]
        return "".join(f"{part} " for part in parts)


def filled(text: str, columns: int) -> str:
    """A text in lines of at most ``columns``. Lines with one indentation are a paragraph; a term, two spaces and an explanation
    is an item, continued by lines that are indented as the explanation; commands are broken before options."""
    return "\n".join(line for block in _blocks(text) for line in _lines(block, columns))


def _blocks(text: str) -> Iterator[str]:
    """The paragraphs, items and commands, each on one line, and empty lines between them."""
    block, hanging = "", 0
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if block.endswith("\\"):
            block = f"{block[:-1].rstrip()} {line.strip()}"
        elif block and line and indent == hanging and not _TERM.match(line) and not _COMMAND.match(line):
            block += f" {line.strip()}"
        else:
            yield from [block] if block else []
            block, term = line, _TERM.match(line)
            hanging = len(term[0]) if term else indent
            if not line:
                yield ""
    yield from [block] if block else []


def _lines(block: str, columns: int) -> list[str]:
    indent = len(block) - len(block.lstrip())
    if _COMMAND.match(block):
        return _command(block.strip(), indent, columns)
    term = _TERM.match(block)
    first = term[0] if term else " " * indent
    lines = wrap(block[len(first) :], columns, initial_indent=first, subsequent_indent=" " * len(first),
                 break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return lines or [""]


def _command(call: str, indent: int, columns: int) -> list[str]:
    lines = [" " * indent]
    for chunk in (found.strip() for found in _CHUNK.findall(call)):
        if lines[-1].strip() and len(lines[-1]) + len(chunk) + 3 > columns:
            lines[-1] += " \\"
            lines.append(" " * (indent + 4))
        lines[-1] += (" " if lines[-1].strip() else "") + chunk
    return lines
