"""What a command writes to standard error: errors, progress and log lines, as text or as JSON lines (``--log-format json``).

Tested by ``tests/jobs/test_logging.py`` and ``tests/jobs/test_odd_names.py``.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from compaction.printable import printable, printable_json, printable_lines

TEXT, JSON = "text", "json"

#: logs the errors of a command and of single logs, and progress
JOB = logging.getLogger("kafka_log_compaction")


class JsonFormatter(logging.Formatter):
    """One object per line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, and ``exception`` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line."""
        time = datetime.fromtimestamp(record.created, timezone.utc)
        fields = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(fields, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """Lines of text, with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines."""
        return printable_lines(super().format(record))


def configure(log_format: str, *, verbose: bool) -> None:
    """Logs to standard error. Characters that the encoding of standard output lacks are escaped, as Python does on standard
    error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if log_format == JSON else TextFormatter("%(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler], force=log_format == JSON)
    if log_format == JSON:
        JOB.setLevel(logging.INFO)


def is_json() -> bool:
    """Whether this process logs JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def print_line(text: str) -> None:
    """Prints a line that is not an error of the command."""
    if is_json():
        JOB.warning(text)
    else:
        print(printable(text), file=sys.stderr)


def print_error(text: str) -> None:
    """Prints an error as one line."""
    line = printable(" ".join(text.split()))
    if is_json():
        JOB.error(line)
    else:
        print(f"error: {line}", file=sys.stderr)


def progress_stream() -> IO[str]:
    """The stream for progress: the log if that is JSON, else standard error.

    ``spark-submit`` replaces the standard streams of a Python application by pipes; there it is the terminal of
    ``spark-submit``'s own standard error, if that is one.
    """
    if is_json():
        return _Lines()
    return _terminal_of_launcher() or sys.stderr


def _terminal_of_launcher() -> IO[str] | None:
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    try:
        terminal = Path(f"/proc/{os.getppid()}/fd/2").resolve()
        if terminal.is_char_device():
            stream = terminal.open("w", encoding="utf-8")
            if stream.isatty():
                return stream
            stream.close()
    except OSError:
        return None
    return None


class _Lines(io.StringIO):
    """A stream that logs each complete line."""

    def write(self, text: str) -> int:
        written = super().write(text)
        *lines, rest = self.getvalue().split("\n")
        self.seek(0)
        self.truncate()
        super().write(rest)
        for line in lines:
            JOB.info(line)
        return written
