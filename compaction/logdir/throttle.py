"""Keeps reading and writing together under a rate, as ``log.cleaner.io.max.bytes.per.second`` asks.

Mirrors ``Throttler`` (Kafka 4.3.0): what a period moved beyond its share is slept off. Tasks that run at once share the rate
evenly.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: how often the rate is looked at, as in Kafka's cleaner
PERIOD_S = 0.3
#: bytes a second that nothing here comes near
UNLIMITED = 1e12


class Throttle:
    """Sleeps when more than ``bytes_per_second`` were counted.

    :param bytes_per_second: the rate; ``UNLIMITED`` or more means no throttling
    """

    def __init__(
        self,
        bytes_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = bytes_per_second, clock, sleep
        self._since, self._moved = clock(), 0

    def count(self, moved: int) -> None:
        """Take ``moved`` bytes into account; may sleep."""
        self._moved += moved
        passed = self._clock() - self._since
        if passed < PERIOD_S and self._moved < self._rate * PERIOD_S:
            return
        ahead = self._moved / self._rate - passed
        if ahead > 0:
            self._sleep(ahead)
        self._since, self._moved = self._clock(), 0
