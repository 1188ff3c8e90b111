"""The report of a run: the JSON document and the exit code."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from compaction.report import LogReport, LogStatus, RunStatus
from compaction.run_report import RunReport

CLEANED = LogReport(
    topic="orders",
    partition=3,
    log_dir="/data",
    status=LogStatus.CLEANED,
    reason="1000 of 2000 bytes dirty",
    first_dirty_offset=10,
    end_offset=40,
    bytes_before=2_000_000,
    bytes_after=500_000,
    records_before=1000,
    records_after=300,
    segments_before=4,
    segments_after=1,
    superseded_records=643,
    tombstones_removed=20,
    invalid_records=5,
    aborted_records=30,
    markers_removed=2,
    keys=310,
    seconds=1.23456,
)
SKIPPED = LogReport("sales", 0, "/data", LogStatus.SKIPPED, "policy: cleanup.policy is delete")
FAILED = LogReport("bad", 1, "/data", LogStatus.FAILED, "/data/bad-1/0.log at byte 61: batch fails its CRC")


def run(*logs: LogReport, dry_run: bool = False) -> RunReport:
    return RunReport("r-1", 1_700_000_000_000, dry_run, logs, seconds=2.5)


def test_the_document_has_every_field_of_the_schema() -> None:
    document = json.loads(run(CLEANED, SKIPPED).to_json())
    assert list(document) == [
        "schema_version", "run_id", "as_of_ms", "dry_run", "status", "totals", "waves", "kafka_versions", "logs",
    ]  # fmt: skip
    assert (document["schema_version"], document["run_id"], document["status"]) == (1, "r-1", "done")
    assert (document["as_of_ms"], document["dry_run"]) == (1_700_000_000_000, False)
    assert set(document["logs"][0]) >= {
        "topic", "partition", "log_dir", "status", "reason", "first_dirty_offset", "end_offset", "bytes_before", "bytes_after",
        "records_before", "records_after", "segments_before", "segments_after", "tombstones_removed", "invalid_records",
        "aborted_records", "keys", "seconds",
    }  # fmt: skip
    assert document["logs"][0]["status"] == "cleaned"
    assert document["logs"][0]["seconds"] == 1.235
    assert document["logs"][1]["first_dirty_offset"] is None


def test_the_origin_of_a_run_is_part_of_the_document() -> None:
    document = json.loads(replace(run(CLEANED), origin={"tool": {"version": "1"}}).to_json())
    assert document["tool"] == {"version": "1"}


def test_totals_are_the_sums_of_the_logs() -> None:
    totals = json.loads(run(CLEANED, replace(CLEANED, partition=4), SKIPPED, FAILED).to_json())["totals"]
    assert {name: totals[name] for name in ("logs", "cleaned", "skipped", "failed")} == {
        "logs": 4, "cleaned": 2, "skipped": 1, "failed": 1,
    }  # fmt: skip
    assert (totals["bytes_before"], totals["records_after"], totals["keys"]) == (4_000_000, 600, 620)
    assert totals["seconds"] == 2.5
    assert "partition" not in totals


@pytest.mark.parametrize(
    ("logs", "status", "exit_code"),
    [
        pytest.param((), RunStatus.NOTHING_TO_DO, 0, id="no log at all"),
        pytest.param((SKIPPED,), RunStatus.NOTHING_TO_DO, 0, id="only skipped logs"),
        pytest.param((SKIPPED, CLEANED), RunStatus.DONE, 0, id="something cleaned"),
        pytest.param((replace(SKIPPED, expired_segments=1),), RunStatus.DONE, 0, id="only expired segments"),
        pytest.param((CLEANED, FAILED), RunStatus.FAILED, 1, id="one failed, the others done"),
    ],
)
def test_the_exit_code_follows_the_logs(logs: tuple[LogReport, ...], status: RunStatus, exit_code: int) -> None:
    assert (run(*logs).status, run(*logs).exit_code) == (status, exit_code)
