"""The signals that stop a run: SIGINT (Ctrl-C), and SIGTERM of schedulers, service managers and pods that are pre-empted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred(on_signal: Callable[[int], object] = lambda number: None) -> Iterator[None]:
    """Defers these signals to the end of the block. Only in the main thread: others never receive signals.

    Handlers that the block installs for them are replaced. A signal whose handler was not installed by Python is not deferred:
    Python could not restore it.

    :param on_signal: called with the number of a signal when it arrives
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        pending.append(number)
        on_signal(number)

    previous = {number: handler for number in STOPPING if (handler := signal.getsignal(number)) is not None}
    for number in previous:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])
