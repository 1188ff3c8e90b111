"""Runs over a log whose outputs do not fit beside it, even without other logs."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compaction.config.request import Budget
from compaction.errors import StorageError
from compaction.names import DELETED, LOG
from compaction.output.journal import JOURNAL
from compaction.report import LogStatus, RunReport
from compaction.run import waves
from compaction.run.log import Log
from tests.disk import FaultyFileSystem, Operation
from tests.oracle.records import decode
from tests.run.small_disk import LOG_DIR, SmallDisk, after_a_stop, cleaned_logs, disk_of, files_of, used_bytes

SEGMENTS = 12
#: groups have two segments
SETTINGS = {"segment.bytes": "500"}
GROUPS = 6
#: one group, which needs five blocks, and the reserve
FREE = 28_000
MUCH = 10**6


def small_disk(free_bytes: int = FREE) -> SmallDisk:
    disk = disk_of(1, SEGMENTS)
    return SmallDisk(disk, used_bytes(disk) + free_bytes)


def cleaned(disk: SmallDisk, *watch: Any, **options: Any) -> RunReport:
    return disk.run(1, *watch, settings={**SETTINGS, **options.pop("settings", {})}, **options)


@cache
def undisturbed() -> dict[str, bytes]:
    """The files after a run with enough space."""
    disk = small_disk(MUCH)
    report = cleaned(disk)
    assert (report.logs[0].segments_before, report.logs[0].segments_after) == (SEGMENTS, GROUPS)
    return files_of(disk.disk, [DELETED])


def records(disk: FaultyFileSystem) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of each record."""
    logs = sorted(path for path in disk.paths() if path.endswith(LOG))
    batches = [batch for path in logs for batch in decode(disk.read_bytes(path))]
    return [(record.offset, record.key, record.value) for batch in batches for record in batch.records()]


@cache
def expected_records() -> list[tuple[int, bytes | None, bytes | None]]:
    """Those after a run with enough space."""
    disk = small_disk(MUCH)
    cleaned(disk)
    return records(disk.disk)


def test_portions_leave_the_bytes_and_the_report_of_a_run_with_enough_space() -> None:
    disk = small_disk()
    report = cleaned(disk, release_early=True)
    (log,) = report.logs
    assert (log.status, log.segments_after, log.deleted_bytes) == (LogStatus.CLEANED, GROUPS, 0)
    assert files_of(disk.disk) == undisturbed()
    assert disk.peak <= disk.size_bytes
    assert [job.split(":")[0] for job in disk.jobs] == ["pass 1"] + ["pass 2"] * (len(disk.jobs) - 1)
    assert len([job for job in disk.jobs if "write" in job]) > 2
    (wave,) = report.waves
    assert wave.bytes_freed > wave.bytes_written > 0
    (whole,) = cleaned(small_disk(MUCH), release_early=True).logs
    assert replace(log, seconds=0) == replace(whole, seconds=0)


def test_the_next_portion_begins_once_the_delay_of_earlier_ones_has_passed() -> None:
    disk = small_disk()
    (log,) = cleaned(disk).logs
    assert disk.clock.slept and set(disk.clock.slept) == {60.0}
    assert log.status is LogStatus.CLEANED
    # those of the last portion remain
    remaining = sum(len(data) for path, data in files_of(disk.disk).items() if path.endswith(DELETED))
    assert 0 < log.deleted_bytes == remaining
    assert files_of(disk.disk, [DELETED]) == undisturbed()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power loss"])
def test_after_a_kill_or_a_power_loss_the_next_run_cleans_the_rest(share: float, power: bool) -> None:
    after = after_a_stop(small_disk, lambda disk, before: cleaned(disk, before, release_early=True), share, power=power)
    after.size_bytes += MUCH
    report = cleaned(after, release_early=True)
    assert report.exit_code == 0
    assert cleaned_logs(after.disk) == {"t0"}
    assert records(after.disk) == expected_records()


def test_a_group_that_does_not_fit_ends_the_log_and_the_next_run_cleans_the_rest() -> None:
    disk = small_disk()
    # the delay is longer than a run waits
    report = cleaned(disk, settings={"file.delete.delay.ms": "86400000"})
    (log,) = report.logs
    assert log.status is LogStatus.FAILED
    assert re.search(r"its next group of cleaned segments takes [\d.]+ k?B, [\d.]+ k?B are free besides", log.reason)
    assert "1 groups are replaced" in log.reason
    assert "the next run cleans the rest" in log.reason
    assert disk.clock.slept == [] and disk.peak <= disk.size_bytes
    logs = sum(len(data) for path, data in files_of(disk.disk, [DELETED]).items() if path.endswith(LOG))
    assert log.disk_bytes_after == logs < log.disk_bytes_before
    assert log.deleted_bytes > 0
    assert cleaned_logs(disk.disk) == set()
    while cleaned(disk, settings={"file.delete.delay.ms": "86400000"}).exit_code:
        pass
    assert records(disk.disk) == expected_records()


def test_a_log_whose_next_group_fits_only_after_the_end_of_the_run_is_deferred() -> None:
    disk = small_disk()
    report = cleaned(disk, budget=Budget(max_duration_ms=30_000))
    (log,) = report.logs
    assert (report.exit_code, log.status, log.reason_code) == (0, LogStatus.SKIPPED, "deferred")
    logs = sum(len(data) for path, data in files_of(disk.disk, [DELETED]).items() if path.endswith(LOG))
    assert log.disk_bytes_after == logs < log.disk_bytes_before
    assert log.deleted_bytes > 0 and disk.clock.slept == []
    for _ in range(GROUPS):
        assert cleaned(disk, budget=Budget(max_duration_ms=30_000)).exit_code == 0
    assert records(disk.disk) == expected_records()


def test_a_log_whose_first_group_does_not_fit_is_unchanged() -> None:
    disk = small_disk(10_000)
    before = files_of(disk.disk)
    (log,) = cleaned(disk).logs
    assert "nothing was written" in log.reason
    assert files_of(disk.disk) == before


@pytest.mark.parametrize("case", ["retained", "one group", "recovered"])
def test_a_log_that_cannot_be_cleaned_in_portions_is_refused_and_unchanged(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = small_disk(20_000 if case == "one group" else FREE)
    before = files_of(disk.disk)
    settings = {"segment.bytes": "1000000"} if case == "one group" else {}
    if case == "recovered":
        monkeypatch.setattr(waves, "_is_as_on_disk", lambda log: False)
    (log,) = cleaned(disk, retain_replaced=case == "retained", settings=settings).logs
    assert log.status is LogStatus.FAILED
    assert "its cleaned segments take" in log.reason and "nothing was written" in log.reason
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
    assert records(disk.disk) == expected_records()
