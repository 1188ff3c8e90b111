"""Standard error of the commands as text, as JSON and on a terminal; metrics files."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from compaction.cli import execution, log_lines
from compaction.commands import compact
from compaction.run import waves
from compaction.screen.steps import WaveProgress, begin_wave, step
from tests.golden import unpack_sample
from tests.kafka.jars import spark_home

ROOT = Path(__file__).resolve().parents[2]


def run(*options: str | Path, job: str = "compact") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jobs", job, *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


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


def test_a_call_as_text_after_one_as_json_in_the_same_process_writes_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    for log_format in ("json", "text"):
        log_lines.configure(log_format, verbose=False)
    logging.getLogger("other").warning("a warning")
    assert capsys.readouterr().err == "warning: other: a warning\n"
