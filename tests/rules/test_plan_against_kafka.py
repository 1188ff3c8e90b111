"""Dirty ranges and deleted segments of random logs equal Kafka's; random scenarios show the groups."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from compaction.config.resolver import Resolver, TopicConfig
from compaction.config.sources import read_sets
from compaction.files.local import LocalFileSystem
from compaction.log.checkpoint_store import Checkpoints
from compaction.log.read_log import ReadOptions, read_log
from compaction.names import LogLocation, TopicPartition
from compaction.rules.log_to_clean import Verdict, log_to_clean
from compaction.rules.log_view import LogView
from compaction.rules.plan import plan_log
from compaction.rules.segment_retention import DeletionCause, plan_deletion
from tests.kafka.cleaner import Selected, select
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening, expire_partition
from tests.oracle.disk import write_partition, write_producers
from tests.oracle.random_logs import Flavour, RandomLog, random_log

pytestmark = pytest.mark.kafka

LOGS = 40
ORDERS = TopicPartition("orders", 0)


@dataclass(frozen=True)
class Case:
    """A log at rest, and what a broker knows of it."""

    path: Path
    view: LogView
    opening: Opening
    config: TopicConfig


def laid_out(tmp_path: Path, seed: int, rng: random.Random, settings: dict[str, str]) -> Case:
    """A random log on disk with a random log start, high watermark and cleaner checkpoint."""
    log = random_log(seed, Flavour(batches=50))
    path = tmp_path / str(seed) / str(ORDERS)
    now_ms = log.end_ms + rng.choice([0, 1_000, 10_000])
    write_partition(path, log.segments)
    write_producers(path, log.segments[-1].next_offset, (each._replace(last_timestamp_ms=now_ms) for each in log.producers))
    start, end = log.segments[0].base_offset, log.segments[-1].next_offset
    log_start = rng.choice([start, start, rng.randrange(start, end)])
    high_watermark = rng.choice([end, end, rng.randrange(log_start, end + 1)])
    checkpoint = rng.choice([None, start, rng.randrange(start, end + 1), rng.randrange(start, end + 50), _base(rng, log)])
    checkpoints = Checkpoints(
        str(path.parent),
        log_starts={ORDERS: log_start},
        high_watermarks={ORDERS: high_watermark},
        cleaner_offsets={} if checkpoint is None else {ORDERS: checkpoint},
    )
    location = LogLocation(ORDERS, str(path.parent), str(path))
    view = read_log(LocalFileSystem(), location, checkpoints, ReadOptions(now_ms))
    opening = Opening(now_ms, settings, log_start, high_watermark, clean_shutdown=True)
    config = Resolver(sets=read_sets(f"{name}={value}" for name, value in settings.items())).topic("orders")
    return Case(path, view, opening, config)


def _base(rng: random.Random, log: RandomLog) -> int:
    return rng.choice(log.segments).base_offset


def test_what_is_dirty_is_what_kafka_finds_dirty(gateway: Gateway, tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(LOGS):
        rng = random.Random(seed)
        settings = {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(rng.choice([0, 0, 3_000, 12_000])),
            "max.compaction.lag.ms": str(rng.choice([12_000, 60_000, 2**63 - 1])),
            "min.cleanable.dirty.ratio": str(rng.choice([0, 0.3, 0.5, 0.9])),
        }
        case = laid_out(tmp_path, seed, rng, settings)
        ours = log_to_clean(case.view, case.config, now_ms=case.opening.now_ms, include_active=False)
        plan = plan_log(case.view, case.config, now_ms=case.opening.now_ms)
        with KafkaLog(gateway, case.path, case.opening) as log:
            theirs = select(log, case.view.cleaner_checkpoint)
        assert (
            Selected(
                ours.first_dirty_offset,
                ours.first_uncleanable_offset,
                ours.checkpoint_reset,
                ours.clean_bytes,
                ours.dirty_bytes,
                ours.overdue_ms,
            )
            == theirs
        ), seed
        due = theirs.max_compaction_delay_ms > 0 and theirs.cleanable_bytes > 0
        assert (plan.verdict is Verdict.CLEAN) == (due or theirs.ratio > case.config.min_cleanable_dirty_ratio), seed
        seen |= {ours.bounds[0].name, plan.verdict.name, "reset" if ours.checkpoint_reset else "", "due" if due else ""}
    assert seen >= {
        "active segment", "high watermark", "last stable offset", "min.compaction.lag.ms",
        "CLEAN", "SKIP", "reset", "due",
    }  # fmt: skip


def test_deleted_segments_are_those_that_kafka_deletes(gateway: Gateway, tmp_path: Path) -> None:
    causes: set[DeletionCause] = set()
    emptied = 0
    for seed in range(LOGS):
        rng = random.Random(seed)
        settings = {
            "cleanup.policy": rng.choice(["delete", "delete", "compact,delete", "compact", ""]),
            "retention.ms": str(rng.choice([-1, 0, 4_000, 10_000, 30_000])),
            "retention.bytes": str(rng.choice([-1, -1, 0, 1_000, 4_000, 6_000])),
        }
        case = laid_out(tmp_path, seed, rng, settings)
        plan = plan_deletion(case.view, case.config, now_ms=case.opening.now_ms)
        theirs = expire_partition(gateway, case.path, case.opening)
        assert (len(plan.removals), plan.new_log_start_offset) == theirs, seed
        left = sorted(int(file.name[:20]) for file in case.path.glob("*.log"))
        assert [segment.base_offset for segment in plan.after.segments] == left, seed
        causes |= {removal.cause for removal in plan.removals}
        emptied += len(plan.removals) == len(case.view.segments)
        shutil.rmtree(case.path)
    assert causes == set(DeletionCause)
    assert emptied
