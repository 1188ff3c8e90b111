"""Ctrl-C and SIGTERM: one line, the exit code of the signal, and no stack traces of the libraries that lose their connections.

Without this, SIGTERM ends the process wherever it is, and PySpark's own handler of Ctrl-C calls the JVM from within the
interrupted call, which fails, and three libraries log that. The first signal silences them, Spark's JVM and the threads of this
process, and raises ``KeyboardInterrupt``: a run then cancels Spark's jobs and removes or keeps its output
(``compaction.run.destination``); swaps in progress are completed first (``compaction.run.run``). Under
``spark-submit`` the JVM ends at the same time, and later output is lost, so the line is printed first.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any

from compaction import signals
from compaction.cli import log_lines

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}
_CHANGED, _UNCHANGED = "the next run completes or undoes the changes of this one", "no log was changed"
_STANDARD_ERROR = 2
#: after which a signal is sent again whose exception was lost
_AGAIN_S = 0.05
_JVM = "compaction.engines.spark_session"
_reported = threading.Event()
#: whether the command may have changed logs, or a copy of them
_changing = threading.Event()
#: the signals that have arrived
_received: list[int] = []


@contextmanager
def handled() -> Iterator[None]:
    """Handles these signals in the block; only in the main thread, where Python receives signals."""
    _changing.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, _stop) for number in signals.STOPPING}
    unraisable, sys.unraisablehook = sys.unraisablehook, _unraisable
    try:
        yield
    finally:
        sys.unraisablehook = unraisable
        for number, handler in previous.items():
            signal.signal(number, handler)


def deferred() -> AbstractContextManager[None]:
    """Defers the signals to the end of a block in which a Spark session starts: until it has started, its JVM does not end with
    its driver. The session's own handler is replaced."""
    return signals.deferred(_silence)


def may_change_logs() -> None:
    """From now on an interrupted command may have changed logs."""
    _changing.set()


def happened() -> bool:
    """Whether this process was interrupted: an error that follows may be a consequence."""
    return bool(_received)


def exit_code() -> int:
    return 128 + (_received[0] if _received else signal.SIGINT)


def report_once() -> None:
    if _reported.is_set():
        return
    disabled = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    log_lines.print_error(_text())
    logging.disable(disabled)


def _stop(number: int, frame: FrameType | None) -> None:
    _silence(number)
    if "PYSPARK_GATEWAY_PORT" in os.environ and not _reported.is_set():
        _reported.set()
        # the interrupted code may be writing to the stream
        with suppress(OSError):
            os.write(_STANDARD_ERROR, f"{_line()}\n".encode())
    raise KeyboardInterrupt


def _unraisable(lost: Any) -> None:
    """Python drops an exception that is raised in a destructor; the run would go on."""
    if not _received or not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    again = threading.Timer(_AGAIN_S, signal.pthread_kill, [threading.main_thread().ident, _received[0]])
    again.daemon = True
    again.start()


def _text() -> str:
    return f"{_WORDS[signal.Signals(exit_code() - 128)]}; {_CHANGED if _changing.is_set() else _UNCHANGED}"


def _line() -> str:
    if not log_lines.is_json():
        return f"error: {_text()}"
    return log_lines.JsonFormatter().format(logging.LogRecord(log_lines.JOB.name, logging.ERROR, "", 0, _text(), None, None))


def _silence(number: int) -> None:
    _received.append(number)
    # ignore further ones while sessions end
    for stopping in signals.STOPPING:
        atexit.register(signal.signal, stopping, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    # a thread ends because its connection to the JVM has ended
    threading.excepthook = lambda _: None
    # the import of the module may not be complete
    silence = getattr(sys.modules.get(_JVM), "silence_jvm", None)
    if silence is not None:
        silence()
