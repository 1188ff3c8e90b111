"""The process of a command: its directory, signals, standard error as text and JSON, and a standard output that is lost."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from compaction import signals
from compaction.cli import execution, log_lines
from compaction.commands import compact
from compaction.run import waves
from compaction.screen.steps import WaveProgress, step
from tests.dumping.segments import write_segment
from tests.golden import unpack_sample
from tests.kafka.jars import spark_home
from tests.processes import ROOT, on_a_terminal, run, started


@pytest.mark.parametrize("command", ["compact", "dump-log", "count", "doctor"])
def test_a_removed_working_directory_is_one_line(tmp_path: Path, command: str) -> None:
    options = {"dump-log": ["--files", "a-0"], "doctor": []}.get(command, ["--log-dir", "logs"])
    (tmp_path / "gone").mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    called = ["/bin/sh", "-c", script, "sh", str(tmp_path / "gone"), sys.executable, "-m", "compaction", command, *options]
    done = started(called, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the working directory has been removed; change to another one, e.g. cd /\n"


_FRAME = """
import signal, time
from compaction.cli import interrupts
number = signal.Signals({number})
try:
    with interrupts.handled():
{body}
except KeyboardInterrupt:
    interrupts.report_once()
    raise SystemExit(interrupts.exit_code())
"""


def run_with_handlers(body: str, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    """A process that runs ``body``, in which ``number`` is the signal, as a command does."""
    script = _FRAME.format(number=int(number), body=textwrap.indent(textwrap.dedent(body), " " * 8))
    return started([sys.executable, "-c", script])


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")])
def test_a_signal_whose_exception_a_destructor_swallows_is_sent_again(number: signal.Signals, reason: str) -> None:
    body = """\
        class Resource:
            def __del__(self):
                signal.raise_signal(number)
        Resource()
        time.sleep(30)
        print("went on")
        """
    done = run_with_handlers(body, number)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", f"{reason}; no log was changed\n")


def test_other_errors_in_destructors_are_shown() -> None:
    body = """\
        class Resource:
            def __del__(self):
                raise ValueError("lost")
        Resource()
        """
    done = run_with_handlers(body, signal.SIGINT)
    assert done.returncode == 0
    assert "ValueError: lost" in done.stderr


def test_a_deferred_signal_arrives_at_the_end_even_if_the_block_fails() -> None:
    arrived: list[int] = []
    usual = signal.signal(signal.SIGTERM, lambda number, frame: arrived.append(number))
    try:
        with pytest.raises(ValueError, match="failed"), signals.deferred(lambda number: arrived.append(-number)):
            signal.raise_signal(signal.SIGTERM)
            assert arrived == [-signal.SIGTERM]
            raise ValueError("failed")
        assert arrived == [-signal.SIGTERM, signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, usual)


def compact_in_waves(log_dir: Path, metrics: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a run in several waves."""
    monkeypatch.setattr(waves, "_MOST_SEGMENTS", 1)
    options = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0", "--metrics", str(metrics), "--quiet")
    return compact.main(["--log-dir", str(log_dir), *options])


def test_metrics_are_written_again_after_each_wave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, texts = tmp_path / "m.txt", list[str]()

    def write(path: str, text: str, mode: int) -> None:
        assert path == str(file)
        texts.append(text)

    monkeypatch.setattr(execution, "write_text", write)
    assert compact_in_waves(unpack_sample(tmp_path), file, monkeypatch) == 0
    assert len(texts) > 3
    assert ['status="running"' in text for text in texts] == [True] * (len(texts) - 2) + [False] * 2
    counts = [text.count("kafka_log_compaction_wave_seconds{") for text in texts]
    assert counts == [*range(1, len(texts)), len(texts) - 1]


def test_metrics_that_are_refused_during_a_run_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execution, "check_writable", lambda path: None)
    assert compact_in_waves(unpack_sample(tmp_path), tmp_path, monkeypatch) == 1
    refused = f"{tmp_path}: cannot be written: Is a directory"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings and set(warnings) == {refused}
    assert capsys.readouterr().err == f"error: {refused}\n"


WAVE_LINE = "wave 2 of about 5, 1.0 GB of 4.0 GB done, 50.0 MB/s, about 1 min 0 s left"


def test_a_wave_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = WaveProgress(2, 5, 10**9, 3 * 10**9, 50 * 10**6, 60.0)
    for as_json, quiet in ((False, False), (False, True), (True, False)):
        log_lines.configure(as_json=as_json, verbose=False, quiet=quiet)
        step(progress)
        step("cleaning 3 logs")
        log_lines.close()
    text, document = capsys.readouterr().err.splitlines()
    assert text.endswith(WAVE_LINE)
    fields = json.loads(document)
    assert (fields["message"], fields["level"]) == (WAVE_LINE, "INFO")
    assert fields["wave"] == {
        "number": 2, "waves": 5, "bytes_done": 10**9, "bytes_to_do": 3 * 10**9, "bytes_per_second": 50 * 10**6,
        "seconds_left": 60.0,
    }  # fmt: skip


@pytest.mark.spark
def test_each_pass_is_a_line(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    metrics = tmp_path / "metrics.txt"
    text = run("compact", "--log-dir", log_dir, "--topic", "orders", "--dry-run", "--metrics", metrics)
    assert text.returncode == 0, text.stderr
    assert [line.split(":")[0] for line in text.stderr.splitlines() if line.startswith("pass ")] == ["pass 1", "pass 2"]
    samples = [sample for family in text_string_to_metric_families(metrics.read_text()) for sample in family.samples]
    assert {sample.labels["topic"] for sample in samples if sample.name.endswith("log_keys")} == {"orders"}


@pytest.mark.slow
@pytest.mark.spark
def test_spark_submit_on_a_terminal_draws_a_bar(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    command = [spark_home() / "bin/spark-submit", "--master", "local[2]", ROOT / "jobs/compact.py"]
    seen = on_a_terminal(100, [*command, "--log-dir", log_dir, "--topic", "orders", "--dry-run"], tmp_path, COLUMNS="100")
    assert seen.code == 0, seen.text
    assert "pass 1  ─" in seen.text
    assert "pass 2" in seen.text


def test_a_call_as_text_after_one_as_json_in_the_same_process_writes_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    for as_json in (True, False):
        log_lines.configure(as_json=as_json, verbose=False)
    logging.getLogger("other").warning("a warning")
    assert capsys.readouterr().err == "warning: other: a warning\n"


AS_OF_MS = "1798761600000"
FILES = "--report", "report.json", "--metrics", "metrics.txt"
CALLS = {
    "compact": ("compact", "--topic", "orders", "--as-of-ms", AS_OF_MS, *FILES),
    "compact as JSON": ("compact", "--topic", "orders", "--as-of-ms", AS_OF_MS, "--output", "json", *FILES),
    "erase": ("erase", "--topic", "orders", "--where", "prefix=zz", *FILES),
    "dry run": ("dry-run", "--topic", "orders", "--html", "page.html", *FILES),
    "explained": ("dry-run", "--explain", "orders-0", *FILES[:2]),
    "verify": ("verify", "--partition", "orders-0", "--set", "cleanup.policy=compact", *FILES[:2]),
    "count": ("count", "--topic", "orders"),
    "doctor": ("doctor", "--quick", "--topic", "orders", "--set", "cleanup.policy=compact"),
    "help": ("compact", "--help"),
}


def _run(directory: Path, kind: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command whose standard output fails: a pipe without a reader, unless it is full or closed."""
    redirected = {"full": ">/dev/full", "closed": ">&-"}.get(kind, "")
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "compaction", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    reader, out = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            command, cwd=directory, env=environment, stdout=out, stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )
    finally:
        os.close(out)


@pytest.mark.parametrize(
    ("call", "kind"),
    [*((call, "full") for call in CALLS), ("compact", "closed"), ("compact", "without a reader"), ("count", "closed")],
)
def test_files_are_written_and_the_exit_code_is_that_of_the_work(call: str, kind: str, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    name, *options = CALLS[call]
    if name == "verify":
        options += ["--before", str(log_dir), "--after", str(shutil.copytree(log_dir, tmp_path / "after"))]
    else:
        options += ["--log-dir", str(log_dir)]
    done = _run(tmp_path, kind, name, *options)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if not line.startswith("pass ")]
    lost = "error: standard output: No space left on device; the rest of what is printed is lost, files are complete"
    assert told == ([lost] if kind == "full" else [])
    if "--report" in options:
        assert json.loads((tmp_path / "report.json").read_text())["schema_version"] == 1
    if "--metrics" in options:
        assert (tmp_path / "metrics.txt").read_text().endswith("# EOF\n")
    if "--html" in options:
        assert "</html>" in (tmp_path / "page.html").read_text()


def test_unbuffered_output_is_lost_in_the_same_way(tmp_path: Path) -> None:
    call = ["count", "--log-dir", str(unpack_sample(tmp_path)), "--topic", "orders"]
    done = _run(tmp_path, "without a reader", *call, PYTHONUNBUFFERED="1")
    assert done.returncode == 0, done.stderr


def test_closed_streams_do_not_make_a_run_print_into_its_files(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    argv = ["compact", "--log-dir", str(log_dir), "--topic", "orders", "--as-of-ms", AS_OF_MS, "--report", "report.json"]
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "compaction", *argv]
    assert started(command, cwd=tmp_path, PYTHONPATH=str(ROOT)).returncode == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["tool"]["spark"]) == ("done", None)


def test_a_dump_is_a_product_that_must_be_complete(tmp_path: Path) -> None:
    call = "dump-log", "--files", str(unpack_sample(tmp_path) / "orders-0")
    done = _run(tmp_path, "full", *call)
    assert (done.returncode, done.stderr) == (1, "error: standard output: cannot be written: No space left on device\n")
    done = _run(tmp_path, "without a reader", *call)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_dump_ends_without_an_error_if_its_reader_closes_the_pipe(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "long-0", batches=1_500).path
    call = [sys.executable, "-m", "compaction", "dump-log", "--files", str(segment), "--print-data-log"]
    with subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None and started.stderr is not None
        assert started.stdout.readline() == f"Dumping {segment}\n"
        started.stdout.close()
        assert (started.stderr.read(), started.wait(timeout=120)) == ("", 0)
