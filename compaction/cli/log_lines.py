"""Standard error of a command: errors, steps, progress and log lines, as text or as JSON lines (``--log-format json``).

A step is shown on a terminal while it lasts. Elsewhere it is a line if it lasts long, or with ``--verbose``.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import time
import traceback
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TextIO

from compaction.cli import standard_streams
from compaction.printable import printable, printable_json, printable_lines
from compaction.screen.amounts import elapsed
from compaction.screen.progress import Progress, StatusLine
from compaction.screen.steps import FOREIGN, STEPS, WaveProgress

#: logs the errors of a command and of single logs, and progress
JOB = logging.getLogger("kafka_log_compaction")

#: seconds after which a step is a line, if it is not shown on a terminal
LONG_STEP_S = 10.0
_STARTED_S = time.monotonic()


class JsonFormatter(logging.Formatter):
    """One object per line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, ``exception`` if there is one, and of
    a line that begins a wave the fields of ``WaveProgress`` as ``wave``."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc)
        fields: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if isinstance(record.msg, WaveProgress):
            fields["wave"] = asdict(record.msg)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(fields, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """Lines of text, with control characters escaped: steps with the time since the start, others with their level."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.name == STEPS.name:
            text = f"{elapsed(time.monotonic() - _STARTED_S):>8}  {text}"
        elif record.name not in (JOB.name, FOREIGN.name):
            text = f"{record.levelname.lower()}: {record.name}: {text}"
        elif record.levelno >= logging.ERROR:
            text = f"error: {text}"
        return printable_lines(text)


class _Errors(logging.Handler):
    """Writes lines to standard error, before the status line if it is a terminal that has one."""

    def __init__(self, stream: TextIO | None = None, *, shows_status: bool = False) -> None:
        super().__init__()
        self._stream = stream
        width = standard_streams.terminal_width
        self.status = StatusLine(self.stream, lambda: width(self.stream) or 80) if shows_status else None

    @property
    def stream(self) -> TextIO:
        """The stream, by default the current standard error of this process."""
        return self._stream or sys.stderr

    def print(self, text: str) -> None:
        if self.status is None:
            print(text, file=self.stream, flush=True)
            return
        with self.status.paused():
            print(text, file=self.stream, flush=True)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.print(self.format(record))
        except Exception:
            self.handleError(record)


class _Steps(logging.Handler):
    """Shows steps on a terminal, or writes a line for each that lasts long. Waves are the beginning of the lines of a terminal,
    or lines."""

    def __init__(self, errors: _Errors) -> None:
        super().__init__()
        self._errors = errors
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        text = printable(record.getMessage())
        if self._errors.status is not None:
            if isinstance(record.msg, WaveProgress):
                self._errors.status.prefix = f"{text}: "
            else:
                self._errors.status.step(text)
            return
        self.end()
        if isinstance(record.msg, WaveProgress):
            JOB.info(record.msg)
            return
        self._timer = threading.Timer(LONG_STEP_S, JOB.info, [f"{text} ..."])
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._errors.status is not None:
            self._errors.status.prefix = ""
            self._errors.status.clear()


class _State:
    """The standard error of this process; ``configure`` sets it."""

    errors = _Errors()
    steps: _Steps | None = None
    quiet = False


def configure(*, as_json: bool, verbose: bool, quiet: bool = False) -> None:
    """Logs to standard error. Characters that the encoding of standard output lacks are escaped, as Python does on standard
    error.

    :param quiet: neither steps nor progress
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    stream = standard_streams.error_stream()
    capable = (stream or sys.stderr).isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    shows_status = capable and not as_json and not quiet and not verbose
    handler = _Errors(stream, shows_status=shows_status)
    _State.errors, _State.quiet = handler, quiet
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    # of an earlier call in this process
    for earlier in [each for each in logging.root.handlers if isinstance(each, _Errors)]:
        logging.root.removeHandler(earlier)
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=as_json)
    JOB.handlers, JOB.propagate = [handler], False
    logging.captureWarnings(as_json)
    # details of py4j do not help users
    logging.getLogger("py4j").setLevel(logging.WARNING)
    JOB.setLevel(logging.INFO)
    close()
    _State.steps = None if quiet or verbose else _Steps(handler)
    if not quiet:
        STEPS.setLevel(logging.INFO)
        STEPS.addHandler(_State.steps or handler)


def end_steps() -> None:
    if _State.steps is not None:
        _State.steps.end()


def close() -> None:
    end_steps()
    STEPS.setLevel(logging.WARNING)
    for handler in [step_handler for step_handler in STEPS.handlers if isinstance(step_handler, (_Errors, _Steps))]:
        STEPS.removeHandler(handler)


def is_json() -> bool:
    return isinstance(_State.errors.formatter, JsonFormatter)


def print_line(text: str) -> None:
    """Prints a line that is not an error of the command."""
    if is_json():
        JOB.warning(text)
    else:
        _State.errors.print(printable(text))


def print_error(text: str, *, trace: bool = False) -> None:
    """Prints an error as one line.

    :param trace: with the stack trace of the exception that is being handled
    """
    line = printable(" ".join(text.split()))
    if trace and not is_json():
        _State.errors.print(printable_lines(traceback.format_exc()).rstrip())
    JOB.error(line, exc_info=trace and is_json())


def progress() -> Progress:
    """Shows the progress of passes: in the log if that is JSON, else on standard error."""
    return Progress(lambda line: None if _State.quiet else JOB.info(line), status=_State.errors.status)


def without_status() -> AbstractContextManager[None]:
    """A block during which the status line is not on the terminal."""
    status = _State.errors.status
    return nullcontext() if status is None else status.paused()
