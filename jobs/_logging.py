"""What a job says besides its report: lines for people, or a JSON object a line for a collector (``--log-format json``)."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from compaction.printable import printable_json, printable_lines

TEXT, JSON = "text", "json"

#: the logger of errors that end a job or concern a log, and of its progress
JOB = logging.getLogger("kafka_log_compaction")


class JsonFormatter(logging.Formatter):
    """One object a line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``, and ``exception`` where there is one."""

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
    """Lines for people; nothing in them is obeyed by a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's lines."""
        return printable_lines(super().format(record))


def set_up(log_format: str, *, verbose: bool) -> None:
    """Logging of this process, on standard error. What the encoding of standard output lacks is escaped there, as Python does
    on standard error: no report is lost for a character in it."""
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


def progress_stream() -> IO[str]:
    """Where progress is shown: the log where that is JSON, else standard error.

    ``spark-submit`` puts pipes in place of a Python application's streams, so there it is the terminal that its own standard
    error goes to, if it does.
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
    """A stream whose whole lines are logged."""

    def write(self, text: str) -> int:
        written = super().write(text)
        *lines, rest = self.getvalue().split("\n")
        self.seek(0)
        self.truncate()
        super().write(rest)
        for line in lines:
            JOB.info(line)
        return written
