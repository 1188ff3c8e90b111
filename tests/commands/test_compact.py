"""The command line of the cleaner: requests, usage errors and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import compaction
from compaction.commands import compact
from compaction.config.request import Budget, CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.errors import CorruptLogError, LockedError
from compaction.files import object_store
from compaction.report import LogReport, LogStatus
from compaction.run_report import RunReport
from tests.commands.named_logs import two_topics
from tests.executed import executed

ROOT = Path(__file__).resolve().parents[2]


class Run:
    """Replaces a run: records the request, starts no session, returns a report of the given logs."""

    def __init__(self, *logs: LogReport, error: BaseException | None = None) -> None:
        self.logs = logs
        self.error = error
        self.request: CompactionRequest | None = None

    def __call__(self, session_factory: EngineChoice, request: CompactionRequest) -> RunReport:
        self.request = request
        if self.error is not None:
            raise self.error
        return RunReport("r-1", request.as_of_ms, request.dry_run, self.logs)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory with two topics."""
    two_topics(tmp_path)
    return tmp_path / "data"


def requested(*argv: object) -> CompactionRequest:
    run = Run()
    assert executed(compact, [str(each) for each in argv], run) == 0
    assert run.request is not None
    return run.request


def test_limits_and_order_are_part_of_the_request(log_dir: Path) -> None:
    limits = ("--max-duration", "2h", "--max-rewrite", "1GiB", "--min-freed", "10%")
    request = requested("--log-dir", log_dir, "--order", "benefit", *limits, "--release-early")
    assert (request.order, request.budget) == ("benefit", Budget(7_200_000, 1 << 30, 0.1))
    assert (request.release_early, request.retain_replaced) == (True, False)
    assert requested("--log-dir", log_dir).budget == Budget()


def test_directories_may_be_uris(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_reached", {"s3://b"})
    assert requested("--log-dir", f"file://{log_dir}").log_dirs == (str(log_dir),)
    assert requested("--log-dir", log_dir, "--output-dir", "s3a://b/out/?region=x").output_dir == "s3://b/out"


@pytest.mark.parametrize(
    ("run", "code", "errors"),
    [
        pytest.param(
            Run(LogReport("orders", 0, "/data", LogStatus.FAILED, "x.log at byte 3:\nbroken")),
            1, "error: orders-0: x.log at byte 3: broken\n", id="one failed",
        ),
        pytest.param(
            Run(error=LockedError("a broker (process 7) holds the lock", path="/data/.lock", hint="stop it")),
            2, "error: /data/.lock: a broker (process 7) holds the lock; stop it\n", id="a live broker",
        ),
        pytest.param(
            Run(error=CorruptLogError("malformed", path="/data/x", position=4)),
            1, "error: /data/x at byte 4: malformed\n", id="a log error",
        ),
        pytest.param(
            Run(error=RuntimeError("\nboom\nat org.apache.spark")), 1,
            "error: RuntimeError: boom; run again with --verbose for the stack trace\n", id="an unexpected error",
        ),
        pytest.param(
            Run(error=KeyboardInterrupt()), 130,
            "error: interrupted; the next run completes or undoes the changes of this one\n", id="ctrl-c",
        ),
    ],
)  # fmt: skip
def test_exit_code_and_errors_of_each_outcome(
    log_dir: Path, capsys: pytest.CaptureFixture[str], run: Run, code: int, errors: str
) -> None:
    assert executed(compact, ["--log-dir", str(log_dir)], run) == code
    assert capsys.readouterr().err == errors


def test_verbose_shows_the_stack_trace(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(error=RuntimeError("boom"))
    assert executed(compact, ["--log-dir", str(log_dir), "--verbose"], run) == 1
    captured = capsys.readouterr().err
    assert "Traceback (most recent call last)" in captured
    assert captured.splitlines()[-1].startswith("error: RuntimeError: boom")


def test_the_script_runs_from_any_directory_without_being_installed(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = str(ROOT / "jobs" / "compact.py")
    call = [sys.executable, script, "--log-dir", "nowhere"]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nowhere: no such log directory; give one of the broker's log.dirs, or a copy of it\n"


def test_the_metrics_of_a_failed_run_have_the_time_of_the_last_success(log_dir: Path, tmp_path: Path) -> None:
    """An alert on it needs no memory of its own."""

    def last_success() -> list[str]:
        lines = [line.split() for line in metrics.read_text().splitlines()]
        return [words[1] for words in lines if words[0] == "kafka_log_compaction_last_success_timestamp_seconds"]

    metrics = tmp_path / "metrics"
    argv = ["--log-dir", str(log_dir), "--set", "cleanup.policy=compact", "--metrics", str(metrics)]
    began = time.time()
    assert executed(compact, argv, Run()) == 0
    (first,) = last_success()
    assert began <= float(first) + 0.001 and float(first) <= time.time() + 0.001
    assert executed(compact, argv, Run(LogReport("orders", 0, str(log_dir), LogStatus.FAILED, "damaged"))) == 1
    assert last_success() == [first]


def test_an_interrupted_dry_run_does_not_speak_of_changes(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after a run in the same process that could have changed logs."""
    assert executed(compact, ["--log-dir", str(log_dir)], Run()) == 0
    capsys.readouterr()
    assert executed(compact, ["--log-dir", str(log_dir), "--dry-run"], Run(error=KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "error: interrupted; no log was changed\n"


def test_an_empty_path_in_python_is_named() -> None:
    with pytest.raises(compaction.UsageError, match="log_dirs: the path is empty; give a directory or a URI"):
        compaction.compact("")
