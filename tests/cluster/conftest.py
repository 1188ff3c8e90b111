"""A Spark cluster of separate processes on loopback, and the packed environment that its executors run in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka.jars import spark_home

ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 60


def bare_environment(home: Path) -> dict[str, str]:
    """The environment of a machine on which nothing of this project is installed."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TMPDIR") if name in os.environ}
    java = shutil.which("java")
    path = [*([str(Path(java).parent)] if java else []), "/usr/local/bin", "/usr/bin", "/bin"]
    spark = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark_home())}
    return {**kept, **spark, "PATH": os.pathsep.join(path), "HOME": str(home)}


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the output of ``conf/cluster/pack``."""
    target = tmp_path_factory.mktemp("packed")
    done = subprocess.run(
        [str(ROOT / "conf/cluster/pack"), str(target)],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return target


class Standalone:
    """A standalone master and its workers."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._processes: list[subprocess.Popen[bytes]] = []
        master = self._start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._await(master, r"(spark://127\.0\.0\.1:\d+)")

    def add_worker(self) -> subprocess.Popen[bytes]:
        """Another worker of one core; awaits its registration."""
        work = self._place / f"work-{len(self._processes)}"
        options = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(work))
        log = self._start("Worker", *options, self.url)
        self._await(log, r"(Successfully registered with master)")
        return self._processes[-1]

    def stop(self) -> None:
        """Ends all processes."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(_TIMEOUT_S)

    def _start(self, role: str, *options: str) -> Path:
        log = self._place / f"{role}-{len(self._processes)}.log"
        command = [str(spark_home() / "bin/spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", *options]
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    command, cwd=self._place, env=bare_environment(self._place), stdout=out, stderr=subprocess.STDOUT
                )
            )
        return log

    def _await(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline:
            found = re.search(pattern, log.read_text(errors="replace"))
            if found:
                return found[1]
            if self._processes[-1].poll() is not None:
                break
            time.sleep(0.2)
        raise TimeoutError(f"{pattern} not in {log}: {log.read_text(errors='replace')[-2000:]}")


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Callable[[int], Standalone]]:
    """Starts a standalone cluster of so many workers."""
    started: list[Standalone] = []

    def start(workers: int) -> Standalone:
        place = tmp_path / "cluster"
        place.mkdir()
        cluster = Standalone(place)
        started.append(cluster)
        for _ in range(workers):
            cluster.add_worker()
        return cluster

    yield start
    for cluster in started:
        cluster.stop()
