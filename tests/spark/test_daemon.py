"""Spark's daemon, forked from a process that has loaded: asked for as Spark does, and whatever of it is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from compaction.spark.daemon import ADDRESS, Preloaded

_TIMEOUT_S = 60.0


@contextmanager
def started(address: str | None, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon, started as Spark starts it; it has said where it listens."""
    known = {} if address is None else {ADDRESS: address}
    with subprocess.Popen(
        [sys.executable, "-m", "compaction.spark.daemon", "pyspark.worker"],
        env={**os.environ, **known, "PYTHON_WORKER_FACTORY_SECRET": "none", "SPARK_PREFER_IPV6": "false", "MARK": "ours"},
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert int.from_bytes(process.stdout.read(4), "big") > 0
            yield process
        finally:
            process.kill()


@pytest.fixture
def preloaded() -> Iterator[Preloaded]:
    made = Preloaded({})
    yield made
    made.end()


def forked(preloaded: Preloaded) -> list[psutil.Process]:
    """The daemons that it forked and that are there."""
    return [each for each in psutil.Process(preloaded.pid).children() if each.status() != psutil.STATUS_ZOMBIE]


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=_TIMEOUT_S)[1]


def test_the_daemon_is_a_fork_with_the_environment_that_spark_set(preloaded: Preloaded, tmp_path: Path) -> None:
    with started(preloaded.address, tmp_path) as process:
        (daemon,) = forked(preloaded)
        assert Path(daemon.cwd()) == tmp_path
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(_TIMEOUT_S) == 0
        assert gone([daemon])


def test_a_preloaded_process_forks_several_daemons(preloaded: Preloaded, tmp_path: Path) -> None:
    with started(preloaded.address, tmp_path), started(preloaded.address, tmp_path):
        assert len(forked(preloaded)) == 2


def test_a_killed_daemon_ends_the_process_that_spark_monitors(preloaded: Preloaded, tmp_path: Path) -> None:
    with started(preloaded.address, tmp_path) as process:
        (daemon,) = forked(preloaded)
        daemon.kill()
        process.wait(_TIMEOUT_S)


def test_without_a_preloaded_process_the_daemon_loads(preloaded: Preloaded, tmp_path: Path) -> None:
    process_ = psutil.Process(preloaded.pid)
    os.kill(preloaded.pid, signal.SIGKILL)
    while process_.is_running() and process_.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    for address in (preloaded.address, "/no/such/socket", None):
        with started(address, tmp_path) as process:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_TIMEOUT_S)


def test_it_ends_with_the_process_that_made_it() -> None:
    program = (
        "import time; from compaction.spark.daemon import Preloaded; made = Preloaded({});"
        "print(made.address, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        place = Path(maker.stdout.readline().strip()).parent
        assert place.is_dir()
        children = psutil.Process(maker.pid).children()
        assert children
        maker.kill()
    assert gone(children)
    assert not place.exists()


def test_nothing_is_left_of_a_preloaded_process(preloaded: Preloaded) -> None:
    pid = preloaded.pid
    preloaded.end()
    assert not psutil.pid_exists(pid)
    assert not Path(preloaded.address).parent.exists()


def test_a_socket_where_others_could_have_put_it_is_told_nothing(tmp_path: Path) -> None:
    """Whoever listens there would be given the environment, Spark's secret among it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    address = str(shared / "socket")
    with socket.socket(socket.AF_UNIX) as trap:
        trap.bind(address)
        trap.listen()
        trap.settimeout(0.1)
        with started(address, tmp_path) as process:
            with pytest.raises(TimeoutError):
                trap.accept()
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_TIMEOUT_S)


def test_no_socket_is_created_where_others_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(PermissionError, match="can be written by others"):
        Preloaded({})
    assert list(tmp_path.iterdir()) == []
