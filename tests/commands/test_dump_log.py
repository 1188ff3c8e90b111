"""``dump-log`` as a process, and its readers that stop; ``calls/dump_log.txt`` has its calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.dumping.segments import write_segment

ROOT = Path(__file__).resolve().parents[2]


def command(*argv: object) -> list[str]:
    return [sys.executable, str(ROOT / "jobs" / "dump_log.py"), *map(str, argv)]


def test_the_job_file_runs_as_a_script(tmp_path: Path) -> None:
    path = write_segment(tmp_path / "one-0").path
    done = subprocess.run(command("--files", path), cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Dumping {path}\n")


def test_it_ends_without_an_error_if_the_reader_closes_the_pipe(tmp_path: Path) -> None:
    call = command("--files", write_segment(tmp_path / "long-0", batches=1_500).path, "--print-data-log")
    with subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.readline()
        started.stdout.close()
        assert started.stderr.read() == ""
        assert started.wait(timeout=120) == 0
