"""Times complete processes: wall time, the CPU time of all their children, and peak memory."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = Path(sys.executable).with_name("spark-submit")
_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_EVERY_S = 0.25


class Spent(NamedTuple):
    """What one process and its children took; ``peak_mib`` is the sum of their proportional memory, 0 if not sampled."""

    wall_s: float
    cpu_s: float
    peak_mib: float = 0.0


def adopt_orphans() -> None:
    """Become the parent (on Linux) of orphaned processes of a run, such as Spark's JVM, so that their CPU time is counted."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def timed(*command: str | Path, memory: bool = False, environment: Mapping[str, str] = MappingProxyType({})) -> Spent:
    """Runs a command to its end, and until its orphans have ended.

    :param memory: sample the peak memory
    :raises RuntimeError: it failed; the message has the end of its output
    """
    beside = {child.pid for child in psutil.Process().children()}
    before, begun = _cpu_s(), time.perf_counter()
    process = _started(command, environment)
    sampler = _Sampler(process.pid)
    if memory:
        sampler.start()
    _ended(process, command)
    wall_s = time.perf_counter() - begun
    sampler.ended.set()
    _wait_for_others(beside)
    return Spent(wall_s, _cpu_s() - before, sampler.peak_mib)


def output_of(*command: str | Path) -> str:
    """What a command prints.

    :raises RuntimeError: it failed; the message has the end of its output
    """
    return _ended(_started(command, {}), command)


def _started(command: Sequence[str | Path], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # Spark's scripts use the first python on the path
    path = os.pathsep.join((str(SUBMIT.parent), os.environ["PATH"]))
    return subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env={**os.environ, "PATH": path, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _ended(process: subprocess.Popen[bytes], command: Sequence[str | Path]) -> str:
    output = process.communicate()[0].decode(errors="replace")
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}: {output[-2000:]}")
    return output


class _Sampler(threading.Thread):
    """Samples the memory of a process and its children; pages that several of them share count once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self.peak_mib, self.ended = pid, 0.0, threading.Event()

    def run(self) -> None:
        """Sample until ``ended``."""
        while not self.ended.wait(_SAMPLE_EVERY_S):
            total = 0
            with suppress(psutil.Error):
                root = psutil.Process(self._pid)
                for process in [root, *root.children(recursive=True)]:
                    with suppress(psutil.Error):
                        total += process.memory_full_info().pss
            self.peak_mib = max(self.peak_mib, total / (1 << 20))


def _wait_for_others(beside: Collection[int]) -> None:
    while others := [child.pid for child in psutil.Process().children() if child.pid not in beside]:
        with suppress(ChildProcessError):
            os.waitpid(others[0], 0)


def _cpu_s() -> float:
    """CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
