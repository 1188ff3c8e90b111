"""What users see: commands on a pseudo-terminal, through a pipe, and under ``spark-submit``."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.golden import unpack_sample
from tests.kafka.jars import spark_home
from tests.screen.golden_text import check_golden

ROOT = Path(__file__).resolve().parents[2]
AS_OF_MS = 1_798_761_600_000
POLICIES = ("--policy", "cleanup.policy=compact", "cleanup.policy=delete,retention.ms=259200000")
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Seen(NamedTuple):
    """The exit code of a command, what was on its terminal, and after how many seconds the first of it."""

    code: int
    text: str
    first_s: float

    @property
    def final(self) -> list[str]:
        """The lines that remain on the terminal, without colours."""
        lines = self.text.replace("\r\n", "\n").split("\n")
        return [CODES.sub("", line.rpartition("\r\x1b[2K")[2]).rpartition("\r")[2] for line in lines]


def on_a_terminal(columns: int, command: Sequence[object], **environment: str) -> Seen:
    """Runs a command on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    started, first_s, shown = time.monotonic(), None, b""
    with subprocess.Popen(
        list(map(str, command)), cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**variables, "TERM": "xterm", "PYSPARK_PYTHON": sys.executable, **environment},
    ) as process:  # fmt: skip
        os.close(theirs)
        while part := _read(ours):
            first_s = first_s or time.monotonic() - started
            shown += part
    os.close(ours)
    return Seen(process.returncode, shown.decode(), first_s or 0.0)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        # the process closed the other end
        return b""


def console(command: str, log_dir: Path, *options: object) -> list[object]:
    fixed = ("--as-of-ms", AS_OF_MS)
    return [sys.executable, "-m", "jobs", command, "--log-dir", log_dir, *fixed, *options]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, for commands that only read it."""
    return unpack_sample(tmp_path_factory.mktemp("sample"))


def timeless(text: str) -> str:
    """``text`` without how long it took."""
    return re.sub(r"in \d+\.\d s", "in 1.0 s", text)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_expire_on_a_terminal(columns: int, sample: Path, request: pytest.FixtureRequest) -> None:
    seen = on_a_terminal(columns, console("expire", sample, "--dry-run"))
    assert seen.code == 0, seen.text
    check_golden(f"expire-sample-{columns}", timeless("\n".join(seen.final)), request)
    assert "\x1b[32m" in seen.text
    assert "looking for logs in " in seen.text


@pytest.mark.parametrize(("command", "first"), [(("count",), "topic "), (("doctor", "--quick"), "machine")])
def test_what_is_printed_does_not_stand_behind_the_status_line(sample: Path, command: tuple[str, ...], first: str) -> None:
    seen = on_a_terminal(80, [sys.executable, "-m", "jobs", command[0], "--log-dir", sample, *command[1:]])
    assert "looking for logs in " in seen.text
    assert [line for line in seen.final if " ..." in line] == []
    assert seen.final[0].startswith(first)


def test_something_is_on_the_terminal_within_a_second(sample: Path) -> None:
    # other processes of a busy machine take their part
    limit_s = max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))
    seen = (on_a_terminal(80, console("expire", sample, "--dry-run")) for _ in range(3))
    assert any(each.first_s < limit_s for each in seen)


@pytest.mark.slow
@pytest.mark.spark
def test_the_same_bytes_are_meant_by_a_run_and_a_comparison(tmp_path: Path) -> None:
    """A comparison on a terminal, and a run in place: the same sizes on disk, which are those of the files."""
    log_dir = unpack_sample(tmp_path)
    seen = on_a_terminal(80, console("dry-run", log_dir, *POLICIES, "--include-active", "--engine", "spark"))
    assert seen.code == 0, seen.text
    first = next(line.split() for line in seen.final if line.startswith("A  ") and "kB" in line)
    assert all(len(line) <= 80 for line in seen.final)
    assert "\r\x1b[2Kpass 1  ─" in seen.text
    steps = [each for each in ("looking for logs in", "reading 16 logs", "starting Spark") if each in seen.text]
    assert len(steps) == 3
    setting = ("--set", "cleanup.policy=compact", "--include-active", "--engine", "spark")
    call = console("compact", log_dir, *setting, "--output", "json", "--log-format", "json")
    run = subprocess.run(list(map(str, call)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    totals = json.loads(run.stdout)["totals"]
    assert [f"{totals[name] / 1000:.1f}" for name in ("disk_bytes_before", "disk_bytes_after")] == [first[1], first[3]]
    assert all(json.loads(line)["level"] == "INFO" for line in run.stderr.splitlines())
    logs = [file for file in log_dir.rglob("*.log") if "__cluster_metadata" not in str(file)]
    assert sum(file.stat().st_size for file in logs) == totals["disk_bytes_after"]
    assert json.loads(run.stdout)["tool"]["spark"]


@pytest.mark.slow
@pytest.mark.spark
def test_under_spark_submit_standard_output_has_the_document_alone(tmp_path: Path) -> None:
    """On standard error, all lines of the command are JSON; Spark and the JVM add their own at their start."""
    log_dir = unpack_sample(tmp_path / "sample")
    command = [spark_home() / "bin/spark-submit", "--master", "local[2]", ROOT / "jobs/compact.py", "--log-dir", log_dir]
    options = ["--topic", "prices", "--dry-run", "--output", "json", "--log-format", "json", "--as-of-ms", AS_OF_MS]
    with (tmp_path / "errors").open("wb") as errors:
        done = subprocess.run(
            list(map(str, command + options)), stdout=subprocess.PIPE, stderr=errors, check=False, cwd=tmp_path,
            env={**os.environ, "SPARK_CONF_DIR": str(tmp_path / "none"), "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip
    told = (tmp_path / "errors").read_text()
    assert done.returncode == 0, told
    assert json.loads(done.stdout)["totals"]["cleaned"] == 1
    own = [json.loads(line)["message"].split(":")[0] for line in told.splitlines() if line.startswith("{")]
    # on a busy machine also which steps take long
    assert [each for each in own if not each.endswith(" ...")] == ["pass 1", "pass 2"]
