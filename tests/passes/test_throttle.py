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


KAFKAS_DEFAULT = 1.7976931348623157e308


@pytest.mark.parametrize(
    ("rate", "chunk", "chunks", "working_s", "seconds", "tolerance"),
    [
        *((100_000, chunk, 1_000_000 // chunk, 0.0, 10.0, 0.04) for chunk in (1, 1_000, 50_000, 1_000_000)),
        pytest.param(100_000, 50_000, 20, 0.25, 10.0, 0.04, id="time spent working counts"),
        pytest.param(1_000_000, 500_000, 10, 1.0, 10.0, 0.0, id="slower work is not throttled"),
        pytest.param(KAFKAS_DEFAULT, 1 << 30, 1_000, 0.0, 0.0, 0.0, id="nor is Kafka's default"),
    ],
)
def test_chunks_of_any_size_are_limited_to_the_rate(
    rate: float, chunk: int, chunks: int, working_s: float, seconds: float, tolerance: float
) -> None:
    clock = Clock()
    throttle = Throttle(rate, clock, clock.sleep)
    for _ in range(chunks):
        clock.now += working_s
        throttle.count(chunk)
    assert clock.now == pytest.approx(seconds, rel=tolerance)
