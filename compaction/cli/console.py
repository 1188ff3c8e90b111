"""``kafka-log-compaction``: the console command of this package, and the table of commands.

The first argument selects a command, the others are its own. Only the selected command is imported. The applications of
``spark-submit``, completion and the documentation come from the table, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from compaction import __version__, signals
from compaction.cli import standard_streams
from compaction.cli.help_text import PROGRAM, filled, width

_INTERRUPTED = 130


class Command(NamedTuple):
    """A command.

    :ivar name: its name in the console command
    :ivar application: its module in ``compaction.commands``, with ``OPTIONS`` and ``main(argv)``, and its file in ``jobs/``
    :ivar purpose: its line of help
    """

    name: str
    application: str
    purpose: str

    def load(self) -> ModuleType:
        """Its module; it is imported only when the command is run or described."""
        return import_module(f"compaction.commands.{self.application}")


COMMANDS = (
    Command("compact", "compact", "clean logs as Kafka's log cleaner would; with --dry-run only report the result"),
    Command("expire", "expire", "apply the delete policy: retention by time, by size and by log start offset"),
    Command("erase", "erase", "erase all records of given keys; other records do not change"),
    Command("dry-run", "dry_run", "compare several policies side by side, without writing to the logs"),
    Command("verify", "verify", "verify that cleaning lost and changed no record; explain why a record was dropped"),
    Command("dump-log", "dump_log", "print segments, indexes and snapshots as Kafka's own dump tool does"),
    Command("count", "count", "count records, distinct keys and tombstones, exactly, and name the largest keys"),
    Command("doctor", "doctor", "check the machine and log directories, find logs whose cleaner has died, suggest fixes"),
    Command("warm-up", "warm_up", "compile all kernels in advance, for example when an image is built"),
    Command("completion", "completion", "print a script that completes these commands and their options in a shell"),
)


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
    command = next((candidate for candidate in COMMANDS if candidate.name == name), None)
    if command is None:
        names = ", ".join(candidate.name for candidate in COMMANDS)
        print(f"{PROGRAM}: no command {name!r}; choose one of: {names}", file=sys.stderr)
        return 2
    sys.argv = [f"{PROGRAM} {name}", *command_arguments]
    return _run(command, command_arguments)


def run_application(name: str) -> int:
    """Runs the command whose file in ``jobs/`` was started, with the arguments of the process; returns its exit code."""
    return _run(next(command for command in COMMANDS if command.application == name), None)


def _run(command: Command, argv: Sequence[str] | None) -> int:
    try:
        # imports lose the exceptions of interrupts: those of destructors, and where a library ignores any exception
        with signals.deferred():
            application = command.load()
        code: int = application.main(argv)
    except KeyboardInterrupt:
        # nothing has begun
        print("error: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return code


def _usage() -> str:
    longest = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name:<{longest}}  {command.purpose}" for command in COMMANDS]
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
