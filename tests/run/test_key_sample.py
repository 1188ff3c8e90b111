"""What a log frees that was never cleaned, by a sample of its keys."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.config.request import Budget
from compaction.run import compact
from compaction.run.compact import clean_logs, retained_share
from tests.kafka.encode import Batch, Record
from tests.local_job import request_for
from tests.local_passes import LocalPasses
from tests.log.logs import NOW_MS

COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
RECORDS = 3000


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Logs that were never cleaned: one has each key once, the other ten keys."""
    for topic, keys in (("distinct", RECORDS), ("few", 10)):
        path = tmp_path / f"{topic}-0"
        path.mkdir()
        for base in range(0, RECORDS, 1000):
            records = [Record(at, NOW_MS - 9, b"k%d" % (at % keys), b"value" * 20) for at in range(base, base + 1000)]
            batches = [Batch(records[at : at + 10]).encode() for at in range(0, 1000, 10)]
            (path / f"{base:020d}.log").write_bytes(b"".join(batches))
        (path / f"{RECORDS:020d}.log").touch()
    return tmp_path


@pytest.mark.parametrize("block_bytes", [32 << 10, 256 << 10])
def test_a_log_without_superseded_records_is_deferred_though_it_was_never_cleaned(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(compact, "_BLOCK_BYTES", block_bytes)
    request = request_for(log_dir, NOW_MS, {"distinct": COMPACT, "few": COMPACT})
    report = clean_logs(LocalPasses, replace(request, budget=Budget(min_freed_share=0.1)))
    distinct, few = sorted(report.logs, key=lambda log: log.topic)
    assert (report.exit_code, distinct.reason_code, distinct.estimated_freed_bytes) == (0, "deferred", 0)
    assert few.compacted and few.records_after == 10
    assert abs(few.estimated_freed_bytes / (few.bytes_before - few.bytes_after) - 1) < 0.01


def test_logs_that_cannot_be_sampled_are_not_deferred(log_dir: Path) -> None:
    for path in log_dir.glob("distinct-0/*.log"):
        path.write_bytes(path.read_bytes()[:500] + b"?" + path.read_bytes()[501:] if path.stat().st_size else b"")
    request = request_for(log_dir, NOW_MS, {"distinct": COMPACT, "few": COMPACT})
    report = clean_logs(LocalPasses, replace(request, budget=Budget(min_freed_share=0.1)))
    assert sorted((log.topic, log.reason_code) for log in report.logs) == [("distinct", "error"), ("few", "")]


@pytest.mark.parametrize("keys", [1, 100, 50_000, 1_000_000])
def test_the_share_is_that_of_records_drawn_evenly_from_keys(keys: int) -> None:
    chance, records, sampled = random.Random(keys), 2_000_000, 40_000
    distinct = len({chance.randrange(keys) for _ in range(sampled)})
    expected = keys * -math.expm1(-records / keys) / records
    assert retained_share(sampled, distinct, records) == pytest.approx(expected, rel=0.1)


def test_a_sample_without_two_equal_keys_proves_only_what_its_size_allows() -> None:
    assert retained_share(3000, 3000, 10**6) == 1.0
    # a few large records of a log with few keys
    assert retained_share(4, 4, 36) < 0.1
    assert retained_share(1000, 1000, 10**6) == pytest.approx(1 / 6)
    assert retained_share(0, 0, 10) == 0.0
