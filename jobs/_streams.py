"""The streams of a command: where its result and its log go, and what kind of terminal they are.

``spark-submit`` starts a Python application with both of its standard streams joined to one pipe, which the JVM copies to its
own standard output. Here the log goes to the standard error of ``spark-submit`` instead: directly if that is a terminal or a
pipe, else through the JVM, because a second writer to a file would overwrite what the JVM writes there.

Tested by ``tests/jobs/test_logging.py`` and ``tests/jobs/test_terminal_output.py``.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path
from typing import IO, TextIO

_OUT, _ERROR = 1, 2


def under_spark_submit() -> bool:
    """Whether the streams of this process belong to ``spark-submit``."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def error_stream() -> TextIO | None:
    """The stream for errors, log lines and progress, unless that is this process's own."""
    if not under_spark_submit():
        return None
    return _of_launcher(_ERROR) or _ThroughJvm()


def terminal_width(stream: IO[str]) -> int | None:
    """The width of the terminal that a stream of this process leads to; ``None`` if it does not lead to one."""
    if stream is sys.stdout and under_spark_submit():
        launcher = _of_launcher(_OUT)
        if launcher is None:
            return None
        with launcher:
            return _width(launcher)
    return _width(stream)


def is_capable(stream: IO[str]) -> bool:
    """Whether a line of a stream can be redrawn."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _width(stream: IO[str]) -> int | None:
    if not stream.isatty():
        return None
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        width = 0
    # COLUMNS takes precedence, as in other programs; a terminal that does not know its width says 0
    return shutil.get_terminal_size((width or 80, 24)).columns if width == 0 or "COLUMNS" in os.environ else width


def _of_launcher(descriptor: int) -> TextIO | None:
    """A standard stream of ``spark-submit``, if it is a terminal or a pipe that can be opened."""
    path = Path(f"/proc/{os.getppid()}/fd/{descriptor}")
    try:
        if path.is_fifo() or path.is_char_device():
            return path.open("w", encoding="utf-8", errors="backslashreplace", buffering=1)
    except OSError:
        return None
    return None


class _ThroughJvm(io.StringIO):
    """Writes to the standard error of the JVM that started this process."""

    def write(self, text: str) -> int:
        from compaction.spark.jvm import print_to_jvm_errors

        print_to_jvm_errors(text)
        return len(text)
