"""What a log with a record over ``max.decompressed.message.bytes`` is told, by which versions and policies;
``tests/scenarios/record_limit.txt`` says which logs fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compaction.config.entries import MAX_RECORD
from compaction.config.request import ComparisonRequest
from compaction.config.sources import Policy
from compaction.policies.compare_policies import compare_with
from compaction.policies.comparison import OutcomeStatus
from compaction.report import LogReport, LogStatus
from tests.local_job import KAFKA, clean_locally, request_for
from tests.local_passes import LocalPasses
from tests.scenarios.language import Scenario, scenarios
from tests.scenarios.runner import files

FOUND = scenarios("record_limit")
OVER = {name: one for name, one in FOUND.items() if one.answers == [["refused"]]}
COMPRESSED = FOUND["compressed-at-the-limit"]
SIZE = int(COMPRESSED.config[MAX_RECORD])


def cleaned(
    root: Path, scenario: Scenario, version: str = KAFKA, *, dry_run: bool = False, limit: int | None = None
) -> LogReport:
    """The report of the log ``t``."""
    (root / "t-0").mkdir(parents=True)
    files(root / "t-0", scenario, 0)
    topics = {"t": {**scenario.topic_config, **({} if limit is None else {MAX_RECORD: str(limit)})}}
    return clean_locally(root, scenario.rounds[0].now_ms, topics, kafka_version=version, dry_run=dry_run)["t"]


@pytest.mark.parametrize("name", OVER)
def test_the_reason_has_the_size_of_the_record_and_the_log_is_not_changed(tmp_path: Path, name: str) -> None:
    limit = int(OVER[name].config[MAX_RECORD])
    report = cleaned(tmp_path, OVER[name])
    size = limit + 1
    what = rf"0\.log at byte 0: compressed batch has a record of {size} bytes, {MAX_RECORD} is {limit};.* to {size} "
    assert report.status is LogStatus.FAILED
    assert re.search(what, report.reason), report.reason
    left = {int(file.stem): file.read_bytes() for file in (tmp_path / "t-0").glob("*.log")}
    assert list(left.values()) == [b"".join(segment) for segment in OVER[name].rounds[0].segments]


@pytest.mark.parametrize(
    ("version", "limit", "status"),
    [("4.3.1", 1, LogStatus.CLEANED), ("4.2.2", SIZE - 1, LogStatus.FAILED), ("4.2.2", SIZE, LogStatus.CLEANED)],
)
def test_versions_without_the_setting_take_any_record(tmp_path: Path, version: str, limit: int, status: LogStatus) -> None:
    assert cleaned(tmp_path, COMPRESSED, version, limit=limit).status is status


def test_topics_without_a_limit_take_any_record(tmp_path: Path) -> None:
    unlimited = Scenario(COMPRESSED.rounds, {"index.interval.bytes": "4096"})
    assert cleaned(tmp_path, unlimited).status is LogStatus.CLEANED


def test_a_comparison_and_a_dry_run_fail_the_log_under_that_policy_only(tmp_path: Path) -> None:
    report = cleaned(tmp_path, COMPRESSED, dry_run=True, limit=SIZE - 1)
    assert report.status is LogStatus.FAILED
    assert MAX_RECORD in report.reason
    policies = tuple(Policy.read(f"{MAX_RECORD}={limit}") for limit in (SIZE - 1, SIZE))
    topics = {"t": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
    request = request_for(tmp_path, COMPRESSED.rounds[0].now_ms, topics, dry_run=True)
    (log,) = compare_with(LocalPasses, ComparisonRequest(request, policies)).logs
    assert [outcome.status for outcome in log.outcomes] == [OutcomeStatus.FAILED, OutcomeStatus.CLEANED]
