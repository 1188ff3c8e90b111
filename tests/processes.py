"""Commands in processes of their own: through pipes, and on a terminal."""

from __future__ import annotations

import fcntl
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
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run(*words: object, cwd: Path = ROOT, without: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    """``kafka-log-compaction WORDS``; see ``started``."""
    variables = {"PYTHONPATH": str(ROOT), **variables}
    return started([sys.executable, "-m", "jobs", *words], cwd=cwd, without=without, **variables)


def started(
    command: Sequence[object], *, cwd: Path = ROOT, without: tuple[str, ...] = (), given: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """A command in the environment of this process and ``variables``.

    :param without: beginnings of the names of variables that it does not have
    :param given: its standard input
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env={**kept, **variables}, input=given, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip


def output_of(command: Sequence[object], **options: Any) -> str:
    """The standard output of a command that ends with 0; see ``started``."""
    done = started(command, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


class Seen(NamedTuple):
    """The exit code of a command, what was on its terminal, and after how many seconds the first of it."""

    code: int
    text: str
    first_s: float

    @property
    def final(self) -> list[str]:
        """The lines that remain on the terminal, without colours."""
        lines = self.text.replace("\r\n", "\n").split("\n")
        return [_CODES.sub("", line.rpartition("\r\x1b[2K")[2]).rpartition("\r")[2] for line in lines]


def on_a_terminal(columns: int, command: Sequence[object], cwd: Path = ROOT, **environment: str) -> Seen:
    """Runs a command on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    started, first_s, shown = time.monotonic(), None, b""
    with subprocess.Popen(
        list(map(str, command)), cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs,
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
