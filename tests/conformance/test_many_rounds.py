"""If Kafka's offset map is so small that it needs many rounds, one round of the job has the result of Kafka's last one.

Files differ, because each of Kafka's rounds groups segments again. Batches and records are equal, except for what an earlier
round writes into a batch: its delete horizon, if any of its tombstones ever got one, and the largest timestamp of a batch that
was emptied in several rounds. With transactions Kafka may retain more: if a round begins after the marker of an aborted
transaction, Kafka takes the producer's later data for aborted, too, and leaves it out of its map.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from compaction.run.sizing import Sizes
from tests.kafka.cleaner import clean_partition
from tests.kafka.gateway import Gateway
from tests.kafka.log import Opening
from tests.local_job import clean_locally, write_offsets
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.random_logs import Flavour, random_log
from tests.oracle.records import NaiveBatch
from tests.oracle.segments import NaiveSegment
from tests.passes.random_cases import NOW_MS

pytestmark = pytest.mark.kafka

_ENTRY_BYTES = 24
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "internal.segment.bytes": "6000",
    "index.interval.bytes": "200",
}
FLAVOURS = {
    "plain": Flavour(transactions=False, keys=40),
    "idempotent": Flavour(transactions=False, keys=12, producers=8),
    "compressed": Flavour(transactions=False, keys=40, codecs=(1, 3, 4)),
    "message sets": Flavour(transactions=False, keys=30, magics=(0, 1, 2)),
}


def rounds_of_kafka(gateway: Gateway, path: Path, end_offset: int, map_bytes: int) -> int:
    """Cleans until nothing dirty is left; the number of rounds."""
    opening, checkpoint, rounds = Opening(NOW_MS, CONFIG, clean_shutdown=True), 0, 0
    while checkpoint < end_offset:
        reached = clean_partition(gateway, path, opening, checkpoint, map_bytes).end_offset
        assert reached > checkpoint
        checkpoint, rounds = reached, rounds + 1
    return rounds


def both(gateway: Gateway, root: Path, seed: int, flavour: Flavour) -> tuple[list[NaiveSegment], list[NaiveSegment], int]:
    """The job's inactive segments, Kafka's, and Kafka's number of rounds; each map of the job is as small as Kafka's one."""
    log = random_log(seed, flavour)
    paths = [root / side / "t-0" for side in ("ours", "kafkas")]
    for path in paths:
        write_partition(path, log.segments)
        write_producers(path, log.segments[-1].next_offset, (e._replace(last_timestamp_ms=NOW_MS) for e in log.producers))
    write_offsets(root / "ours", cleaner_offsets={"t": 0})
    slots = random.Random(seed).choice((4, 6, 9))
    (report,) = clean_locally(root / "ours", NOW_MS, {"t": CONFIG}, Sizes(1 << 20, 1 << 20, slots)).values()
    assert report.end_offset is not None
    rounds = rounds_of_kafka(gateway, paths[1], report.end_offset, slots * _ENTRY_BYTES)
    ours, kafkas = (read_partition(path) for path in paths)
    shutil.rmtree(root)
    return ours, kafkas, rounds


def batches(segments: Sequence[NaiveSegment]) -> list[NaiveBatch]:
    return [batch for segment in segments for batch in segment.batches]


def essence(batch: NaiveBatch) -> tuple[object, ...]:
    """A batch without its position, its horizon and, if it is empty, its time."""
    max_timestamp = batch.max_timestamp if batch.count else None
    fields = (batch.magic, batch.base_offset, batch.last_offset, batch.attributes & ~0x40, max_timestamp, batch.count)
    return (*fields, batch.leader_epoch, batch.producer_id, batch.producer_epoch, batch.base_sequence, *batch.records())


@pytest.mark.parametrize("name", FLAVOURS)
@pytest.mark.parametrize("seed", range(3))
def test_one_round_has_the_batches_and_records_of_kafkas_last_round(gateway: Gateway, name: str, seed: int) -> None:
    with scratch() as root:
        ours, kafkas, rounds = both(gateway, root / "logs", seed, FLAVOURS[name])
    assert rounds > 3
    assert list(map(essence, batches(ours))) == list(map(essence, batches(kafkas)))
    with_horizon = {batch.base_offset for batch in batches(kafkas) if batch.delete_horizon_ms is not None}
    assert {batch.base_offset for batch in batches(ours) if batch.delete_horizon_ms is not None} <= with_horizon


@pytest.mark.parametrize("seed", range(10, 18))
def test_with_transactions_kafka_retains_at_least_as_much(gateway: Gateway, seed: int) -> None:
    with scratch() as root:
        ours, kafkas, rounds = both(gateway, root / "logs", seed, Flavour(keys=30, batches=80))
    assert rounds > 1
    mine, theirs = (
        {record for batch in batches(side) if not batch.control for record in batch.records()} for side in (ours, kafkas)
    )
    assert mine <= theirs
