"""Worker processes run whatever their driver is and does, share nothing with others, and are missed at once when they end."""

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
from functools import partial
from pathlib import Path

import pytest

from compaction.engine import Job
from compaction.engines.local import LocalEngine, Spool, Workers
from compaction.errors import CompactionError
from tests.large_log import write_large_log
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
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
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True,
        check=False, timeout=LIMIT_S,
    )  # fmt: skip
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
    ("page", "how"),
    [("README.md", "a file"), ("docs/python.md", "standard input"), ("docs/python.md", "IPython")],
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
