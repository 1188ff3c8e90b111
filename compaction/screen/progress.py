"""Shows the progress of a run: the current step, or a bar of the current pass, on the last line of a terminal; otherwise a line
for each pass every ten seconds.

A pass has a name and a size in bytes. Local tasks count the bytes that they read (``compaction.files.read_counter``). On a
cluster, Spark reports how many tasks of a stage have completed, not which; tasks start in order, so *n* completed tasks count
as the first *n*. This is exact at the end; before, the error is less than the running tasks.

The terminal may be shared with other output: ``StatusLine.paused`` removes the line while something else is printed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from rich.cells import set_cell_size

from compaction.screen.amounts import elapsed, size

#: seconds between two lines of a pass
LINE_INTERVAL_S = 10.0
#: seconds between two drawings of the status line
INTERVAL_S = 0.2
#: after this time the status line also has the duration of the step
_NOTABLE_S = 1.0
_CLEAR = "\r\x1b[2K"
_BAR_CELLS = 24


class StatusLine:
    """The status line of ``stream``, a terminal of ``width()`` cells. Safe to call from several threads.

    :ivar prefix: the beginning of each line
    """

    def __init__(self, stream: TextIO, width: Callable[[], int], now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._width, self._now = stream, width, now
        self._lock = threading.RLock()
        self._text: Callable[[], str] | None = None
        self._drawn = False
        self.prefix = ""
        self._thread: threading.Thread | None = None

    def step(self, text: str) -> None:
        started_s = self._now()

        def with_time() -> str:
            seconds = self._now() - started_s
            return f"{text} ...  {elapsed(seconds)}" if seconds >= _NOTABLE_S else f"{text} ..."

        self.show(with_time)

    def show(self, text: Callable[[], str]) -> None:
        with self._lock:
            self._text = text
            self._draw()
            if self._thread is None:
                self._thread = threading.Thread(target=self._redraw, name="status line", daemon=True)
                self._thread.start()

    def clear(self) -> None:
        """Remove the line until the next step."""
        with self._lock:
            self._text = None
            self._erase()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._lock:
            self._erase()
            yield
            self._draw()

    def _redraw(self) -> None:
        while True:
            time.sleep(INTERVAL_S)
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        if self._text is None:
            return
        text = self.prefix + self._text()
        # a terminal wraps a line that fills its last column
        shown = set_cell_size(text, min(len(text), max(self._width() - 1, 1))).rstrip()
        self._write(f"{_CLEAR}{shown}")
        self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            self._write(_CLEAR)
            self._drawn = False

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # the terminal was closed, but the run continues
            self._text = None


@dataclass
class _Pass:
    name: str
    total_bytes: int
    started_s: float
    done_bytes: int = 0

    @property
    def share(self) -> float:
        return self.done_bytes / self.total_bytes if self.total_bytes else 1.0

    def speed(self, now_s: float) -> str:
        """The rate, and the time that remains at this rate."""
        elapsed_s = now_s - self.started_s
        remaining = f", {elapsed(elapsed_s * (1 - self.share) / self.share)} left" if self.share else ""
        return f"{_rate(self.done_bytes, elapsed_s)}{remaining}"


class Progress:
    """The progress of one run, from its passes' bytes. Safe to call from several threads.

    ``start`` begins a pass, ``advance`` adds to the latest one, ``done`` ends it. Bytes beyond the total of a pass are ignored,
    because Spark may run a stage again.

    :param show: shows a line
    :param now: a clock in seconds
    :param status: the status line of a terminal, on which a bar is drawn
    """

    def __init__(
        self, show: Callable[[str], object], now: Callable[[], float] = time.monotonic, status: StatusLine | None = None
    ) -> None:
        self._show, self._now, self._status = show, now, status
        self._lock = threading.Lock()
        self._passes: dict[str, _Pass] = {}
        self._current: _Pass | None = None
        self._next_line_s = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._clear()

    def start(self, pass_name: str, total_bytes: int) -> None:
        """Begins a pass of ``total_bytes``."""
        with self._lock:
            begun = self._current = self._passes[pass_name] = _Pass(pass_name, total_bytes, self._now())
            self._next_line_s = begun.started_s + LINE_INTERVAL_S
            if self._status is not None:
                self._status.show(lambda: self._bar(begun))

    def advance(self, done_bytes: int) -> None:
        """Adds ``done_bytes`` to the latest pass, if one is running."""
        with self._lock:
            running, now_s = self._current, self._now()
            if running is None:
                return
            running.done_bytes = min(running.done_bytes + done_bytes, running.total_bytes)
            if self._status is None and now_s >= self._next_line_s and running.done_bytes < running.total_bytes:
                self._next_line_s = now_s + LINE_INTERVAL_S
                amount = f"{size(running.done_bytes)} of {size(running.total_bytes)} ({running.share:.0%})"
                self._show(f"{running.name}: {amount}, {running.speed(now_s)}")

    def done(self, pass_name: str) -> None:
        """Ends a pass, all of its bytes done.

        :raises KeyError: no such pass is running
        """
        with self._lock:
            ended = self._passes.pop(pass_name)
            ended.done_bytes = ended.total_bytes
            self._clear()
            elapsed_s = self._now() - ended.started_s
            rate = _rate(ended.total_bytes, elapsed_s)
            self._show(f"{ended.name}: {size(ended.total_bytes)} in {elapsed(elapsed_s)}, {rate}")
            if self._current is ended:
                self._current = None

    def _bar(self, shown: _Pass) -> str:
        full = round(shown.share * _BAR_CELLS)
        bar = "\u2501" * full + "\u2500" * (_BAR_CELLS - full)
        return f"{shown.name}  {bar}  {shown.share:4.0%} of {size(shown.total_bytes)}, {shown.speed(self._now())}"

    def _clear(self) -> None:
        if self._status is not None:
            self._status.clear()


def _rate(done_bytes: int, elapsed_s: float) -> str:
    return f"{size(round(done_bytes / max(elapsed_s, 0.001)))}/s"
