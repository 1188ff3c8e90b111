"""The last line of a terminal, with the current step of a run and its duration; it is redrawn, and removed at the end.

The terminal may be shared with other output: :meth:`StatusLine.paused` removes the line while something else is printed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.cells import set_cell_size

from compaction.screen.amounts import elapsed

#: seconds between two drawings
INTERVAL_S = 0.2
#: after this time the line also has the duration of the step
_NOTABLE_S = 1.0
_CLEAR = "\r\x1b[2K"


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
