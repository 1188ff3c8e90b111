"""A standalone Spark of separate processes on loopback, and other processes that serve until they are stopped."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.kafka.jars import spark_home
from tests.waiting import wait_until

T = TypeVar("T")
_TIMEOUT_S = 90


class Daemon:
    """A process that writes to a file.

    :param output: in the directory in which it is started
    """

    def __init__(self, command: Sequence[object], output: Path, environment: Mapping[str, str]) -> None:
        self._output = output
        with output.open("wb") as out:
            self.process = subprocess.Popen(
                list(map(str, command)), cwd=output.parent, env=environment, stdout=out, stderr=subprocess.STDOUT
            )

    def log(self) -> str:
        return self._output.read_text(errors="replace")

    def await_result(self, result: Callable[[], T], seconds: float = _TIMEOUT_S) -> T:
        """The first true result; fails with what the process has written if it ends before."""
        wait_until(lambda: self.process.poll() is not None or result(), seconds)
        assert self.process.poll() is None, self.log()[-2000:]
        return result()


class Standalone:
    """A standalone master and its workers."""

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        #: with the work directories, and home of the workers
        self.place = place
        #: the master, then the workers
        self.processes: list[subprocess.Popen[bytes]] = []
        self._environment = {**environment, "SPARK_HOME": str(spark_home())}
        options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._start("Master", options, r"(spark://127\.0\.0\.1:\d+)")

    def add_worker(self, host: str = "127.0.0.1") -> None:
        """Another worker of one core; awaits its registration."""
        work = self.place / f"work-{len(self.processes)}"
        options = ("--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(work))
        self._start("Worker", (*options, self.url), r"(Successfully registered with master)")

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(_TIMEOUT_S)

    def _start(self, role: str, options: Sequence[str], sign: str) -> str:
        """Starts a process; returns the sign that it is ready, in what it writes."""
        command = [spark_home() / "bin/spark-class", f"org.apache.spark.deploy.{role.lower()}.{role}", *options]
        daemon = Daemon(command, self.place / f"{role}-{len(self.processes)}.log", self._environment)
        self.processes.append(daemon.process)
        found = daemon.await_result(lambda: re.search(sign, daemon.log()))
        assert found is not None
        return found[1]


@contextmanager
def standalone(place: Path, environment: Mapping[str, str], hosts: Sequence[str] = ("127.0.0.1",) * 2) -> Iterator[Standalone]:
    """A standalone cluster of a worker on each host. Spark starts a speculative attempt only on another one."""
    place.mkdir()
    cluster = Standalone(place, environment)
    try:
        for host in hosts:
            cluster.add_worker(host)
        yield cluster
    finally:
        cluster.stop()
