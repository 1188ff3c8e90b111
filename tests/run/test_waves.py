"""Runs over logs whose outputs do not fit beside them at once."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import cache

import pytest

from compaction.config.request import Budget
from compaction.errors import StorageError
from compaction.names import DELETED
from compaction.report import LogStatus
from compaction.run import waves
from compaction.run_report import RunReport
from compaction.screen.amounts import size
from compaction.screen.steps import STEPS, WaveProgress
from tests.disk import Operation
from tests.run.small_disk import SmallDisk, after_a_stop, cleaned_logs, files_of, topics, used_bytes

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


def test_one_call_cleans_logs_whose_outputs_take_three_times_the_free_space() -> None:
    disk = SmallDisk.with_free_share(60, FREE)
    free = disk.size_bytes - used_bytes(disk.disk)
    report = disk.run(60)
    assert all_cleaned(report) and len(report.logs) == 60
    assert sum(wave.logs for wave in report.waves) == 60
    # log, index and time index of each output, in blocks
    assert 60 * 3 * 4096 > 3 * free
    assert disk.peak <= 0.97 * disk.size_bytes
    assert files_of(disk.disk, [DELETED]) == undisturbed(60)


def test_waves_follow_each_other_once_the_delay_has_passed() -> None:
    disk = SmallDisk.with_free_share(LOGS, FREE)
    done, so_far = list[int](), list[RunReport]()

    def look(operation: Operation) -> None:
        if operation.name == "create" and ".log.clean" in operation.path:
            done.append(len(cleaned_logs(disk.disk)))

    report = disk.run(LOGS, look, on_wave=so_far.append)
    assert len(report.waves) > 4
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
    disk = SmallDisk.with_free_share(LOGS, FREE)
    before = used_bytes(disk.disk)
    report = disk.run(LOGS, release_early=True)
    assert all_cleaned(report)
    assert disk.clock.slept == []
    assert all(wave.bytes_freed > wave.bytes_written > 0 for wave in report.waves)
    assert sum(log.deleted_bytes for log in report.logs) == 0
    assert not any(path.endswith(DELETED) for path in disk.disk.paths())
    assert used_bytes(disk.disk) < 0.7 * before
    assert files_of(disk.disk) == undisturbed()


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


def test_waves_bound_the_segments_that_the_driver_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(5)
    monkeypatch.setattr(waves, "_MOST_SEGMENTS", 7)
    disk = SmallDisk.with_free_share(5, MUCH)
    # three segments of each log are cleaned
    assert [wave.logs for wave in disk.run(5).waves] == [2, 2, 1]
    assert files_of(disk.disk, [DELETED]) == expected


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
