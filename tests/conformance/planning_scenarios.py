"""Scenarios of planning: the cleanable range, and the groups of segments."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.bench import DAY, HOUR, ROUNDS, Scenario
from tests.conformance.scenario_tools import Writer, one_each


def planning_scenarios() -> dict[str, Scenario]:
    """All of them by name."""
    return dict([*_chosen(), *_ends(), *_groups()])


def _four(**writer: int) -> list[list[bytes]]:
    w = Writer(**writer)
    return one_each(w.batch("abcd") for _ in range(5))


def _chosen() -> Iterator[tuple[str, Scenario]]:
    for name, ratio in (("under", "0.80"), ("at", "0.75"), ("over", "0.74")):
        yield f"ratio-{name}-the-bound", Scenario([_four()], {"min.cleanable.dirty.ratio": ratio}, checkpoint=4)
    lag = {"min.cleanable.dirty.ratio": "0.9", "max.compaction.lag.ms": str(29 * DAY)}
    yield "max-compaction-lag-has-passed", Scenario([_four()], lag, checkpoint=4)
    yield (
        "max-compaction-lag-has-not-passed",
        Scenario([_four()], {**lag, "max.compaction.lag.ms": str(31 * DAY)}, checkpoint=4),
    )


def _ends() -> Iterator[tuple[str, Scenario]]:
    yield "checkpoint-above-the-log-end", Scenario([_four()], checkpoint=1000)
    yield "checkpoint-below-the-log-start", Scenario([_four(offset=100)], checkpoint=3, log_start_offset=100)
    yield "log-start-inside-a-segment", Scenario([_four()], log_start_offset=6)
    yield "segments-wholly-below-the-log-start", Scenario([_four()], log_start_offset=9)
    yield "high-watermark-inside-a-segment", Scenario([_four()], high_watermark=10)
    yield "high-watermark-at-a-segment", Scenario([_four()], high_watermark=8)
    for name, lag in (("some", 30 * DAY - 9_000), ("all", 31 * DAY), ("none", HOUR)):
        yield f"too-young-{name}", Scenario([_four()], {"min.compaction.lag.ms": str(lag)})
    w = Writer(time_ms=ROUNDS[0] + DAY)
    future = one_each(w.batch("abcd") for _ in range(3))
    yield "times-in-the-future", Scenario([future], {"min.compaction.lag.ms": "1"})


def _groups() -> Iterator[tuple[str, Scenario]]:
    for size in (300, 500, 1000):
        yield f"groups-of-{size}-bytes", Scenario([_four(), _four(offset=20)], {"internal.segment.bytes": str(size)})
    w = Writer(size=2000)
    segments = [w.each("abcdef") for _ in range(5)]
    yield "groups-by-index-bytes", Scenario([segments], {"segment.index.bytes": "40"})
    w = Writer(size=100)
    yield (
        "groups-with-empty-segments",
        Scenario(
            [
                one_each([w.batch("ab"), w.batch("ab"), w.batch("ab"), w.batch("c")]),
                [[w.batch("d")], [w.batch("c")]],
                [[w.batch("e")]],
            ],
            {"internal.segment.bytes": "350"},
        ),
    )
