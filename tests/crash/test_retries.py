"""Tasks that fail, run twice, or lose their executor or their input: the result has the same bytes, and no file is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.standalone import standalone
from tests.crash.faulty_tasks import MARKS
from tests.crash.retry_job import CONFIG, SIZES
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.local_job import clean_locally

pytestmark = [pytest.mark.crash, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("none", "zstd", "mixed", "transactions")
CLUSTER = "local-cluster[2,1,1024]"
LOCAL = "local[2,16]"
HOSTS = ("127.0.0.1", "127.0.0.2")

Contents = dict[str, dict[str, tuple[bytes, int, int]]]


def _logs(log_dir: Path) -> Path:
    for kind in KINDS:
        write_log(log_dir / f"{kind}-0", valid_log(kind, segments=7).files)
    return log_dir


def _contents(log_dir: Path) -> Contents:
    found = {path.name: look_at(path) for path in log_dir.iterdir() if path.is_dir()}
    checkpoint = (log_dir / "cleaner-offset-checkpoint").read_bytes()
    return {**found, "checkpoint": {"cleaner-offset-checkpoint": (b"".join(sorted(checkpoint.splitlines())), 0, 0)}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    log_dir = _logs(tmp_path_factory.mktemp("undisturbed"))
    clean_locally(log_dir, NOW_MS, dict.fromkeys(KINDS, CONFIG), SIZES)
    return _contents(log_dir)


def _run(log_dir: Path, master: str, fault: str, marks: Path) -> set[str]:
    """Clean the logs; returns the faults that occurred."""
    marks.mkdir()
    environment = {**os.environ, MARKS: str(marks), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "tests.crash.retry_job", str(log_dir), master, fault]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return {mark.name for mark in marks.iterdir() if "-" not in mark.name}


FAULTS = {
    ("tasks", LOCAL): {"half.0", "half.1", "half.2", "done.0", "done.1", "done.2", "worker.0", "worker.1"},
    ("executor", CLUSTER): {"executor.0"},
}


@pytest.mark.parametrize(("fault", "master"), FAULTS)
def test_failed_tasks_are_retried(fault: str, master: str, undisturbed: Contents, tmp_path: Path) -> None:
    """Between the passes, the shuffle files of the first are lost, too."""
    log_dir = _logs(tmp_path / "logs")
    assert _run(log_dir, master, fault, tmp_path / "marks") == FAULTS[fault, master]
    assert _contents(log_dir) == undisturbed


def test_an_output_part_written_by_two_tasks_is_used_once(undisturbed: Contents, tmp_path: Path) -> None:
    log_dir = _logs(tmp_path / "logs")
    with standalone(tmp_path / "cluster", os.environ, HOSTS) as cluster:
        assert _run(log_dir, cluster.url, "twice", tmp_path / "marks") == {"slow.0", "again.0"}
    assert _contents(log_dir) == undisturbed
