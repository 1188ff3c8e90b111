"""Standard error of the commands as text, as JSON and on a terminal; metrics files."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from compaction.cli import execution, log_lines
from compaction.commands import compact, dry_run
from compaction.policies.compare_policies import compare_with
from compaction.run import waves
from compaction.screen.steps import WaveProgress, begin_wave, step
from tests.executed import executed
from tests.golden import unpack_sample
from tests.kafka.jars import spark_home
from tests.local_passes import LocalPasses

ROOT = Path(__file__).resolve().parents[2]


def run(*options: str | Path, job: str = "compact") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs", job, *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def test_a_usage_error_is_one_json_object_if_json_is_chosen() -> None:
    for log_format in (("--log-format", "json"), ("--log-format=json",)):
        done = run("--log-dir", "/no/such/directory", *log_format)
        assert done.returncode == 2
        told = json.loads(done.stderr)
        assert (told["level"], told["logger"]) == ("ERROR", "kafka_log_compaction")
        assert told["message"].startswith("/no/such/directory: ")
        assert told["time"].endswith("+00:00")


def test_an_unknown_log_format_is_a_usage_error() -> None:
    done = run("--log-dir", ".", "--log-format", "xml")
    assert done.returncode == 2
    assert "invalid choice: 'xml'" in done.stderr


def test_a_metrics_file_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    done = run("--log-dir", log_dir, "--metrics", tmp_path / "missing/metrics.txt")
    assert done.returncode == 2
    assert "missing" in done.stderr


def test_expire_writes_metrics_too(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    done = run("--log-dir", log_dir, "--dry-run", "--metrics", tmp_path / "m.txt", job="expire")
    assert done.returncode == 0, done.stderr
    families = {family.name for family in text_string_to_metric_families((tmp_path / "m.txt").read_text())}
    assert "kafka_log_compaction_log_expired_bytes" in families


def test_metrics_are_written_again_after_each_wave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir, file = unpack_sample(tmp_path), tmp_path / "m.txt"
    texts: list[str] = []

    def write(path: str, text: str, mode: int) -> None:
        assert path == str(file)
        texts.append(text)

    monkeypatch.setattr(execution, "write_text", write)
    monkeypatch.setattr(waves, "_MOST_SEGMENTS", 1)
    options = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0", "--metrics", str(file), "--quiet")
    assert compact.main(["--log-dir", str(log_dir), *options]) == 0
    assert len(texts) > 3
    assert ['status="running"' in text for text in texts] == [True] * (len(texts) - 2) + [False] * 2
    counts = [text.count("kafka_log_compaction_wave_seconds{") for text in texts]
    assert counts == [*range(1, len(texts)), len(texts) - 1]


def test_metrics_that_are_refused_during_a_run_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir, metrics = unpack_sample(tmp_path), tmp_path / "there"
    metrics.mkdir()
    monkeypatch.setattr(execution, "check_writable", lambda path: None)
    monkeypatch.setattr(waves, "_MOST_SEGMENTS", 1)
    options = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0", "--metrics", str(metrics), "--quiet")
    assert compact.main(["--log-dir", str(log_dir), *options]) == 1
    refused = f"{metrics}: cannot be written: Is a directory"
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings and set(warnings) == {refused}
    assert capsys.readouterr().err == f"error: {refused}\n"


WAVE_LINE = "wave 2 of about 5, 1.0 GB of 4.0 GB done, 50.0 MB/s, about 1 min 0 s left"


def test_a_wave_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = WaveProgress(2, 5, 10**9, 3 * 10**9, 50 * 10**6, 60.0)
    for log_format, quiet in ((log_lines.TEXT, False), (log_lines.TEXT, True), (log_lines.JSON, False)):
        log_lines.configure(log_format, verbose=False, quiet=quiet)
        begin_wave(progress)
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
    text = run("--log-dir", log_dir, "--topic", "orders", "--dry-run", "--metrics", metrics)
    assert text.returncode == 0, text.stderr
    assert [line.split(":")[0] for line in text.stderr.splitlines() if line.startswith("pass ")] == ["pass 1", "pass 2"]
    samples = [sample for family in text_string_to_metric_families(metrics.read_text()) for sample in family.samples]
    assert {sample.labels["topic"] for sample in samples if sample.name.endswith("log_keys")} == {"orders"}


@pytest.mark.slow
@pytest.mark.spark
def test_spark_submit_on_a_terminal_draws_a_bar(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    command = [str(spark_home() / "bin/spark-submit"), "--master", "local[2]", str(ROOT / "jobs/compact.py")]
    mine, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "PYSPARK_PYTHON": sys.executable, "COLUMNS": "100"}
    with subprocess.Popen(
        [*command, "--log-dir", str(log_dir), "--topic", "orders", "--dry-run"],
        cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=theirs,
    ) as job:  # fmt: skip
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(mine, 65536)
            except OSError:
                break
            if not part:
                break
            shown += part
    os.close(mine)
    assert job.returncode == 0, shown.decode(errors="replace")
    text = shown.decode(errors="replace")
    assert "pass 1  ─" in text
    assert "pass 2" in text


def test_dump_log_writes_errors_and_findings_as_json_too(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    log = next((log_dir / "orders-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[30] ^= 1
    log.write_bytes(data)
    (log_dir / "orders-0" / "notes.txt").touch()
    done = run("--files", log, log_dir / "orders-0" / "notes.txt", "--log-format", "json", job="dump-log")
    assert done.returncode == 1
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [each["level"] for each in told] == ["WARNING", "ERROR"]
    assert told[0]["message"].startswith("Ignoring unknown file")
    assert "fails its CRC" in told[1]["message"]
    assert done.stdout.startswith("Dumping ")


def test_a_comparison_writes_metrics(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    metrics = tmp_path / "metrics.txt"
    policies = ("--policy", "configured", "cleanup.policy=compact")
    arguments = ["--log-dir", str(log_dir), "--topic", "orders", "--metrics", str(metrics), *policies]
    assert executed(dry_run, arguments, lambda _, request: compare_with(LocalPasses, request)) == 0
    samples = [sample for family in text_string_to_metric_families(metrics.read_text()) for sample in family.samples]
    found = {sample.labels["policy"] for sample in samples if sample.name.endswith("policy_log_records")}
    assert found == {"configured", "cleanup.policy=compact"}
