"""The options that several commands have in common, and the help on configuration and exit codes."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from compaction.api.engine_choice import LOCAL, SPARK
from compaction.api.inputs import AUTO, iso_time_ms, milliseconds
from compaction.cleaning.kafka_rules import NEWEST, OLDEST
from compaction.cli import log_lines
from compaction.cli.table import COMMANDS, PROGRAM, SUBMIT
from compaction.errors import UsageError
from compaction.names import REFERENCE_VERSION
from compaction.storage.export_layout import LAYOUTS

T = TypeVar("T")

TEXT, JSON = "text", "json"

#: the modules that ``spark-submit`` runs
APPLICATIONS = ("compact", "count_keys", "doctor", "dry_run", "dump_log", "erase", "expire", "verify")

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

#: encodings of keys in files, see ``compaction.formats.key_list``
KEY_FORMATS = ("text", "hex", "base64", "json")

EXIT_HELP = """\
exit status:
  0  done, or nothing to do
  1  at least one log failed and was not changed; the others are done
  2  usage error (option, configuration, no such directory, no log selected, no Java, a live
     broker holds the lock); nothing was changed
130  interrupted (Ctrl-C), 143 stopped by SIGTERM; the next run completes or undoes the changes
"""


class Parser(argparse.ArgumentParser):
    """A parser that raises errors instead of printing them with the usage text, suggests the nearest option for an unknown one,
    and shows commands in the form of the call: ``spark-submit``, or the console command."""

    def __init__(self, description: str, epilog: str) -> None:
        super().__init__(
            prog=None if _application() is None else f"{SUBMIT} jobs/{_application()}.py",
            description=_as_run(description),
            epilog=_as_run(epilog),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = sys.argv[1:] if args is None else args
        for argument in arguments[: arguments.index("--")] if "--" in arguments else arguments:
            option = argument.partition("=")[0]
            if option.startswith("--") and " " not in argument and option not in self._option_string_actions:
                self._refuse(option)
        return super().parse_known_args(args, namespace)

    def _refuse(self, option: str) -> NoReturn:
        near = difflib.get_close_matches(option, self._option_string_actions, n=1)
        hint = f"did you mean {near[0]}? See {self.prog} --help" if near else f"see {self.prog} --help"
        raise UsageError(f"{_UNRECOGNIZED}{option}", hint=hint)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """The arguments; for reports also the command's name, and each option's attribute and default."""
        result = super().parse_args(args, namespace)
        application, last = _application(), self.prog.split()[-1]
        result.command = next((name for name, module, _ in COMMANDS if module == application), last)
        named = [action for action in self._actions if action.option_strings and action.dest != "help"]
        result.options = {action.option_strings[-1]: (action.dest, self.get_default(action.dest)) for action in named}
        return result

    def error(self, message: str) -> NoReturn:
        if "--where" in self._option_string_actions:
            # a value may be a key or a pattern, which are never printed
            message = _QUOTED_VALUE.sub(r"\1", message)
            if message.startswith(_UNRECOGNIZED):
                message = f"{_UNRECOGNIZED}a value belongs to no option"
        raise UsageError(message, hint=f"see {self.prog} --help")


def _as_run(text: str) -> str:
    modules = {name: module for name, module, _ in COMMANDS}
    if _application() is None:
        return text
    names = "|".join(name for name, module in modules.items() if module in APPLICATIONS)
    return re.sub(rf"\b{PROGRAM} ({names})(?![\w-])", lambda match: f"{SUBMIT} jobs/{modules[match[1]]}.py", text)


def _application() -> str | None:
    """The application that ``spark-submit`` has started in this process, if any."""
    started = Path(sys.argv[0])
    return started.stem if started.suffix == ".py" and started.stem in APPLICATIONS else None


def add_list(group: argparse._ActionsContainer, option: str, metavar: str, text: str, **options: Any) -> None:
    group.add_argument(option, metavar=metavar, nargs="+", action="extend", default=[], help=text, **options)


def add_file(group: argparse._ActionsContainer, option: str, text: str) -> None:
    group.add_argument(option, metavar="FILE", help=text)


def add_selectors(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("logs")
    text = "log directories at rest: a stopped broker's log.dirs, a backup, an export; may be repeated"
    add_list(group, "--log-dir", "DIR", text, required=True, dest="log_dirs")
    add_names(group)


def add_names(group: argparse._ActionsContainer) -> None:
    text = "only topics whose full name matches one of these regular expressions; may be repeated"
    add_list(group, "--topic", "REGEX", text, dest="topics")
    text = "only these partitions, in addition to those of --topic; each must exist; may be repeated"
    add_list(group, "--partition", "TOPIC-N", text, dest="partitions")
    text = "exit with 0 if no log is selected; by default, that is a usage error"
    group.add_argument("--allow-empty", action="store_true", help=text)
    text = "a log directory at rest with the segments that are not yet in an export of tiered storage"
    group.add_argument("--tail", metavar="DIR", help=text)
    add_private_keys(group)


def add_private_keys(group: argparse._ActionsContainer) -> None:
    text = "a private RSA key (PEM) of an encrypted export, for this key id or for all other ids; may be repeated"
    add_list(group, "--private-key", "[ID=]FILE", text, dest="private_keys")


def add_keys(group: argparse._ActionsContainer) -> None:
    text = "a file with keys, one per line; with --keys-column, a Parquet or CSV file; may be repeated"
    add_list(group, "--keys", "FILE", text)
    group.add_argument(
        "--keys-format", choices=KEY_FORMATS, default=TEXT,
        help="encoding of the keys in --keys; json: a string, or a key as dump-log prints it (default: text)",
    )  # fmt: skip
    group.add_argument("--keys-column", metavar="NAME", help="the column with the keys, if --keys is a .parquet or .csv file")
    add_list(
        group, "--where", "PATTERN",
        "all keys that match a pattern: prefix=TEXT, regex=EXPRESSION (RE2, matches complete keys in UTF-8),"
        " bytes=EXPRESSION (RE2, matches complete keys as bytes), or @FILE with one pattern per line;"
        " may be repeated",
    )  # fmt: skip


def add_configuration(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("configuration")
    text = "a broker's server.properties, or TOML (name ends in .toml); may be repeated, later files win"
    add_list(group, "--config", "FILE", text)
    text = "a topic-level or broker-level setting that overrides all other sources; may be repeated"
    add_list(group, "--set", "KEY=VALUE", text, dest="settings")
    add_list(
        group, "--metadata", "DIR",
        "a log directory, or its __cluster_metadata-0, with the metadata log for log directories of the same cluster.id"
        " and for exports; it is only read; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--assume-default-policy", action="store_true",
        help="if no source sets a topic's cleanup.policy, use the broker's default, or Kafka's: delete",
    )  # fmt: skip
    now = group.add_mutually_exclusive_group()
    now.add_argument(
        "--as-of", metavar="TIME", type=_checked(iso_time_ms), dest="as_of",
        help="current time for every rule, to repeat a run exactly, e.g. 2026-11-22T02:00Z (default: now)",
    )  # fmt: skip
    text = "the same in milliseconds since the epoch"
    now.add_argument("--as-of-ms", metavar="MS", type=_checked(milliseconds), dest="as_of", help=text)


def add_time(group: argparse._ActionsContainer, option: str, dest: str, text: str) -> None:
    """An option whose value is a time, e.g. ``2026-11-22T02:00Z``."""
    group.add_argument(option, metavar="TIME", type=_checked(iso_time_ms), dest=dest, help=text)


def add_kafka_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("rules").add_argument(
        "--kafka-version", metavar="VERSION", default=AUTO,
        help=f"apply the log cleaner's rules of this Kafka version, {OLDEST} to {NEWEST}, e.g. 3.9 or 3.9.1 (default: {AUTO},"
        " the version of each log's cluster by its metadata.version or inter.broker.protocol.version, else the newest)",
    )  # fmt: skip


def add_run_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The options of a run; returns their group, for a command to add its own."""
    group = parser.add_argument_group("run and output")
    group.add_argument("--dry-run", action="store_true", help="write nothing; report the figures of the run")
    add_engine(group)
    add_file(group, "--report", "write a report in JSON (schema_version 1)")
    add_metrics(group)
    add_result(group)
    add_logging(group)
    return group


def add_engine(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--engine", choices=(AUTO, LOCAL, SPARK), default=AUTO,
        help="run tasks in processes on this machine (local, needs no Java) or as Spark jobs (spark); the result is the same"
        " (default: auto, which is spark under spark-submit, and local otherwise)",
    )  # fmt: skip
    group.add_argument(
        "--cores", metavar="N", type=int,
        help="run at most N worker processes on this machine; not on Spark, which has settings for it (default: as many as the"
        " CPUs, the CPU quota and the memory of this process allow)",
    )  # fmt: skip


def add_output(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--output-dir", metavar="DIR", default=None,
        help="write all logs to this new directory and do not change the source; it appears only when it is complete",
    )  # fmt: skip
    group.add_argument(
        "--output-layout", choices=LAYOUTS, default=None,
        help="layout of --output-dir: tiered storage (aiven, local-tiered), or a backup set of kafka-backup (backup, needs"
        " --accept-loss) (default: a log directory)",
    )  # fmt: skip
    group.add_argument(
        "--accept-loss", nargs="?", const="format", choices=("format", "uncommitted"), default=None,
        help="accept that a backup set has no transactions, producers, leader epochs and delete horizons, or that local-tiered"
        " is not encrypted; uncommitted: also omit records after the start of an open transaction or the high watermark",
    )  # fmt: skip
    group.add_argument(
        "--replace", action="store_true",
        help="replace an earlier output in --output-dir that was written with --replace or --if-done, or to an object store;"
        " it remains until the new one is complete",
    )  # fmt: skip
    group.add_argument(
        "--if-done", choices=("skip",), default=None,
        help="for repeated tasks: do nothing if --output-dir has the complete, unchanged result of the same request; needs"
        " --as-of, for erase also --certificate",
    )  # fmt: skip


def add_result(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--all", action="store_true", help="print every log, not only the topics with the largest effect")
    add_short_result(group)


def add_short_result(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--quiet", action="store_true", help="print only the last line of the result, and no progress")
    group.add_argument(
        "--output", choices=(TEXT, JSON), default=TEXT,
        help="format of standard output: text, or the report as a JSON document (default: text)",
    )  # fmt: skip


def add_metrics(group: argparse._ActionsContainer) -> None:
    add_file(group, "--metrics", "write the figures as OpenMetrics text, for a collector that reads files")


def add_logging(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--log-format", choices=(log_lines.TEXT, log_lines.JSON), default=log_lines.TEXT,
        help="format of errors, progress and log lines on standard error (default: text)",
    )  # fmt: skip
    text = "print each step with its time, details of each log, and stack traces with errors"
    group.add_argument("--verbose", action="store_true", help=text)


def _checked(read: Callable[[str], T]) -> Callable[[str], T]:
    def read_argument(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_argument
