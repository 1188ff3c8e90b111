"""Worker processes give what plain calls give, whatever their driver is and does, and share nothing with others. One that ends
is missed at once and loses nothing; none outlives its driver."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from compaction.config.request import ComparisonRequest
from compaction.config.sources import Policy
from compaction.engine import ByPlace, Job
from compaction.engines.local import POLL_INTERVAL_S, LocalEngine, Piece, Spool, Workers
from compaction.errors import CompactionError
from compaction.files import read_counter
from compaction.policies.compare_policies import compare_with
from compaction.run.sizing import Sizes
from tests.large_log import write_large_log
from tests.local_job import request_for
from tests.local_passes import LocalPasses
from tests.memory import scratch
from tests.passes.random_cases import NOW_MS, lay_out, random_cases
from tests.processes import ROOT, started
from tests.waiting import wait_until

LIMIT_S = 60.0
#: prints the absolute values of -1 and 2, found by workers
RUN = """
from compaction.engines.local import LocalEngine
from compaction.engine import Job
def found():
    with LocalEngine(2, inline_bytes=0) as passes:
        return passes.run(Job("test"), [-1, 2], abs)
"""
#: programs that print [1, 2], each by a call of ``found`` from a place where process pools of the standard library fail
PLACES = {
    "a thread": "import threading; t = threading.Thread(target=lambda: print(found())); t.start(); t.join()",
    "asyncio": "import asyncio; print(asyncio.run(asyncio.to_thread(found)))",
    "a fork": "found()\nif os.fork(): os.wait()\nelse: print(found())",
    "a daemonic process": (
        "import multiprocessing\ndef printed(): print(found(), flush=True)\n"
        "p = multiprocessing.get_context('fork').Process(target=printed, daemon=True); p.start(); p.join()"
    ),
    "a long temporary directory": (
        "import tempfile; t = tempfile.mkdtemp() + '/' + 120 * 't'; os.mkdir(t); os.environ['TMPDIR'] = t; print(found())"
    ),
    "a removed working directory": "import tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d); print(found())",
    "a driver that ignores the ends of its children": (
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print(found())"
    ),
    "a driver without standard input and error": "os.close(0); os.close(2); print(found())",
    "a module that is no file": "import sys; sys.modules['__main__'].__file__ = '/nowhere/main.py'; print(found())",
}


@pytest.mark.parametrize("place", PLACES)
def test_workers_run_for(place: str, tmp_path: Path) -> None:
    program = f"{RUN}\nimport os\n{PLACES[place]}\n"
    done = started([sys.executable, "-c", program], TMPDIR=str(tmp_path))
    assert (done.stdout, done.stderr, done.returncode) == ("[1, 2]\n", "", 0)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large_log(tmp_path_factory.mktemp("large"))


def example(page: str, source: Path, output: Path) -> str:
    """The Python example of a page without its use of Spark, as a program that prints a line first."""
    block = next(
        each for each in (ROOT / page).read_text().split("```python\n") if "compaction.compact(" in each.split("```")[0]
    )
    lines = [line for line in block.partition("```")[0].splitlines() if "spark" not in line]
    text = "\n".join(lines).replace("/backup/kafka-1-compacted", str(output)).replace('"/backup/kafka-1"', f'"{source}"')
    assert str(output) in text
    # the example's topics have a configuration, this one has none
    text = text.replace("settings={", 'settings={"cleanup.policy": "compact", ')
    return f'print("top of the script")\n{text}\n'


@pytest.mark.parametrize(
    ("page", "how"), [("README.md", "a file"), ("docs/python.md", "standard input"), ("docs/python.md", "IPython")]
)
def test_the_examples_of_pages_run_once_without_a_guard(page: str, how: str, large: Path, tmp_path: Path) -> None:
    """Each worker would run the script again, what it deletes included."""
    script, text = tmp_path / "script.py", example(page, large, tmp_path / "copy")
    script.write_text(text)
    ipython = ["-m", "IPython", "--no-banner", str(script)]
    calls = {"a file": [str(script)], "standard input": ["-"], "IPython": ipython}
    done = subprocess.run(
        [sys.executable, *calls[how]], env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        input=text if how == "standard input" else "", capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith("top of the script\nlog ")
    assert done.stdout.count("top of the script") == 1
    assert "1 log: 1 cleaned" in done.stdout
    assert list((tmp_path / "copy/orders-0").glob("*.log"))


def test_calls_of_several_threads_have_workers_of_their_own() -> None:
    found: list[list[int]] = []

    def call(number: int) -> None:
        with LocalEngine(1, inline_bytes=0) as passes:
            found.append(passes.run(Job("test"), [number, number], partial(pow, 10)))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[1, 1], [10, 10], [100, 100]]


def test_only_own_processes_are_ended() -> None:
    with LocalEngine(1, inline_bytes=0) as passes:
        passes.run(Job("test"), [1], abs)
        ours = subprocess.Popen([sys.executable, "-c", "import multiprocessing as m; input()"], stdin=subprocess.PIPE)
    assert ours.poll() is None
    ours.communicate(b"\n")
    assert ours.returncode == 0


def _end(how: int, _: Spool) -> None:
    if how < 0:
        os.kill(os.getpid(), -how)
    os._exit(how)


@pytest.mark.parametrize(
    ("how", "text"), [(-signal.SIGKILL, "was ended by signal 9 (Killed)"), (-signal.SIGSEGV, "signal 11"), (7, "exit code 7")]
)
def test_the_end_of_a_worker_is_reported_with_what_was_found(how: int, text: str) -> None:
    """Not with a cause that nobody has found, such as too little memory."""
    workers = Workers(2)
    with pytest.raises(CompactionError) as error:
        list(workers.results(_end, [how]))
    workers.close()
    assert text in error.value.message
    assert "memory" not in str(error.value)


def test_memory_is_named_if_the_kernel_has_counted_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(2)
    monkeypatch.setattr("compaction.engines.local.oom_kills", lambda: 1_000_000)
    with pytest.raises(CompactionError, match="for lack of memory.*fewer workers than 2: --cores"):
        list(workers.results(_end, [-signal.SIGKILL]))
    workers.close()


def _parent_of(_: int, __: Spool) -> int:
    return os.getppid()


def test_the_end_of_the_parent_of_workers_is_an_error() -> None:
    workers = Workers(1)
    ((_, parent),) = [found for found in workers.results(_parent_of, [0]) if found]
    os.kill(parent, signal.SIGKILL)
    with pytest.raises(CompactionError, match=r"parent of the worker processes was ended by signal 9|a worker process"):
        list(workers.results(_sleep, [LIMIT_S]))
    workers.close()


def _sleep(seconds: float, _: Spool) -> int:
    time.sleep(seconds)
    return os.getpid()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_no_call_waits_for_a_worker_that_was_killed_at_any_moment() -> None:
    """The last moments included: while it answers, when it has answered, and while it is closed."""
    delays = random.Random(1)
    for _ in range(4):
        workers = Workers(2)
        pids = {found[1] for found in workers.results(_sleep, [0.05] * 4) if found}
        killer = threading.Timer(delays.uniform(0, 0.06), _kill, [min(pids)])
        began = time.monotonic()
        killer.start()
        try:
            list(workers.results(_sleep, [0.02] * 4))
        except CompactionError as error:
            assert "signal 9" in str(error)  # noqa: PT017 - a worker may have answered before
        workers.close()
        assert time.monotonic() - began < LIMIT_S / 4
        killer.cancel()
        killer.join()


def test_a_stopped_worker_and_a_stopped_parent_do_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction.engines.local._END_S", 0.5)
    workers = Workers(1)
    ((_, pid),) = [found for found in workers.results(_sleep, [0.0]) if found]
    ((_, parent),) = [found for found in workers.results(_parent_of, [0]) if found]
    os.kill(parent, signal.SIGSTOP)
    workers.close()
    wait_until(lambda: not _runs(pid) and not _runs(parent), LIMIT_S)


def test_workers_end_with_a_killed_driver_although_a_fork_of_it_lives(tmp_path: Path) -> None:
    program = (
        "import os, time\n"
        "from tests.engines.test_workers import Workers, _sleep\n"
        "workers = Workers(1)\n"
        "((_, pid),) = [found for found in workers.results(_sleep, [0.0]) if found]\n"
        "fork = os.fork()\n"
        "if fork == 0: time.sleep(600)\n"
        "print(pid, fork, flush=True)\n"
        "list(workers.results(_sleep, [600.0]))\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    worker, fork = map(int, driver.stdout.readline().split())
    driver.kill()
    driver.wait()
    try:
        wait_until(lambda: not _runs(worker), LIMIT_S)
        assert _runs(fork)
        assert list(tmp_path.iterdir()) == []
    finally:
        os.kill(fork, signal.SIGKILL)
        driver.stdout.close()


class _Unsendable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def _raise_unsendable(_: int, __: Spool) -> None:
    raise _Unsendable(1, 2)


def _exit(_: int, __: Spool) -> None:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("work", "text"), [(_raise_unsendable, "_Unsendable in a task: 1 and 2"), (_exit, "SystemExit in a task: 0")]
)
def test_an_error_that_cannot_be_raised_here_is_one_with_its_text(work: object, text: str) -> None:
    """``SystemExit(0)`` of a plug-in would end the driver as if its work were done."""
    workers = Workers(1)
    with pytest.raises(RuntimeError, match=text):
        list(workers.results(work, [0]))  # type: ignore[arg-type]
    workers.close()


def _variable(name: str) -> str | None:
    return os.environ.get(name)


def test_workers_have_the_environment_of_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the first call of the process."""
    for value in ("one", "two"):
        monkeypatch.setenv("SOME_VARIABLE", value)
        with LocalEngine(1, inline_bytes=0) as passes:
            assert passes.run(Job("test"), ["SOME_VARIABLE"], _variable) == [value]


def test_an_interpreter_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(CompactionError, match="worker processes cannot start: No such file or directory"):
        Workers(1)


def test_an_import_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("compaction.engines.local._PACKAGE_PATH", "/nowhere")
    monkeypatch.setattr("sys.path", [path for path in sys.path if not Path(path, "compaction").is_dir()])
    with pytest.raises(CompactionError, match="worker processes cannot start: their parent process ended with exit code 1"):
        Workers(1)
    assert "ModuleNotFoundError" in capfd.readouterr().err


#: everything in several slices, shards and parts; or nothing
TINY = Sizes(600, 2_000, 5)


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalEngine]:
    with LocalEngine(2, inline_bytes=0) as passes:
        # starts them
        passes.run(Job("test"), [1], abs)
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
        "from tests.engines.test_workers import Job, LocalEngine, _pid\n"
        "if __name__ == '__main__':\n"
        "    with LocalEngine(1, inline_bytes=0) as passes:\n"
        "        assert passes.run(Job('test'), [0], _pid) != [os.getpid()]\n"
    )
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    if sys.version_info >= (3, 11):
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run").exists()


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
        spool = Spool()
        piece = spool.put(b"x" * 1000)
        assert list(tmp_path.iterdir()) == []
        assert piece.load() == b"x" * 1000
        spool.close()

    def test_a_full_directory_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", "/scratch")
        with open("/dev/full", "r+b", buffering=0) as full:  # noqa: PTH123
            monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full)
            with pytest.raises(CompactionError, match="/scratch"):
                Spool().put(b"x")

    def test_a_file_that_was_cut_short_is_an_error(self) -> None:
        spool = Spool(in_memory=True)
        piece = spool.put(b"x")
        with pytest.raises(EOFError, match="intermediate results end"):
            Piece(piece.pid, piece.descriptor, piece.start, piece.size + 1).load()
        spool.close()


def _runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    yield
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
