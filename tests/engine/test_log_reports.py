"""Dry runs note which logs changed while they were read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.cleaning.log_view import LogView
from compaction.engine.log_reports import note_logs_in_use, warn_of_changes
from compaction.engine.prepare import Sources, read_logs
from compaction.fs.local import LocalFileSystem
from compaction.fs.overlay import OverlayFileSystem
from compaction.report import LogReport, LogStatus
from tests.damage.valid_logs import NOW_MS, valid_log, write_log
from tests.local_job import request_for

VALID = valid_log("none")


def append(log: Path) -> None:
    with (log / VALID.log(2)).open("ab") as file:
        file.write(b"more")


def roll(log: Path) -> None:
    (log / f"{60:020d}.log").touch()


def expire(log: Path) -> None:
    (log / VALID.log(0)).unlink()


def clean(log: Path) -> None:
    os.utime(log / VALID.log(1), ns=(1, 1))


def remove(log: Path) -> None:
    log.rename(log.parent / "gone")


@pytest.mark.parametrize("change", [append, roll, expire, clean, remove])
def test_a_changed_log_is_distinguished_from_one_in_use(
    change: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("still", "moving"):
        write_log(tmp_path / f"{topic}-0", VALID.files)
    fs = OverlayFileSystem(LocalFileSystem())
    found = read_logs(Sources(fs, fs), request_for(tmp_path, NOW_MS, {"still": {}, "moving": {}}))
    views = [log.view for log in found if isinstance(log.view, LogView)]
    assert len(views) == 2
    change(tmp_path / "moving-0")
    reports = [LogReport(topic, 0, str(tmp_path), LogStatus.CLEANED, "dirty") for topic in ("moving", "still")]
    told = note_logs_in_use(reports, {str(tmp_path)}, views)
    notes = ["the log changed while it was read", "in use; figures are a snapshot"]
    assert [report.reason for report in told] == [f"dirty ({note})" for note in notes]
    warn_of_changes({str(tmp_path)}, views)
    assert [record.getMessage() for record in caplog.records] == [f"{tmp_path}/moving-0: the log changed while it was read"]
    assert note_logs_in_use(reports, set(), views) == reports
