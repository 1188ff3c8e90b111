"""The command line of the delete policy, from a broker's properties to the exit code."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from compaction.commands import expire
from compaction.files.local import FreeSpace
from compaction.run import waves
from tests.golden import unpack_sample

#: four and a half hours after the newest record of clickstream
NOW_MS = 1_760_000_000_000 + 14 * 3_600_000
HOUR_MS = 3_600_000
DELETE = ("--set", "cleanup.policy=delete")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return unpack_sample(tmp_path)


def run(logs: Path, *argv: str) -> tuple[int, dict[str, Any]]:
    report = logs.parent / "report.json"
    given = ["--log-dir", str(logs), "--as-of-ms", str(NOW_MS), "--report", str(report), "--topic", "clickstream", *argv]
    code = expire.main(given)
    return code, json.loads(report.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("properties", "bound_ms"),
    [
        ("log.retention.hours=6", 6 * HOUR_MS),
        ("log.retention.hours=6\nlog.retention.minutes=480", 8 * HOUR_MS),
        ("log.retention.ms=36000000\nlog.retention.hours=6\nlog.retention.minutes=480", 10 * HOUR_MS),
        ("log.retention.hours=-1", -1),
        ("log.retention.ms=-1\nlog.retention.hours=6", -1),
    ],
)
def test_the_most_precise_retention_setting_of_a_broker_applies(logs: Path, properties: str, bound_ms: int) -> None:
    # without the metadata log the topics have no retention of their own, nor a policy
    shutil.rmtree(logs / "__cluster_metadata-0")
    config = logs.parent / "server.properties"
    config.write_text(properties, encoding="utf-8")
    code, report = run(logs, "--config", str(config), "--dry-run", *DELETE)
    assert code == 0
    assert report["totals"]["expired_segments"] == expired(logs, bound_ms)
    if bound_ms < 0:
        first = properties.partition("=")[0]
        assert f"retention.ms is no limit ({config} line 1 ({first}))" in report["logs"][0]["reason"]


def expired(logs: Path, bound_ms: int) -> int:
    """How many segments ``retention.ms`` deletes."""
    count = run(logs, "--dry-run", *DELETE, f"retention.ms={bound_ms}")[1]["totals"]["expired_segments"]
    assert isinstance(count, int)
    return count


def test_fewer_segments_expire_under_a_longer_retention(logs: Path) -> None:
    counts = [expired(logs, hours * HOUR_MS) for hours in (4, 6, 8, 10, 20)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[2] > counts[4] == 0


def test_a_run_reports_and_advances_the_log_start_offset(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run(logs, "--set", f"retention.ms={8 * HOUR_MS}")
    assert (code, report["status"], report["dry_run"]) == (0, "done", False)
    assert " expired\n" in capsys.readouterr().out
    starts = (logs / "log-start-offset-checkpoint").read_text(encoding="utf-8")
    for log in report["logs"]:
        assert f"clickstream {log['partition']} {log['end_offset']}\n" in starts


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--output-dri", "x"], "unrecognized arguments: --output-dri; did you mean --output-dir?"),
        (["--output-dir", "/"], "--output-dir overlaps the log directory"),
        (["--set", "retention.ms=-2"], "--set: retention.ms = '-2' is less than -1"),
        (["--partition", "clickstream-9"], "no such partition: clickstream-9"),
    ],
)
def test_a_usage_error_is_one_line(logs: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert expire.main(["--log-dir", str(logs), *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error


def test_help_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert expire.main(["--help-all"]) == 0
    text = capsys.readouterr().out
    options = "--log-dir --topic --partition --config --set --as-of-ms --dry-run --report --metadata --assume-default-policy"
    for option in options.split():
        assert option in text


def test_a_copy_has_what_a_run_in_place_leaves_and_the_source_is_not_changed(logs: Path, tmp_path: Path) -> None:
    before = tree(logs)
    target = tmp_path / "out"
    code, report = run(logs, "--set", f"retention.ms={8 * HOUR_MS}", "--output-dir", str(target))
    assert (code, report["status"]) == (0, "done")
    # a copy shares the lock of its source
    assert tree(logs) == {**before, ".lock": b""}
    in_place, again = run(logs, "--set", f"retention.ms={8 * HOUR_MS}")
    assert in_place == 0
    # a copy has no .deleted files
    in_a_copy = [{**log, "seconds": 0, "task_seconds": 0, "deleted_bytes": 0} for log in again["logs"]]
    assert [{**log, "seconds": 0, "task_seconds": 0} for log in report["logs"]] == in_a_copy
    assert again["totals"]["deleted_bytes"] > report["totals"]["deleted_bytes"] == 0
    assert report["totals"]["expired_segments"] > 0
    for log in (path for path in target.iterdir() if path.name.startswith("clickstream")):
        expected = tree(logs / log.name)
        assert tree(log) == {name: data for name, data in expected.items() if not name.endswith(".deleted")}
    starts = (target / "log-start-offset-checkpoint").read_text(encoding="utf-8")
    for log in report["logs"]:
        assert f"clickstream {log['partition']} {log['end_offset']}\n" in starts
    copied = {path.name for path in target.iterdir() if path.is_dir()}
    assert copied == {"__cluster_metadata-0", "clickstream-0", "clickstream-1"}


def test_a_log_of_unknown_policy_is_not_in_the_copy(logs: Path, tmp_path: Path) -> None:
    shutil.rmtree(logs / "__cluster_metadata-0")
    code, report = run(logs, "--output-dir", str(tmp_path / "out"))
    assert (code, report["totals"]["policy_unknown"]) == (1, 2)
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_dir()]


def test_a_copy_that_does_not_fit_is_refused_with_figures(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waves, "free_space", lambda path: FreeSpace(1, (4 << 20) + 5000, 0))
    assert expire.main(["--log-dir", str(logs), *DELETE, "--output-dir", str(tmp_path / "out")]) == 1
    assert re.fullmatch(
        rf"error: {tmp_path}/out: the copy takes [\d.]+ [kM]B, 5\.0 kB are free besides a margin of 4\.2 MB for"
        r" checkpoints and journals; free some space and run again; nothing was written\n",
        capsys.readouterr().err,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [logs.name]


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
