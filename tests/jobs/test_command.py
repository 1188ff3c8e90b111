"""How commands start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", ["compact", "dump-log", "count", "doctor"])
def test_a_removed_working_directory_is_one_line(tmp_path: Path, command: str) -> None:
    options = {"dump-log": ["--files", "a-0"], "doctor": []}.get(command, ["--log-dir", "logs"])
    (tmp_path / "gone").mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    called = ["/bin/sh", "-c", script, "sh", str(tmp_path / "gone"), sys.executable, "-m", "jobs", command, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(called, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the working directory has been removed; change to another one, e.g. cd /\n"
