"""What a report says of a log: the records that it has lost, to the cleaner or with deleted segments; which logs changed while
a dry run read them."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.files.local import LocalFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.files.segment_file import Block, SegmentReader
from compaction.report import LogReport, LogStatus, RunReport
from compaction.rules.log_view import LogView
from compaction.run.compact import clean_logs
from compaction.run.destination import Destination
from compaction.run.expire import delete_old_segments
from compaction.run.log import deletion_report, note_logs_in_use, warn_of_changes
from compaction.run.prepare import read_logs
from compaction.screen.text_table import Screen
from tests.damage.valid_logs import KINDS, NOW_MS, ValidLog, valid_log, write_log
from tests.golden import unpack_sample
from tests.local_job import clean_locally, request_for
from tests.local_passes import LocalPasses
from tests.oracle.records import decode
from tests.rules.test_segment_retention import planned
from tests.rules.test_segment_retention import three as three_segments

VALID = valid_log("none")
#: records of a segment: of transactions, one batch is empty, and two records are markers
RECORDS = {kind: 17 if kind == "transactions" else 20 for kind in KINDS}
PAYMENTS = {"payments": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}


def test_a_changed_log_is_distinguished_from_one_in_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for topic in ("still", "moving"):
        write_log(tmp_path / f"{topic}-0", VALID.files)
    fs = OverlayFileSystem(LocalFileSystem())
    found = read_logs(Destination(fs), request_for(tmp_path, NOW_MS, {"still": {}, "moving": {}}))
    views = [log.view for log in found if isinstance(log.view, LogView)]
    assert len(views) == 2
    os.utime(tmp_path / "moving-0" / VALID.log(1), ns=(1, 1))
    reports = [LogReport(topic, 0, str(tmp_path), LogStatus.CLEANED, "dirty") for topic in ("moving", "still")]
    told = note_logs_in_use(reports, {str(tmp_path)}, views)
    notes = ["the log changed while it was read", "in use; figures are a snapshot"]
    assert [report.reason for report in told] == [f"dirty ({note})" for note in notes]
    warn_of_changes({str(tmp_path)}, views)
    assert [record.getMessage() for record in caplog.records] == [f"{tmp_path}/moving-0: the log changed while it was read"]
    assert note_logs_in_use(reports, set(), views) == reports


def test_the_seconds_of_a_log_are_those_of_its_tasks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = unpack_sample(tmp_path)
    read = SegmentReader.blocks

    def slowly(self: SegmentReader, *, check_crc: bool) -> Iterator[Block]:
        time.sleep(0.05)
        yield from read(self, check_crc=check_crc)

    monkeypatch.setattr(SegmentReader, "blocks", slowly)
    reports = clean_locally(log_dir, NOW_MS, PAYMENTS, dry_run=True)
    assert all(log.seconds >= log.task_seconds >= 2 * 0.05 for log in reports.values())


def test_the_records_that_a_log_has_stored_are_reported_beside_those_that_kafkas_cleaner_counts(tmp_path: Path) -> None:
    """Kafka's cleaner drops aborted data unread, and does not count it."""
    log_dir = unpack_sample(tmp_path)
    request = request_for(log_dir, NOW_MS, PAYMENTS, include_active=True)

    def stored() -> dict[int, int]:
        batches = {log: [batch for path in log.glob("*.log") for batch in decode(path.read_bytes())] for log in parts}
        return {int(log.name[-1]): sum(len(batch.records()) for batch in of_log) for log, of_log in batches.items()}

    parts = [log_dir / "payments-0", log_dir / "payments-1"]
    before, report = stored(), clean_logs(LocalPasses, request)
    logs, totals = report.logs, report.totals
    assert {log.partition: log.stored_records_before for log in logs} == before
    assert {log.partition: log.stored_records_after for log in logs} == stored()
    assert all(log.stored_records_before - log.stored_records_after == log.removed_records > 0 for log in logs)
    assert {log.partition: log.records_before for log in logs} == {0: before[0] - 70, 1: before[1] - 80}
    assert totals["removed_records"] > totals["records_before"] - totals["records_after"] > 0
    (total,) = (line for line in terminal(report).splitlines() if line.startswith("total"))
    assert f" -{totals['removed_records']:,} " in total


def test_a_dry_run_in_a_store_promises_no_deleted_files() -> None:
    view = replace(three_segments(), log_dir="s3://backups/kafka")
    plan = planned(view, "retention.ms=150")
    assert plan.removals
    assert deletion_report(plan).deleted_bytes == 0
    assert deletion_report(replace(plan, view=replace(view, log_dir="/data"))).deleted_bytes > 0


def expire_two_segments(log_dir: Path, log: ValidLog, *, policy: str = "compact,delete", dry_run: bool = False) -> RunReport:
    settings = {"cleanup.policy": policy, "retention.bytes": str(len(log.files[log.log(2)])), "retention.ms": "-1"}
    request = request_for(log_dir, NOW_MS, {"orders": settings}, dry_run=dry_run)
    return (delete_old_segments if policy == "delete" else clean_logs)(LocalPasses, request)


def terminal(report: RunReport) -> str:
    screen = io.StringIO()
    report.print_on(Screen(screen, 140))
    return screen.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_expired_segments_are_counted(tmp_log_dir: Path, kind: str) -> None:
    log = valid_log(kind)
    write_log(tmp_log_dir / "orders-0", log.files)
    planned, report = (expire_two_segments(tmp_log_dir, log, dry_run=dry_run) for dry_run in (True, False))
    assert (report.logs[0].expired_segments, report.logs[0].expired_records) == (2, 2 * RECORDS[kind])
    assert planned.logs[0].expired_records == report.logs[0].expired_records
    assert f"-{2 * RECORDS[kind]} " in terminal(report)
    assert f" with {2 * RECORDS[kind]} records expired" in terminal(report)


def test_a_damaged_segment_expires_uncounted(tmp_log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = valid_log("v1-gzip")
    damaged = bytearray(log.files[log.log(1)])
    damaged[60] ^= 1
    write_log(tmp_log_dir / "orders-0", {**log.files, log.log(1): bytes(damaged)})
    report = expire_two_segments(tmp_log_dir, log)
    assert (report.logs[0].expired_segments, report.logs[0].expired_records) == (2, None)
    assert " records" not in terminal(report)
    assert [record.getMessage() for record in caplog.records if "not counted" in record.getMessage()]


def test_a_run_of_the_delete_policy_reads_no_segment(tmp_log_dir: Path) -> None:
    log = valid_log("none")
    write_log(tmp_log_dir / "orders-0", log.files)
    report = expire_two_segments(tmp_log_dir, log, policy="delete").logs[0]
    assert (report.expired_segments, report.expired_records) == (2, None)
