"""Logs of unknown cleanup.policy: no command changes them, and they are counted separately."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.commands import compact, dry_run, expire
from compaction.policies.compare_policies import compare_with
from compaction.run.compact import clean_logs
from tests.executed import executed
from tests.golden.make_sample import HOUR_MS, START_MS
from tests.local_passes import LocalPasses
from tests.log.settings.guesses import METADATA, SECOND, identify, jbod

#: what is in the sample has expired, by Kafka's defaults too
NOW_MS = START_MS + 300 * HOUR_MS
#: the logs whose policy only the first directory's metadata log has
TOPICS = {name for name in SECOND if not name.startswith("__")}
COMPACTED = {"orders-1", "customers-0", "sessions-0"}


class Ended:
    """A command's exit code, its report, and what it wrote."""

    def __init__(self, code: int, report: Path, captured: pytest.CaptureFixture[str]) -> None:
        text = captured.readouterr()
        self.code, self.out, self.err = code, text.out, text.err
        self.report: dict[str, Any] = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}

    def logs(self, **having: object) -> set[str]:
        """The names of the report's logs whose fields have these values."""
        logs = self.report["logs"]
        return {f"{log['topic']}-{log['partition']}" for log in logs if all(log[key] == value for key, value in having.items())}


Command = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command over directories, without Spark."""

    def call(job: str, *log_dirs: Path, options: tuple[str, ...] = ()) -> Ended:
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        argv = ["--log-dir", *map(str, log_dirs), "--as-of-ms", str(NOW_MS), "--report", str(report), *options]
        if job == "expire":
            code = expire.main(argv)
        elif job == "compact":
            code = executed(compact, argv, lambda _, request: clean_logs(LocalPasses, request))
        else:
            code = executed(dry_run, argv, lambda _, request: compare_with(LocalPasses, request))
        return Ended(code, report, capsys)

    return call


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    return jbod(tmp_path)


def content(log_dir: Path) -> dict[str, bytes]:
    files = (file for file in log_dir.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(log_dir)): file.read_bytes() for file in files}


def test_expire_keeps_compacted_topics_whose_policy_is_in_another_directory(
    run: Command, directories: tuple[Path, Path]
) -> None:
    _, second = directories
    # files of an interrupted run are not removed either
    (second / "orders-1" / f"{0:020d}.log.deleted").write_bytes(b"x")
    before = content(second)
    ended = run("expire", second)
    assert ended.code == 1
    assert content(second) == before
    assert ended.logs(status="failed", policy_unknown=True) == ended.logs(policy_unknown=True) == TOPICS
    assert ended.report["totals"]["policy_unknown"] == len(TOPICS)
    assert ended.report["totals"]["expired_bytes"] == 0
    assert f"{len(TOPICS)} failed, 1 skipped (1 policy), cleanup.policy of {len(TOPICS)} unknown" in ended.out
    (told,) = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert f" and {len(TOPICS) - 1} more: " in told
    for remedy in ("--metadata DIR", "--set cleanup.policy=", "--config", "--assume-default-policy"):
        assert remedy in told


def test_a_dry_run_of_expire_reports_the_same_as_the_run(run: Command, directories: tuple[Path, Path]) -> None:
    _, second = directories
    dry, real = run("expire", second, options=("--dry-run",)), run("expire", second)
    assert dry.code == real.code == 1
    for ended in (dry, real):
        for log in ended.report["logs"]:
            log["seconds"] = 0
    assert dry.report["logs"] == real.report["logs"]


@pytest.mark.parametrize("how", ["both directories", "--metadata", "--metadata of the log itself"])
def test_with_the_metadata_log_expire_applies_the_policies(run: Command, directories: tuple[Path, Path], how: str) -> None:
    first, second = directories
    given = {"--metadata": str(first), "--metadata of the log itself": str(first / METADATA)}
    before = content(first)
    options = ("--metadata", given[how]) if how in given else ()
    ended = run("expire", second, *([] if options else [first]), options=options)
    assert ended.code == 0
    expired = {name for name in ended.logs(status="cleaned") if (second / name).exists()}
    assert expired == {"clickstream-1", "sessions-0"}
    assert ended.report["totals"]["policy_unknown"] == 0
    if how in given:
        assert content(first) == before
        assert all(str(first / METADATA) in log["reason"] for log in ended.report["logs"] if log["topic"] == "clickstream")


def test_compact_reports_skipped_logs_of_unknown_policy(run: Command, directories: tuple[Path, Path]) -> None:
    first, second = directories
    before = content(second)
    ended = run("compact", second, options=("--set", "min.cleanable.dirty.ratio=0"))
    assert (ended.code, ended.report["status"]) == (0, "done")
    assert ended.logs(status="cleaned") == {"__consumer_offsets-0"}
    assert ended.logs(status="skipped", policy_unknown=True) == TOPICS
    assert f"4 skipped, cleanup.policy of {len(TOPICS)} unknown" in ended.out
    reasons = {log["reason"] for log in ended.report["logs"] if log["policy_unknown"]}
    assert all(reason.startswith("refused: cleanup.policy is unknown: no metadata log") for reason in reasons)
    assert all("--metadata DIR" in reason and "delete (Kafka's default)" not in reason for reason in reasons)
    assert {name: data for name, data in content(second).items() if name.split("/")[0] in TOPICS} == {
        name: data for name, data in before.items() if name.split("/")[0] in TOPICS
    }
    ended = run("compact", second, options=("--metadata", str(first), "--set", "min.cleanable.dirty.ratio=0"))
    assert ended.code == 0
    assert ended.logs(status="cleaned") == COMPACTED
    assert ended.logs(policy_unknown=True) == set()


def test_neither_half_of_a_guessed_policy_of_compact_and_delete_is_applied(
    run: Command, directories: tuple[Path, Path], tmp_path: Path
) -> None:
    _, second = directories
    properties = tmp_path / "server.properties"
    properties.write_text("log.cleanup.policy=compact,delete\nlog.retention.ms=1\n", encoding="utf-8")
    before = content(second)
    ended = run("compact", second, options=("--config", str(properties), "--topic", "[a-z].*"))
    assert ended.logs(status="skipped", policy_unknown=True) == TOPICS
    assert run("expire", second, options=("--config", str(properties), "--topic", "[a-z].*")).code == 1
    assert content(second) == before


def test_an_option_assumes_the_default_policy(run: Command, directories: tuple[Path, Path]) -> None:
    _, second = directories
    ended = run("expire", second, options=("--assume-default-policy", "--dry-run", "--verbose"))
    assert ended.code == 0
    assert ended.logs(policy_unknown=True) == set()
    assert "Kafka's default, assumed by --assume-default-policy" in ended.out
    orders = next(log for log in ended.report["logs"] if log["topic"] == "orders")
    assert "cleanup.policy is delete (Kafka's default, assumed by --assume-default-policy)" in orders["reason"]
    ended = run("compact", second, options=("--assume-default-policy", "--dry-run", "--verbose"))
    assert "delete (Kafka's default, assumed by --assume-default-policy), only compact is cleaned" in ended.out


def test_configuration_of_the_call_sets_the_policy(run: Command, directories: tuple[Path, Path], tmp_path: Path) -> None:
    _, second = directories
    toml = tmp_path / "topics.toml"
    toml.write_text('[topics."clickstream"]\ncleanup.policy = "delete"\n', encoding="utf-8")
    ended = run("expire", second, options=("--config", str(toml)))
    assert ended.logs(status="cleaned") == {"clickstream-1"}
    assert ended.logs(policy_unknown=True) == TOPICS - {"clickstream-1"}
    ended = run("expire", second, options=("--set", "cleanup.policy=delete", "--dry-run"))
    assert ended.logs(policy_unknown=True) == set()


def test_a_metadata_log_of_another_cluster_is_a_usage_error(run: Command, directories: tuple[Path, Path]) -> None:
    first, second = directories
    identify(second, cluster="another-cluster")
    before = content(second)
    for job in ("expire", "compact", "dry_run"):
        ended = run(job, second, options=("--metadata", str(first)))
        assert (ended.code, ended.report) == (2, {})
        assert ended.err.count("\n") == 1
        assert "cluster another-cluster" in ended.err
        assert "cluster b2ZmbGluZS1jbGVhbmVyLQ" in ended.err
    assert content(second) == before


def test_a_directory_without_a_metadata_log_is_a_usage_error(run: Command, directories: tuple[Path, Path]) -> None:
    _, second = directories
    for path in (second, second / "orders-1", second / "nowhere"):
        ended = run("expire", second, options=("--metadata", str(path)))
        assert ended.code == 2
        assert f"error: {path}: --metadata: there is no metadata log here; name a log directory" in ended.err


def test_a_comparison_counts_logs_of_unknown_policy_separately(
    run: Command, directories: tuple[Path, Path], tmp_path: Path
) -> None:
    _, second = directories
    metrics, page = tmp_path / "m.txt", tmp_path / "p.html"
    said = "cleanup.policy=delete,retention.bytes=9000"
    options = ("--topic", "[a-z].*", "--policy", "configured", "retention.ms=1", said)
    ended = run("dry_run", second, options=(*options, "--metrics", str(metrics), "--html", str(page)))
    assert ended.code == 0
    configured, shorter, deleted = ended.report["policies"]
    for policy in (configured, shorter):
        assert policy["logs"]["policy_unknown"] == len(TOPICS)
        assert policy["after"] == policy["before"]
        assert sum(policy["gone"]["by_age"]) == policy["expired"]["bytes"] == 0
    assert deleted["logs"]["policy_unknown"] == 0
    assert deleted["after"]["bytes"] < deleted["before"]["bytes"]
    assert "\nunknown:   no source has its cleanup.policy\n" in ended.out
    assert f"   0.0 %  {len(TOPICS)} policy unknown\n" in ended.out
    samples = metrics.read_text(encoding="utf-8")
    count = f'kafka_log_compaction_policy_logs{{policy="configured",status="policy_unknown"}} {len(TOPICS)}\n'
    assert count in samples
    assert '"status":"policy_unknown"' in page.read_text(encoding="utf-8")


def test_the_report_of_a_run_in_a_comparison_is_that_of_the_run(run: Command, directories: tuple[Path, Path]) -> None:
    _, second = directories
    compared = run("dry_run", second, options=("--topic", "[a-z].*"))
    real = run("expire", second, options=("--topic", "[a-z].*"))
    runs = [log["policies"][0]["run"] for log in compared.report["logs"]]
    for one in (*runs, *real.report["logs"]):
        one["seconds"] = 0
    assert runs == real.report["logs"]


def test_an_explanation_says_that_the_policy_is_unknown(run: Command, directories: tuple[Path, Path]) -> None:
    _, second = directories
    ended = run("dry_run", second, options=("--explain", "orders-1"))
    assert ended.code == 0
    assert "  configured: policy unknown: refused: cleanup.policy is unknown: no metadata log" in ended.out
    assert "    no    cleanup policy is known\n          cleanup.policy is unknown:" in ended.out


def test_metrics_of_a_run_count_logs_of_unknown_policy(run: Command, directories: tuple[Path, Path], tmp_path: Path) -> None:
    metrics = tmp_path / "m.txt"
    run("expire", directories[1], options=("--metrics", str(metrics), "--topic", "orders|__.*"))
    lines = [line for line in metrics.read_text(encoding="utf-8").splitlines() if "log_policy_unknown{" in line]
    assert [line.rpartition(" ")[2] for line in lines if 'topic="orders"' in line] == ["1"]
    assert [line.rpartition(" ")[2] for line in lines if 'topic="__consumer_offsets"' in line] == ["0"]


def test_the_help_of_every_command_has_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    for job in (compact, expire, dry_run):
        assert job.main(["--help-all"]) == 0
        text = capsys.readouterr().out
        assert "--metadata DIR" in text
        assert "--assume-default-policy" in text
