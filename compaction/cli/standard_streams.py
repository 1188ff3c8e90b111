"""The streams of a command for its result and its log, and the properties of their terminals.

``spark-submit`` starts a Python application with both of its standard streams joined to one pipe, which the JVM copies to its
own standard output. Here the log goes to the standard error of ``spark-submit`` instead: directly if that is a terminal or a
pipe, else through the JVM, because a second writer to a file would overwrite the JVM's output.

Printing never fails a command: a closed or full stream, or a pipe without a reader, loses the text, and the command continues.
Only the output of ``dump-log`` is printed with ``strict_output``.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import select
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, ClassVar, TextIO

_OUT, _ERROR = 1, 2
_LOG = logging.getLogger("kafka_log_compaction")


class _Lenient(io.FileIO):
    """Ignores failed writes. The first error of standard output is logged, unless it is a pipe without a reader."""

    strict = False
    #: the context of each write to standard output
    around: ClassVar[Callable[[], AbstractContextManager[None]]] = nullcontext

    def __init__(self, descriptor: int, *, closefd: bool = False) -> None:
        super().__init__(descriptor, "w", closefd=closefd)
        self._is_output = descriptor == _OUT
        self._silent = not self._is_output

    def write(self, data: Any, /) -> int:
        try:
            with _Lenient.around() if self._is_output else nullcontext():
                while (written := super().write(data)) is None:
                    # another process has made the stream non-blocking
                    select.select((), (self,), ())
        except OSError as error:
            silent, self._silent = self._silent, True
            if self.strict:
                raise
            if not silent and error.errno != errno.EPIPE:
                _LOG.error("standard output: %s; the rest of what is printed is lost, files are complete", error.strerror)
            return len(memoryview(data).cast("B"))
        return written


def guard(around: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    """Makes the standard streams of this process ignore failed writes. A closed stream becomes the null device: otherwise the
    next opened file would get its number, and this process and its children would print into it.

    :param around: the context of each write to standard output: the status line may be on the same terminal
    """
    _Lenient.around = staticmethod(around)
    for descriptor in (0, _OUT, _ERROR):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = _guarded(sys.stdout, _OUT), _guarded(sys.stderr, _ERROR)


def _guarded(stream: TextIO | None, descriptor: int) -> TextIO:
    """``stream``, if it leads to ``descriptor``, with a ``_Lenient`` below it."""
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(_Lenient(descriptor)), encoding="utf-8", errors="backslashreplace")
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    # tests replace the streams by ones that do not fail
    if not isinstance(stream, io.TextIOWrapper) or type(raw) is not io.FileIO or raw.fileno() != descriptor:
        return stream
    lenient = io.BufferedWriter(_Lenient(descriptor))
    return io.TextIOWrapper(lenient, stream.encoding, stream.errors, line_buffering=stream.line_buffering)


@contextmanager
def strict_output() -> Iterator[None]:
    """In the block, standard output is the result of the command: a failed write is an error.

    :raises OSError: in the block, from a write
    """
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if not isinstance(raw, _Lenient):
        yield
        return
    raw.strict = True
    try:
        yield
    finally:
        raw.strict = False


def under_spark_submit() -> bool:
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


def _width(stream: IO[str]) -> int | None:
    if not stream.isatty():
        return None
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        width = 0
    # COLUMNS takes precedence, as in other programs; a terminal of unknown width reports 0
    return shutil.get_terminal_size((width or 80, 24)).columns if width == 0 or "COLUMNS" in os.environ else width


def _of_launcher(descriptor: int) -> TextIO | None:
    """A standard stream of ``spark-submit``, if it is a terminal or a pipe that can be opened."""
    path = Path(f"/proc/{os.getppid()}/fd/{descriptor}")
    try:
        if path.is_fifo() or path.is_char_device():
            opened = _Lenient(os.open(path, os.O_WRONLY | os.O_CLOEXEC), closefd=True)
            return io.TextIOWrapper(io.BufferedWriter(opened), "utf-8", "backslashreplace", line_buffering=True)
    except OSError:
        return None
    return None


class _ThroughJvm(io.StringIO):
    """Writes to the standard error of the JVM that started this process."""

    def write(self, text: str) -> int:
        from compaction.engines.spark_session import print_to_jvm_errors

        print_to_jvm_errors(text)
        return len(text)
