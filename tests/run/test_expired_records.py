"""The records of segments that the delete policy deletes are counted, and shown with those that the cleaner removes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from compaction.report import LogReport
from compaction.run.compact import clean_logs
from compaction.run.expire import delete_old_segments
from compaction.run_report import RunReport
from compaction.screen.text_table import Screen
from tests.damage.valid_logs import KINDS, NOW_MS, ValidLog, valid_log, write_log
from tests.local_job import request_for
from tests.local_passes import LocalPasses

#: records of a segment: of transactions, one batch is empty, and two records are markers
RECORDS = {kind: 17 if kind == "transactions" else 20 for kind in KINDS}


def expire_two_segments(log_dir: Path, log: ValidLog, *, policy: str = "compact,delete", dry_run: bool = False) -> RunReport:
    settings = {"cleanup.policy": policy, "retention.bytes": str(len(log.files[log.log(2)])), "retention.ms": "-1"}
    request = request_for(log_dir, NOW_MS, {"orders": settings}, dry_run=dry_run)
    if policy == "delete":
        return delete_old_segments(LocalPasses, request)
    return clean_logs(LocalPasses, request)


def only(report: RunReport) -> LogReport:
    (log,) = report.logs
    return log


def terminal(report: RunReport) -> str:
    screen = io.StringIO()
    report.print_on(Screen(screen, 140))
    return screen.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_expired_segments_are_counted(tmp_log_dir: Path, kind: str) -> None:
    log = valid_log(kind)
    write_log(tmp_log_dir / "orders-0", log.files)
    planned, report = (expire_two_segments(tmp_log_dir, log, dry_run=dry_run) for dry_run in (True, False))
    assert (only(report).expired_segments, only(report).expired_records) == (2, 2 * RECORDS[kind])
    assert only(planned).expired_records == only(report).expired_records
    assert f"-{2 * RECORDS[kind]} " in terminal(report)
    assert f" with {2 * RECORDS[kind]} records expired" in terminal(report)


def test_a_damaged_segment_expires_uncounted(tmp_log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = valid_log("v1-gzip")
    damaged = bytearray(log.files[log.log(1)])
    damaged[60] ^= 1
    write_log(tmp_log_dir / "orders-0", {**log.files, log.log(1): bytes(damaged)})
    report = expire_two_segments(tmp_log_dir, log)
    assert (only(report).expired_segments, only(report).expired_records) == (2, None)
    assert " records" not in terminal(report)
    assert [record.getMessage() for record in caplog.records if "not counted" in record.getMessage()]


def test_a_run_of_the_delete_policy_reads_no_segment(tmp_log_dir: Path) -> None:
    log = valid_log("none")
    write_log(tmp_log_dir / "orders-0", log.files)
    report = only(expire_two_segments(tmp_log_dir, log, policy="delete"))
    assert (report.expired_segments, report.expired_records) == (2, None)
