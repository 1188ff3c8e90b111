"""Limits the combined rate of reading and writing, as ``log.cleaner.io.max.bytes.per.second`` does.

Mirrors ``Throttler``: the excess of each period is compensated by sleeping. Concurrent tasks share the rate
evenly.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: period of the rate checks, as in Kafka's cleaner
PERIOD_S = 0.3
#: bytes per second above any possible rate
UNLIMITED = 1e12


class Throttle:
    """Sleeps if more than ``bytes_per_second`` were counted; never if that is ``UNLIMITED`` or more."""

    def __init__(
        self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._rate, self._clock, self._sleep = bytes_per_second, clock, sleep
        self._since, self._moved = clock(), 0

    def now_s(self) -> float:
        """The time of its clock, for durations."""
        return self._clock()

    def count(self, moved: int) -> None:
        """Count ``moved`` bytes; may sleep."""
        self._moved += moved
        passed = self._clock() - self._since
        if passed < PERIOD_S and self._moved < self._rate * PERIOD_S:
            return
        excess_s = self._moved / self._rate - passed
        if excess_s > 0:
            self._sleep(excess_s)
        self._since, self._moved = self._clock(), 0
