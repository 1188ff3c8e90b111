"""The command line of the cleaner: requests, usage errors and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import compaction
from compaction.commands import compact, expire
from compaction.config.request import Budget, CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.errors import CorruptLogError, LockedError
from compaction.files import object_store
from compaction.report import LogReport, LogStatus
from compaction.run_report import RunReport
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
    for name in ("orders-0", "orders-1", "sales-0", "__cluster_metadata-0"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "00000000000000000000.log").touch()
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--release-early", "--verify"), "--release-early removes what --verify compares the result with"),
        (("--release-early", "--output-dir", "/tmp/copy"), "--release-early: a copy replaces no segments"),
        (("--max-rewrite", "1GiB", "--output-dir", "/tmp/copy"), "limit runs in place: a copy has all logs"),
        (("--max-duration", "2h", "--dry-run"), "--max-duration: a dry run cannot say how fast the run would be"),
        (("--min-freed", "a lot"), "--min-freed: 'a lot' is not a share in per cent"),
    ],
)
def test_limits_that_contradict_other_options_are_usage_errors(
    log_dir: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run()
    assert executed(compact, ["--log-dir", str(log_dir), *options], run) == 2
    assert message in capsys.readouterr().err
    assert run.request is None


def selected(request: CompactionRequest) -> list[str]:
    return [str(log.topic_partition) for log in request.logs]


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """The error line of a call with a usage error."""
    run = Run()
    assert executed(compact, [str(each) for each in argv], run) == 2
    assert run.request is None
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_without_options_all_logs_are_cleaned_as_of_now(log_dir: Path) -> None:
    request = requested("--log-dir", log_dir)
    assert request.log_dirs == (str(log_dir),)
    assert selected(request) == ["orders-0", "orders-1", "sales-0"]
    assert (request.dry_run, request.output_dir, request.include_active, request.allow_keyless) == (False, None, False, False)
    assert request.as_of_ms > 1_700_000_000_000


def test_every_option_is_in_the_request(log_dir: Path, tmp_path: Path) -> None:
    request = requested(
        "--log-dir", log_dir, "--topic", "sal.*", "none", "--topic", "x", "--partition", "orders-1",
        "--as-of-ms", "1700000000005", "--dry-run", "--output-dir", tmp_path / "out", "--include-active", "--allow-keyless",
        "--set", "retention.bytes=5", "delete.retention.ms=1", "--set", "retention.ms=-1",
    )  # fmt: skip
    assert selected(request) == ["orders-1", "sales-0"]
    assert (request.as_of_ms, request.dry_run, request.output_dir) == (1_700_000_000_005, True, str(tmp_path / "out"))
    assert (request.include_active, request.allow_keyless) == (True, True)
    config = request.resolver.topic("orders")
    assert (config.retention_bytes, config.delete_retention_ms, config.retention_ms) == (5, 1, -1)


def test_the_suffix_of_a_configuration_file_determines_its_format(log_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("log.retention.ms=5\nlog.segment.bytes=2097152\n# caf\xe9\n", "latin-1")
    (tmp_path / "c.toml").write_text("[broker]\nlog.retention.ms = 6\n")
    request = requested("--log-dir", log_dir, "--config", tmp_path / "c.toml", tmp_path / "server.properties")
    config = request.resolver.topic("orders")
    assert (config.retention_ms, config.segment_bytes) == (6, 2_097_152)
    assert str(config.source("retention.ms")) == f"{tmp_path}/c.toml line 2 (log.retention.ms)"


def test_a_directory_that_is_given_by_two_paths_is_used_once(log_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(log_dir)
    assert requested("--log-dir", log_dir, tmp_path / "link", f"{log_dir}/").log_dirs == (str(log_dir),)


def test_relative_paths_become_absolute(log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    request = requested("--log-dir", "data", "--output-dir", "out")
    assert (request.log_dirs, request.output_dir) == ((str(log_dir),), str(tmp_path / "out"))


def test_directories_may_be_uris(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "_reached", {"s3://b"})
    assert requested("--log-dir", f"file://{log_dir}").log_dirs == (str(log_dir),)
    assert requested("--log-dir", log_dir, "--output-dir", "s3a://b/out/?region=x").output_dir == "s3://b/out"


def test_credentials_in_a_uri_are_refused_and_not_printed(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused(capsys, "--log-dir", log_dir, "--output-dir", "s3://AKIAX:hidden@bucket/out")
    assert "must not contain credentials" in error
    assert "hidden" not in error


def test_a_pattern_that_no_topic_matches_is_a_usage_error_unless_that_is_allowed(
    log_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert selected(requested("--log-dir", log_dir, "--topic", "nothing", "--allow-empty")) == []
    capsys.readouterr()
    error = refused(capsys, "--log-dir", log_dir, "--topic", "nothing", "order")
    assert error.startswith(f"error: {log_dir}: --topic: no topic here matches 'nothing' or 'order'; a pattern matches")
    error = refused(capsys, "--log-dir", log_dir, "--topic", "orders-1")
    assert error.endswith("--topic: no topic here matches 'orders-1'; orders-1 is a partition: give --partition orders-1\n")


def test_a_directory_without_logs_is_a_usage_error_unless_that_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "ImageMagick-6").mkdir(parents=True)
    assert selected(requested("--log-dir", tmp_path / "empty", "--allow-empty")) == []
    capsys.readouterr()
    for other in (tmp_path / "empty", tmp_path / "other", "/etc"):
        error = refused(capsys, "--log-dir", other)
        assert f"error: {other}: no logs here: no directory is named TOPIC-N and has segments; give one" in error


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--topic", "nothing")])
def test_a_run_without_logs_leaves_nothing_in_the_directory(
    log_dir: Path, tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    place = log_dir if options[:1] == ("--topic",) else tmp_path / "empty"
    before = sorted(place.rglob("*"))
    for command in (compact, expire):
        assert command.main(["--log-dir", str(place), *options]) == 2
        assert command.main(["--log-dir", str(place), *options, "--allow-empty"]) == 0
        assert sorted(place.rglob("*")) == before
    assert "0 logs" in capsys.readouterr().out


def test_the_time_of_a_run_may_be_given_as_people_write_it(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert requested("--log-dir", log_dir, "--as-of", "2026-11-22T02:00Z").as_of_ms == 1_795_312_800_000
    capsys.readouterr()
    error = refused(capsys, "--log-dir", log_dir, "--as-of", "2026-11-22T02:00Z", "--as-of-ms", "1795312800000")
    assert "argument --as-of-ms: not allowed with argument --as-of" in error


@pytest.mark.parametrize(
    ("argv0", "program"),
    [("kafka-log-compaction compact", "kafka-log-compaction compact"), ("/x/jobs/compact.py", "spark-submit jobs/compact.py")],
)
def test_the_help_shows_the_command_as_its_user_runs_it(
    argv0: str, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [argv0])
    assert compact.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: {program} ")
    assert f"\n    {program} --log-dir /var/lib/kafka" in shown
    assert ("spark-submit jobs/" in shown) == (argv0[0] == "/")
    assert compact.main(["--logdir", "x"]) == 2
    assert capsys.readouterr().err == (
        f"error: unrecognized arguments: --logdir; did you mean --log-dir? See {program} --help\n"
    )


WrongCall = Callable[[Path], list[object]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: [], "the following arguments are required: --log-dir"),
        (lambda data: ["--log-dir"], "argument --log-dir: expected at least one argument"),
        (lambda data: ["--log-dir", data, "--bogus"], "unrecognized arguments: --bogus"),
        (lambda data: ["--log-dir", data, "--dry"], "unrecognized arguments: --dry"),
        (lambda data: ["--log-dir", data / "no"], "data/no: no such log directory"),
        (lambda data: ["--log-dir", data / "orders-0" / f"{0:020d}.log"], "not a directory"),
        (lambda data: ["--log-dir", data / "orders-0"], "this is one partition's directory"),
        (lambda data: ["--log-dir", data, data.parent], "--log-dir: it is inside"),
        (lambda data: ["--log-dir", data, "--topic", "("], "--topic '(' is not a regular expression"),
        (lambda data: ["--log-dir", data, "--partition", "orders"], "--partition 'orders' is not TOPIC-N"),
        (lambda data: ["--log-dir", data, "--partition", "orders-7"], "no such partition: orders-7"),
        (lambda data: ["--log-dir", data, "--partition", "__cluster_metadata-0"], "__cluster_metadata is never touched"),
        (lambda data: ["--log-dir", data, "--as-of-ms", "yesterday"], "'yesterday' is not a time in milliseconds"),
        (lambda data: ["--log-dir", data, "--as-of-ms", "1795312800"], "'1795312800' is a time before the year 2000"),
        (lambda data: ["--log-dir", data, "--as-of-ms", "-1"], "argument --as-of-ms"),
        (lambda data: ["--log-dir", data, "--set", "segment.byte=1"], "did you mean segment.bytes?"),
        (lambda data: ["--log-dir", data, "--set", "segment.bytes=1"], "--set: segment.bytes = '1' is less than 14"),
        (lambda data: ["--log-dir", data, "--set", "log.cleaner.dedupe.buffer.size=1"], "bytes per thread"),
        (lambda data: ["--log-dir", data, "--config", data / "none.toml"], "none.toml: cannot be read"),
        (lambda data: ["--log-dir", data, "--config", data / "orders-0"], "orders-0: cannot be read: Is a directory"),
        (lambda data: ["--log-dir", data, "--output-dir", data], "--output-dir overlaps the log directory"),
        (lambda data: ["--log-dir", data, "--output-dir", data / "out"], "--output-dir overlaps the log directory"),
        (lambda data: ["--log-dir", data, "--output-dir", data.parent], "--output-dir overlaps the log directory"),
        (lambda data: ["--log-dir", data, "--report", data / "no" / "r.json"], "its directory does not exist"),
        (lambda data: ["--log-dir", data, "--report", data], "data: is a directory"),
    ],
)
def test_a_usage_error_is_one_line(log_dir: Path, capsys: pytest.CaptureFixture[str], call: WrongCall, message: str) -> None:
    assert message in refused(capsys, *call(log_dir))


def test_the_error_for_an_unknown_name_in_toml_has_file_line_and_key(
    log_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text("[broker]\n\nlog.segmnt.bytes = 1\n")
    line = refused(capsys, "--log-dir", log_dir, "--config", tmp_path / "c.toml")
    assert line == (
        f"error: {tmp_path}/c.toml: line 3: unknown configuration name 'log.segmnt.bytes'; did you mean log.segment.bytes?\n"
    )


def test_the_error_for_an_invalid_value_in_properties_has_file_line_and_key(
    log_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.properties").write_text("some.plugin=x\nlog.segment.bytes=1 GB\n")
    line = refused(capsys, "--log-dir", log_dir, "--config", tmp_path / "server.properties")
    assert f"{tmp_path}/server.properties: line 2: log.segment.bytes = '1 GB' is not a 32-bit integer" in line


def log_report(status: LogStatus, reason: str = "ratio 0.9") -> LogReport:
    return LogReport("orders", 0, "/data", status, reason)


@pytest.mark.parametrize(
    ("run", "code", "errors"),
    [
        pytest.param(Run(), 0, "", id="nothing to do"),
        pytest.param(Run(log_report(LogStatus.CLEANED)), 0, "", id="all cleaned"),
        pytest.param(
            Run(log_report(LogStatus.CLEANED), log_report(LogStatus.FAILED, "x.log at byte 3:\nbroken")),
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


def test_the_report_is_written_to_its_file_and_printed(
    log_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    run = Run(log_report(LogStatus.SKIPPED), log_report(LogStatus.FAILED, "broken"))
    assert executed(compact, ["--log-dir", str(log_dir), "--as-of-ms", "1700000000005", "--report", str(file)], run) == 1
    document = json.loads(file.read_text())
    assert (document["as_of_ms"], document["status"], len(document["logs"])) == (1_700_000_000_005, "failed", 2)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("2 logs: 1 failed, 1 skipped; ")


def test_a_usage_error_writes_no_report(log_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "--log-dir", log_dir, "--report", tmp_path / "r.json", "--set", "x")
    assert not (tmp_path / "r.json").exists()


def test_help_explains_options_precedence_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert compact.main(["--help-all"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in (
        "--log-dir", "--topic", "--partition", "--config", "--set", "--as-of-ms", "--dry-run", "--output-dir",
        "--include-active", "--report", "--verbose", "--allow-keyless", "exit status:", "examples:", "first source that sets",
    ):  # fmt: skip
        assert text in shown


def test_the_script_runs_from_any_directory_without_being_installed(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = str(ROOT / "jobs" / "compact.py")
    done = subprocess.run(
        [sys.executable, script, "--log-dir", "nowhere"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nowhere: no such log directory; give one of the broker's log.dirs, or a copy of it\n"


def test_a_usage_error_does_not_import_spark(tmp_path: Path) -> None:
    imports = "import sys; from compaction.commands import compact;"
    code = imports + "compact.main(['--log-dir', 'nowhere']); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode == 0


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


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["w"], "error: 'w' belongs to no option; directories and files follow --log-dir; see "),
        (["--log-dir", ""], "error: --log-dir: the value is empty; give one; a variable of the shell may not be set\n"),
        (["--log-dir="], "error: --log-dir: the value is empty; give one; a variable of the shell may not be set\n"),
        (["--log-dir", "x", "--report", ""], "error: --report: the value is empty; give one; "),
    ],
)
def test_a_word_without_an_option_and_an_empty_value_are_named(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert executed(compact, argv, Run()) == 2
    assert capsys.readouterr().err.startswith(message)


def test_an_empty_path_in_python_is_named() -> None:
    with pytest.raises(compaction.UsageError, match="log_dirs: the path is empty; give a directory or a URI"):
        compaction.compact("")
