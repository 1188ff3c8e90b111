"""``kafka-log-compaction``: one console command for the applications of this package.

The first argument selects the application, the others are its own. Only the selected one is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from compaction import __version__

from . import _streams
from ._commands import COMMANDS as COMMANDS  # for those who run the commands by name
from ._commands import PROGRAM

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command with ``argv`` (``None``: those of the process); returns its exit code, 2 for a usage error."""
    _streams.guard()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(_usage(), file=sys.stderr)
        return 2
    name, *rest = arguments
    if name in ("-h", "--help"):
        print(_usage(), flush=True)
        return 0
    if name == "--version":
        print(f"{PROGRAM} {__version__}", flush=True)
        return 0
    module = next((module for command, module, _ in COMMANDS if command == name), None)
    if module is None:
        known = ", ".join(command for command, _, _ in COMMANDS)
        print(f"{PROGRAM}: no command {name!r}; choose one of: {known}", file=sys.stderr)
        return 2
    sys.argv = [f"{PROGRAM} {name}", *rest]
    try:
        application = import_module(f"{__package__}.{module}")
    except KeyboardInterrupt:
        # nothing has begun
        print("error: interrupted", file=sys.stderr)
        return _INTERRUPTED
    code: int = application.main(rest)
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
