"""The report of a run: the JSON document, the exit code, and metrics, read back by Prometheus's own parser of OpenMetrics."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from compaction.metrics import open_metrics, with_last_success
from compaction.report import LogReport, LogStatus, RunReport, RunStatus, WaveReport

CLEANED = LogReport(
    "orders", 3, "/var/lib/kafka", LogStatus.CLEANED, "ratio", 10, 500,
    bytes_before=9000, bytes_after=1000, records_before=490, records_after=90, segments_before=4, segments_after=1,
    superseded_records=385, tombstones_removed=7, invalid_records=2, aborted_records=5, markers_removed=1, keys=97,
    expired_segments=2, expired_bytes=300, seconds=1.23456,
)  # fmt: skip
FAILED = LogReport("prices", 0, "/var/lib/kafka", LogStatus.FAILED, "prices-0/0.log at byte 5: batch fails its CRC")
SKIPPED = LogReport("ledger", 0, "/var/lib/kafka", LogStatus.SKIPPED, "lag")
RUN = RunReport("abc", 1_760_000_000_500, True, (CLEANED, FAILED, SKIPPED), 12.3456)
WHERE = {"topic": "orders", "partition": "3", "log_dir": "/var/lib/kafka"}


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
    assert (totals["bytes_before"], totals["records_after"], totals["keys"]) == (18_000, 180, 194)
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


def samples(report: RunReport) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels. The parser refuses what is not OpenMetrics; duplicates fail here."""
    found = [sample for family in text_string_to_metric_families(open_metrics(report)) for sample in family.samples]
    by_name = {(each.name.removeprefix("kafka_log_compaction_"), frozenset(each.labels.items())): each.value for each in found}
    assert len(by_name) == len(found)
    return by_name


def labels(**more: str) -> frozenset[tuple[str, str]]:
    return frozenset({**WHERE, **more}.items())


def test_the_runs_figures_are_there() -> None:
    found = samples(RUN)
    assert found["run_info", frozenset({("run_id", "abc"), ("status", "failed"), ("dry_run", "true")})] == 1
    assert found["run_seconds", frozenset()] == 12.346
    assert found["as_of_timestamp_seconds", frozenset()] == 1_760_000_000.5
    assert {dict(key)["status"]: value for (name, key), value in found.items() if name == "logs"} == {
        "cleaned": 1, "failed": 1, "skipped": 1,
    }  # fmt: skip


def test_a_cleaned_logs_figures_are_those_of_the_report() -> None:
    found = samples(RUN)
    assert found["log_bytes", labels(state="before")] == 9000
    assert found["log_bytes", labels(state="after")] == 1000
    assert found["log_records", labels(state="after")] == 90
    assert found["log_segments", labels(state="before")] == 4
    removed = {dict(key)["reason"]: value for (name, key), value in found.items() if name == "log_removed_records"}
    assert removed == {"superseded": 385, "tombstone": 7, "keyless": 2, "aborted": 5, "marker": 1, "erased": 0, "expired": 0}
    assert sum(removed.values()) == CLEANED.records_before - CLEANED.records_after
    assert (found["log_expired_bytes", labels()], found["log_expired_segments", labels()]) == (300, 2)
    assert (found["log_keys", labels()], found["log_end_offset", labels()]) == (97, 500)


def test_each_wave_has_its_bytes_and_its_time() -> None:
    found = samples(replace(RUN, waves=(WaveReport(2, 100, 300, 1.5), WaveReport(1, 50, 0, 2.25))))
    assert [found["wave_seconds", frozenset({("wave", number)})] for number in "12"] == [1.5, 2.25]
    freed = [found["wave_bytes", frozenset({("wave", number), ("state", "freed")})] for number in "12"]
    written = [found["wave_bytes", frozenset({("wave", number), ("state", "written")})] for number in "12"]
    assert (written, freed) == ([100, 50], [300, 0])


def test_an_erased_log_has_no_offset_up_to_which_it_is_cleaned() -> None:
    found = samples(replace(RUN, logs=(replace(CLEANED, erased_records=3),)))
    assert found["log_removed_records", labels(reason="erased")] == 3
    assert ("log_end_offset", labels()) not in found


def test_every_log_has_a_failed_gauge() -> None:
    failed = {dict(key)["topic"]: value for (name, key), value in samples(RUN).items() if name == "log_failed"}
    assert failed == {"orders": 0, "prices": 1, "ledger": 0}


def test_odd_directory_names_are_escaped() -> None:
    odd = 'a "b"\\c\nd'
    found = samples(replace(RUN, logs=(replace(CLEANED, log_dir=odd),)))
    assert found["log_keys", labels(log_dir=odd)] == 97


def test_a_run_without_logs_is_a_document_too() -> None:
    assert samples(replace(RUN, logs=()))["logs", frozenset({("status", "cleaned")})] == 0


def test_a_run_in_progress_says_how_many_logs_remain() -> None:
    found = samples(replace(RUN, remaining_logs=7))
    assert found["remaining_logs", frozenset()] == 7
    assert [dict(labels)["status"] for name, labels in found if name == "run_info"] == ["running"]
    assert [dict(labels)["status"] for name, labels in samples(RUN) if name == "run_info"] == [RUN.status.value]


def test_a_log_that_expired_and_was_cleaned_has_an_outcome_of_its_own() -> None:
    both, one = replace(CLEANED, compacted=True), replace(CLEANED, partition=4, compacted=True, expired_segments=0)
    found = samples(replace(RUN, logs=(both, one, replace(CLEANED, partition=5), FAILED, SKIPPED)))
    assert {dict(key)["outcome"]: value for (name, key), value in found.items() if name == "outcome_logs"} == {
        "expired_and_cleaned": 1, "cleaned": 1, "expired": 1, "failed": 1, "skipped": 1,
    }  # fmt: skip
    assert found["logs", frozenset({("status", "cleaned")})] == 3


def test_a_failed_run_keeps_the_time_of_the_last_success() -> None:
    def time_in(text: str) -> list[float]:
        families = text_string_to_metric_families(text)
        return [each.samples[0].value for each in families if each.name.endswith("last_success_timestamp_seconds")]

    text = open_metrics(RUN)
    assert time_in(with_last_success(text, "", None)) == []
    first = with_last_success(text, "", 1_760_000_000.25)
    assert time_in(first) == [1_760_000_000.25]
    failed = with_last_success(text, first, None)
    assert time_in(failed) == [1_760_000_000.25]
    assert time_in(with_last_success(text, failed, 1_760_000_999.0)) == [1_760_000_999.0]
