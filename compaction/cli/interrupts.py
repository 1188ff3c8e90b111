"""Ctrl-C: one line, exit code 130, and no stack traces of the libraries that lose their connections.

Without this, PySpark's own handler calls the JVM from within the interrupted call, which fails, and three libraries log that.
The first interrupt silences them, Spark's JVM and the threads of this process, and raises ``KeyboardInterrupt``: a run then
cancels Spark's jobs and removes or keeps its output (``compaction.run.destination``). Under ``spark-submit`` the
JVM ends at the same time, and later output is lost, so the line is printed first.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from compaction.cli import log_lines

_LINE = "interrupted; the next run completes or undoes the changes of this one"
_STANDARD_ERROR = 2
_JVM = "compaction.spark.jvm"
_reported, _silenced = threading.Event(), threading.Event()


@contextmanager
def handled() -> Iterator[None]:
    """Handles interrupts of the block; only in the main thread, where Python receives signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_handler = signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Defers interrupts to the end of the block, in which a Spark session starts: until it has started, its JVM does not end
    with its driver. The session's own handler is replaced."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        pending.append(number)
        _silence()

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _interrupted)
    if pending:
        raise KeyboardInterrupt


def happened() -> bool:
    """Whether this process was interrupted: an error that follows may be a consequence."""
    return _silenced.is_set()


def report_once() -> None:
    if _reported.is_set():
        return
    disabled = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    log_lines.print_error(_LINE)
    logging.disable(disabled)


def _interrupted(number: int, frame: FrameType | None) -> None:
    _silence()
    if "PYSPARK_GATEWAY_PORT" in os.environ and not _reported.is_set():
        _reported.set()
        # the interrupted code may be writing to the stream
        with suppress(OSError):
            os.write(_STANDARD_ERROR, f"{_line()}\n".encode())
    raise KeyboardInterrupt


def _line() -> str:
    if not log_lines.is_json():
        return f"error: {_LINE}"
    return log_lines.JsonFormatter().format(logging.LogRecord(log_lines.JOB.name, logging.ERROR, "", 0, _LINE, None, None))


def _silence() -> None:
    _silenced.set()
    # ignore a second interrupt while sessions end
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    threading.excepthook = _ignore
    # the import of the module may not be complete
    silence = getattr(sys.modules.get(_JVM), "silence_jvm", None)
    if silence is not None:
        silence()


def _ignore(arguments: Any) -> None:
    """A thread ends because its connection to the JVM has ended."""
