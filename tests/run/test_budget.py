"""Logs that the budget of a run defers; what a log frees that was never cleaned, by a sample of its keys."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.config.request import BENEFIT, Budget
from compaction.names import DELETED
from compaction.report import LogReport, LogStatus, RunReport, RunStatus
from compaction.run import compact, waves
from compaction.run.compact import clean_logs, retained_share
from compaction.screen.amounts import size
from tests.disk import Operation
from tests.kafka.encode import Batch, Record
from tests.local_job import request_for
from tests.local_passes import LocalPasses
from tests.log.logs import NOW_MS
from tests.run.small_disk import SmallDisk, cleaned_logs, files_of

LOGS = 6
#: enough for all
MUCH = 0.6
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
RECORDS = 3000


def deferred(report: RunReport) -> list[LogReport]:
    return [log for log in report.logs if log.reason_code == "deferred"]


def rewritten(disk: SmallDisk) -> int:
    """The bytes of the segments of one log that are cleaned: all have equal sizes."""
    return disk.run(LOGS, dry_run=True).logs[0].bytes_before


@pytest.fixture
def disk() -> SmallDisk:
    return SmallDisk.with_free_share(LOGS, MUCH)


@pytest.fixture
def timed(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> SmallDisk:
    """A wave of one log takes 20 seconds, and the first one has one log."""
    monkeypatch.setattr(waves, "_FIRST_WAVE_BYTES", 1)
    disk.job_seconds = 10.0
    return disk


def test_logs_beyond_the_most_bytes_are_deferred_and_cleaned_by_the_next_runs(disk: SmallDisk) -> None:
    limit = Budget(max_rewrite_bytes=int(2.5 * rewritten(disk)))
    counts = []
    for _ in range(4):
        report = disk.run(LOGS, budget=limit)
        assert report.exit_code == 0
        counts.append((sum(log.compacted for log in report.logs), len(deferred(report))))
    assert counts == [(2, 4), (2, 2), (2, 0), (0, 0)]
    undisturbed = SmallDisk.with_free_share(LOGS, MUCH)
    undisturbed.run(LOGS)
    assert files_of(disk.disk, [DELETED]) == files_of(undisturbed.disk, [DELETED])


def test_a_deferred_log_is_not_changed_and_says_why(disk: SmallDisk) -> None:
    before = files_of(disk.disk)
    report = disk.run(LOGS, budget=Budget(max_rewrite_bytes=1))
    assert files_of(disk.disk) == before
    assert (report.status, report.exit_code, report.totals["skipped"]) == (RunStatus.NOTHING_TO_DO, 0, LOGS)
    log = report.logs[0]
    assert (log.status, log.reason_code) == (LogStatus.SKIPPED, "deferred")
    assert log.reason.startswith("deferred: ") and log.reason.endswith(" would exceed --max-rewrite 1 B")
    assert log.disk_bytes_before == log.disk_bytes_after > 0
    assert disk.jobs == []
    assert report.summary().startswith("6 logs: 6 skipped (6 deferred)")


def test_a_log_that_would_free_too_little_is_deferred(disk: SmallDisk) -> None:
    # never cleaned: by a sample of its keys it frees six of nine records
    assert len(deferred(disk.run(LOGS, dry_run=True, budget=Budget(min_freed_share=0.6)))) == 0
    assert len(deferred(disk.run(LOGS, dry_run=True, budget=Budget(min_freed_share=0.7)))) == LOGS


def test_no_wave_begins_that_would_not_end_in_time(timed: SmallDisk) -> None:
    report = timed.run(LOGS, budget=Budget(max_duration_ms=90_000))
    assert [(wave.logs, wave.seconds) for wave in report.waves] == [(1, 20.0)] * 4
    assert [log.reason for log in deferred(report)] == [
        f"deferred: would take 20.0 s at {size(rewritten_bytes_per_second())}/s, 10.0 s of --max-duration are left"
    ] * 2
    assert report.exit_code == 0
    assert timed.clock.now <= 90
    # what was deferred is first in the next run
    second = timed.run(LOGS, budget=Budget(max_duration_ms=90_000))
    assert {log.topic for log in deferred(report)} == {log.topic for log in second.logs if log.compacted}
    assert len(cleaned_logs(timed.disk)) == LOGS


def rewritten_bytes_per_second() -> float:
    return rewritten(SmallDisk.with_free_share(LOGS, MUCH)) / 20


def test_waves_are_a_tenth_of_the_time(timed: SmallDisk) -> None:
    # a log takes 20 s in the first wave
    report = timed.run(LOGS, budget=Budget(max_duration_ms=400_000))
    assert [wave.logs for wave in report.waves] == [1, 2, 3]


def test_logs_that_lack_space_until_after_the_end_of_a_run_are_deferred_and_do_not_fail() -> None:
    small = SmallDisk.with_free_share(LOGS, 0.1)
    report = small.run(LOGS, budget=Budget(max_duration_ms=30_000))
    # it does not wait beyond its time
    assert small.clock.slept == []
    assert 0 < sum(log.compacted for log in report.logs) < LOGS
    waiting = deferred(report)
    assert (report.exit_code, len(waiting) + sum(log.compacted for log in report.logs)) == (0, LOGS)
    reason = "deferred: --max-duration ends before file.delete.delay.ms has passed for "
    assert waiting and all(log.reason.startswith(reason) for log in waiting)
    while (report := small.run(LOGS, budget=Budget(max_duration_ms=30_000))).status is RunStatus.DONE:
        assert report.exit_code == 0
    assert len(cleaned_logs(small.disk)) == LOGS


def test_the_first_log_of_the_order_is_begun_even_if_the_time_has_passed_before(disk: SmallDisk) -> None:
    def slow(_: Operation) -> None:
        disk.clock.now += 5.0

    counts = []
    for _ in range(LOGS):
        report = disk.run(LOGS, slow, budget=Budget(max_duration_ms=100))
        assert report.exit_code == 0
        assert {log.reason for log in deferred(report)} <= {"deferred: --max-duration has passed"}
        counts.append(sum(log.compacted for log in report.logs))
    assert counts == [1] * LOGS


def test_the_estimate_stands_beside_the_outcome(disk: SmallDisk) -> None:
    report = disk.run(LOGS, order=BENEFIT, budget=Budget(max_rewrite_bytes=rewritten(disk)))
    assert [log.estimated_freed_bytes for log in report.logs] == [rewritten(disk)] * LOGS
    assert report.logs[0].disk_bytes_before > report.logs[0].disk_bytes_after


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
