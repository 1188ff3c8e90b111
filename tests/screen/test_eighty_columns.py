"""What commands print fits a terminal of 80 columns, and so do tables and help in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

import pytest

import compaction
from compaction.cli import console
from tests.golden import unpack_sample

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
    "settings that fit": ("dry-run", "--log-dir", "logs", *NOW, "--topic", "orders", "--over-time", "--fit", "100kB"),
    "counts": ("count", "--log-dir", "logs", "--partitions", "--top", "3"),
    "bytes": ("count", "--log-dir", "logs", "--bytes", "--group-by", r"regex:^(\w+)-", "--top", "3"),
    "segments to expire": ("expire", "--log-dir", "logs", *NOW, "--dry-run", "--verbose"),
    "a run": ("compact", "--log-dir", "logs", *NOW, "--output-dir", "copy", "--verify"),
    "a verification": ("verify", "--in-place", "cleaned", *NOW),
    "why": ("verify", "--in-place", "cleaned", *NOW, "--why", "orders-0:3"),
    "health": ("doctor", "--log-dir", "logs"),
    "kernels": ("warm-up", "--status"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("columns")
    for name in ("logs", "cleaned"):
        unpack_sample(made / "sample").rename(made / name)
    compaction.compact(made / "cleaned", as_of=NOW[1], engine="local")
    return made


@contextmanager
def terminal() -> Iterator[list[bytes]]:
    """Standard output is a terminal; at the end, what was printed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    shown: list[bytes] = []

    def read() -> None:
        # Linux reports the end of a terminal as EIO
        with suppress(OSError):
            while block := os.read(ours, 1 << 16):
                shown.append(block)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as stream, redirect_stdout(stream):
            yield shown
    finally:
        reader.join()
        os.close(ours)


@pytest.mark.parametrize("name", CALLS)
def test_what_a_command_prints_fits_a_terminal(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("TERM", "dumb")
    with terminal() as shown:
        assert console.main(CALLS[name]) == 0 or name == "kernels"
    lines = b"".join(shown).decode().splitlines()
    assert len(lines) > 1 or name == "why"
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("command", ["", *(command.name for command in console.COMMANDS)])
def test_help_fits_80_columns(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert console.main([*filter(None, [command]), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert lines[0].startswith(f"usage: kafka-log-compaction {command or 'COMMAND'} ")
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.parametrize("name", ["policies", "through time", "bytes", "counts"])
def test_tables_in_a_pipe_fit_80_columns(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sentences are on one line, for tools that search lines; figures are separated by two spaces."""
    monkeypatch.chdir(place)
    assert console.main(CALLS[name]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if re.search(r"\S  +\S+", line)]
    assert len(rows) > 4
    assert [line for line in rows if len(line) > COLUMNS and not re.match(r"\w+: ", line)] == []
