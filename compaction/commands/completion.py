"""``completion``: prints a script for a shell that completes commands, their options and names of files."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import shtab

from compaction.cli import execution
from compaction.cli.console import COMMANDS, PROGRAM, load
from compaction.cli.parser import Parser
from compaction.options.option import CommandOptions
from compaction.options.table import MESSAGES, SHELL, NoOptions

_DESCRIPTION = """\
Print a script for a shell that completes the commands of kafka-log-compaction, their options, and
the names of files and directories.
"""

_EPILOG = """\
exit status:
  0  done
  2  usage error

examples:
  In this shell only:
    eval "$(kafka-log-compaction completion bash)"

  In each new one:
    kafka-log-compaction completion bash > ~/.local/share/bash-completion/completions/kafka-log-compaction
    kafka-log-compaction completion zsh > ~/.zfunc/_kafka-log-compaction
    kafka-log-compaction completion fish > ~/.config/fish/completions/kafka-log-compaction.fish
"""


OPTIONS = CommandOptions("completion", NoOptions, SHELL, MESSAGES, description=_DESCRIPTION, epilog=_EPILOG)


def _body(arguments: argparse.Namespace) -> int:
    program = argparse.ArgumentParser(PROGRAM, description="An offline log cleaner for Kafka log directories.")
    program.add_argument("--version", action="store_true", help="print the version")
    commands = program.add_subparsers()
    for command, purpose in COMMANDS.items():
        options: Any = Parser(load(command).OPTIONS)
        for action in options._actions:
            metavar = str(action.metavar or "")
            if metavar.startswith("DIR"):
                action.complete = shtab.DIRECTORY
            elif metavar.startswith("F"):
                action.complete = shtab.FILE
        commands.add_parser(command, parents=[options], add_help=False, help=purpose)
    print(shtab.complete(program, arguments.shell))
    return 0


main = partial(execution.run_command, OPTIONS, _body)
