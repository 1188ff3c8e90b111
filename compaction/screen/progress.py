"""Shows the progress of a run: one bar per pass on a terminal, otherwise a line every ten seconds.

A pass has a name and a size in bytes. Local tasks count the bytes that they read (``compaction.files.read_counter``). On a
cluster, Spark reports how many tasks of a stage have completed, not which; tasks start in order, so *n* completed tasks count
as the first *n*. This is exact at the end; before, the error is less than the running tasks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Protocol

from compaction.screen.amounts import elapsed, size
from compaction.screen.status_line import StatusLine

#: seconds between two lines of a pass
LINE_INTERVAL_S = 10.0
_BAR_CELLS = 24


@dataclass
class _Pass:
    name: str
    total_bytes: int
    started_s: float
    done_bytes: int = 0


class _Display(Protocol):
    """Displays passes; :class:`Progress` calls it under its lock."""

    def begin(self, pass_: _Pass) -> None: ...

    def update(self, pass_: _Pass) -> None: ...

    def finish(self, pass_: _Pass) -> None: ...

    def close(self) -> None: ...


class Progress:
    """The progress of one run, from its passes' bytes. Safe to call from several threads.

    ``start`` begins a pass, ``advance`` adds to the latest one, ``done`` ends it. Bytes beyond the total of a pass are ignored,
    because Spark may run a stage again.

    :param stream: for lines
    :param now: a clock in seconds
    :param status: the status line of a terminal, on which a bar is drawn
    """

    def __init__(self, stream: IO[str], now: Callable[[], float] = time.monotonic, status: StatusLine | None = None) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._passes: dict[str, _Pass] = {}
        self._current: _Pass | None = None
        self._display: _Display = _Lines(stream, now)
        if status is not None:
            self._display = _Bar(status, _Lines(stream, now), now)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._display.close()

    def start(self, pass_name: str, total_bytes: int) -> None:
        """Begins a pass of ``total_bytes``."""
        with self._lock:
            self._current = self._passes[pass_name] = _Pass(pass_name, total_bytes, self._now())
            self._display.begin(self._current)

    def advance(self, done_bytes: int) -> None:
        """Adds ``done_bytes`` to the latest pass, if one is running."""
        with self._lock:
            if self._current is not None:
                self._current.done_bytes = min(self._current.done_bytes + done_bytes, self._current.total_bytes)
                self._display.update(self._current)

    def done(self, pass_name: str) -> None:
        """Ends a pass, all of its bytes done.

        :raises KeyError: no such pass is running
        """
        with self._lock:
            closed = self._passes.pop(pass_name)
            closed.done_bytes = closed.total_bytes
            self._display.finish(closed)
            if self._current is closed:
                self._current = None


class _Bar:
    """A bar on the status line of a terminal; a pass that has ended is a line."""

    def __init__(self, status: StatusLine, lines: _Lines, now: Callable[[], float]) -> None:
        self._status, self._lines, self._now = status, lines, now

    def begin(self, pass_: _Pass) -> None:
        self._status.show(lambda: self._drawn(pass_))

    def update(self, pass_: _Pass) -> None:
        """The status line is redrawn by itself."""

    def finish(self, pass_: _Pass) -> None:
        self._status.clear()
        self._lines.finish(pass_)

    def close(self) -> None:
        self._status.clear()

    def _drawn(self, pass_: _Pass) -> str:
        share = pass_.done_bytes / pass_.total_bytes if pass_.total_bytes else 1.0
        elapsed_s = self._now() - pass_.started_s
        remaining = f", {elapsed(elapsed_s * (1 - share) / share)} left" if share else ""
        full = round(share * _BAR_CELLS)
        bar = "\u2501" * full + "\u2500" * (_BAR_CELLS - full)
        amount = f"{share:4.0%} of {size(pass_.total_bytes)}"
        return f"{pass_.name}  {bar}  {amount}, {_rate(pass_.done_bytes, elapsed_s)}{remaining}"


class _Lines:
    """Lines for logs and pipes: one per :data:`LINE_INTERVAL_S` of a pass, and one at its end."""

    def __init__(self, stream: IO[str], now: Callable[[], float]) -> None:
        self._stream = stream
        self._now = now
        self._next_line_s = 0.0

    def begin(self, pass_: _Pass) -> None:
        self._next_line_s = pass_.started_s + LINE_INTERVAL_S

    def update(self, pass_: _Pass) -> None:
        now_s = self._now()
        if now_s < self._next_line_s or pass_.done_bytes == pass_.total_bytes:
            return
        self._next_line_s = now_s + LINE_INTERVAL_S
        elapsed_s = now_s - pass_.started_s
        share = pass_.done_bytes / pass_.total_bytes
        remaining_s = elapsed_s * (1 - share) / share if share else None
        remaining = "" if remaining_s is None else f", {elapsed(remaining_s)} left"
        amount = f"{size(pass_.done_bytes)} of {size(pass_.total_bytes)} ({share:.0%})"
        self._print(f"{pass_.name}: {amount}, {_rate(pass_.done_bytes, elapsed_s)}{remaining}")

    def finish(self, pass_: _Pass) -> None:
        elapsed_s = self._now() - pass_.started_s
        rate = _rate(pass_.total_bytes, elapsed_s)
        self._print(f"{pass_.name}: {size(pass_.total_bytes)} in {elapsed(elapsed_s)}, {rate}")

    def close(self) -> None:
        self._stream.flush()

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def _rate(done_bytes: int, elapsed_s: float) -> str:
    return f"{size(round(done_bytes / max(elapsed_s, 0.001)))}/s"
