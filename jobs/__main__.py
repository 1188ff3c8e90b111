"""``kafka-log-compaction``: one console command over the applications of this package.

The first argument chooses the application, the rest is its own. Only the chosen one is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from compaction import __version__

PROGRAM = "kafka-log-compaction"

#: command, the module that does it, and what it is for
COMMANDS = (
    ("compact", "jobs.compact", "clean logs as Kafka's log cleaner would; with --dry-run only say what would go"),
    ("expire", "jobs.expire", "apply the delete policy: retention by time, by size and by log start"),
    ("dry-run", "jobs.dry_run", "compare several policies side by side, writing nothing to the logs"),
    ("verify", "jobs.verify", "prove that cleaned logs lost and changed nothing; say why a record is gone"),
    ("dump-log", "jobs.dump_log", "print segments, indexes and snapshots as Kafka's own dump tool does"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command that ``argv`` names (``None``: the process's arguments); returns its exit code, 2 for a wrong call."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(_usage(), file=sys.stderr)
        return 2
    name, *rest = arguments
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name == "--version":
        print(f"{PROGRAM} {__version__}")
        return 0
    module = next((module for command, module, _ in COMMANDS if command == name), None)
    if module is None:
        known = ", ".join(command for command, _, _ in COMMANDS)
        print(f"{PROGRAM}: no command {name!r}; there are: {known}", file=sys.stderr)
        return 2
    sys.argv = [f"{PROGRAM} {name}", *rest]
    code: int = import_module(module).main(rest)
    return code


def _usage() -> str:
    width = max(len(command) for command, _, _ in COMMANDS)
    lines = [f"  {command:<{width}}  {purpose}" for command, _, purpose in COMMANDS]
    return "\n".join(
        [
            f"usage: {PROGRAM} COMMAND [OPTION ...]",
            "",
            "An offline log cleaner for Kafka log directories at rest, run on Spark.",
            "",
            *lines,
            "",
            f"'{PROGRAM} COMMAND --help' lists the options of a command, '{PROGRAM} --version' prints the version.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
