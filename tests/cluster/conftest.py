"""A Spark cluster of separate processes on loopback, and the packed environment that its executors run in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kafka.jars import spark_home

ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 60


def bare_environment(home: Path) -> dict[str, str]:
    """The environment of a machine on which nothing of this project is installed."""
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME") if name in os.environ}
    java = shutil.which("java")
    path = [*([str(Path(java).parent)] if java else []), "/usr/local/bin", "/usr/bin", "/bin"]
    spark = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(spark_home())}
    return {**kept, **spark, "PATH": os.pathsep.join(path), "HOME": str(home)}


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty cache: the first processes compile the kernels, on a worker too, and the later ones use them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the output of ``conf/cluster/pack``."""
    target = tmp_path_factory.mktemp("packed")
    done = subprocess.run(
        [str(ROOT / "conf/cluster/pack"), str(target)],
        # the least compression: the archive is read from the same disk
        env={**os.environ, "PYTHON": sys.executable, "GZIP": "-1"},
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
        #: with the work directories, and home of the workers
        self.place = place
        #: the master, then the workers
        self.processes: list[subprocess.Popen[bytes]] = []
        master = self._start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._await(master, r"(spark://127\.0\.0\.1:\d+)")

    def add_worker(self) -> subprocess.Popen[bytes]:
        """Another worker of one core; awaits its registration."""
        work = self.place / f"work-{len(self.processes)}"
        options = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(work))
        log = self._start("Worker", *options, self.url)
        self._await(log, r"(Successfully registered with master)")
        return self.processes[-1]

    def stop(self) -> None:
        """Ends all processes."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(_TIMEOUT_S)

    def _start(self, role: str, *options: str) -> Path:
        log = self.place / f"{role}-{len(self.processes)}.log"
        command = [str(spark_home() / "bin/spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", *options]
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    command, cwd=self.place, env=bare_environment(self.place), stdout=out, stderr=subprocess.STDOUT
                )
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
            time.sleep(0.2)
        raise TimeoutError(f"{pattern} not in {log}: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def standalone(place: Path, workers: int) -> Iterator[Standalone]:
    """A standalone cluster of so many workers."""
    place.mkdir()
    cluster = Standalone(place)
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.stop()
