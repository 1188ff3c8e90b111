"""Policies through time, as simulated and as Kafka's own log and cleaner carry them out, day by day under its mock of time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from compaction.simulation.arrivals import LARGEST_TIMESTAMP
from compaction.simulation.replay import Clock, Replay
from tests.kafka.cleaner import clean_open_log, select
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening
from tests.simulation.simulated import arrivals_of, config_of
from tests.simulation.stories import DAY_MS, FIRST_MS, Arriving, Shape, story

pytestmark = pytest.mark.kafka

POLICIES = (
    {
        "cleanup.policy": "compact", "segment.ms": "172800000", "min.cleanable.dirty.ratio": "0.3",
        "delete.retention.ms": "86400000",
    },
    {
        "cleanup.policy": "compact", "internal.segment.bytes": "6000", "min.cleanable.dirty.ratio": "0.6",
        "delete.retention.ms": "345600000", "min.compaction.lag.ms": "172800000", "max.compaction.lag.ms": "864000000",
    },
    {"cleanup.policy": "delete", "internal.segment.bytes": "8000", "retention.ms": "864000000", "retention.bytes": "40000"},
    {
        "cleanup.policy": "compact,delete", "segment.ms": "86400000", "retention.ms": "1728000000",
        "min.cleanable.dirty.ratio": "0.5",
    },
)  # fmt: skip


class Day(NamedTuple):
    """A log in the evening: its bytes and segments, and whether it was cleaned."""

    size: int
    segments: int
    cleaned: bool


def by_kafka(gateway: Gateway, path: Path, days: list[list[Arriving]], config: dict[str, str]) -> list[Day]:
    evenings, checkpoint = [], None
    with KafkaLog(gateway, path, Opening(FIRST_MS, config)) as log:
        for number, arrivals in enumerate(days):
            for each in arrivals:
                log.clock.set(each.at_ms)
                log.append(each.data)
            log.clock.set(FIRST_MS + (number + 1) * DAY_MS)
            log.raise_high_watermark()
            cleaned = False
            if "compact" in config["cleanup.policy"]:
                selected = select(log, checkpoint)
                overdue = selected.cleanable_bytes > 0 and selected.max_compaction_delay_ms > 0
                if selected.ratio > float(config.get("min.cleanable.dirty.ratio", "0.5")) or overdue:
                    checkpoint, cleaned = clean_open_log(log, checkpoint).end_offset, True
            if "delete" in config["cleanup.policy"]:
                log.expire()
            evenings.append(Day(int(log.java.size()), len(list(log.java.logSegments())), cleaned))
    return evenings


def by_simulation(path: Path, days: list[list[Arriving]], config: dict[str, str]) -> list[Day]:
    ends = np.array([FIRST_MS + (number + 1) * DAY_MS for number in range(len(days))])
    arrivals = arrivals_of(path, [each.data for day in days for each in day])
    replay = Replay(arrivals, arrivals.buckets[:, LARGEST_TIMESTAMP], config_of(config), DAY_MS)
    history = replay.run(Clock(ends, ends))
    cleanings = {event.at_ms for event in history.events if event.what == "cleaned"}
    return [Day(sample.bytes, sample.segments, sample.at_ms in cleanings) for sample in history.samples]


@pytest.mark.parametrize("policy", range(len(POLICIES)))
@pytest.mark.parametrize("number", range(4))
def test_each_evening_is_kafkas_to_the_byte(gateway: Gateway, tmp_path: Path, number: int, policy: int) -> None:
    transactions, long = number in (1, 3), number == 3
    shape = Shape(transactions=transactions, long_transactions=long, producers=number == 2, keyless=number % 2 == 1)
    days = story(number, shape)
    kafka = by_kafka(gateway, tmp_path / "t-0", days, POLICIES[policy])
    assert by_simulation(tmp_path / "whole", days, POLICIES[policy]) == kafka
    assert any(day.cleaned for day in kafka) or policy == 2
