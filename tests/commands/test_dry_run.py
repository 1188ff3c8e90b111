"""``dry-run``: its request, the files that it writes, wrong calls, and explanations."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from compaction.commands import dry_run
from compaction.config.request import ComparisonRequest
from compaction.engine_choice import EngineChoice
from compaction.options.inputs import Inputs
from compaction.policies.compare_policies import compare_with
from compaction.policies.comparison import Comparison
from tests.executed import executed
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record
from tests.local_passes import LocalPasses

NOW_MS = 1_760_000_000_000 + 30 * 86_400_000


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return unpack_sample(tmp_path)


class Run:
    """Takes the place of a run: keeps the request, and compares without Spark."""

    def __init__(self) -> None:
        self.request: ComparisonRequest | None = None

    def __call__(self, session_factory: EngineChoice, request: ComparisonRequest) -> Comparison:
        self.request = request
        return compare_with(LocalPasses, request)


def requested(logs: Path, *argv: str) -> ComparisonRequest:
    run = Run()
    given = ["--log-dir", str(logs), "--as-of-ms", str(NOW_MS), "--topic", "never-written", *argv]
    assert executed(dry_run, given, run) == 0
    assert run.request is not None
    return run.request


def test_the_configured_policy_is_the_default(logs: Path) -> None:
    request = requested(logs)
    assert [policy.name for policy in request.policies] == ["configured"]
    assert (request.base.as_of_ms, request.base.dry_run, request.base.include_active) == (NOW_MS, True, False)


def test_policies_are_compared_in_the_order_given(logs: Path) -> None:
    request = requested(
        logs, "--policy", "cleanup.policy=compact", "retention.ms=5", "--policy", "configured",
        "--include-active", "--allow-keyless",
    )  # fmt: skip
    assert [policy.name for policy in request.policies] == ["cleanup.policy=compact", "retention.ms=5", "configured"]
    assert (request.base.include_active, request.base.allow_keyless) == (True, True)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--policy", "compact"], "--policy: 'compact' is not KEY=VALUE"),
        (["--policy", "cleanup.polcy=compact"], "did you mean cleanup.policy?"),
        (["--policy", "retention.ms=5", "retention.ms=5"], "--policy 'retention.ms=5' is given twice"),
        (["--policy", "log.cleaner.dedupe.buffer.size=1"], "bytes per thread"),
        (["--policy", "min.compaction.lag.ms=9,max.compaction.lag.ms=8"], "min.compaction.lag.ms is 9"),
        (["--explain", "orders"], "--explain 'orders' is not TOPIC-N"),
        (["--explain", "orders-77"], "--explain: no such partition: orders-77"),
        (["--explain", "orders-0", "--topic", "orders"], "--explain takes neither --topic"),
        (["--explain", "orders-0", "--html", "x.html"], "--explain takes neither --topic"),
        (["--explain", "orders-0", "--metrics", "x.txt"], "--explain takes neither --topic"),
        (["--dry-run"], "unrecognized arguments: --dry-run"),
        (["--html", "/no/such/place/x.html"], "its directory does not exist"),
    ],
)
def test_a_wrong_call_is_one_line_on_standard_error(
    logs: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert executed(dry_run, ["--log-dir", str(logs), *argv], Run()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert told.err.count("\n") == 1
    assert message in told.err


def test_text_report_and_page_are_written(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, page = tmp_path / "r.json", tmp_path / "p.html"
    argv = ["--log-dir", str(logs), "--as-of-ms", str(NOW_MS), "--topic", "orders"]
    argv += ["--report", str(report), "--html", str(page)]
    assert executed(dry_run, [*argv, "--policy", "configured", "cleanup.policy=delete,retention.bytes=9000"], Run()) == 0
    document = json.loads(report.read_text(encoding="utf-8"))
    assert [(each["version"], each["logs"]) for each in document["kafka_versions"]] == [("4.3", len(document["logs"]))]
    assert [log["partition"] for log in document["logs"]] == [0, 1, 2]
    assert document["policies"][1]["after"]["bytes"] < document["policies"][1]["before"]["bytes"]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    text = capsys.readouterr().out
    assert "\norders-0 " in text
    assert "\ndry run, nothing written: 3 logs; A " in text


def test_a_log_that_fails_makes_exit_code_1_and_one_line(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = min((logs / "orders-1").glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-9])
    argv = ["--log-dir", str(logs), "--as-of-ms", str(NOW_MS), "--topic", "orders"]
    assert executed(dry_run, argv, Run()) == 1
    told = capsys.readouterr()
    assert told.err.startswith("error: orders-1: ")
    assert told.err.count("\n") == 1
    assert "\norders-2 " in told.out


@pytest.mark.parametrize(
    ("policies", "options", "code"),
    [
        (("configured", "cleanup.policy=compact"), (), 0),
        (("configured", "cleanup.policy=compact"), ("--strict",), 1),
        (("configured",), ("--strict",), 0),
        (("configured",), ("--set", "cleanup.policy=compact"), 1),
    ],
)
def test_a_refusal_under_a_policy_that_is_only_considered_is_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policies: tuple[str, ...], options: tuple[str, ...], code: int
) -> None:
    """A scheduler must not call the comparison failed, and repeat it, because one topic has no keys."""
    log = tmp_path / "keyless-0"
    log.mkdir()
    for base in (0, 30, 60):
        records = [Record(base + at, NOW_MS - 5, None, b"v") for at in range(30)]
        (log / f"{base:020d}.log").write_bytes(Batch(records).encode())
    argv = ["--log-dir", str(tmp_path), "--as-of-ms", str(NOW_MS)]
    assert executed(dry_run, [*argv, *options, "--policy", *policies], Run()) == code
    told = capsys.readouterr()
    if options[:1] == ("--set",):
        assert told.err.startswith("error: keyless-0, configured: ")
    elif len(policies) > 1:
        assert told.err.startswith("refused: keyless-0, cleanup.policy=compact: ")
    assert ("1 refused" in told.out) is ("--allow-keyless" in told.err) is (told.err != "")


def explained(logs: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    code = dry_run.main(["--log-dir", str(logs), "--as-of-ms", str(NOW_MS), *argv])
    told = capsys.readouterr()
    assert (code, told.err) == (0, "")
    return told.out


RATIO = re.compile(r"(yes|no) +cleanable ratio (0\.\d+) > (0\.\d+) \((.*)\)\n(?: +(becomes .*)\n)?")


def test_explain_needs_no_spark(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(logs, capsys, "--explain", "inventory-0")
    assert "  configured: skipped: ratio: " in text
    assert "orders-0" not in text
    found = RATIO.search(text)
    assert found is not None
    assert (found[1], found[3]) == ("no", "0.5")
    assert found[4] == "min.cleanable.dirty.ratio, the topic's configuration in the metadata log"
    assert re.fullmatch(r"becomes cleanable after [\d.]+ kB more, or with min\.cleanable\.dirty\.ratio=0\.\d+", found[5])


def test_the_printed_remedy_changes_the_verdict(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remedy = re.search(r"or with (min\.\S+=\S+)", explained(logs, capsys, "--explain", "inventory-0"))
    assert remedy is not None
    text = explained(logs, capsys, "--explain", "inventory-0", "--policy", remedy[1])
    assert f"  {remedy[1]}: would be cleaned: " in text
    found = RATIO.search(text)
    assert found is not None
    assert (found[1], found[4]) == ("yes", "--policy min.cleanable.dirty.ratio")


def test_an_open_transaction_is_explained_with_its_producer(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(logs, capsys, "--explain", "payments-open-0")
    assert "on: open transaction of producer " in text


def test_segments_that_are_not_deleted_are_explained(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(logs, capsys, "--explain", "clickstream-0", "sessions-0", "--set", "retention.ms=31536000000")
    assert "> 365 days (retention.ms=31536000000, --set retention.ms)\n" in text
    assert "deleted in 33" in text
    assert "is deleted by size: " in text


def test_explanations_are_written_to_a_report(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "why.json"
    explained(logs, capsys, "--explain", "ledger-0", "--report", str(report))
    (log,) = json.loads(report.read_text(encoding="utf-8"))["logs"]
    assert (log["topic"], log["policies"][0]["status"]) == ("ledger", "skipped")
    assert any("min.compaction.lag.ms" in line for line in log["policies"][0]["why"])


def test_only_the_partitions_to_explain_are_selected(logs: Path) -> None:
    options = dry_run.OPTIONS.complete({})
    inputs = Inputs.of(dry_run.OPTIONS, options, log_dirs=logs)
    chosen = dry_run.comparison_request(inputs, options, ["orders-0", "ledger-0"]).base
    assert [str(log.topic_partition) for log in chosen.logs] == ["ledger-0", "orders-0"]


def test_the_help_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run.main(["--help-all"]) == 0
    text = capsys.readouterr().out
    for option in ("--log-dir", "--policy", "--explain", "--include-active", "--allow-keyless", "--report", "--html", "--set"):
        assert option in text
