"""A log in the evening of each day, as Kafka's own log and cleaner leave it under its mock of time, and as simulated."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np

from compaction.policies.arrivals import LARGEST_TIMESTAMP
from compaction.policies.replay import Clock, Replay
from tests.kafka.cleaner import clean_open_log, select
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening
from tests.policies.simulated import arrivals_of, config_of
from tests.policies.stories import DAY_MS, FIRST_MS, Arriving, Shape, story

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
    with KafkaLog(gateway, path, Opening(days[0][0].at_ms, config)) as log:
        for number, arrivals in enumerate(days):
            for each in arrivals:
                log.clock.set(each.at_ms)
                log.append(each.data)
                # Kafka reads it if a segment has no timestamp; the mock of time does not set it
                os.utime(max(path.glob("*.log")), ns=(each.at_ms * 10**6,) * 2)
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
    times = np.array([each.at_ms for day in days for each in day])
    # the parts of a large log have many batches
    times = times if len(times) == len(arrivals.parts) else arrivals.parts[:, LARGEST_TIMESTAMP]
    replay = Replay(arrivals, times, config_of(config), DAY_MS)
    effect = replay.run(Clock(ends, ends), "simulated")
    cleanings = {event.at_ms for event in effect.events if event.what == "cleaned"}
    return [Day(sample.bytes, sample.segments, sample.at_ms in cleanings) for sample in effect.samples]


class Drawn(NamedTuple):
    """What arrives, and the policy."""

    days: list[list[Arriving]]
    policy: dict[str, str]

    @classmethod
    def from_seed(cls, seed: int) -> Drawn:
        """One whose evenings are Kafka's to the byte: uncompressed batches of one record."""
        chance = random.Random(seed)
        transactions = chance.random() < 0.5
        shape = Shape(
            transactions=transactions, long_transactions=transactions and chance.random() < 0.5,
            producers=chance.random() < 0.5, keyless=chance.random() < 0.5, value_bytes=chance.choice([2, 120, 2000]),
        )  # fmt: skip
        policy = dict(chance.choice(POLICIES))
        for name, values in _DRAWN.items():
            if name in policy:
                policy[name] = chance.choice(values)
        return cls(story(seed, shape, keys=chance.choice([1, 40, 1000])), policy)

    def differences(self, gateway: Gateway, place: Path) -> list[str]:
        """The evenings that differ."""
        kafka = by_kafka(gateway, place / "t-0", self.days, self.policy)
        ours = by_simulation(place / "whole", self.days, self.policy)
        pairs = enumerate(zip(ours, kafka, strict=True), 1)
        return [f"{self.policy}, day {day}: {mine}, Kafka: {theirs}" for day, (mine, theirs) in pairs if mine != theirs]


#: values of the settings that a policy has
_DRAWN = {
    "segment.ms": ("3600000", "86400000", "432000000"),
    "internal.segment.bytes": ("2500", "6000", "40000"),
    "min.cleanable.dirty.ratio": ("0.0", "0.2", "0.5", "0.9"),
    "delete.retention.ms": ("0", "86400000", "864000000"),
    "min.compaction.lag.ms": ("0", "172800000"),
    "max.compaction.lag.ms": ("432000000", "864000000"),
    "retention.ms": ("86400000", "864000000", "1728000000"),
    "retention.bytes": ("3000", "40000"),
}
