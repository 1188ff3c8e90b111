"""Ctrl-C at the terminal and SIGTERM: one line, an exit code, and the next run finishes the work. Ctrl-C is sent to all
processes of the command, as a terminal does; SIGTERM to its own process, as schedulers do, or to all, as service managers
do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from compaction.files.manifest import MANIFEST, MARKER
from compaction.names import LOCK
from tests.crash.kill import family
from tests.golden import unpack_sample
from tests.object_store.fixtures import S3Bucket, published
from tests.processes import ROOT, run

REST = "the next run completes or undoes the changes of this one"
INTERRUPTED = 130, [f"error: interrupted; {REST}"]
#: the exit code and the line of a command that a signal ends
ENDS = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: (143, [f"error: stopped by SIGTERM; {REST}"])}
OPTIONS = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0", "--as-of", "2027-01-01T00:00Z", "--include-active")
#: makes each pass last for some seconds
SLOWLY = ("--set", "log.cleaner.io.max.bytes.per.second=200000")
LIMIT_S = 90.0
#: other lines of a run that is interrupted: progress, steps that last long, and what Spark and the JVM print under spark-submit
USUAL = re.compile(
    r"(transactions|pass \d|keys): .*|[a-z][^:]* \.\.\.|WARNING: Using incubator modules: .*"
    r"|Using Spark's default log4j profile: .*|Setting (default|Spark) log level to .*|To adjust logging level .*"
    r"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN|ERROR) .*|"
)
#: after a log line: the signal reaches the JVM of spark-submit first, whose tasks may fail while it ends
TRACE = re.compile(r"(org\.apache\.spark|java)\.[\w.$]+(: .*)?|\tat .*|\t\.\.\. \d+ more|Caused by: .*")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Some of the sample logs."""
    return unpack_sample(tmp_path, "__cluster", "orders", "prices", "inventory")


@contextmanager
def started(*options: object, submit: bool = False) -> Iterator[subprocess.Popen[str]]:
    """``compact`` with a process group of its own; killed at the end."""
    python = [sys.executable, "-m", "jobs", "compact"]
    command = [str(Path(sys.executable).with_name("spark-submit")), "jobs/compact.py"] if submit else python
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        [*command, *map(str, options), *OPTIONS],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # the tests may run in the background of a shell, which ignores interrupts there
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        yield process
    finally:
        # the driver may have ended without its JVM
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_until(process: subprocess.Popen[str], when: Callable[[], object]) -> None:
    """Returns once ``when`` holds, of a process that has not ended."""
    deadline = time.monotonic() + LIMIT_S
    while not when():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def end(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Waits for the end; returns the exit code, and the lines that are not usual."""
    out, err = process.communicate(timeout=LIMIT_S)
    lines = [line for line in (out + err).splitlines() if not USUAL.fullmatch(line)]
    # it writes both streams of its application to its standard output
    submitted = "/spark-submit" in str(process.args)
    # Python ends by the signal itself if the interrupt passed through ``exec``, even if it was handled
    code = 130 if process.returncode == -signal.SIGINT else process.returncode
    return code, [line for line in lines if not (submitted and TRACE.fullmatch(line))]


def ended_by(
    process: subprocess.Popen[str],
    when: Callable[[], object],
    number: signal.Signals = signal.SIGINT,
    send: Callable[[int, int], None] = os.killpg,
) -> tuple[int, list[str]]:
    """Sends a signal once ``when`` holds; see ``end``."""
    wait_until(process, when)
    send(process.pid, number)
    return end(process)


def compact(*options: object) -> subprocess.CompletedProcess[str]:
    """A run that is not interrupted."""
    return run("compact", *options, *OPTIONS)


def segments(log_dir: Path) -> dict[str, bytes]:
    return {str(file.relative_to(log_dir)): file.read_bytes() for file in log_dir.rglob("*.log")}


@pytest.mark.crash
@pytest.mark.parametrize(
    ("number", "send", "submit"),
    [
        pytest.param(signal.SIGINT, os.killpg, False, id="Ctrl-C, console"),
        pytest.param(signal.SIGINT, os.killpg, True, id="Ctrl-C, spark-submit"),
        pytest.param(signal.SIGTERM, os.kill, False, id="SIGTERM, own process"),
        pytest.param(signal.SIGTERM, os.killpg, False, id="SIGTERM, all"),
    ],
)
def test_a_run_in_place_ends_with_one_line_and_the_next_one_does_its_work(
    logs: Path, number: signal.Signals, send: Callable[[int, int], None], submit: bool
) -> None:
    before = segments(logs)
    with started("--log-dir", logs, *SLOWLY, submit=submit) as process:
        wait_until(process, lambda: list(logs.rglob("*.clean*")))
        began = time.monotonic()
        assert ended_by(process, lambda: True, number, send) == ENDS[number]
        assert number == signal.SIGINT or time.monotonic() - began < 30
    assert segments(logs) == before
    if submit:
        return
    assert compact("--log-dir", logs).returncode == 0
    assert not list(logs.rglob("*.clean*"))
    assert len(segments(logs)) < len(before)


@pytest.mark.crash
def test_a_copy_leaves_nothing(logs: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with started("--log-dir", logs, "--output-dir", target, *SLOWLY) as process:
        assert ended_by(process, lambda: list(tmp_path.glob(".out.*/**/*.clean*"))) == INTERRUPTED
    assert sorted(path.name for path in tmp_path.iterdir()) == [logs.name]


@pytest.mark.s3
@pytest.mark.parametrize("submit", [False, True], ids=["console", "spark-submit"])
def test_an_interrupted_output_in_a_store_stays_unfinished_until_the_next_run_replaces_it(
    logs: Path, bucket: S3Bucket, submit: bool
) -> None:
    target = bucket.address("out")
    with bucket.holding(".clean") as held, started("--log-dir", logs, "--output-dir", target, submit=submit) as process:
        assert ended_by(process, held) == INTERRUPTED
    # an upload of a task that was killed arrives late
    bucket.put(f"out/orders-0/{0:020d}.log.clean.late", b"late")
    assert MARKER in bucket.tree("out")
    assert MANIFEST not in bucket.tree("out")
    refused = compact("--log-dir", target, "--dry-run")
    assert (refused.returncode, "this output is unfinished" in refused.stderr) == (2, True)
    if submit:
        return
    assert compact("--log-dir", logs, "--output-dir", target).returncode == 0
    assert not [key for key in published(bucket) if ".clean" in key]


def maps(library: str) -> Callable[[subprocess.Popen[str], Path], bool]:
    """Whether a process has begun to import what has this library."""
    return lambda process, logs: f"/{library}/" in Path(f"/proc/{process.pid}/maps").read_text()


#: in this order
STARTING: Mapping[str, Callable[[subprocess.Popen[str], Path], bool]] = {
    "imports numpy": maps("numpy"),
    "imports numba": maps("llvmlite"),
    "locks the logs": lambda process, logs: (logs / LOCK).exists(),
    "starts Spark": lambda process, logs: bool(family(process)["jvm"]),
    "has started Spark": maps("pyarrow"),
}


@pytest.mark.crash
@pytest.mark.parametrize("point", STARTING)
def test_an_interrupt_while_a_command_starts_is_one_line_too(logs: Path, point: str) -> None:
    before = segments(logs)
    with started("--log-dir", logs, *SLOWLY, "--engine", "spark") as process:
        assert ended_by(process, lambda: STARTING[point](process, logs)) in (INTERRUPTED, (130, ["error: interrupted"]))
    assert segments(logs) == before
