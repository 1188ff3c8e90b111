"""Stories of a log: what arrives on each day, as encoded batches."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.kafka.encode import ABORT, COMMIT, Batch, Producer, Record, marker

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
    chance = random.Random(number)
    offset, result, sequences, waiting = 0, [], dict[int, int](), dict[int, int]()
    for day in range(days):
        arrivals: list[Arriving] = []
        count = chance.randrange(per_day // 2, per_day * 2)
        times = sorted(chance.randrange(DAY_MS) for _ in range(count))
        number_of = 0
        for producer_id in [each for each, until in waiting.items() if until <= day]:
            morning_ms = FIRST_MS + day * DAY_MS + 1
            arrivals.append(Arriving(morning_ms, marker(offset, morning_ms, Producer(producer_id), COMMIT)))
            offset += 1
            del waiting[producer_id]
        while number_of < len(times):
            at_ms = FIRST_MS + day * DAY_MS + times[number_of]
            if shape.transactions and chance.random() < 0.3:
                number_of_producers = 8 if shape.long_transactions else 4
                free = [each for each in range(1, number_of_producers) if each not in waiting]
                producer = Producer(free[chance.randrange(len(free))])
                for _ in range(chance.randrange(1, 4)):
                    batch, offset = _batch(chance, shape, keys, offset, at_ms, producer.id, sequences, transactional=True)
                    arrivals.append(Arriving(at_ms, batch))
                if shape.long_transactions and len(waiting) < 3 and chance.random() < 0.1:
                    waiting[producer.id] = day + chance.randrange(1, 8)
                else:
                    kind = ABORT if chance.random() < 0.3 else COMMIT
                    arrivals.append(Arriving(at_ms, marker(offset, at_ms, producer, kind)))
                    offset += 1
            else:
                producer_id = chance.randrange(11, 15) if shape.producers and chance.random() < 0.5 else -1
                batch, offset = _batch(chance, shape, keys, offset, at_ms, producer_id, sequences)
                arrivals.append(Arriving(at_ms, batch))
            number_of += 1
        result.append(arrivals)
    return result


def _batch(
    chance: random.Random,
    shape: Shape,
    keys: int,
    offset: int,
    at_ms: int,
    producer_id: int,
    sequences: dict[int, int],
    *,
    transactional: bool = False,
) -> tuple[bytes, int]:
    """An encoded batch, and the offset after it."""
    records = []
    for number in range(chance.randrange(1, shape.most_records + 1)):
        # some keys are much more frequent
        key: bytes | None = b"key-%d" % min(chance.randrange(keys), chance.randrange(keys))
        value: bytes | None = bytes(chance.choices(b"abcdefgh", k=chance.randrange(shape.value_bytes)))
        kind = chance.random()
        if kind < 0.15:
            value = None
        elif kind > 0.97 and shape.keyless:
            key = None
        records.append(Record(offset + number, -1 if shape.timeless else at_ms, key, value))
    sequence = sequences.get(producer_id, 0)
    sequences[producer_id] = sequence + len(records)
    batch = Batch(
        records, shape.codec, producer_id=producer_id, producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1, transactional=transactional,
    )  # fmt: skip
    return batch.encode(), offset + len(records)
