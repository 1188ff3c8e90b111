"""What the commands share: options, the checks that make a call wrong, errors as one line, and the exit codes.

Exit codes: 0 done, or nothing to do; 1 at least one log failed, the others are done; 2 the call is wrong, nothing was touched.
"""

from __future__ import annotations

import argparse
import atexit
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from compaction.config import Resolver, TomlSettings, read_properties, read_sets, read_toml
from compaction.config.sources import Setting
from compaction.errors import CompactionError, StorageError, UsageError
from compaction.formats.properties import parse_properties
from compaction.fs.text_files import check_writable, read_text, write_text
from compaction.fs.uri import environment, is_inside, parse_uri, resolved
from compaction.logdir.dirty_estimate import has_dirty_bytes
from compaction.logdir.discover import Selector, check_log_dirs, discover
from compaction.logdir.settings.metadata_sources import require_metadata_log
from compaction.metrics import open_metrics
from compaction.names import CLUSTER_METADATA_TOPIC
from compaction.printable import printable, printable_lines
from compaction.report import LogStatus, RunReport, print_report
from compaction.stores.mixed import file_system
from compaction.stores.remote import require_finished
from jobs import _logging

if TYPE_CHECKING:
    from compaction.spark.session import PlainSession, Session

#: so much new data makes it likely that some log wants to be cleaned
_WORTH_SPARK_BYTES = 256 << 20
_SWITCH_S = 0.0005
_JSON_OPTION = f"--log-format={_logging.JSON}"
FAILED = 1
USAGE = 2
INTERRUPTED = 130

CONFIGURATION_HELP = """\
configuration:
  Topic-level names (cleanup.policy, segment.bytes, min.cleanable.dirty.ratio,
  delete.retention.ms, ...) and broker-level names (log.segment.bytes,
  log.cleaner.dedupe.buffer.size, ...) are those of Kafka 4.3.0. The strongest source wins:

    1. --set KEY=VALUE, for every selected topic
    2. TOML [topics."name"]
    3. the topic's configuration in the KRaft metadata log of the log directory's cluster; for
       internal topics that it does not know, what a broker creates them with
    4. TOML [broker]
    5. the broker's dynamic configuration in that metadata log
    6. a broker's server.properties
    7. Kafka's defaults

  Nothing is deleted on a guess. A metadata log in one directory also counts for the others of
  its cluster.id (meta.properties), as in a broker with several log.dirs; --metadata names one
  that is not among the log directories. Of several metadata logs of a cluster the newest counts.
  cleanup.policy is unknown where no source sets it for the topic (1, 2, 3), unless the metadata
  log knows the topic, and the broker's default is known: log.cleanup.policy is set (4, 5), or the
  broker's server.properties is given (6). Such a log is left as it is, and counted apart: expire
  fails it, compact skips it. --assume-default-policy takes the default (4 to 7) for all of them.

  An unknown name in --set or TOML, and a bad value anywhere, is an error. Names in
  server.properties that Kafka does not know are ignored, as a broker does.
"""

EXIT_HELP = """\
exit status:
  0  done, or nothing to do
  1  at least one log failed and was left as it was; the others are done
  2  the call is wrong (option, configuration, no such directory, a live broker holds
     the lock); nothing was touched
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised instead of printed with the usage text."""

    def __init__(self, description: str, epilog: str) -> None:
        super().__init__(
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see {self.prog} --help")


def add_selectors(parser: argparse.ArgumentParser) -> None:
    """The options that choose logs."""
    group = parser.add_argument_group("which logs")
    group.add_argument(
        "--log-dir",
        metavar="DIR",
        nargs="+",
        action="extend",
        required=True,
        help="log directories at rest: a stopped broker's log.dirs, a backup, an export; may be repeated",
    )
    group.add_argument(
        "--topic",
        metavar="REGEX",
        nargs="+",
        action="extend",
        default=[],
        help="only topics whose whole name matches one of these regular expressions; may be repeated",
    )
    group.add_argument(
        "--partition", metavar="TOPIC-N", nargs="+", action="extend", default=[],
        help="only these partitions, in addition to those of --topic; each must exist; may be repeated",
    )  # fmt: skip


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """The options that give configuration."""
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--config",
        metavar="FILE",
        nargs="+",
        action="extend",
        default=[],
        help="a broker's server.properties, or TOML (name ends in .toml); may be repeated, later files win",
    )
    group.add_argument(
        "--set",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        dest="sets",
        help="a topic-level or broker-level setting that goes before all others; may be repeated",
    )
    group.add_argument(
        "--metadata", metavar="DIR", nargs="+", action="extend", default=[],
        help="a log directory, or its __cluster_metadata-0, whose metadata log counts for the log directories of the same"
        " cluster.id and for exports; it is only read; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--assume-default-policy", action="store_true",
        help="where nothing says a topic's cleanup.policy, take the broker's default, or Kafka's: delete",
    )  # fmt: skip
    group.add_argument(
        "--as-of-ms", metavar="MS", type=_milliseconds, default=None,
        help="the present for every rule, milliseconds since the epoch, so that a run can be repeated exactly (default: now)",
    )  # fmt: skip


def add_run_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The options that say how to run; returns their group, for a command to add its own."""
    group = parser.add_argument_group("how to run")
    group.add_argument("--dry-run", action="store_true", help="find out and report the same figures, write nothing")
    group.add_argument("--report", metavar="FILE", default=None, help="write a report in JSON (schema_version 1)")
    add_metrics(group)
    add_telling(group)
    return group


def add_metrics(group: argparse._ArgumentGroup) -> None:
    """The option that writes metrics."""
    group.add_argument(
        "--metrics", metavar="FILE", default=None,
        help="write the figures as OpenMetrics text, for a collector that reads files",
    )  # fmt: skip


def add_telling(group: argparse._ArgumentGroup) -> None:
    """The options that say what is told on standard error."""
    group.add_argument(
        "--log-format", choices=(_logging.TEXT, _logging.JSON), default=_logging.TEXT,
        help="how errors, progress and steps are told on standard error (default: text)",
    )  # fmt: skip
    group.add_argument("--verbose", action="store_true", help="log each step, and show stack traces with errors")


def _milliseconds(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in milliseconds since the epoch")
    return int(text)


def as_of_ms(arguments: argparse.Namespace) -> int:
    """The run's present, milliseconds: the one place where a job asks the clock."""
    given: int | None = arguments.as_of_ms
    return time.time_ns() // 1_000_000 if given is None else given


def read_resolver(arguments: argparse.Namespace) -> Resolver:
    """All configuration that the call gives.

    :raises UsageError: a file cannot be read
    :raises ConfigError: an unknown name or a bad value, with file, line and key
    """
    tomls: list[TomlSettings] = []
    settings: list[Setting] | None = None
    for path in arguments.config:
        if path.lower().endswith(".toml"):
            tomls.append(read_toml(read_text(path), path))
        else:
            # a broker reads its properties as Latin-1, as java.util.Properties does
            found = read_properties(parse_properties(read_text(path, "latin-1"), path), path)
            settings = [*(settings or []), *found]
    resolver = Resolver(
        read_sets(arguments.sets),
        tuple(tomls),
        None if settings is None else tuple(settings),
        assume_default_policy=arguments.assume_default_policy,
    )
    resolver.broker()
    return resolver


def read_selector(arguments: argparse.Namespace) -> Selector:
    """The logs that the call asks for.

    :raises UsageError: a bad pattern, a bad partition name, or the metadata log
    """
    selector = Selector.parse(arguments.topic, arguments.partition)
    named = {"--partition": [each.topic for each in selector.partitions], "--topic": arguments.topic}
    for option, topics in named.items():
        if CLUSTER_METADATA_TOPIC in topics:
            raise UsageError(f"{option}: {CLUSTER_METADATA_TOPIC} is never touched", hint="a broker prunes it by snapshots")
    return selector


def read_log_dirs(arguments: argparse.Namespace, selector: Selector) -> tuple[str, ...]:
    """The log directories, absolute or addresses without their options, each once.

    :raises UsageError: one is missing, no directory, a single partition, inside another or unfinished, or cannot be reached; a
        partition that does not exist
    """
    given = [parse_uri(path, "--log-dir") for path in arguments.log_dir]
    files = file_system(given)
    with call_errors():
        log_dirs = check_log_dirs(files, given)
        for path in log_dirs:
            outer = next((other for other in log_dirs if other != path and is_inside(path, other)), None)
            if outer is not None:
                raise UsageError(f"--log-dir: it lies inside {outer}, which is given too", path=path, hint="give one of them")
            require_finished(path)
        discover(files, log_dirs, selector)
    return log_dirs


def read_metadata_dirs(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The directories that ``--metadata`` names, absolute or addresses without their options, each once.

    :raises UsageError: one has no metadata log, or cannot be reached
    """
    given = [parse_uri(path, "--metadata") for path in arguments.metadata]
    files = file_system(given)
    with call_errors():
        for path in given:
            require_metadata_log(files, path)
    return tuple(dict.fromkeys(map(resolved, given)))


@contextmanager
def call_errors() -> Iterator[None]:
    """What a file system refuses before a run begins is wrong with the call."""
    try:
        yield
    except StorageError as error:
        raise UsageError(error.what, path=error.path, hint=error.hint) from error


def check_output_dir(output_dir: str | None, log_dirs: Sequence[str]) -> str | None:
    """The place for the cleaned logs, absolute or an address without its options.

    :raises UsageError: it is, holds or lies inside a log directory
    """
    if output_dir is None:
        return None
    target = resolved(parse_uri(output_dir, "--output-dir"))
    for log_dir in log_dirs:
        if is_inside(target, log_dir) or is_inside(log_dir, target):
            raise UsageError(
                f"--output-dir overlaps the log directory {log_dir}", path=output_dir, hint="choose a place outside of it"
            )
    return target


def start_session(name: str) -> PlainSession:
    """The Spark session of a job; its Python workers find this package where the driver does, installed or not."""
    from compaction.spark.session import build_plain_session, ship_package

    spark = build_plain_session(name)
    ship_package(spark)
    spark.sparkContext.environment.update(environment())
    # executors are let go of before the driver vanishes
    atexit.register(spark.stop)
    return spark


def ahead(factory: Callable[[], Session], log_dirs: Sequence[str], selector: Selector) -> Callable[[], Session]:
    """``factory``, at work already in a thread where there is likely something to do: Spark takes two seconds to start, and
    logs can be looked at meanwhile."""
    if not has_dirty_bytes(log_dirs, selector, _WORTH_SPARK_BYTES):
        return factory

    def start() -> Session:
        # of its hundreds of short calls to the JVM each would wait for its turn
        usual = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            return factory()
        finally:
            sys.setswitchinterval(usual)

    return ThreadPoolExecutor(1).submit(start).result


def finish(report: RunReport, report_file: str | None, metrics_file: str | None = None) -> int:
    """Shows and writes a report, and its metrics; the exit code of the run."""
    print_report(report, sys.stdout)
    for log in report.logs:
        if log.status is LogStatus.FAILED:
            print_error(f"{log.name}: {log.reason}")
    if report_file is not None:
        write_text(report_file, report.to_json())
    if metrics_file is not None:
        write_text(metrics_file, open_metrics(report))
    return report.exit_code


def print_line(text: str) -> None:
    """A line on standard error that is no error of the job."""
    if _logging.is_json():
        _logging.JOB.warning(text)
    else:
        print(printable(text), file=sys.stderr)


def print_error(text: str) -> None:
    """One line on standard error."""
    line = printable(" ".join(text.split()))
    if _logging.is_json():
        _logging.JOB.error(line)
        return
    print(f"error: {line}", file=sys.stderr)


def run_command(parser: Parser, argv: Sequence[str] | None, body: Callable[[argparse.Namespace], int]) -> int:
    """Parses the options and runs a command's body; whatever goes wrong becomes one line and an exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    verbose = "--verbose" in given
    _logging.set_up(_log_format(given), verbose=verbose)
    try:
        arguments = parser.parse_args(given)
        for name in ("report", "metrics", "html"):
            file = getattr(arguments, name, None)
            if file is not None:
                check_writable(file)
        return body(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        print_error("interrupted; a later run takes up what this one left")
        return INTERRUPTED
    except Exception as error:
        if verbose:
            print(printable_lines(traceback.format_exc()), end="", file=sys.stderr)
        print_error(_text_of(error))
        return USAGE if isinstance(error, UsageError) else FAILED


def _log_format(given: Sequence[str]) -> str:
    """The format asked for, known before the options are checked: a wrong call is told in it, too."""
    pairs = pairwise(given)
    json = _JSON_OPTION in given or ("--log-format", _logging.JSON) in pairs
    return _logging.JSON if json else _logging.TEXT


def _text_of(error: Exception) -> str:
    if isinstance(error, CompactionError):
        return error.describe()
    first_line = next((line for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first_line}; run again with --verbose for the stack trace"
