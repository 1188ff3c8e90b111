"""Worker processes give what plain calls give; one that is killed fails the run and loses nothing; none outlives its driver."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from compaction.config.request import ComparisonRequest
from compaction.config.sources import Policy
from compaction.engine import ByPlace, Job
from compaction.engines.local import POLL_INTERVAL_S, LocalEngine, Piece, Spool
from compaction.errors import CompactionError
from compaction.files import read_counter
from compaction.policies.compare_policies import compare_with
from compaction.run.sizing import Sizes
from tests.local_job import request_for
from tests.local_passes import LocalPasses
from tests.memory import scratch
from tests.passes.random_cases import NOW_MS, lay_out, random_cases
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
#: everything in several slices, shards and parts; or nothing
TINY = Sizes(600, 2_000, 5)
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalEngine]:
    with LocalEngine(2, inline_bytes=0) as passes:
        yield passes


def test_a_comparison_is_that_of_plain_calls(workers: LocalEngine) -> None:
    cases = random_cases([60])[:6]
    policies = tuple(map(Policy.read, ("configured", "cleanup.policy=compact,delete.retention.ms=0")))
    with scratch() as root:
        lay_out(root, cases)
        base = request_for(root, NOW_MS, {case.name: case.topic_config for case in cases}, dry_run=True)
        request = ComparisonRequest(base, policies)
        ours, theirs = (compare_with(lambda: passes, request, TINY) for passes in (workers, LocalPasses()))  # noqa: B023
        assert replace(ours, seconds=0.0).logs == replace(theirs, seconds=0.0).logs


def _killed(at: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_one_line_and_the_next_job_has_new_ones() -> None:
    with LocalEngine(2, inline_bytes=0) as passes:
        with pytest.raises(CompactionError, match="a worker process was ended by signal 9") as error:
            passes.run(Job("test"), [1, 2], _killed)
        assert "\n" not in str(error.value)
        assert passes.run(Job("test"), [1, -2], abs) == [1, 2]


class _Shown:
    """Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.advanced: list[int] = []

    def start(self, pass_name: str, total_bytes: int) -> None:
        self.advanced.clear()

    def advance(self, done_bytes: int) -> None:
        self.advanced.append(done_bytes)

    def done(self, pass_name: str) -> None:
        self.advanced.append(-1)


def _read_slowly(size: int) -> None:
    for _ in range(4):
        read_counter.count(size // 4)
        time.sleep(2 * POLL_INTERVAL_S)


def test_progress_is_shown_from_within_a_task_and_is_complete_at_its_end() -> None:
    shown = _Shown()
    with LocalEngine(1, cast(Any, shown), inline_bytes=0) as passes:
        passes.run(Job("test", "pass", [4_000]), [4_000], _read_slowly)
    assert len(shown.advanced) > 2
    assert (sum(shown.advanced[:-1]), shown.advanced[-1]) == (4_000, -1)


def test_an_error_of_a_task_reaches_the_driver_as_it_is() -> None:
    with LocalEngine(1, inline_bytes=0) as passes, pytest.raises(ZeroDivisionError):
        passes.run(Job("test"), [0], partial(divmod, 1))


def test_a_small_job_starts_no_worker() -> None:
    with LocalEngine(1) as passes:
        assert passes.run(Job("test", task_bytes=[1]), [0], _pid) == [os.getpid()]


def test_a_job_that_takes_long_runs_in_workers() -> None:
    with LocalEngine(1) as passes:
        assert passes.run(Job("test", in_workers=True), [0], _pid) != [os.getpid()]


def _pid(_: int) -> int:
    return os.getpid()


def test_workers_end_with_a_driver_that_is_killed() -> None:
    program = (
        "import os\n"
        "from tests.engines.test_processes import Job, LocalEngine, _pid\n"
        "if __name__ == '__main__':\n"
        "    passes = LocalEngine(1, inline_bytes=0)\n"
        "    print(*passes.run(Job('test'), [0], _pid), flush=True)\n"
        "    os.read(0, 1)\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    worker = int(driver.stdout.readline())
    driver.kill()
    driver.communicate()
    wait_until(lambda: not _runs(worker), LIMIT_S)


def test_an_interrupt_while_workers_start_is_for_their_driver_alone(workers: LocalEngine) -> None:
    """A process that is still importing would print a stack trace."""
    (parent, mask) = workers.run(Job("test"), [0], _parent_and_its_mask)[0]
    assert (parent != os.getpid(), mask & 1 << (signal.SIGINT - 1) != 0) == (True, True)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def _parent_and_its_mask(_: int) -> tuple[int, int]:
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    return os.getppid(), int(mask, 16)


def test_modules_in_the_working_directory_are_not_run(tmp_path: Path) -> None:
    for name in ("compaction", "numpy", "multiprocessing", "signal", "json", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("open('run', 'a').write(__name__)")
    (tmp_path / "program").mkdir()
    program = tmp_path / "program/program.py"
    program.write_text(
        f"import os, sys\nsys.path.insert(1, {str(ROOT)!r})\n"
        "from tests.engines.test_processes import Job, LocalEngine, _pid\n"
        "if __name__ == '__main__':\n"
        "    with LocalEngine(1, inline_bytes=0) as passes:\n"
        "        assert passes.run(Job('test'), [0], _pid) != [os.getpid()]\n"
    )
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    if sys.version_info >= (3, 11):
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run").exists()


def _runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def _emit(value: bytes) -> list[tuple[tuple[int, int], bytes]]:
    return [((0, len(value)), value)]


class TestSpool:
    def test_values_are_read_by_another_process(self, workers: LocalEngine) -> None:
        placed = workers.shuffle(Job("test"), [b"one", b"three"], _emit, ByPlace(1)).placed
        pieces = [piece for _, piece in placed[0]]
        assert [piece.load() for piece in pieces] == [b"one", b"three"]
        assert {piece.pid for piece in pieces}.isdisjoint({os.getpid()})

    def test_a_file_has_no_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        spool = Spool.on_disk()
        piece = spool.put(b"x" * 1000)
        assert list(tmp_path.iterdir()) == []
        assert piece.load() == b"x" * 1000
        spool.close()

    def test_a_full_directory_is_named(self) -> None:
        with open("/dev/full", "r+b", buffering=0) as full:  # noqa: PTH123
            spool = Spool(lambda: full, "/scratch")
            with pytest.raises(CompactionError, match="/scratch"):
                spool.put(b"x")

    def test_a_file_that_was_cut_short_is_an_error(self) -> None:
        spool = Spool.in_memory()
        piece = spool.put(b"x")
        with pytest.raises(EOFError, match="intermediate results end"):
            Piece(piece.pid, piece.descriptor, piece.start, piece.size + 1).load()
        spool.close()
