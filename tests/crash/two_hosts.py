"""A standalone Spark of two workers on two loopback addresses: Spark starts a speculative attempt only on another host."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kafka.jars import spark_home

_TIMEOUT_S = 90
HOSTS = ("127.0.0.1", "127.0.0.2")


@contextmanager
def two_hosts(place: Path) -> Iterator[str]:
    """The master's URL while the cluster runs; its logs and work directories are in ``place``."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        master, log = _start(place, "Master", "--host", HOSTS[0], "--port", "0", "--webui-port", "0")
        processes.append(master)
        url = _await(master, log, r"(spark://127\.0\.0\.1:\d+)")
        for number, host in enumerate(HOSTS):
            options = ("--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(place / f"work-{number}"))
            worker, log = _start(place, "Worker", "--webui-port", "0", *options, url)
            processes.append(worker)
            _await(worker, log, r"(Successfully registered with master)")
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(_TIMEOUT_S)


def _start(place: Path, role: str, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
    log = place / f"{role}-{len(list(place.iterdir()))}.log"
    command = [str(spark_home() / "bin/spark-class"), f"org.apache.spark.deploy.{role.lower()}.{role}", *options]
    environment = {**os.environ, "SPARK_HOME": str(spark_home())}
    with log.open("wb") as out:
        return subprocess.Popen(command, cwd=place, env=environment, stdout=out, stderr=subprocess.STDOUT), log


def _await(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.2)
    raise TimeoutError(f"{pattern} not in {log}: {log.read_text(errors='replace')[-2000:]}")
