"""Waits for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

_PAUSE_S = 0.1


def wait_until(holds: Callable[[], object], seconds: float = 60) -> None:
    """Returns once ``holds`` is true; fails if that takes longer."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(_PAUSE_S)
