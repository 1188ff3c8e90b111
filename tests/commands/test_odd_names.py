"""Names that are not UTF-8 or contain control characters: every output has them, escaped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compaction.commands import compact, dry_run
from tests.commands.test_terminal_output import on_a_terminal as seen_on_a_terminal
from tests.damage.valid_logs import NOW_MS, valid_log, write_log
from tests.kafka.encode import Batch, Record

ROOT = Path(__file__).resolve().parents[2]
ODD = b"\xff \x1b[31m[red]\xe2\x80\xae"
SHOWN = "\\udcff \\x1b[31m[red]\\u202e"
CLEANING = ("--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0", "--as-of-ms", str(NOW_MS))
OBEYED = (b"\x1b", "\u202e".encode(), b"\xff")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A valid log, and one whose segment is malformed."""
    made = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + ODD))
    write_log(made / "sound-0", valid_log("none").files)
    write_log(made / "damaged-0", {f"{0:020d}.log": b"\x1b" * 100, f"{50:020d}.log": b""})
    return made


def outputs(tmp_path: Path, *names: str) -> list[str]:
    return [argument for name in names for argument in (f"--{name}", str(tmp_path / name))]


def harmless(data: bytes) -> bool:
    data.decode()
    return not any(each in data for each in OBEYED)


def run(*arguments: str, command: str = "compact", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", f"jobs.{command}", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, check=False,
    )  # fmt: skip


def on_a_terminal(*command: str) -> bytes:
    """The output of a command on a terminal, on which it draws nothing."""
    # with colorama, which the suites install, numba ends a process on a terminal by resetting the colours
    return seen_on_a_terminal(80, command, TERM="dumb", NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING="1").text.encode()


def test_report_and_metrics_of_a_run_have_all_names(
    log_dir: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    arguments = ["--log-dir", str(log_dir), *CLEANING, *outputs(tmp_path, "report", "metrics")]
    assert compact.main(arguments) == 1
    printed = capsysbinary.readouterr()
    for data in (printed.out, printed.err, *((tmp_path / name).read_bytes() for name in ("report", "metrics"))):
        assert harmless(data)
    assert SHOWN.encode() in printed.err
    report = json.loads((tmp_path / "report").read_text())
    assert {log["status"] for log in report["logs"]} == {"cleaned", "failed"}
    # JSON has its own escapes for Unicode characters
    assert {log["log_dir"] for log in report["logs"]} == {f"{tmp_path}/\\udcff \x1b[31m[red]\u202e"}
    assert SHOWN.replace("\\", "\\\\") in (tmp_path / "metrics").read_text()


@pytest.mark.slow
@pytest.mark.spark
def test_runs_on_spark_have_all_names_in_json_lines_and_in_ascii_locales(log_dir: Path, tmp_path: Path) -> None:
    arguments = ["--log-dir", str(log_dir), *CLEANING, *outputs(tmp_path, "report", "metrics"), "--log-format", "json"]
    done = run("--engine", "spark", *arguments, PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith(b"{")]
    (error,) = [line["message"] for line in lines if line["level"] == "ERROR"]
    assert SHOWN in error
    assert harmless(done.stdout)
    assert json.loads((tmp_path / "report").read_text())["totals"]["cleaned"] == 1
    assert (tmp_path / "metrics").read_text().endswith("# EOF\n")


def test_the_page_of_a_comparison_has_all_names(
    log_dir: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    files = outputs(tmp_path, "report", "metrics", "html")
    arguments = ["--log-dir", str(log_dir), "--policy", "cleanup.policy=compact", *files]
    assert dry_run.main(arguments) == 1
    assert all(harmless((tmp_path / name).read_bytes()) for name in ("report", "metrics", "html"))
    assert SHOWN.replace("\\", "\\\\").encode() in (tmp_path / "html").read_bytes()
    printed = capsysbinary.readouterr()
    assert SHOWN.encode() in printed.err
    assert harmless(printed.out)


class TestDump:
    """Keys and values with control characters."""

    KEY = b"\x1b]0;owned\x07\xc2\x9b2J\xe2\x80\xae\tend"

    @pytest.fixture
    def segment(self, tmp_path: Path) -> str:
        path = tmp_path / f"{0:020d}.log"
        path.write_bytes(Batch([Record(0, NOW_MS, self.KEY, b"\x1b[2J")]).encode())
        return str(path)

    def test_a_pipe_receives_the_bytes_unchanged(self, segment: str) -> None:
        done = run("--files", segment, "--print-data-log", command="dump_log")
        assert b" key: " + self.KEY + b" payload: \x1b[2J\n" in done.stdout

    def test_a_terminal_receives_them_escaped(self, segment: str) -> None:
        shown = on_a_terminal(sys.executable, "-m", "jobs.dump_log", "--files", segment, "--print-data-log")
        assert b"key: \\x1b]0;owned\\x07\\x9b2J\\u202e\tend payload: \\x1b[2J\r\n" in shown
        assert harmless(shown)

    def test_a_terminal_receives_names_escaped(self, tmp_path: Path) -> None:
        path = tmp_path / "\x1b[2J"
        path.touch()
        shown = on_a_terminal(sys.executable, "-m", "jobs.dump_log", "--files", str(path))
        assert harmless(shown)
        assert shown.count(b"\\x1b[2J") == 2
