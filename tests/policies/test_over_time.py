"""``dry-run --over-time``: the call, the document, the text and the metrics."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import compaction
from compaction.commands import dry_run
from compaction.config.request import ComparisonRequest
from compaction.engine_choice import EngineChoice
from compaction.policies.over_time import simulate
from compaction.policies.result import OverTime, simulation_metrics
from tests.executed import executed
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record
from tests.local_passes import LocalPasses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_MS = 86_400_000
FIRST_MS = 20_000 * DAY_MS
NOW_MS = FIRST_MS + 30 * DAY_MS


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two logs of 30 days, the second one with a gap in its clean section, and an empty one."""
    root = tmp_path_factory.mktemp("logs")
    for name, missing in (("orders-0", range(0)), ("orders-1", range(4, 10))):
        path = root / name
        path.mkdir()
        records = [
            Record(offset, FIRST_MS + offset * DAY_MS // 8, b"k%d" % (offset % 9), None if offset % 11 == 0 else b"v" * 50)
            for offset in range(240)
            if offset not in missing
        ]
        (path / f"{0:020d}.log").write_bytes(b"".join(Batch([record]).encode() for record in records))
    (root / "empty-0").mkdir()
    (root / "empty-0" / f"{0:020d}.log").touch()
    return root


def run(engine: EngineChoice, request: ComparisonRequest) -> OverTime:
    assert request.over_time is not None
    return simulate(LocalPasses, request, request.over_time)


def call(logs: Path, *argv: str) -> int:
    given = ["--log-dir", str(logs), "--as-of-ms", str(NOW_MS), "--assume-default-policy", "--over-time", *argv]
    return executed(dry_run, given, run)


POLICIES = ("--policy", "cleanup.policy=compact,segment.ms=1d", "cleanup.policy=delete,retention.ms=5d,segment.ms=1d")


@pytest.fixture
def young(tmp_path: Path) -> Path:
    """A log whose first record arrived 28 minutes ago."""
    path = tmp_path / "young" / "orders-0"
    path.mkdir(parents=True)
    records = [Record(offset, NOW_MS - (28 - offset) * 60_000, b"k%d" % (offset % 5), b"v" * 50) for offset in range(28)]
    (path / f"{0:020d}.log").write_bytes(b"".join(Batch([record]).encode() for record in records))
    return path.parent


def test_a_time_ahead_that_is_much_longer_than_the_logs_is_bounded_with_a_warning(
    young: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert call(young, "--policy", "cleanup.policy=compact", "--ahead", "30d", "--report", str(tmp_path / "r.json")) == 0
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["ahead_ms"] == 100 * 28 * 60_000
    assert document["policies"][0]["samples"][-1]["at_ms"] == NOW_MS + document["ahead_ms"]
    assert (
        "--ahead: the logs have arrivals of 28 minutes to repeat, at most 100 times:"
        " simulated is what comes in 1 day 22 hours, not in 30 days"
    ) in caplog.text


@pytest.mark.parametrize(("days", "warned"), [(0, False), (2, False), (4, True), (400, True)])
def test_a_last_record_far_before_now_is_a_hint_at_the_time_of_the_logs(
    logs: Path, days: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By the clock, an old copy has other figures, and nothing to repeat."""
    given = ["--log-dir", str(logs), "--as-of-ms", str(NOW_MS + days * DAY_MS), "--assume-default-policy", "--over-time"]
    assert executed(dry_run, given, run) == 0
    last = datetime.fromtimestamp((NOW_MS - DAY_MS // 8) / 1000, timezone.utc)
    hint = f" before --as-of: if this is an old copy, give --as-of {last:%Y-%m-%dT%H:%MZ}"
    assert (hint in caplog.text) is warned


def test_the_hint_names_a_keyword_in_the_python_api(logs: Path, caplog: pytest.LogCaptureFixture) -> None:
    with patch.object(dry_run, "execute", run):
        compaction.dry_run(logs, as_of=NOW_MS + 4 * DAY_MS, assume_default_policy=True, over_time=True)
    assert " before as_of: if this is an old copy, give as_of " in caplog.text


def test_a_log_that_is_much_shorter_than_the_others_has_no_figures_ahead(
    young: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (young / "orders-0").rename(young / "orders-2")
    options = ("--log-dir", str(logs), str(young), "--policy", "cleanup.policy=compact", "--topic", "orders")
    assert call(logs, *options, "--ahead", "10d") == 1
    expected = "its arrivals of 28 minutes would be repeated more than 100 times; give --ahead of at most 1 day 22 hours"
    assert expected in capsys.readouterr().err
    assert call(logs, *options, "--ahead", "1d") == 0


def test_the_document_has_each_log_and_the_sums(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(logs, *POLICIES, "--report", str(tmp_path / "r.json"), "--metrics", str(tmp_path / "m.prom")) == 0
    document = json.loads((tmp_path / "r.json").read_text())
    assert (document["over_time"], document["dry_run"], document["status"]) == (True, True, "done")
    by_name = {f"{log['topic']}-{log['partition']}": log for log in document["logs"]}
    assert by_name["empty-0"]["known"] is None and by_name["empty-0"]["error"] is None
    whole, cut = by_name["orders-0"]["known"], by_name["orders-1"]["known"]
    assert whole["exact"] and whole["missing_share"] == 0 and whole["complete_from_ms"] == FIRST_MS
    assert cut["missing_share"] == 0.6 and cut["complete_from_ms"] == FIRST_MS + 10 * DAY_MS // 8
    for number, total in enumerate(document["policies"]):
        effects = [log["policies"][number] for log in document["logs"]]
        assert [sample["bytes"] for sample in total["samples"]] == [
            sum(effect["samples"][at]["bytes"] for effect in effects) for at in range(len(total["samples"]))
        ]
        assert total["bytes_written"] == sum(effect["bytes_written"] for effect in effects)
    compacted, deleted = document["policies"]
    assert compacted["cleanings"] > 2 and compacted["bytes_deleted"] == 0
    assert deleted["cleanings"] == 0 and deleted["bytes_deleted"] > 0
    assert compacted["end_bytes"] < compacted["peak_bytes"] <= 2 * 240 * 130
    assert 'policy_log_bytes{topic="orders",partition="0"' in (tmp_path / "m.prom").read_text()
    shown = capsys.readouterr().out
    assert "all of 3 logs" in shown and "simulated, nothing written: 3 logs; A at most" in shown


def test_replaced_segments_take_room_until_their_delay_has_passed(logs: Path, tmp_path: Path) -> None:
    policies = [f"{POLICIES[1]},file.delete.delay.ms={delay}" for delay in ("1m", "40d")]
    assert call(logs, "--policy", *policies, "--report", str(tmp_path / "r.json")) == 0
    soon, late = json.loads((tmp_path / "r.json").read_text())["policies"]
    assert late["end_bytes"] == soon["end_bytes"]
    read = [event["bytes_before"] for event in late["events"]]
    assert late["peak_bytes"] >= late["end_bytes"] + sum(read[:-1]) > soon["peak_bytes"]


def test_the_time_that_is_shown_is_a_part_of_the_same_history(logs: Path, tmp_path: Path) -> None:
    documents = []
    for number, options in enumerate(([], ["--from", "2024-10-14T00:00Z", "--to", "2024-10-24T00:00Z"])):
        report = tmp_path / f"{number}.json"
        assert call(logs, *POLICIES, "--every", "1d", *options, "--report", str(report)) == 0
        documents.append(json.loads(report.read_text()))
    whole, part = ({sample["at_ms"]: sample["bytes"] for sample in each["policies"][0]["samples"]} for each in documents)
    assert len(part) == 11
    assert part.items() <= whole.items()


def test_one_log_is_described_and_its_events_are_listed(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(logs, *POLICIES, "--partition", "orders-1", "--verbose") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "exact" in shown and "complete from 2024-10-05 06:00Z on; before that 60 % of its records are gone" in shown
    assert "cleaned" in shown and "deleted" in shown


def test_it_goes_on_after_the_present(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--ahead", "60d", "--report", str(tmp_path / "r.json"))
    assert call(logs, "--policy", "cleanup.policy=compact", *options) == 0
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["policies"][0]["samples"][-1]["at_ms"] == NOW_MS + 60 * DAY_MS
    assert "arrivals of the last 30 days once more" in " ".join(capsys.readouterr().out.split())


def test_an_interval_with_too_many_samples_is_a_usage_error(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(logs, *POLICIES, "--every", "1ms") == 2
    message = "--every: 1 ms divides the time into more than 10,000 parts; give at least 5 minutes"
    assert message in capsys.readouterr().err


def test_an_unknown_policy_has_no_figures(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--log-dir", str(logs), "--as-of-ms", str(NOW_MS), "--over-time", "--topic", "orders"]
    assert executed(dry_run, [*given, "--policy", "configured"], run) == 0
    assert "no figures" in capsys.readouterr().out


def test_a_log_that_cannot_be_simulated_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = unpack_sample(tmp_path)
    given = ["--log-dir", str(sample), "--as-of", "2025-10-20T00:00Z", "--assume-default-policy", "--over-time"]
    assert executed(dry_run, given, run) == 1
    assert "do not say when its records arrived (some are in the future)" in capsys.readouterr().err


@pytest.mark.spark
def test_the_python_api_returns_it_and_spark_finds_the_same(logs: Path, spark: SparkSession) -> None:
    policies = [{"cleanup.policy": "compact"}]
    result = compaction.dry_run(logs, over_time=True, as_of=NOW_MS, policies=policies, engine="local")
    assert isinstance(result, OverTime)
    assert compaction.dry_run(logs, over_time=True, as_of=NOW_MS, policies=policies, spark=spark).logs == result.logs
    assert result.to_arrow().num_rows == 3
    assert "run_info" in simulation_metrics(result)
