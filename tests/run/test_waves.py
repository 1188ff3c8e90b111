"""Runs over logs whose outputs do not fit beside them at once, in waves, or not even alone, in portions. Space is shared by
the directories of a file system; logs whose outputs exceed it are refused, by an upper bound first, then by exact sizes.
Logs that the budget of a run defers, by what they would free."""

from __future__ import annotations

import logging
import math
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, patch

import numpy as np
import pytest

from compaction.config.request import BENEFIT, Budget
from compaction.errors import StorageError
from compaction.files.local import FreeSpace, free_space
from compaction.names import DELETED, LOG
from compaction.output.journal import JOURNAL
from compaction.passes.tasks import CleanContext, CleanStats, GroupOutput, OutputPart, PartResult, Slice
from compaction.report import LogReport, LogStatus, RunReport, RunStatus
from compaction.rules.log_view import AbortedTxn, Segment
from compaction.rules.record_retention import ActiveProducers, RoundRules
from compaction.rules.transactions import AbortedRanges
from compaction.run import compact, waves
from compaction.run.compact import retained_share
from compaction.run.log import Log
from compaction.run.waves import Lacking, SpaceBudget, copied_bytes, logs_without_space
from compaction.screen.amounts import size
from compaction.screen.steps import STEPS, WaveProgress
from tests.disk import FaultyFileSystem, Operation
from tests.kafka.encode import Batch, Record
from tests.local_job import clean_locally
from tests.log.logs import NOW_MS
from tests.oracle.records import decode
from tests.run.small_disk import COMPACT, LOG_DIR, SmallDisk, after_a_stop, cleaned_logs, disk_of, files_of, topics, used_bytes

LOGS = 12
#: the outputs of all logs take three times this share
FREE = 0.07
#: enough for all
MUCH = 0.6


@cache
def undisturbed(logs: int = LOGS) -> dict[str, bytes]:
    """The files after a run with enough space."""
    disk = SmallDisk.with_free_share(logs, MUCH)
    assert [wave.logs for wave in disk.run(logs).waves] == [logs]
    return files_of(disk.disk, [DELETED])


def all_cleaned(report: RunReport) -> bool:
    return all(log.status is LogStatus.CLEANED for log in report.logs)


def test_waves_of_three_times_the_free_space_follow_each_other_once_the_delay_has_passed() -> None:
    disk = SmallDisk.with_free_share(LOGS, FREE)
    # log, index and time index of each output, in blocks
    assert LOGS * 3 * 4096 > 3 * (disk.size_bytes - used_bytes(disk.disk))
    done, so_far = list[int](), list[RunReport]()

    def look(operation: Operation) -> None:
        if operation.name == "create" and ".log.clean" in operation.path:
            done.append(len(cleaned_logs(disk.disk)))

    report = disk.run(LOGS, look, on_wave=so_far.append)
    assert all_cleaned(report) and len(report.waves) > 4
    assert disk.peak <= disk.size_bytes and files_of(disk.disk, [DELETED]) == undisturbed()
    # each is in place before the next one begins
    assert sorted(set(done)) == [sum(wave.logs for wave in report.waves[:number]) for number in range(len(report.waves))]
    assert disk.clock.slept and set(disk.clock.slept) == {60.0}
    # segments of the last wave remain, as after a run with one
    assert sum(log.deleted_bytes > 0 for log in report.logs) == report.waves[-1].logs
    assert [wave.bytes_freed > 0 for wave in report.waves] == [True] * (len(report.waves) - 1) + [False]
    assert any(path.endswith(DELETED) for path in disk.disk.paths())
    # as long as a log fits, nothing is measured
    assert not any("measure" in job for job in disk.jobs)
    assert len(disk.jobs) == 2 * len(report.waves)
    assert [len(partial.waves) for partial in so_far] == list(range(1, len(report.waves) + 1))
    for partial in so_far:
        assert len(partial.logs) == LOGS - partial.remaining_logs == sum(wave.logs for wave in partial.waves)
        assert (partial.run_id, all_cleaned(partial)) == (report.run_id, True)
    assert (so_far[-1].remaining_logs, report.remaining_logs) == (0, 0)
    (line,) = (line.text for line in report.lines() if "wave" in line.text)
    assert line.startswith(f"{len(report.waves)} waves, one after the other: ")


def test_a_run_with_one_wave_has_one_job_for_each_pass_and_does_not_speak_of_waves(caplog: pytest.LogCaptureFixture) -> None:
    disk, so_far = SmallDisk.with_free_share(LOGS, MUCH), list[RunReport]()
    before = files_of(disk.disk)
    dry = disk.run(LOGS, release_early=True, dry_run=True)
    assert files_of(disk.disk) == before
    disk.jobs.clear()
    with caplog.at_level(logging.INFO, STEPS.name):
        report = disk.run(LOGS, release_early=True, on_wave=so_far.append)
    assert [job.split(":")[0] for job in disk.jobs] == ["pass 1", "pass 2"]
    assert "write" in disk.jobs[1]
    assert [log.deleted_bytes for log in dry.logs] == [log.deleted_bytes for log in report.logs] == [0] * LOGS
    assert not any(path.endswith(DELETED) for path in disk.disk.paths())
    assert (so_far, len(report.waves)) == ([], 1)
    assert not any("wave" in text for text in (*caplog.messages, *(line.text for line in report.lines())))


def test_replaced_segments_are_released_early_on_request() -> None:
    disk = SmallDisk.with_free_share(60, FREE)
    before = used_bytes(disk.disk)
    report = disk.run(60, release_early=True)
    assert all_cleaned(report) and disk.peak <= 0.97 * disk.size_bytes
    assert disk.clock.slept == []
    assert all(wave.bytes_freed > wave.bytes_written > 0 for wave in report.waves)
    assert sum(log.deleted_bytes for log in report.logs) == 0
    assert not any(path.endswith(DELETED) for path in disk.disk.paths())
    assert used_bytes(disk.disk) < 0.7 * before
    assert files_of(disk.disk) == undisturbed(60)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.45, 0.7, 0.98])
@pytest.mark.parametrize(("early", "power"), [(False, False), (True, False), (True, True)])
def test_after_a_kill_or_a_power_loss_the_next_run_does_the_rest(share: float, early: bool, power: bool) -> None:
    def run(disk: SmallDisk, before: Callable[[Operation], None]) -> None:
        disk.run(LOGS, before, release_early=early)

    after = after_a_stop(lambda: SmallDisk.with_free_share(LOGS, FREE), run, share, power=power)
    done = cleaned_logs(after.disk)
    report = after.run(LOGS, release_early=early)
    assert report.exit_code == 0
    # after a power loss, this disk may show removed files again whose blocks are in use elsewhere
    assert power or after.peak <= after.size_bytes
    # a log whose swap was interrupted is finished by its recovery
    assert {log.topic for log in report.logs if log.status is LogStatus.CLEANED}.isdisjoint(done)
    assert files_of(after.disk, [DELETED]) == undisturbed()


def test_a_log_that_does_not_fit_even_alone_is_measured_and_refused_after_all_others() -> None:
    disk = SmallDisk.with_free_share(4, MUCH)
    # 20 KiB of free space and its reserve; the bound of a log is more
    disk.size_bytes = used_bytes(disk.disk) + 20 * 1024
    report = disk.run(4, settings={"file.delete.delay.ms": "86400000"})
    assert any("measure" in job for job in disk.jobs)
    assert {log.status for log in report.logs} == {LogStatus.FAILED}
    assert "are free besides a margin" in report.logs[0].reason
    assert disk.clock.slept == []


def test_a_disk_without_the_margin_fails_all_logs_at_once_with_the_space_that_is_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SmallDisk.with_free_share(4, 0.3)
    disk.margin_bytes = disk.size_bytes - used_bytes(disk.disk) + 1000
    before, so_far = files_of(disk.disk), list[RunReport]()
    with caplog.at_level(logging.INFO, STEPS.name):
        report = disk.run(4, on_wave=so_far.append)
    assert (disk.jobs, so_far, [wave.logs for wave in report.waves]) == ([], [], [4])
    assert not any("wave" in message for message in caplog.messages)
    assert [log.status for log in report.logs] == [LogStatus.FAILED] * 4
    (reason,) = {log.reason for log in report.logs}
    found = re.search(r"are free, less than the margin of .*; free (\d+\.\d) kB more for the smallest log, and", reason)
    assert found is not None, reason
    assert files_of(disk.disk) == before
    disk.size_bytes += round(float(found[1]) * 1000) + 50
    assert disk.run(4).logs[0].status is LogStatus.CLEANED


def test_a_run_does_not_wait_for_a_day() -> None:
    disk = SmallDisk.with_free_share(LOGS, FREE)
    report = disk.run(LOGS, settings={"file.delete.delay.ms": "86400000"})
    assert disk.clock.slept == []
    assert {log.status for log in report.logs} == {LogStatus.CLEANED, LogStatus.FAILED}
    # the next run removes .deleted files before it reads the free space
    while disk.run(LOGS, settings={"file.delete.delay.ms": "86400000"}).exit_code:
        pass
    assert cleaned_logs(disk.disk) == set(topics(LOGS))


def test_retained_segments_are_not_removed_by_any_wave() -> None:
    disk = SmallDisk.with_free_share(LOGS, FREE)
    report = disk.run(LOGS, retain_replaced=True)
    cleaned = [log for log in report.logs if log.status is LogStatus.CLEANED]
    assert 0 < len(cleaned) < LOGS
    deleted = {path.split("/")[-2] for path in disk.disk.paths() if path.endswith(f".log{DELETED}")}
    assert deleted == {log.name for log in cleaned}
    assert disk.clock.slept == []


def test_a_disk_that_does_not_report_its_free_space_gets_one_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> bool:
        raise StorageError("cannot determine the free space", path="/")

    monkeypatch.setattr(waves.SpaceBudget, "fits", unknown)
    monkeypatch.setattr(waves.SpaceBudget, "take", unknown)
    assert len(SmallDisk.with_free_share(4, FREE).run(4).waves) == 1
    timed = SmallDisk.with_free_share(4, FREE).run(4, budget=Budget(max_duration_ms=60_000))
    assert (len(timed.waves), all_cleaned(timed)) == (1, True)


def test_segments_that_cannot_be_removed_remain_and_no_log_fails(caplog: pytest.LogCaptureFixture) -> None:
    disk = SmallDisk.with_free_share(2, MUCH)

    def refuse(operation: Operation) -> None:
        if operation.name == "unlink" and operation.path.endswith(DELETED) and "/t0-0/" in operation.path:
            raise StorageError("cannot remove", path=operation.path)

    with caplog.at_level(logging.WARNING):
        report = disk.run(2, refuse, release_early=True)
    assert all_cleaned(report)
    assert [log.deleted_bytes > 0 for log in report.logs] == [True, False]
    assert "t0-0" in caplog.text


def test_each_wave_begins_with_the_progress_of_the_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waves, "_MOST_SEGMENTS", 6)
    disk = SmallDisk.with_free_share(6, MUCH)
    disk.job_seconds = 30.0
    with caplog.at_level(logging.INFO, STEPS.name):
        log_bytes = disk.run(6).logs[0].bytes_before
    rate = round(2 * log_bytes / 60)
    assert [record.msg for record in caplog.records if isinstance(record.msg, WaveProgress)] == [
        WaveProgress(1, 3, 0, 6 * log_bytes),
        WaveProgress(2, 3, 2 * log_bytes, 4 * log_bytes, rate, 120.0),
        WaveProgress(3, 3, 4 * log_bytes, 2 * log_bytes, rate, 60.0),
    ]
    amounts = f"{size(2 * log_bytes)} of {size(6 * log_bytes)} done, {rate} B/s"
    assert f"wave 2 of about 3, {amounts}, about 2 min 0 s left" in caplog.messages


MIB = 1 << 20
DISKS = {"/a": FreeSpace(1, 20 * MIB, 0), "/a/deep": FreeSpace(1, 20 * MIB, 0), "/b": FreeSpace(2, 8 * MIB, 0)}


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "free_space", DISKS.__getitem__)


def test_a_path_that_does_not_exist_has_the_free_space_of_its_parent(tmp_path: Path) -> None:
    found = free_space(str(tmp_path / "not" / "yet"))
    assert found.device == tmp_path.stat().st_dev
    assert 0 < found.free_bytes <= os.statvfs(tmp_path).f_frsize * os.statvfs(tmp_path).f_blocks


def test_the_directories_of_a_file_system_share_its_space_of_which_a_margin_stays_free(disks: None) -> None:
    budget = SpaceBudget()
    assert (budget.free_bytes("/a"), budget.free_bytes("/b")) == (16 * MIB, 4 * MIB)
    # this allocates nothing
    assert [budget.fits([("/a", 16 * MIB), ("/b", needed)]) for needed in (0, 4 * MIB, 4 * MIB + 1)] == [True, True, False]
    assert budget.take("/a", 10 * MIB)
    assert not budget.take("/a/deep", 10 * MIB)
    assert budget.take("/a/deep", 6 * MIB)
    assert budget.free_bytes("/a") == 0
    assert budget.take("/b", 4 * MIB)
    assert SpaceBudget(6 * MIB).free_bytes("/b") == -2 * MIB


def test_a_copy_needs_space_for_its_indexes() -> None:
    segment = Segment(0, 1000, 0, 8 * MIB, 12 * MIB, 0, 0, 0, (AbortedTxn(1, 0, 0, 0),) * 10)
    assert copied_bytes([segment, segment]) >= 2 * (1000 + 20 * MIB + 340)


def refused(free_mib: int, *kept: Sequence[float]) -> tuple[Mapping[int, Lacking], int]:
    """The logs that do not fit into the free space, of which nothing is a margin, and how often their outputs were measured.

    :param kept: of each log of 100 MiB the MiB that pass 2 keeps of each of its output parts, in batches of 16 KiB
    """
    none = np.empty(0, np.int64)
    rules = RoundRules(AbortedRanges(none, none, none), none, ActiveProducers(none, none, np.empty(0, np.int16)), 100, 0)
    logs = dict.fromkeys(range(len(kept)), CleanContext(0, 99, 0, 0, 4096, rules, "/a"))
    parts, results = list[OutputPart](), list[PartResult]()
    for log, sizes in enumerate(kept):
        for part, mib in enumerate(sizes):
            read = Slice(log, 0, "path", part, part + 1, 0, 100 * MIB // len(sizes), 0)
            parts.append(OutputPart(GroupOutput(log, 0, 0, 0, (), "like"), part, (read,), part, len(sizes) == 1))
            results.append(PartResult(log, 0, part, CleanStats(bytes_kept=int(mib * MIB)), batches=int(mib * 64)))
    measure = Mock(return_value=results)
    with patch.object(waves, "free_space", lambda _: FreeSpace(1, free_mib * MIB, 1 << 40)):
        return logs_without_space(SpaceBudget(-4 * MIB), logs, parts, measure), measure.call_count


@pytest.mark.parametrize(("parts", "free", "measured"), [(1, 102, 0), (1, 99, 1), (16, 240, 0), (16, 199, 1)])
def test_nothing_is_measured_if_the_upper_bound_fits(parts: int, free: int, measured: int) -> None:
    assert refused(free, [1] * parts) == ({}, measured)


def test_logs_are_admitted_in_order_while_they_fit() -> None:
    found, _ = refused(60, [30], [40], [20])
    assert list(found) == [1]
    needed, free = found[1]
    assert 40 * MIB < sum(needed.values()) < 41 * MIB
    assert 29 * MIB < free < 30 * MIB


def test_a_part_needs_its_space_twice() -> None:
    needed, free = refused(90, [25, 25])[0][0]
    assert 100 * MIB < sum(needed.values()) < 101 * MIB
    assert free == 90 * MIB


SEGMENTS = 12
#: groups have two segments
SETTINGS = {"segment.bytes": "500"}
GROUPS = 6
#: one group, which needs five blocks, and the reserve
GROUP_BYTES = 28_000
PLENTY = 10**6


def small_disk(free_bytes: int = GROUP_BYTES) -> SmallDisk:
    disk = disk_of(1, SEGMENTS)
    return SmallDisk(disk, used_bytes(disk) + free_bytes)


def cleaned(disk: SmallDisk, *watch: Any, **options: Any) -> RunReport:
    return disk.run(1, *watch, settings={**SETTINGS, **options.pop("settings", {})}, **options)


def records(disk: FaultyFileSystem) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of each record."""
    logs = sorted(path for path in disk.paths() if path.endswith(LOG))
    batches = [batch for path in logs for batch in decode(disk.read_bytes(path))]
    return [(record.offset, record.key, record.value) for batch in batches for record in batch.records()]


@cache
def with_space() -> tuple[LogReport, FaultyFileSystem]:
    """The report and the disk after a run with enough space, whose replaced segments are released."""
    disk = small_disk(PLENTY)
    (log,) = cleaned(disk, release_early=True).logs
    assert (log.segments_before, log.segments_after) == (SEGMENTS, GROUPS)
    return log, disk.disk


def has_expected_records(disk: FaultyFileSystem) -> bool:
    return records(disk) == records(with_space()[1])


def is_cleaned_in_part(disk: SmallDisk, log: LogReport) -> bool:
    """By some portions, as the report says."""
    logs = sum(len(data) for path, data in files_of(disk.disk, [DELETED]).items() if path.endswith(LOG))
    return log.deleted_bytes > 0 and log.disk_bytes_after == logs < log.disk_bytes_before and not disk.clock.slept


def test_portions_leave_the_bytes_and_the_report_of_a_run_with_enough_space() -> None:
    disk = small_disk()
    report = cleaned(disk, release_early=True)
    (log,) = report.logs
    expected, files = with_space()
    assert (log.status, log.deleted_bytes, replace(log, seconds=0)) == (LogStatus.CLEANED, 0, replace(expected, seconds=0))
    assert files_of(disk.disk) == files_of(files)
    assert disk.peak <= disk.size_bytes
    assert [job.split(":")[0] for job in disk.jobs] == ["pass 1"] + ["pass 2"] * (len(disk.jobs) - 1)
    assert len([job for job in disk.jobs if "write" in job]) > 2
    (wave,) = report.waves
    assert wave.bytes_freed > wave.bytes_written > 0


def test_the_next_portion_begins_once_the_delay_of_earlier_ones_has_passed() -> None:
    disk = small_disk()
    (log,) = cleaned(disk).logs
    assert disk.clock.slept and set(disk.clock.slept) == {60.0}
    assert log.status is LogStatus.CLEANED
    # those of the last portion remain
    remaining = sum(len(data) for path, data in files_of(disk.disk).items() if path.endswith(DELETED))
    assert 0 < log.deleted_bytes == remaining
    assert files_of(disk.disk, [DELETED]) == files_of(with_space()[1])


@pytest.mark.parametrize("share", [0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
def test_after_a_kill_or_a_power_loss_the_next_run_cleans_the_rest(share: float, power: bool) -> None:
    after = after_a_stop(small_disk, lambda disk, before: cleaned(disk, before, release_early=True), share, power=power)
    after.size_bytes += PLENTY
    report = cleaned(after, release_early=True)
    assert report.exit_code == 0
    assert cleaned_logs(after.disk) == {"t0"}
    assert has_expected_records(after.disk)


def test_a_group_that_does_not_fit_ends_the_log_and_the_next_run_cleans_the_rest() -> None:
    disk = small_disk()
    # the delay is longer than a run waits
    report = cleaned(disk, settings={"file.delete.delay.ms": "86400000"})
    (log,) = report.logs
    assert log.status is LogStatus.FAILED
    assert re.search(r"its next group of cleaned segments takes [\d.]+ k?B, [\d.]+ k?B are free besides", log.reason)
    assert "1 groups are replaced" in log.reason
    assert "the next run cleans the rest" in log.reason
    assert is_cleaned_in_part(disk, log) and disk.peak <= disk.size_bytes
    assert cleaned_logs(disk.disk) == set()
    while cleaned(disk, settings={"file.delete.delay.ms": "86400000"}).exit_code:
        pass
    assert has_expected_records(disk.disk)


def test_a_log_whose_next_group_fits_only_after_the_end_of_the_run_is_deferred() -> None:
    disk = small_disk()
    report = cleaned(disk, budget=Budget(max_duration_ms=30_000))
    (log,) = report.logs
    assert (report.exit_code, log.status, log.reason_code) == (0, LogStatus.SKIPPED, "deferred")
    assert is_cleaned_in_part(disk, log)
    for _ in range(GROUPS):
        assert cleaned(disk, budget=Budget(max_duration_ms=30_000)).exit_code == 0
    assert has_expected_records(disk.disk)


@pytest.mark.parametrize("case", ["retained", "one group", "recovered", "too small for the first group"])
def test_a_log_that_cannot_be_cleaned_in_portions_is_refused_and_unchanged(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = small_disk({"one group": 20_000, "too small for the first group": 10_000}.get(case, GROUP_BYTES))
    before = files_of(disk.disk)
    settings = {"segment.bytes": "1000000"} if case == "one group" else {}
    if case == "recovered":
        monkeypatch.setattr(waves, "_is_as_on_disk", lambda log: False)
    (log,) = cleaned(disk, retain_replaced=case == "retained", settings=settings).logs
    assert log.status is LogStatus.FAILED
    assert re.search("its (cleaned segments take|next group of cleaned segments takes)", log.reason)
    assert "nothing was written" in log.reason
    assert files_of(disk.disk) == before


@pytest.mark.parametrize(("path", "expected"), [(f"{LOG_DIR}/t0-0/{0:020d}.log", True), (f"{LOG_DIR}/t0-0/split.log", False)])
def test_segments_that_recovery_has_only_in_memory_are_told_from_those_on_the_disk(path: str, expected: bool) -> None:
    view = SimpleNamespace(path=f"{LOG_DIR}/t0-0", segments=[SimpleNamespace(base_offset=0)])
    slices = [SimpleNamespace(path=path, segment_index=0)]
    log = SimpleNamespace(compaction=SimpleNamespace(view=view), slices=slices)
    assert waves._is_as_on_disk(cast(Log, log)) is expected


def test_a_swap_that_fails_halfway_keeps_its_outputs_for_the_next_run() -> None:
    disk = small_disk()
    swaps: list[str] = []

    def refuse(operation: Operation) -> None:
        if operation.name == "rename" and operation.path.endswith(".log.clean"):
            swaps.append(operation.path)
            if len(swaps) == 3:
                raise StorageError("refused", path=operation.path)

    (log,) = cleaned(disk, refuse, release_early=True).logs
    assert (log.status, "refused" in log.reason) == (LogStatus.FAILED, True)
    assert any(path.endswith(JOURNAL) for path in disk.disk.paths())
    assert any(path.endswith(".log.clean") for path in disk.disk.paths())
    assert cleaned(disk, release_early=True).exit_code == 0
    assert has_expected_records(disk.disk)


SIX = 6
RECORDS = 3000


def deferred(report: RunReport) -> list[LogReport]:
    return [log for log in report.logs if log.reason_code == "deferred"]


def rewritten(disk: SmallDisk) -> int:
    """The bytes of the segments of one log that are cleaned: all have equal sizes."""
    return disk.run(SIX, dry_run=True).logs[0].bytes_before


@pytest.fixture
def disk() -> SmallDisk:
    return SmallDisk.with_free_share(SIX, MUCH)


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
        report = disk.run(SIX, budget=limit)
        assert report.exit_code == 0
        counts.append((sum(log.compacted for log in report.logs), len(deferred(report))))
    assert counts == [(2, 4), (2, 2), (2, 0), (0, 0)]
    assert files_of(disk.disk, [DELETED]) == undisturbed(SIX)


def test_a_deferred_log_is_not_changed_and_says_why(disk: SmallDisk) -> None:
    before = files_of(disk.disk)
    report = disk.run(SIX, budget=Budget(max_rewrite_bytes=1))
    assert files_of(disk.disk) == before
    assert (report.status, report.exit_code, report.totals["skipped"]) == (RunStatus.NOTHING_TO_DO, 0, SIX)
    log = report.logs[0]
    assert (log.status, log.reason_code) == (LogStatus.SKIPPED, "deferred")
    assert log.reason.startswith("deferred: ") and log.reason.endswith(" would exceed --max-rewrite 1 B")
    assert log.disk_bytes_before == log.disk_bytes_after > 0
    assert disk.jobs == []
    assert report.summary().startswith("6 logs: 6 skipped (6 deferred)")


def test_a_log_that_would_free_too_little_is_deferred(disk: SmallDisk) -> None:
    # never cleaned: by a sample of its keys it frees six of nine records
    assert len(deferred(disk.run(SIX, dry_run=True, budget=Budget(min_freed_share=0.6)))) == 0
    assert len(deferred(disk.run(SIX, dry_run=True, budget=Budget(min_freed_share=0.7)))) == SIX


def test_no_wave_begins_that_would_not_end_in_time(timed: SmallDisk) -> None:
    speed = size(rewritten(SmallDisk.with_free_share(SIX, MUCH)) / 20)
    report = timed.run(SIX, budget=Budget(max_duration_ms=90_000))
    assert [(wave.logs, wave.seconds) for wave in report.waves] == [(1, 20.0)] * 4
    assert [log.reason for log in deferred(report)] == [
        f"deferred: would take 20.0 s at {speed}/s, 10.0 s of --max-duration are left"
    ] * 2
    assert report.exit_code == 0
    assert timed.clock.now <= 90
    # what was deferred is first in the next run
    second = timed.run(SIX, budget=Budget(max_duration_ms=90_000))
    assert {log.topic for log in deferred(report)} == {log.topic for log in second.logs if log.compacted}
    assert len(cleaned_logs(timed.disk)) == SIX


def test_waves_are_a_tenth_of_the_time(timed: SmallDisk) -> None:
    # a log takes 20 s in the first wave
    report = timed.run(SIX, budget=Budget(max_duration_ms=400_000))
    assert [wave.logs for wave in report.waves] == [1, 2, 3]


def test_logs_that_lack_space_until_after_the_end_of_a_run_are_deferred_and_do_not_fail() -> None:
    small = SmallDisk.with_free_share(SIX, 0.1)
    report = small.run(SIX, budget=Budget(max_duration_ms=30_000))
    # it does not wait beyond its time
    assert small.clock.slept == []
    assert 0 < sum(log.compacted for log in report.logs) < SIX
    waiting = deferred(report)
    assert (report.exit_code, len(waiting) + sum(log.compacted for log in report.logs)) == (0, SIX)
    reason = "deferred: --max-duration ends before file.delete.delay.ms has passed for "
    assert waiting and all(log.reason.startswith(reason) for log in waiting)
    while (report := small.run(SIX, budget=Budget(max_duration_ms=30_000))).status is RunStatus.DONE:
        assert report.exit_code == 0
    assert len(cleaned_logs(small.disk)) == SIX


def test_the_first_log_of_the_order_is_begun_even_if_the_time_has_passed_before(disk: SmallDisk) -> None:
    def slow(_: Operation) -> None:
        disk.clock.now += 5.0

    counts = []
    for _ in range(SIX):
        report = disk.run(SIX, slow, budget=Budget(max_duration_ms=100))
        assert report.exit_code == 0
        assert {log.reason for log in deferred(report)} <= {"deferred: --max-duration has passed"}
        counts.append(sum(log.compacted for log in report.logs))
    assert counts == [1] * SIX


def test_the_estimate_stands_beside_the_outcome(disk: SmallDisk) -> None:
    report = disk.run(SIX, order=BENEFIT, budget=Budget(max_rewrite_bytes=rewritten(disk)))
    assert [log.estimated_freed_bytes for log in report.logs] == [rewritten(disk)] * SIX
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
    found = clean_locally(log_dir, NOW_MS, {"distinct": COMPACT, "few": COMPACT}, budget=Budget(min_freed_share=0.1))
    distinct, few = found["distinct"], found["few"]
    assert (distinct.reason_code, distinct.estimated_freed_bytes) == ("deferred", 0)
    assert few.compacted and few.records_after == 10
    assert abs(few.estimated_freed_bytes / (few.bytes_before - few.bytes_after) - 1) < 0.01


def test_logs_that_cannot_be_sampled_are_not_deferred(log_dir: Path) -> None:
    for path in log_dir.glob("distinct-0/*.log"):
        path.write_bytes(path.read_bytes()[:500] + b"?" + path.read_bytes()[501:] if path.stat().st_size else b"")
    found = clean_locally(log_dir, NOW_MS, {"distinct": COMPACT, "few": COMPACT}, budget=Budget(min_freed_share=0.1))
    assert {topic: log.reason_code for topic, log in found.items()} == {"distinct": "error", "few": ""}


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
