"""The rate of reading and writing."""

from __future__ import annotations

import pytest

from compaction.passes.throttle import Throttle


class Clock:
    """Time that passes only while somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("chunk", [1, 1_000, 50_000, 1_000_000])
def test_chunks_of_any_size_are_limited_to_the_rate(chunk: int) -> None:
    clock = Clock()
    throttle = Throttle(100_000, clock, clock.sleep)
    for _ in range(1_000_000 // chunk):
        throttle.count(chunk)
    assert clock.now == pytest.approx(10, rel=0.04)


def test_time_spent_working_counts_towards_the_rate() -> None:
    clock = Clock()
    throttle = Throttle(100_000, clock, clock.sleep)
    for _ in range(20):
        clock.now += 0.25
        throttle.count(50_000)
    assert clock.now == pytest.approx(10, rel=0.04)


def test_work_slower_than_the_rate_is_not_throttled() -> None:
    clock = Clock()
    throttle = Throttle(1_000_000, clock, clock.sleep)
    for _ in range(10):
        clock.now += 1.0
        throttle.count(500_000)
    assert clock.now == 10.0


def test_kafkas_default_does_not_throttle() -> None:
    clock = Clock()
    throttle = Throttle(1.7976931348623157e308, clock, clock.sleep)
    for _ in range(1_000):
        throttle.count(1 << 30)
    assert clock.now == 0.0
