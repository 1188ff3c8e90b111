"""Runs a command: logging, arguments, the report, errors as one line, and the exit code.

Exit codes: 0 done, or nothing to do; 1 at least one log failed, the others are done; 2 usage error, nothing was changed.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from compaction.cli import interrupts, log_lines, standard_streams
from compaction.cli.parser import Parser
from compaction.engine_choice import in_command
from compaction.errors import CompactionError, StorageError, UsageError
from compaction.files.calls import call
from compaction.files.text_files import NEW_FILE, PRIVATE, check_writable, write_text
from compaction.metrics import open_metrics, with_last_success
from compaction.options.option import CommandOptions
from compaction.options.table import JSON
from compaction.report import RunReport
from compaction.results import PageResult, Result
from compaction.screen.text_table import Screen

_LOG = logging.getLogger(__name__)
FAILED = 1
USAGE = 2
_TRACE = "run again with --verbose for the stack trace"


def run_command(
    options: CommandOptions[Any], body: Callable[[argparse.Namespace], int], argv: Sequence[str] | None = None
) -> int:
    """Parses the arguments and runs a command's body; any error becomes one line and an exit code.

    :param argv: by default those of the process
    """
    # modules need no garbage collection at the end of the process
    atexit.register(gc.freeze)
    standard_streams.guard(log_lines.without_status)
    arguments = list(sys.argv[1:] if argv is None else argv)
    verbose = "--verbose" in arguments
    # before the arguments are checked, because usage errors are logged in this format, too
    as_json = f"--log-format={JSON}" in arguments or ("--log-format", JSON) in pairwise(arguments)
    log_lines.configure(as_json=as_json, verbose=verbose, quiet="--quiet" in arguments)
    try:
        with interrupts.handled():
            return _run(options, arguments, body)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except (KeyboardInterrupt, Exception) as error:
        log_lines.end_steps()
        # an error may be a consequence of an interrupt
        if isinstance(error, KeyboardInterrupt) or interrupts.happened():
            interrupts.report_once()
            return interrupts.exit_code()
        log_lines.print_error(_error_text(error), trace=verbose)
        return USAGE if isinstance(error, UsageError) else FAILED
    finally:
        sys.stdout.flush()
        log_lines.close()


def _run(options: CommandOptions[Any], argv: Sequence[str], body: Callable[[argparse.Namespace], int]) -> int:
    try:
        Path.cwd()
    except FileNotFoundError:
        # paths, Spark and Java need it
        raise UsageError("the working directory has been removed", hint="change to another one, e.g. cd /") from None
    arguments = Parser(options).parse_args(argv)
    for name in ("report", "metrics", "html"):
        file = getattr(arguments, name, None)
        if file is not None:
            check_writable(file)
    # commands that change logs have this option
    if not getattr(arguments, "dry_run", True):
        interrupts.may_change_logs()
    with (
        call(),
        in_command(
            progress=log_lines.progress,
            starting=interrupts.deferred,
            ends_with_process=True,
            options=options.in_report(vars(arguments), "command line"),
            on_wave=partial(_write_metrics, getattr(arguments, "metrics", None)),
        ),
    ):
        try:
            return body(arguments)
        except SystemExit as end:
            # of a library or plug-in; only the parser ends a command
            raise CompactionError(f"code of another package has raised {end!r}", hint=_TRACE) from end


def _write_metrics(path: str | None, report: RunReport) -> None:
    """Writes the metrics of a run in progress. If they are refused the run goes on: at its end that is an error."""
    try:
        if path is not None:
            write_text(path, metrics_text(path, open_metrics(report), success=False), NEW_FILE)
    except StorageError as error:
        _LOG.warning("%s", error.describe())


def metrics_text(path: str, text: str, *, success: bool) -> str:
    """The metrics for a file, with the time of the last success, this one's or that in the file."""
    return with_last_success(text, text_of(path), time.time() if success else None)


def _error_text(error: BaseException) -> str:
    if isinstance(error, CompactionError):
        return error.describe()
    first_line = next((line for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first_line}; {_TRACE}"


def text_of(file: str) -> str:
    """The text of a file that an earlier run may have written; empty if there is none."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def screen(arguments: argparse.Namespace) -> Screen:
    width = standard_streams.terminal_width(sys.stdout)
    return Screen(
        sys.stdout,
        width,
        colours=width is not None and "NO_COLOR" not in os.environ and os.environ.get("TERM", "") not in ("", "dumb"),
        all_rows=getattr(arguments, "all", False),
        details=arguments.verbose,
        only_summary=getattr(arguments, "quiet", False),
    )


def finish(
    result: Result, arguments: argparse.Namespace, metrics: Callable[[Any], str] | None = None, code: int | None = None
) -> int:
    """Ends a command: writes its files, then prints; returns the exit code. A file that cannot be written is an error, and the
    other files are still written.

    :param metrics: the OpenMetrics text of the result
    :param code: the exit code if all files are written, by default that of the result
    """
    log_lines.end_steps()
    code, files = result.exit_code if code is None else code, vars(arguments)
    texts = {"report": result.to_json}
    if isinstance(result, PageResult):
        texts["html"] = result.to_html
    if metrics is not None:
        texts["metrics"] = lambda: metrics_text(files["metrics"], metrics(result), success=code == 0)
    failures = []
    for option, text in texts.items():
        try:
            if files.get(option) is not None:
                write_text(files[option], text(), PRIVATE if result.is_private else NEW_FILE)
        except StorageError as error:
            failures.append(error.describe())
    if arguments.output == JSON:
        sys.stdout.write(result.to_json())
    else:
        result.print_on(screen(arguments))
    for line in (*result.errors(), *failures):
        log_lines.print_error(line)
    return FAILED if failures else code
