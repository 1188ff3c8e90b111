"""A standalone Spark of separate processes on loopback."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.kafka.jars import spark_home

_TIMEOUT_S = 90


class Standalone:
    """A standalone master and its workers."""

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        #: with the work directories, and home of the workers
        self.place = place
        #: the master, then the workers
        self.processes: list[subprocess.Popen[bytes]] = []
        self._environment = {**environment, "SPARK_HOME": str(spark_home())}
        master = self._start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._await(master, r"(spark://127\.0\.0\.1:\d+)")

    def add_worker(self, host: str = "127.0.0.1") -> subprocess.Popen[bytes]:
        """Another worker of one core; awaits its registration."""
        work = self.place / f"work-{len(self.processes)}"
        options = ("--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(work))
        log = self._start("Worker", *options, self.url)
        self._await(log, r"(Successfully registered with master)")
        return self.processes[-1]

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(_TIMEOUT_S)

    def _start(self, role: str, *options: str) -> Path:
        log = self.place / f"{role}-{len(self.processes)}.log"
        command = [str(spark_home() / "bin/spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", *options]
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen(command, cwd=self.place, env=self._environment, stdout=out, stderr=subprocess.STDOUT)
            )
        return log

    def _await(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            found = re.search(pattern, log.read_text(errors="replace"))
            if found:
                return found[1]
            if self.processes[-1].poll() is not None:
                break
            time.sleep(0.1)
        raise TimeoutError(f"{pattern} not in {log}: {log.read_text(errors='replace')[-2000:]}")


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
