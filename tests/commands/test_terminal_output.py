"""What users see, on a pseudo-terminal, through a pipe and under ``spark-submit``: fits its width, and is escaped."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

import compaction
from compaction.cli import console, standard_streams
from compaction.commands import compact, dry_run
from tests.damage.valid_logs import NOW_MS, valid_log, write_log
from tests.golden import unpack_sample
from tests.kafka.encode import Batch, Record
from tests.kafka.jars import spark_home
from tests.processes import ROOT, on_a_terminal, run, started
from tests.screen.golden_text import check_golden

AS_OF_MS = 1_798_761_600_000
TWO_POLICIES = ("--policy", "cleanup.policy=compact", "cleanup.policy=delete,retention.ms=259200000")


def command_line(command: str, log_dir: Path, *options: object) -> list[object]:
    return [sys.executable, "-m", "jobs", command, "--log-dir", log_dir, "--as-of-ms", AS_OF_MS, *options]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample logs, for commands that only read them, and the same compacted."""
    made = tmp_path_factory.mktemp("columns")
    for name in ("logs", "cleaned"):
        unpack_sample(made / "sample").rename(made / name)
    compaction.compact(made / "cleaned", as_of=NOW[1], engine="local")
    return made


@pytest.fixture(scope="module")
def sample(place: Path) -> Path:
    return place / "logs"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_expire_on_a_terminal(columns: int, sample: Path, request: pytest.FixtureRequest) -> None:
    seen = on_a_terminal(columns, command_line("expire", sample, "--dry-run"))
    assert seen.code == 0, seen.text
    check_golden(f"expire-sample-{columns}", re.sub(r"in \d+\.\d s", "in 1.0 s", "\n".join(seen.final)), request)
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
    seen = (on_a_terminal(80, command_line("expire", sample, "--dry-run")) for _ in range(3))
    assert any(each.first_s < limit_s for each in seen)


@pytest.mark.slow
@pytest.mark.spark
def test_the_same_bytes_are_meant_by_a_run_and_a_comparison(tmp_path: Path) -> None:
    """A comparison on a terminal, and a run in place: the same sizes on disk, which are those of the files."""
    log_dir = unpack_sample(tmp_path)
    seen = on_a_terminal(80, command_line("dry-run", log_dir, *TWO_POLICIES, "--include-active", "--engine", "spark"))
    assert seen.code == 0, seen.text
    first = next(line.split() for line in seen.final if line.startswith("A  ") and "kB" in line)
    assert all(len(line) <= 80 for line in seen.final)
    assert "\r\x1b[2Kpass 1  ─" in seen.text
    steps = [each for each in ("looking for logs in", "reading 16 logs", "starting Spark") if each in seen.text]
    assert len(steps) == 3
    setting = ("--set", "cleanup.policy=compact", "--include-active", "--engine", "spark")
    call = command_line("compact", log_dir, *setting, "--output", "json", "--log-format", "json")
    done = run(*call[3:])
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout)["totals"]
    assert [f"{totals[name] / 1000:.1f}" for name in ("disk_bytes_before", "disk_bytes_after")] == [first[1], first[3]]
    assert all(json.loads(line)["level"] == "INFO" for line in done.stderr.splitlines())
    logs = [file for file in log_dir.rglob("*.log") if "__cluster_metadata" not in str(file)]
    assert sum(file.stat().st_size for file in logs) == totals["disk_bytes_after"]
    assert json.loads(done.stdout)["tool"]["spark"]


@pytest.mark.slow
@pytest.mark.spark
def test_under_spark_submit_standard_output_has_the_document_alone(tmp_path: Path) -> None:
    """On standard error, all lines of the command are JSON; Spark and the JVM add their own at their start."""
    log_dir = unpack_sample(tmp_path / "sample")
    command = [spark_home() / "bin/spark-submit", "--master", "local[2]", ROOT / "jobs/compact.py", "--log-dir", log_dir]
    command += ["--topic", "prices", "--dry-run", "--output", "json", "--log-format", "json", "--as-of-ms", AS_OF_MS]
    done = started(command, cwd=tmp_path, SPARK_CONF_DIR=str(tmp_path / "none"), PYSPARK_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["totals"]["cleaned"] == 1
    own = [json.loads(line)["message"].split(":")[0] for line in done.stderr.splitlines() if line.startswith("{")]
    # on a busy machine also which steps take long, and a pass again while it goes on
    assert [*dict.fromkeys(each for each in own if not each.endswith(" ..."))] == ["pass 1", "pass 2"]


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


def on_a_dumb_terminal(*command: str) -> bytes:
    """The output of a command on a terminal, on which it draws nothing."""
    # with colorama, which the suites install, numba ends a process on a terminal by resetting the colours
    return on_a_terminal(80, command, TERM="dumb", NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING="1").text.encode()


@pytest.mark.parametrize(
    ("command", "options", "names"),
    [(compact, CLEANING, ("report", "metrics")), (dry_run, CLEANING[:2], ("report", "metrics", "html"))],
    ids=["a run", "a comparison"],
)
def test_names_are_escaped_in_all_that_a_command_writes(
    command: ModuleType,
    options: Sequence[str],
    names: Sequence[str],
    log_dir: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    assert command.main(["--log-dir", str(log_dir), *options, *outputs(tmp_path, *names)]) == 1
    printed = capsysbinary.readouterr()
    files = {name: (tmp_path / name).read_bytes() for name in names}
    assert all(map(harmless, (printed.out, printed.err, *files.values())))
    assert SHOWN.encode() in printed.err
    # JSON has its own escapes for Unicode characters
    report = json.loads(files.pop("report"))
    assert [log["log_dir"] for log in report["logs"]] == [f"{tmp_path}/\\udcff \x1b[31m[red]\u202e"] * 2
    assert all(SHOWN.replace("\\", "\\\\").encode() in data for data in files.values())


@pytest.mark.slow
@pytest.mark.spark
def test_runs_on_spark_have_all_names_in_json_lines_and_in_ascii_locales(log_dir: Path, tmp_path: Path) -> None:
    arguments = ["--log-dir", str(log_dir), *CLEANING, *outputs(tmp_path, "report", "metrics"), "--log-format", "json"]
    done = run("compact", "--engine", "spark", *arguments, PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    (error,) = [line["message"] for line in lines if line["level"] == "ERROR"]
    assert SHOWN in error
    assert harmless(done.stdout.encode())
    assert json.loads((tmp_path / "report").read_text())["totals"]["cleaned"] == 1
    assert (tmp_path / "metrics").read_text().endswith("# EOF\n")


#: a key with control characters
KEY = b"\x1b]0;owned\x07\xc2\x9b2J\xe2\x80\xae\tend"


def test_a_pipe_receives_a_dump_unchanged_and_a_terminal_escaped(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(Batch([Record(0, NOW_MS, KEY, b"\x1b[2J")]).encode())
    call = ("--files", str(path), "--print-data-log")
    assert f" key: {KEY.decode()} payload: \x1b[2J\n" in run("dump-log", *call).stdout
    shown = on_a_dumb_terminal(sys.executable, "-m", "jobs.dump_log", *call)
    assert b"key: \\x1b]0;owned\\x07\\x9b2J\\u202e\tend payload: \\x1b[2J\r\n" in shown
    assert harmless(shown)


def test_a_terminal_receives_names_escaped(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2J"
    path.touch()
    shown = on_a_dumb_terminal(sys.executable, "-m", "jobs.dump_log", "--files", str(path))
    assert harmless(shown)
    assert shown.count(b"\\x1b[2J") == 2


COLUMNS = 80
NOW = ("--as-of", "2027-01-01T00:00Z")
LONG = "cleanup.policy=[compact,delete],retention.ms=-1,retention.bytes=40kB"
POLICIES = ("--policy", "cleanup.policy=compact", "--policy", LONG)
#: calls on the sample logs in ``logs``, and on those that were compacted in ``cleaned``
CALLS = {
    "a dry run": ("compact", "--log-dir", "logs", *NOW, "--dry-run", "--verbose", "--all"),
    "policies": ("dry-run", "--log-dir", "logs", *NOW, *POLICIES),
    "policies of each log": ("dry-run", "--log-dir", "logs", *NOW, *POLICIES, "--all", "--verbose"),
    "reasons": ("dry-run", "--log-dir", "logs", *NOW, "--explain", "orders-0", "payments-open-0"),
    "through time": ("dry-run", "--log-dir", "logs", *NOW, "--topic", "orders", *POLICIES, "--over-time", "--all", "--verbose"),
    "counts": ("count", "--log-dir", "logs", "--partitions", "--top", "3"),
    "bytes": ("count", "--log-dir", "logs", "--bytes", "--group-by", r"regex:^(\w+)-", "--top", "3"),
    "segments to expire": ("expire", "--log-dir", "logs", *NOW, "--dry-run", "--verbose"),
    "a run": ("compact", "--log-dir", "logs", *NOW, "--output-dir", "copy", "--verify"),
    "a verification": ("verify", "--in-place", "cleaned", *NOW),
    "why": ("verify", "--in-place", "cleaned", *NOW, "--why", "orders-0:3"),
    "health": ("doctor", "--log-dir", "logs"),
    "kernels": ("warm-up", "--status"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_command_prints_fits_a_terminal(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(standard_streams, "terminal_width", lambda stream: COLUMNS)
    assert console.main(CALLS[name]) == 0 or name == "kernels"
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1 or name == "why"
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("command", ["", *console.COMMANDS])
def test_help_fits_80_columns(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert console.main([*filter(None, [command]), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert lines[0].startswith(f"usage: kafka-log-compaction {command or 'COMMAND'} ")
    assert [line for line in lines if len(line) > COLUMNS] == []
