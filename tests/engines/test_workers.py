"""Engines on one machine: worker processes fit the limits of a container, give what plain calls give, whatever their driver is
and does, and share nothing with others. One that ends is missed at once and loses nothing; none outlives its driver."""

from __future__ import annotations

import importlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compaction.engine import ByPlace, Job
from compaction.engine_choice import choose
from compaction.engines import limits
from compaction.engines.limits import WORKER_BYTES, oom_kills, usable_cores
from compaction.engines.local import POLL_INTERVAL_S, LocalEngine, Piece, Spool, Workers
from compaction.errors import CompactionError, UsageError
from compaction.files import read_counter
from compaction.options.table import AUTO, LOCAL, SPARK
from tests.golden import unpack_sample
from tests.large_log import write_large_log
from tests.local_passes import LocalPasses
from tests.passes.test_repeated_tasks import compact_copy, count, policies, running_on, without_times
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
def workers() -> Iterator[LocalEngine]:
    with LocalEngine(2, inline_bytes=0) as passes:
        # starts them
        passes.run(Job("test"), [1], abs)
        yield passes


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
    def call(number: int) -> list[int]:
        with LocalEngine(1, inline_bytes=0) as passes:
            return passes.run(Job("test"), [number, number], partial(pow, 10))

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(call, range(3))) == [[1, 1], [10, 10], [100, 100]]


def test_only_own_processes_are_ended() -> None:
    with LocalEngine(1, inline_bytes=0) as passes:
        passes.run(Job("test"), [1], abs)
        ours = subprocess.Popen([sys.executable, "-c", "import multiprocessing as m; input()"], stdin=subprocess.PIPE)
    assert ours.poll() is None
    ours.communicate(b"\n")
    assert ours.returncode == 0


def _end(how: int) -> None:
    if how < 0:
        os.kill(os.getpid(), -how)
    os._exit(how)


@pytest.mark.parametrize(
    ("how", "kills", "text"),
    [
        (-signal.SIGKILL, None, r"a worker process was ended by signal 9 \(Killed\)"),
        (-signal.SIGSEGV, None, "signal 11"),
        (7, None, "exit code 7"),
        # the kernel has counted a process
        (-signal.SIGKILL, 1_000_000, "for lack of memory.*fewer workers than 2: --cores"),
    ],
)
def test_the_end_of_a_worker_is_a_line_with_what_was_found_and_the_next_job_has_new_ones(
    how: int, kills: int | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with a cause that nobody has found, such as too little memory."""
    with LocalEngine(2, inline_bytes=0) as passes:
        passes.run(Job("test"), [1], abs)
        if kills is not None:
            monkeypatch.setattr("compaction.engines.local.oom_kills", lambda: kills)
        with pytest.raises(CompactionError, match=text) as error:
            passes.run(Job("test"), [how, how], _end)
        assert "\n" not in str(error.value)
        assert ("memory" in str(error.value)) == (kills is not None)
        assert passes.run(Job("test"), [1, -2], abs) == [1, 2]


def _parent_of(workers: Workers) -> int:
    ((_, pid),) = [found for found in workers.results(_parent_in_task, [0]) if found]
    return pid


def _parent_in_task(_: int, __: Spool) -> int:
    return os.getppid()


def test_the_end_of_the_parent_of_workers_is_an_error() -> None:
    with closing(Workers(1)) as workers:
        os.kill(_parent_of(workers), signal.SIGKILL)
        with pytest.raises(CompactionError, match=r"parent of the worker processes was ended by signal 9|a worker process"):
            list(workers.results(_sleep, [LIMIT_S]))


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
    parent = _parent_of(workers)
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


def _raise_unsendable(one: int) -> None:
    raise _Unsendable(one, 2)


@pytest.mark.parametrize(
    ("work", "error", "text"),
    [
        (partial(divmod, 1), ZeroDivisionError, "zero"),
        (_raise_unsendable, RuntimeError, "_Unsendable in a task: 0 and 2"),
        # of a plug-in: would end the driver as if its work were done
        (sys.exit, RuntimeError, "SystemExit in a task: 0"),
    ],
)
def test_an_error_of_a_task_is_raised_as_it_is_or_is_one_with_its_text(work: Any, error: type[Exception], text: str) -> None:
    with LocalEngine(1, inline_bytes=0) as passes, pytest.raises(error, match=text):
        passes.run(Job("test"), [0], work)


def test_workers_have_the_environment_of_their_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the first call of the process."""
    for value in ("one", "two"):
        monkeypatch.setenv("SOME_VARIABLE", value)
        with LocalEngine(1, inline_bytes=0) as passes:
            assert passes.run(Job("test"), ["SOME_VARIABLE"], os.getenv) == [value]


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


def gives_what_plain_calls_give(passes: Any, log_dir: Path, *commands: Callable[[Path], dict[str, Any]]) -> None:
    """On logs of several slices, shards and parts: files, counts, or verdicts."""
    for command in commands:
        found = []
        for each in (LocalPasses(), passes):
            with running_on(each):
                report = command(log_dir)
            found.append(report.get("files") or report.get("topics") or without_times(report["logs"]))
        assert found[0] == found[1] != {}


def test_a_comparison_is_that_of_plain_calls(tmp_path: Path) -> None:
    with LocalEngine(2, inline_bytes=0) as passes:
        gives_what_plain_calls_give(passes, unpack_sample(tmp_path), policies)


def _read_slowly(size: int) -> None:
    for _ in range(4):
        read_counter.count(size // 4)
        time.sleep(2 * POLL_INTERVAL_S)


def test_progress_is_shown_from_within_a_task_and_is_complete_at_its_end() -> None:
    advanced: list[object] = []
    shown = SimpleNamespace(start=lambda *_: advanced.clear(), advance=advanced.append, done=advanced.append)
    with LocalEngine(1, cast(Any, shown), inline_bytes=0) as passes:
        passes.run(Job("test", "pass", [4_000]), [4_000], _read_slowly)
    assert len(advanced) > 2
    assert (sum(cast(list[int], advanced[:-1])), advanced[-1]) == (4_000, "pass")


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
    done = started([sys.executable, program], cwd=tmp_path)
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


# how many there are

CPUS = 64
V2 = "30 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "33 25 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "35 25 0:31 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
)
GIB = 1 << 30
UNLIMITED = "9223372036854771712"


def machine(root: Path, group: str, mounts: str, files: Mapping[str, object]) -> Path:
    """A directory with the files under ``proc`` and ``sys`` of a process in ``group``."""
    own = root / "proc/self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(group)
    (own / "mountinfo").write_text(mounts)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


@pytest.mark.parametrize(
    ("group", "mounts", "files", "cores"),
    [
        ("", "", {}, CPUS),
        ("0::/\n", V2, {}, CPUS),
        ("0::/\n", V2, {"cpu.max": "max 100000", "memory.max": "max"}, CPUS),
        ("0::/\n", V2, {"cpu.max": "200000 100000"}, 2),
        # a started core
        ("0::/\n", V2, {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", V2, {"cpu.max": "20000 100000"}, 1),
        # 4 GiB: one part for the driver
        ("0::/\n", V2, {"cpu.max": "max 100000", "memory.max": 4 * GIB}, 7),
        ("0::/\n", V2, {"memory.max": WORKER_BYTES // 2}, 1),
        # the least of all levels counts
        ("0::/a/b\n", V2, {"a/b/memory.max": 8 * GIB, "a/memory.max": 2 * GIB, "memory.max": "max"}, 3),
        ("0::/a/b\n", V2, {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        # a group that is not visible here
        ("0::/../../other\n", V2, {"cpu.max": "500000 100000"}, 5),
        (
            "4:memory:/\n3:cpu,cpuacct:/\n", V1.format(top="/"),
            {"memory/memory.limit_in_bytes": UNLIMITED, "cpu,cpuacct/cpu.cfs_quota_us": -1}, CPUS,
        ),
        (
            "4:memory:/\n3:cpu,cpuacct:/\n", V1.format(top="/"),
            {"cpu,cpuacct/cpu.cfs_quota_us": 400_000, "cpu,cpuacct/cpu.cfs_period_us": 100_000}, 4,
        ),
        (
            "4:memory:/a/b\n", V1.format(top="/"),
            {"memory/a/b/memory.limit_in_bytes": UNLIMITED, "memory/a/memory.limit_in_bytes": GIB}, 1,
        ),
        # a container without a namespace of cgroups: the name is that on the host, the mount begins with it
        ("4:memory:/docker/1f\n", V1.format(top="/docker/1f"), {"memory/memory.limit_in_bytes": 3 * GIB}, 5),
        # both versions, as systemd mounts them
        ("4:memory:/s\n0::/s\n", V1.format(top="/") + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
         {"memory/s/memory.limit_in_bytes": 2 * GIB, "unified/s/cgroup.procs": 1}, 3),
    ],
)  # fmt: skip
def test_workers_fit_their_container(
    group: str, mounts: str, files: Mapping[str, object], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(CPUS)), raising=False)
    assert usable_cores(machine(tmp_path, group, mounts, files)) == cores


@pytest.mark.parametrize(
    ("group", "mounts", "files", "kills"),
    [
        ("0::/a\n", V2, {"a/memory.events": "low 0\noom 3\noom_kill 2\noom_group_kill 0", "memory.events": "oom_kill 9"}, 2),
        ("4:memory:/\n", V1.format(top="/"), {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5"}, 5),
        ("", "", {}, 0),
    ],
)
def test_processes_killed_for_memory_are_counted(
    group: str, mounts: str, files: Mapping[str, object], kills: int, tmp_path: Path
) -> None:
    assert oom_kills(machine(tmp_path, group, mounts, files)) == kills


@pytest.mark.parametrize(("given", "cores"), [(None, CPUS), (3, 3), (1000, CPUS)])
def test_a_caller_may_lower_the_number_of_workers(given: int | None, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "usable_cores", lambda: CPUS)
    assert choose(LOCAL, "count", cores=given).passes()().cores == cores


@pytest.mark.parametrize(
    ("engine", "cores", "text"),
    [
        (LOCAL, 0, "0 is not a number"),
        (AUTO, -1, "-1 is not a number"),
        (AUTO, True, "True is not"),
        (SPARK, 2, "engine is spark"),
    ],
)
def test_a_number_of_workers_that_cannot_be_is_refused(engine: str, cores: int, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        choose(engine, "count", cores=cores)


# another engine


def test_the_engine_of_the_page_does_what_the_others_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to-add.md").read_text()
    section = page[page.index("## An engine") :]
    (code,) = re.findall(r"```python\n(.*?)```", section[: section.index("\n## ", 1)], re.DOTALL)
    (tmp_path / "thread_engine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    engine = importlib.import_module("thread_engine").ThreadEngine
    gives_what_plain_calls_give(engine(), unpack_sample(tmp_path), compact_copy, count)
