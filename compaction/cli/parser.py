"""The parser of a command, from the rows of its options, and the help on configuration and exit codes."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from compaction.cli.console import COMMANDS, PROGRAM, SUBMIT, application, filled, width
from compaction.errors import UsageError
from compaction.names import REFERENCE_VERSION
from compaction.options.option import CommandOptions, Option
from compaction.options.table import GROUPS

T = TypeVar("T")

#: the modules that ``spark-submit`` runs
APPLICATIONS = ("compact", "count", "doctor", "dry_run", "dump_log", "erase", "expire", "verify")

CONFIGURATION_HELP = f"""\
configuration:
  Topic-level names (cleanup.policy, segment.bytes, min.cleanable.dirty.ratio,
  delete.retention.ms, ...) and broker-level names (log.segment.bytes,
  log.cleaner.dedupe.buffer.size, ...) are those of Kafka {REFERENCE_VERSION}. The first source that sets a
  value wins:

    1. --set KEY=VALUE, for every selected topic
    2. TOML [topics."name"]
    3. the topic's configuration in the KRaft metadata log of the log directory's cluster; for
       internal topics missing there, the configuration that a broker creates them with
    4. TOML [broker]
    5. the broker's dynamic configuration in that metadata log
    6. a broker's server.properties
    7. Kafka's defaults

  A metadata log in one log directory also applies to the others with the same cluster.id
  (meta.properties), as in a broker with several log.dirs; --metadata names one outside the log
  directories. If a cluster has several metadata logs, the newest applies.

  cleanup.policy is unknown if no source sets it for the topic (1, 2, 3), unless the metadata
  log has the topic and the broker's default is known: log.cleanup.policy is set (4, 5), or the
  broker's server.properties is given (6). A log of unknown policy is not changed, and is counted
  separately: compact skips it, expire reports it as failed. With --assume-default-policy, the
  default (4 to 7) applies to these logs.

  Values in options and TOML may have units: retention.ms=3d, segment.bytes=1GiB.

  An unknown name in --set or TOML, and an invalid value anywhere, is an error. Names in
  server.properties that Kafka does not know are ignored, as a broker does.
"""

#: begins the error of argparse
_UNRECOGNIZED = "unrecognized arguments: "
#: errors of argparse that quote a value
_QUOTED_VALUE = re.compile(r"(invalid choice|ignored explicit argument|expected one argument|invalid \w+ value).*", re.DOTALL)

EXIT_HELP = """\
exit status:
  0  done, or nothing to do
  1  at least one log failed and was not changed; the others are done
  2  usage error (option, configuration, no such directory, no log selected, no Java, a live
     broker holds the lock); nothing was changed
130  interrupted (Ctrl-C), 143 stopped by SIGTERM; the next run completes or undoes the changes
"""


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


class Parser(argparse.ArgumentParser):
    """A parser that raises errors instead of printing them with the usage text, suggests the nearest option for an unknown one,
    and shows commands in the form of the call: ``spark-submit``, or the console command.

    :param command: the options, with the texts above and below them; the short help has the first paragraph of those above
    :param short: only usual options, as ``--help`` shows them
    """

    def __init__(self, command: CommandOptions[Any], *, short: bool = False) -> None:
        self._command = command
        rows = {name: row for name, row in command.rows.items() if (row.usual or not short) and (row.flag or row.others)}
        super().__init__(
            prog=None if _application() is None else f"{SUBMIT} jobs/{_application()}.py",
            description=_as_run(command.description.partition("\n\n")[0] if short else command.description),
            epilog=_as_run(self._closing(len(command.rows) - len(rows) if short else 0)),
            formatter_class=HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        #: errors quote no value: it may be a key
        self._hides = any(row.hidden for row in command.rows.values())
        groups: dict[str, argparse._ArgumentGroup] = {}
        for name, row in sorted(rows.items(), key=lambda item: GROUPS.index(item[1].group)):
            group = groups.get(row.group) or groups.setdefault(row.group, self.add_argument_group(row.group))
            _add(group, name, row, row.texts.get(command.name, row.text))
        group = self.add_argument_group("help")
        group.add_argument("-h", "--help", action=_ShortHelp, nargs=0, help="show the usual options")
        group.add_argument("--help-all", action="help", help="show all options")

    def _closing(self, omitted: int) -> str:
        """The text below the options."""
        if omitted:
            return f"--help-all shows {omitted} more options.\n\n{self._command.epilog}"
        configuration = [CONFIGURATION_HELP] if "settings" in self._command.rows else []
        exits = [] if "exit status:" in self._command.epilog else [EXIT_HELP]
        return "\n".join([*configuration, *exits, self._command.epilog])

    def print_usual(self) -> None:
        """Prints the short help."""
        Parser(self._command, short=True).print_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = sys.argv[1:] if args is None else args
        self._check_first(arguments)
        option = ""
        for argument in arguments[: arguments.index("--")] if "--" in arguments else arguments:
            option = argument.partition("=")[0] if argument.startswith("--") else option
            if not argument or argument == f"{option}=":
                raise UsageError(f"{option}: the value is empty", hint="give one; a variable of the shell may not be set")
            if argument.startswith("--") and " " not in argument and option not in self._option_string_actions:
                self._refuse(option)
        return super().parse_known_args(args, namespace)

    def _check_first(self, arguments: Sequence[str]) -> None:
        """:raises UsageError: a word precedes all options, although the command takes none there"""
        positional = [action for action in self._actions if not action.option_strings]
        if arguments and not arguments[0].startswith("-") and not positional:
            word = "a word" if self._hides else repr(arguments[0])
            needed = next((action.option_strings[0] for action in self._actions if action.required), None)
            hint = f"directories and files follow {needed}; " if needed else ""
            raise UsageError(f"{word} belongs to no option", hint=f"{hint}see {self.prog} --help")

    def _refuse(self, option: str) -> NoReturn:
        near = difflib.get_close_matches(option, self._option_string_actions, n=1)
        hint = f"did you mean {near[0]}? See {self.prog} --help" if near else f"see {self.prog} --help"
        raise UsageError(f"{_UNRECOGNIZED}{option}", hint=hint)

    def error(self, message: str) -> NoReturn:
        if self._hides:
            # a value may be a key or a pattern, which are never printed
            message = _QUOTED_VALUE.sub(r"\1", message)
            if message.startswith(_UNRECOGNIZED):
                message = f"{_UNRECOGNIZED}a value belongs to no option"
        raise UsageError(message, hint=f"see {self.prog} --help")


class _ShortHelp(argparse.Action):
    """Shows the usual options, and ends the process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        cast("Parser", parser).print_usual()
        parser.exit()


def _add(group: argparse._ActionsContainer, name: str, row: Option, text: str) -> None:
    """Adds the flags of a row."""
    if row.others:
        group = group.add_mutually_exclusive_group()
    for each in (row, *row.others) if row.flag else row.others:
        shown = (text if each is row else each.text).replace("%", "%%")
        arguments: dict[str, Any] = {"dest": name, "help": shown, "default": row.default}
        if row.is_switch:
            arguments |= {"action": "store_true"}
        elif row.many:
            arguments |= {"metavar": row.metavar, "nargs": "+", "action": "extend", "default": [], "required": row.required}
        elif each is not row and each.const is not None:
            arguments |= {"action": "store_const", "const": each.const}
        else:
            arguments |= {"metavar": each.metavar, "choices": each.choices, "type": _checked(each.read)}
            arguments |= {} if each.const is None else {"nargs": "?", "const": each.const}
        if not each.flag.startswith("-"):
            # a positional argument is named by its keyword
            del arguments["dest"]
        group.add_argument(each.flag, **arguments)


def _as_run(text: str) -> str:
    if _application() is None:
        return text
    names = "|".join(name for name in COMMANDS if application(name) in APPLICATIONS)
    return re.sub(rf"\b{PROGRAM} ({names})(?![\w-])", lambda match: f"{SUBMIT} jobs/{application(match[1])}.py", text)


def _application() -> str | None:
    """The application that ``spark-submit`` has started in this process, if any."""
    started = Path(sys.argv[0])
    return started.stem if started.suffix == ".py" and started.stem in APPLICATIONS else None


def _checked(read: Callable[[str], T] | None) -> Callable[[str], T] | type[str]:
    if read is None:
        return str

    def read_argument(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_argument
