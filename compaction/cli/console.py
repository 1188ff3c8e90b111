"""``kafka-log-compaction``: the console command of this package, and the table of commands.

The first argument selects a command, the others are its own. Only the selected command is imported. The applications of
``spark-submit``, completion and the documentation come from the table, too.

Help fits the terminal: paragraphs, lists and commands are broken at its width, which is 80 columns in a pipe.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from textwrap import wrap
from types import ModuleType

from compaction import __version__, signals
from compaction.cli import standard_streams

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
_INTERRUPTED = 130


#: the line of help of each command
COMMANDS = {
    "compact": "clean logs as Kafka's log cleaner would; with --dry-run only report the result",
    "expire": "apply the delete policy: retention by time, by size and by log start offset",
    "erase": "erase all records of given keys; other records do not change",
    "dry-run": "compare several policies side by side, without writing to the logs",
    "verify": "verify that cleaning lost and changed no record; explain why a record was dropped",
    "dump-log": "print segments, indexes and snapshots as Kafka's own dump tool does",
    "count": "count records, distinct keys and tombstones, exactly, and name the largest keys",
    "doctor": "check the machine and log directories, find logs whose cleaner has died, suggest fixes",
    "warm-up": "compile all kernels in advance, for example when an image is built",
    "completion": "print a script that completes these commands and their options in a shell",
}


def application(command: str) -> str:
    """The name of a command's file in ``jobs/``, and of its module."""
    return command.replace("-", "_")


def load(command: str) -> ModuleType:
    """The module, with ``OPTIONS`` and ``main(argv)``; it is imported only when the command is run or described."""
    return import_module(f"compaction.commands.{application(command)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command with ``argv`` (``None``: those of the process); returns its exit code, 2 for a usage error."""
    standard_streams.guard()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(_usage(), file=sys.stderr)
        return 2
    name, *command_arguments = arguments
    if name in ("-h", "--help"):
        print(_usage(), flush=True)
        return 0
    if name == "--version":
        print(f"{PROGRAM} {__version__}", flush=True)
        return 0
    if name not in COMMANDS:
        print(f"{PROGRAM}: no command {name!r}; choose one of: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    sys.argv = [f"{PROGRAM} {name}", *command_arguments]
    return _run(name, command_arguments)


def run_application(name: str) -> int:
    """Runs the command whose file in ``jobs/`` was started, with the arguments of the process; returns its exit code."""
    return _run(next(command for command in COMMANDS if application(command) == name), None)


def _run(command: str, argv: Sequence[str] | None) -> int:
    try:
        # imports lose the exceptions of interrupts: those of destructors, and where a library ignores any exception
        with signals.deferred():
            module = load(command)
        code: int = module.main(argv)
    except KeyboardInterrupt:
        # nothing has begun
        print("error: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return code


def _usage() -> str:
    longest = max(map(len, COMMANDS))
    lines = [f"  {command:<{longest}}  {purpose}" for command, purpose in COMMANDS.items()]
    text = "\n".join(
        [
            f"usage: {PROGRAM} COMMAND [OPTION ...]",
            "",
            "Kafka's log cleaner for log directories at rest, in processes of this machine or on Spark.",
            "",
            *lines,
            "",
            f"'{PROGRAM} COMMAND --help' lists the options of a command, '{PROGRAM} --version' prints the version.",
        ]
    )
    return filled(text, width())


def width() -> int:
    return min(shutil.get_terminal_size().columns, _MOST_COLUMNS)


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
