"""The report of a run: the JSON document, the exit code, and metrics, read back by Prometheus's own parser of OpenMetrics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from compaction.metrics import open_metrics, with_last_success
from compaction.report import LogReport, LogStatus, RunReport, RunStatus, WaveReport
from tests.screen.golden_text import check_golden

CLEANED = LogReport(
    "orders", 3, "/var/lib/kafka", LogStatus.CLEANED, "ratio", 10, 500,
    bytes_before=9000, bytes_after=1000, records_before=490, records_after=90, segments_before=4, segments_after=1,
    superseded_records=385, tombstones_removed=7, invalid_records=2, aborted_records=5, markers_removed=1, keys=97,
    expired_segments=2, expired_bytes=300, seconds=1.23456,
)  # fmt: skip
FAILED = LogReport("prices", 0, "/var/lib/kafka", LogStatus.FAILED, "prices-0/0.log at byte 5: batch fails its CRC")
SKIPPED = LogReport("ledger", 0, "/var/lib/kafka", LogStatus.SKIPPED, "lag")
LOGS = (
    CLEANED, replace(CLEANED, partition=4, compacted=True), replace(CLEANED, partition=5, compacted=True, expired_segments=0),
    # which has no offset up to which it is cleaned
    replace(CLEANED, topic="erased", erased_records=3), replace(CLEANED, log_dir='a "b"\\c\nd'), FAILED, SKIPPED,
)  # fmt: skip
WAVES = (WaveReport(2, 100, 300, 1.5), WaveReport(1, 50, 0, 2.25))
RUN = RunReport("abc", 1_760_000_000_500, True, LOGS, 12.3456, waves=WAVES, origin={"tool": {"version": "1"}})


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels. The parser refuses what is not OpenMetrics; duplicates fail here."""
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    by_name = {(each.name.removeprefix("kafka_log_compaction_"), frozenset(each.labels.items())): each.value for each in found}
    assert len(by_name) == len(found)
    return by_name


def test_a_run_has_a_report_and_metrics(request: pytest.FixtureRequest) -> None:
    check_golden("report-of-a-run", f"{RUN.to_json()}\n", request)
    text = open_metrics(RUN)
    check_golden("metrics-of-a-run", text, request)
    odd = {"topic": "orders", "partition": "3", "log_dir": LOGS[4].log_dir}
    assert samples(text)["log_keys", frozenset(odd.items())] == 97


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
    run = replace(RUN, logs=logs)
    assert (run.status, run.exit_code) == (status, exit_code)
    found = samples(open_metrics(run))
    assert found["logs", frozenset({("status", "failed")})] == exit_code
    assert found["run_info", frozenset({("run_id", "abc"), ("status", status.value), ("dry_run", "true")})] == 1


def test_a_run_in_progress_says_how_many_logs_remain() -> None:
    found = samples(open_metrics(replace(RUN, remaining_logs=7)))
    assert found["remaining_logs", frozenset()] == 7
    assert [dict(labels)["status"] for name, labels in found if name == "run_info"] == ["running"]


def test_a_failed_run_keeps_the_time_of_the_last_success() -> None:
    def time_in(text: str) -> float | None:
        return samples(text).get(("last_success_timestamp_seconds", frozenset()))

    text = open_metrics(RUN)
    assert time_in(with_last_success(text, "", None)) is None
    first = with_last_success(text, "", 1_760_000_000.25)
    failed = with_last_success(text, first, None)
    assert time_in(first) == time_in(failed) == 1_760_000_000.25
    assert time_in(with_last_success(text, failed, 1_760_000_999.0)) == 1_760_000_999.0
