"""Small logs under small policies, simulated from their cells and record by record."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from compaction.policies.replay import Clock, Replay
from tests.kafka.encode import Batch, Record
from tests.policies.oracle import DAY_MS, Oracle, Rules, Stored
from tests.policies.simulated import arrivals_of, config_of

FIRST_MS = 20_000 * DAY_MS
LOGS = 100


def policy(chance: random.Random) -> tuple[dict[str, str], Rules]:
    rules = Rules(
        compacts=(kind := chance.randrange(3)) != 1,
        deletes=kind != 0,
        segment_bytes=chance.choice([300, 700, 3000, 1 << 30]),
        segment_ms=chance.choice([DAY_MS // 3, DAY_MS, 5 * DAY_MS, 50 * DAY_MS]),
        ratio=chance.choice([0.0, 0.1, 0.3, 0.5, 0.9]),
        delete_retention_ms=chance.choice([0, DAY_MS // 2, 3 * DAY_MS]),
        min_lag_ms=(lag := chance.choice([0, 0, DAY_MS])),
        max_lag_ms=chance.choice([2**63 - 1, max(lag, 2 * DAY_MS)]),
        retention_ms=chance.choice([-1, 2 * DAY_MS, 6 * DAY_MS]),
        retention_bytes=chance.choice([-1, -1, 1000, 4000]),
    )
    cleanup = {0: "compact", 1: "delete", 2: "compact,delete"}[kind]
    return {
        "cleanup.policy": cleanup, "internal.segment.bytes": str(rules.segment_bytes), "segment.ms": str(rules.segment_ms),
        "min.cleanable.dirty.ratio": str(rules.ratio), "delete.retention.ms": str(rules.delete_retention_ms),
        "min.compaction.lag.ms": str(rules.min_lag_ms), "max.compaction.lag.ms": str(rules.max_lag_ms),
        "retention.ms": str(rules.retention_ms), "retention.bytes": str(rules.retention_bytes),
    }, rules  # fmt: skip


def log(chance: random.Random) -> list[Stored]:
    times = sorted(FIRST_MS + chance.randrange(12 * DAY_MS) for _ in range(chance.randrange(1, 70)))
    keys = [b"k%d" % number for number in range(chance.choice([1, 3, 10, 40]))]
    return [
        Stored(
            offset,
            at_ms,
            None if chance.random() < 0.05 else chance.choice(keys),
            None if chance.random() < 0.2 else bytes(chance.randrange(90)),
        )
        for offset, at_ms in enumerate(times)
    ]


@pytest.mark.parametrize("first", range(0, 500, LOGS))
def test_every_check_is_as_record_by_record(tmp_path: Path, first: int) -> None:
    for number in range(first, first + LOGS):
        chance = random.Random(number)
        records, (settings, rules) = log(chance), policy(chance)
        ends = [FIRST_MS + count * DAY_MS // 2 for count in range(1, 40)]
        batches = [Batch([Record(each.offset, each.at_ms, each.key, each.value)]).encode() for each in records]
        assert [len(batch) for batch in batches] == [record.size for record in records]
        arrivals = arrivals_of(tmp_path / str(number), batches)
        times = np.array([record.at_ms for record in records])
        effect = Replay(arrivals, times, config_of(settings), DAY_MS).run(Clock(np.array(ends), np.array(ends)), "simulated")
        cleaned = {event.at_ms for event in effect.events if event.what == "cleaned"}
        ours = [(sample.bytes, sample.segments, sample.at_ms in cleaned) for sample in effect.samples]
        oracle, expected = Oracle(rules), []
        for end_ms in ends:
            while records and records[0].at_ms <= end_ms:
                oracle.append(records.pop(0))
            done = oracle.check(end_ms)
            expected.append((oracle.size, len(oracle.pieces), done))
        assert ours == expected, (number, settings)
