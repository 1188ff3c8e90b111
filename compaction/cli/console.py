"""``kafka-log-compaction``: the console command of this package, and the table of commands.

The first argument selects a command, the others are its own. Only the selected command is imported. The applications of
``spark-submit``, completion and the documentation come from the table, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from compaction import __version__, signals
from compaction.cli import standard_streams
from compaction.cli.help_text import PROGRAM, filled, width

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
