"""How a command runs: logging, arguments, the Spark session, the report, errors as one line, and the exit code.

Exit codes: 0 done, or nothing to do; 1 at least one log failed, the others are done; 2 usage error, nothing was changed.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError, StorageError, UsageError
from compaction.fs.text_files import NEW_FILE, PRIVATE, check_writable, write_text
from compaction.fs.uri import any_remote, environment, is_remote
from compaction.metrics import open_metrics
from compaction.printable import printable
from compaction.report import LogStatus, RunReport
from compaction.screen.output_screen import Screen
from compaction.screen.run_table import print_report
from compaction.screen.steps import step
from compaction.startup.java_version import require_java
from compaction.stores.mixed import file_system

from . import _interrupt, _logging, _options, _streams
from ._options import Parser
from ._provenance import provenance

if TYPE_CHECKING:
    from compaction.engine.protocol import Passes
    from compaction.engines.processes import ProcessPasses
    from compaction.spark.progress import Progress
    from compaction.spark.session import PlainSession, Session

#: returns the Spark session, which the first call starts
SessionFactory = Callable[[], "Session"]

FAILED = 1
USAGE = 2
INTERRUPTED = 130
_JSON_OPTION = f"--log-format={_logging.JSON}"
#: set by ``spark-submit``, and by those who give its options to a Python process
_SUBMITTED = frozenset({"PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"})
#: what Spark writes to its local directories is encrypted with a key that is only in memory
ENCRYPTED = MappingProxyType({"spark.io.encryption.enabled": "true"})


def run_command(parser: Parser, argv: Sequence[str] | None, body: Callable[[argparse.Namespace], int]) -> int:
    """Parses the arguments and runs a command's body; any error becomes one line and an exit code."""
    # Python collects garbage once more at its end: modules are none
    atexit.register(gc.freeze)
    _streams.guard(_logging.without_status)
    given = list(sys.argv[1:] if argv is None else argv)
    verbose = "--verbose" in given
    _logging.configure(_log_format(given), verbose=verbose, quiet="--quiet" in given)
    try:
        with _interrupt.handled():
            _require_directory()
            return _run(parser, given, body)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        _logging.end_steps()
        _interrupt.tell()
        return INTERRUPTED
    except Exception as error:
        _logging.end_steps()
        if _interrupt.happened():
            _interrupt.tell()
            return INTERRUPTED
        _logging.print_error(_error_text(error), trace=verbose)
        return USAGE if isinstance(error, UsageError) else FAILED
    finally:
        sys.stdout.flush()
        _logging.close()


def _run(parser: Parser, given: Sequence[str], body: Callable[[argparse.Namespace], int]) -> int:
    arguments = parser.parse_args(given)
    for name in ("report", "metrics", "html"):
        file = getattr(arguments, name, None)
        if file is not None:
            check_writable(file)
    return body(arguments)


def _require_directory() -> None:
    """:raises UsageError: the working directory has been removed, to which paths, Spark and Java refer"""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("the working directory has been removed", hint="change to another one, e.g. cd /") from None


def _log_format(given: Sequence[str]) -> str:
    """The requested log format, before the arguments are checked: usage errors are logged in it, too."""
    json = _JSON_OPTION in given or ("--log-format", _logging.JSON) in pairwise(given)
    return _logging.JSON if json else _logging.TEXT


def _error_text(error: Exception) -> str:
    if isinstance(error, CompactionError):
        return error.describe()
    first_line = next((line for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first_line}; run again with --verbose for the stack trace"


def start_session(name: str, settings: Mapping[str, str] = MappingProxyType({})) -> PlainSession:
    """The Spark session of a command; its Python workers import this package from where the driver does.

    :param settings: of Spark, which override the user's
    :raises UsageError: there is no Java that Spark runs on
    """
    require_java()
    from compaction.spark.session import build_plain_session, ship_package, warn_of_exposures

    step("starting Spark")
    with _interrupt.deferred():
        spark = build_plain_session(name, settings)
        # executors are released before the driver exits
        atexit.register(spark.stop)
    warn_of_exposures(spark)
    ship_package(spark)
    spark.sparkContext.environment.update(environment())
    return spark


@dataclass(frozen=True)
class Engine:
    """Who runs the tasks of a command: worker processes of this machine, or a Spark session, which the first call starts.

    ``to_store``: tasks write to an object store, whose requests an interrupt of this process would have to wait for.
    """

    command: str
    is_local: bool
    settings: Mapping[str, str] = field(default_factory=dict)
    to_store: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace, command: str, settings: Mapping[str, str] = MappingProxyType({})) -> Engine:
        """The engine that ``--engine`` names; by default Spark if it is there already, or was configured for this process, or
        if this system has no files that processes exchange without a name."""
        local_by_default = _SUBMITTED.isdisjoint(os.environ) and hasattr(os, "memfd_create")
        is_local = arguments.engine == _options.LOCAL or (arguments.engine == _options.AUTO and local_by_default)
        target = getattr(arguments, "output_dir", None)
        return cls(command, is_local, settings, target is not None and is_remote(target))

    def __call__(self) -> PlainSession:
        return start_session(self.command, self.settings)


def _is_local(factory: SessionFactory) -> bool:
    return isinstance(factory, Engine) and factory.is_local


def require_engine(factory: SessionFactory) -> None:
    """:raises UsageError: Spark is to run the tasks, and there is no Java that it runs on"""
    if not _is_local(factory):
        require_java()


def report_without_logs(request: CompactionRequest) -> RunReport | None:
    """The report of a run in place over no logs, which needs no more than that; ``None`` for any other run, and where no log
    can be changed in place."""
    if request.logs or request.output_dir is not None or any_remote(request.log_dirs):
        return None
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, logs=())


def progress() -> Progress:
    """The progress of a command's passes, on standard error."""
    from compaction.spark.progress import Progress

    return Progress(_logging.progress_stream(), status=_logging.status_line())


class _Passes:
    """Starts the passes on its first call."""

    def __init__(self, session_factory: SessionFactory, progress: Progress | None) -> None:
        self._session, self._progress = session_factory, progress
        self._workers: ProcessPasses | None = None

    def __call__(self) -> Passes:
        if isinstance(self._session, Engine) and self._session.is_local:
            return self._local(self._session)
        from compaction.spark.pipeline import SparkPasses

        return SparkPasses(self._session().sparkContext, self._progress)

    def _local(self, engine: Engine) -> Passes:
        from compaction.engines.processes import INLINE_BYTES, ProcessPasses

        if self._workers is None:
            self._workers = ProcessPasses(progress=self._progress, inline_bytes=0 if engine.to_store else INLINE_BYTES)
            atexit.register(self._workers.close)
        return self._workers


def passes(session_factory: SessionFactory, progress: Progress | None = None) -> Callable[[], Passes]:
    """What starts the passes; a run without work for them imports neither Spark nor kernels."""
    return _Passes(session_factory, progress)


def is_done(request: CompactionRequest, arguments: argparse.Namespace) -> bool:
    """Whether the output directory already has the result of a request. If so, prints that, and writes a report unless that of
    the run is there.

    :raises CompactionError: it has something else
    """
    from compaction.output import finished, object_publish

    if request.output_dir is not None and is_remote(request.output_dir):
        object_publish.complete_replacement(file_system(request.log_dirs), request.output_dir)
    if not finished.is_done(request):
        return False
    _logging.end_steps()
    report_file, origin = arguments.report, provenance(arguments)
    report = RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, (), origin=origin).to_json()
    if report_file is not None and f'"as_of_ms": {request.as_of_ms},' not in _text_of(report_file):
        write_text(report_file, report)
    done = printable(f"{request.output_dir}: done already by the same request; nothing was written")
    sys.stdout.write(report if arguments.output == _options.JSON else f"{done}\n")
    return True


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def screen(arguments: argparse.Namespace) -> Screen:
    """Where a command prints its result, and how much of it."""
    width = _streams.terminal_width(sys.stdout)
    return Screen(
        sys.stdout,
        width,
        colours=width is not None and "NO_COLOR" not in os.environ and os.environ.get("TERM", "") not in ("", "dumb"),
        all_rows=getattr(arguments, "all", False),
        details=arguments.verbose,
        only_summary=getattr(arguments, "quiet", False),
    )


def finish(
    files: Iterable[tuple[str | None, Callable[[], str]]], show: Callable[[], None], code: int, mode: int = NEW_FILE
) -> int:
    """Ends a command: writes its files, then prints; returns the exit code. Files that cannot be written are errors, none of
    which prevents another one or what is printed.

    :param files: names, ``None`` for one that is not wanted, and what makes their texts
    :param code: the exit code if all files are written
    :param mode: permissions of the files
    """
    _logging.end_steps()
    errors = []
    for path, text in files:
        try:
            if path is not None:
                write_text(path, text(), mode)
        except StorageError as error:
            errors.append(error)
    show()
    for each in errors:
        _logging.print_error(each.describe())
    return FAILED if errors else code


def write_report(report: RunReport, arguments: argparse.Namespace) -> int:
    """Writes a report and its metrics to files and prints it; returns the exit code of the run."""
    report = replace(report, origin=provenance(arguments))

    def show() -> None:
        if arguments.output == _options.JSON:
            sys.stdout.write(report.to_json())
        else:
            print_report(report, screen(arguments))
        for log in report.logs:
            if log.status is LogStatus.FAILED:
                _logging.print_error(f"{log.name}: {log.reason}")

    # that of an erasure has salted hashes of keys, which can be guessed if they are short
    mode = PRIVATE if report.erasure else NEW_FILE
    files = ((arguments.report, report.to_json), (arguments.metrics, lambda: open_metrics(report)))
    return finish(files, show, report.exit_code, mode)
