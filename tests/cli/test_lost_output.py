"""Commands whose standard output is full, closed, or a pipe without a reader: files are written, and the exit code is that of
the work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dumping.segments import write_segment
from tests.golden import unpack_sample

ROOT = Path(__file__).resolve().parents[2]
AS_OF_MS = "1798761600000"
CALLS = {
    "compact": ("compact", "--topic", "orders", "--as-of-ms", AS_OF_MS),
    "compact as JSON": ("compact", "--topic", "orders", "--as-of-ms", AS_OF_MS, "--output", "json"),
    "erase": ("erase", "--topic", "orders", "--where", "prefix=zz"),
    "dry run": ("dry-run", "--topic", "orders", "--html", "page.html"),
    "explained": ("dry-run", "--explain", "orders-0"),
    "verify": ("verify", "--partition", "orders-0", "--set", "cleanup.policy=compact"),
    "count": ("count", "--topic", "orders"),
    "doctor": ("doctor", "--quick", "--topic", "orders", "--set", "cleanup.policy=compact"),
    "help": ("compact", "--help"),
}
_WITHOUT_METRICS = ("explained", "verify")
_WITHOUT_FILES = ("count", "doctor", "help")


@contextmanager
def _stdout(kind: str) -> Iterator[int]:
    """A standard output that fails."""
    if kind == "full":
        opened = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, opened = os.pipe()
        os.close(reader)
    try:
        yield opened
    finally:
        os.close(opened)


def _run(directory: Path, kind: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "compaction", *arguments]
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    if kind == "closed":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
        kind = "full"
    with _stdout(kind) as out:
        return subprocess.run(
            command, cwd=directory, env=environment, stdout=out, stderr=subprocess.PIPE, text=True, check=False, timeout=120
        )


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
    if call not in _WITHOUT_FILES:
        options += ["--report", "report.json"]
        options += [] if call in _WITHOUT_METRICS else ["--metrics", "metrics.txt"]
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
    log_dir = unpack_sample(tmp_path)
    done = _run(tmp_path, "without a reader", "count", "--log-dir", str(log_dir), "--topic", "orders", PYTHONUNBUFFERED="1")
    assert done.returncode == 0, done.stderr


def test_closed_streams_do_not_make_a_run_print_into_its_files(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    argv = ["compact", "--log-dir", str(log_dir), "--topic", "orders", "--as-of-ms", AS_OF_MS, "--report", "report.json"]
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "compaction", *argv]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=120)
    assert done.returncode == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["status"] == "done"


def test_a_dump_is_a_product_that_must_be_complete(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    done = _run(tmp_path, "full", "dump-log", "--files", str(log_dir / "orders-0"))
    assert (done.returncode, done.stderr) == (1, "error: standard output: cannot be written: No space left on device\n")
    done = _run(tmp_path, "without a reader", "dump-log", "--files", str(log_dir / "orders-0"))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_dump_ends_without_an_error_if_its_reader_closes_the_pipe(tmp_path: Path) -> None:
    segment = write_segment(tmp_path / "long-0", batches=1_500).path
    call = [sys.executable, "-m", "compaction", "dump-log", "--files", str(segment), "--print-data-log"]
    with subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None and started.stderr is not None
        assert started.stdout.readline() == f"Dumping {segment}\n"
        started.stdout.close()
        assert (started.stderr.read(), started.wait(timeout=120)) == ("", 0)
