"""Stories of a log, what arrives on each day, and the log in the evening of each day: as Kafka's own log and cleaner leave it
under its mock of time, and as simulated."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from compaction.config.resolver import BrokerConfig, TopicConfig
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.log.checkpoint_store import read_checkpoints
from compaction.log.read_log import ReadOptions, read_log
from compaction.policies.arrivals import LARGEST_TIMESTAMP, Arrivals, read_arrivals
from compaction.policies.replay import Replay
from compaction.recovery.recover import recover_log
from compaction.rules.transactions import aborted_of
from compaction.run.cleaner import Limits, slices_of
from tests.kafka.cleaner import clean_open_log, select
from tests.kafka.encode import ABORT, COMMIT, Batch, Producer, Record, marker
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening
from tests.local_job import resolver_of
from tests.local_passes import LocalPasses
from tests.log.logs import TOPIC, location

DAY_MS = 86_400_000
#: midnight
FIRST_MS = 20_000 * DAY_MS


@dataclass(frozen=True)
class Shape:
    """The batches of a story: records in a batch, codec, and which kinds occur."""

    most_records: int = 1
    codec: str = "none"
    transactions: bool = False
    #: some transactions end days later
    long_transactions: bool = False
    producers: bool = False
    keyless: bool = False
    #: records have no timestamps
    timeless: bool = False
    value_bytes: int = 120


@dataclass(frozen=True)
class Arriving:
    """A batch, and when it arrives: at its largest timestamp, if it has one."""

    at_ms: int
    data: bytes


def story(number: int, shape: Shape, days: int = 60, per_day: int = 12, keys: int = 40) -> list[list[Arriving]]:
    """The batches of each day, in the order of offsets and times; the same for the same number."""
    told = _Story(random.Random(number), shape, keys)
    return [list(told.day(day, per_day)) for day in range(days)]


@dataclass
class _Story:
    chance: random.Random
    shape: Shape
    keys: int
    offset: int = 0
    #: the next sequence number of each producer, and the days at which long transactions end
    sequences: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)

    def day(self, day: int, per_day: int) -> Iterator[Arriving]:
        chance, shape, midnight_ms = self.chance, self.shape, FIRST_MS + day * DAY_MS
        times = sorted(chance.randrange(DAY_MS) for _ in range(chance.randrange(per_day // 2, per_day * 2)))
        for producer_id in [each for each, until in self.waiting.items() if until <= day]:
            yield self._marker(midnight_ms + 1, producer_id, COMMIT)
            del self.waiting[producer_id]
        for at_ms in (midnight_ms + time for time in times):
            if not (shape.transactions and chance.random() < 0.3):
                yield self._batch(at_ms, chance.randrange(11, 15) if shape.producers and chance.random() < 0.5 else -1)
                continue
            free = [each for each in range(1, 8 if shape.long_transactions else 4) if each not in self.waiting]
            producer_id = free[chance.randrange(len(free))]
            for _ in range(chance.randrange(1, 4)):
                yield self._batch(at_ms, producer_id, transactional=True)
            if shape.long_transactions and len(self.waiting) < 3 and chance.random() < 0.1:
                self.waiting[producer_id] = day + chance.randrange(1, 8)
            else:
                yield self._marker(at_ms, producer_id, ABORT if chance.random() < 0.3 else COMMIT)

    def _marker(self, at_ms: int, producer_id: int, kind: int) -> Arriving:
        self.offset += 1
        return Arriving(at_ms, marker(self.offset - 1, at_ms, Producer(producer_id), kind))

    def _batch(self, at_ms: int, producer_id: int, *, transactional: bool = False) -> Arriving:
        chance, shape, records = self.chance, self.shape, []
        for _ in range(chance.randrange(1, shape.most_records + 1)):
            # some keys are much more frequent
            key: bytes | None = b"key-%d" % min(chance.randrange(self.keys), chance.randrange(self.keys))
            value: bytes | None = bytes(chance.choices(b"abcdefgh", k=chance.randrange(shape.value_bytes)))
            kind = chance.random()
            if kind < 0.15:
                value = None
            elif kind > 0.97 and shape.keyless:
                key = None
            records.append(Record(self.offset, -1 if shape.timeless else at_ms, key, value))
            self.offset += 1
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + len(records)
        batch = Batch(
            records, shape.codec, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence if producer_id >= 0 else -1, transactional=transactional,
        )  # fmt: skip
        return Arriving(at_ms, batch.encode())


_SLICE_BYTES = 64 << 20


def config_of(settings: Mapping[str, str]) -> TopicConfig:
    return resolver_of({"t": settings}).topic("t")


def arrivals_of(
    log_dir: Path, batches: Sequence[bytes], *, slice_bytes: int = _SLICE_BYTES, shard_entries: int = 1 << 20
) -> Arrivals:
    """Of a log of one segment with these batches."""
    path = log_dir / str(TOPIC)
    path.mkdir(parents=True)
    (path / f"{0:020d}.log").write_bytes(b"".join(batches))
    where = location(str(log_dir))
    fs = OverlayFileSystem(LocalFileSystem())
    state = replace(read_checkpoints(fs, where.log_dir), snapshots_may_lack=True)
    report = recover_log(fs, where, checkpoints=state)
    view = read_log(fs, where, read_checkpoints(fs, where.log_dir), ReadOptions(now_ms=0), segments=report.segments)
    slices = slices_of(fs, 0, view, view.segments, slice_bytes)
    settings = Limits(BrokerConfig()).map_settings(1)
    (found,) = read_arrivals(LocalPasses(), [(view, slices, aborted_of(view))], settings, shard_entries)
    assert not isinstance(found, str), found
    return found


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
    effect = replay.run(ends, ends, "simulated")
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
