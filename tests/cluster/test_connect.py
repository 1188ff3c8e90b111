"""The commands through a Spark Connect server, a process of its own: bytes and reports are those of the other engines, and what
is broken on the way fails logs, or is repeated, but loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import compaction
from compaction.engine import ByPlace, Emission, Items, Job, Source
from compaction.engines.connect import ConnectEngine, connect
from compaction.errors import CompactionError, UsageError
from tests.golden import unpack_sample
from tests.kafka.broker import free_ports, listens
from tests.kafka.jars import spark_home
from tests.local_passes import LocalPasses
from tests.object_store.fixtures import Bucket
from tests.object_store.server import ACCESS_KEY, SECRET_KEY
from tests.processes import ROOT, started
from tests.test_engine import exchanged, values
from tests.waiting import wait_until
from tools.benchmark.generate import Profile, write_log

pytestmark = pytest.mark.cluster

AS_OF_MS = 1_798_761_600_000
RULES: dict[str, Any] = {"settings": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}, "as_of": AS_OF_MS}
_TIMEOUT_S = 90
#: queries of a run before its passes
_QUERIES = 2
#: what each call of the report has of its own
_TIMES = {"seconds", "task_seconds", "duration_s", "waves"}
_OWN = {"run_id", "log_dir", "log_dirs", "output_dir", "engine", "options", "salt", "keys", *_TIMES}


class Server:
    """A Spark Connect server.

    :param master: of its Spark
    """

    def __init__(self, place: Path, master: str) -> None:
        (port,) = free_ports(1)
        self.url, self.place = f"sc://127.0.0.1:{port}", place
        settings = {
            "spark.connect.grpc.binding.port": port,
            "spark.ui.enabled": "false",
            "spark.local.dir": place / "local",
            "spark.executor.memory": "1g",
        }
        options = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
        command = [str(spark_home() / "sbin/start-connect-server.sh"), "--master", master, *options]
        own = {"SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
        own |= {"SPARK_LOG_DIR": str(place), "SPARK_PID_DIR": str(place)}
        own |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        environment = {**os.environ, **own, "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
        with (place / "server.log").open("wb") as out:
            self._process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=place)
        deadline = time.monotonic() + _TIMEOUT_S
        while not listens(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise TimeoutError(self.log()[-2000:])
            time.sleep(0.1)

    def log(self) -> str:
        return (self.place / "server.log").read_text(errors="replace")

    def executors(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def stop(self) -> None:
        if self._process.poll() is None:
            for process in reversed(psutil.Process(self._process.pid).children(recursive=True)):
                process.kill()
        self._process.kill()
        self._process.wait(_TIMEOUT_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("connect"), "local[2]")
    yield started
    started.stop()


@pytest.fixture(scope="module")
def session(server: Server) -> Iterator[Any]:
    opened = connect(server.url)
    yield opened
    opened.stop()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs whose slices, shards and parts are several."""
    log_dir = tmp_path_factory.mktemp("large")
    for number in range(2):
        write_log(log_dir / f"t-{number}", Profile(50_000_000, 100_000, segment_bytes=10_000_000, seed=number))
    return log_dir


def emit(task: int, known: int) -> Iterator[Emission]:
    yield None, task
    for number in range(task):
        yield (task, number), bytes([known]) * 3_000_000


def joined(items: Items) -> list[tuple[tuple[int, int], int, set[int]]]:
    return [(place, len(data), set(data)) for place, of_place in items for data in of_place]


def test_a_server_exchanges_what_plain_calls_do(session: Any) -> None:
    engine = ConnectEngine(session)
    for reducers in (1, 5):
        assert values(exchanged(engine, Job("test"), reducers)) == values(exchanged(LocalPasses(), Job("test"), reducers))
    assert engine.run(Job("test"), [], abs) == []
    assert engine.run(Job("test"), [1, -2, -3], abs) == [1, 2, 3]
    engine.close()


def test_values_larger_than_a_row_and_empty_parts_arrive(session: Any) -> None:
    engine = ConnectEngine(session)
    shuffle = engine.shuffle(Job("test"), Source([1, 2], known=7), emit, ByPlace(4), merges=True)
    assert sorted(shuffle.results) == [1, 2]
    found = engine.run(Job("test"), Source(items=shuffle), joined)
    assert len(found) == 4
    assert sorted(item for part in found for item in part) == [
        ((1, 0), 3_000_000, {7}), ((2, 0), 3_000_000, {7}), ((2, 1), 3_000_000, {7}),
    ]  # fmt: skip
    engine.close()


def tree(log_dir: Path) -> dict[str, bytes]:
    kinds = (".log", ".index", ".timeindex", ".txnindex")
    found = (path for path in log_dir.rglob("*") if path.suffix in kinds or path.name == "cleaner-offset-checkpoint")
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in found}


def plain(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: plain(value) for name, value in document.items() if name not in _OWN}
    return [plain(value) for value in document] if isinstance(document, list) else document


def _copy(source: Path, target: Path, **on: Any) -> Any:
    return compaction.compact(source, output_dir=target, **RULES, **on)


def _in_place(source: Path, target: Path, **on: Any) -> Any:
    shutil.copytree(source, target, copy_function=shutil.copy2)
    return compaction.compact(target, **RULES, **on)


def _erase(source: Path, target: Path, **on: Any) -> Any:
    shutil.copytree(source, target, copy_function=shutil.copy2)
    return compaction.erase(target, topics="t", where="prefix=key-0000000001", as_of=AS_OF_MS, **on)


def _dry_run(source: Path, _: Path, **on: Any) -> Any:
    return compaction.dry_run(source, policies=["cleanup.policy=compact"], as_of=AS_OF_MS, **on)


def _over_time(source: Path, _: Path, **on: Any) -> Any:
    return compaction.dry_run(source, over_time=True, every="30d", as_of=AS_OF_MS, **on)


def _count(source: Path, _: Path, **on: Any) -> Any:
    return compaction.count(source, by_partition=True, top=3, **on)


def _verify(source: Path, target: Path, **on: Any) -> Any:
    compaction.compact(source, output_dir=target, engine="local", **RULES)
    return compaction.verify(source, target, **RULES, **on)


@pytest.mark.parametrize("command", [_copy, _in_place, _erase, _dry_run, _over_time, _count, _verify])
def test_every_command_does_what_it_does_with_worker_processes(
    session: Any, large: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    local = command(large, tmp_path / "local", engine="local").to_dict()
    served = command(large, tmp_path / "served", spark=session).to_dict()
    assert plain(served) == plain(local)
    assert tree(tmp_path / "served") == tree(tmp_path / "local") if (tmp_path / "local").exists() else True


def test_the_sample_is_compacted_by_the_command_as_by_worker_processes(server: Server, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    call = [sys.executable, "-m", "compaction", "compact", "--log-dir", str(log_dir)]
    call += ["--include-active", "--as-of-ms", str(AS_OF_MS)]
    for engine, variables in (("local", {}), ("auto", {"SPARK_REMOTE": server.url})):
        options = ["--engine", engine, "--output-dir", str(tmp_path / engine), "--report", str(tmp_path / f"{engine}.json")]
        done = started([*call, *options], cwd=ROOT, without=(), **variables)
        assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "auto") == tree(tmp_path / "local") != {}
    reports = [json.loads((tmp_path / f"{engine}.json").read_text()) for engine in ("local", "auto")]
    assert plain(reports[0]["logs"]) == plain(reports[1]["logs"])
    assert reports[1]["engine"] == {"name": "connect", "reason": "SPARK_REMOTE is set"}


def test_a_store_is_compacted_with_the_credentials_of_the_server(
    session: Any, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint of the store is sent with the tasks; the server has the credentials in its own environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    log_dir = unpack_sample(tmp_path)
    bucket.put_tree(log_dir, "in")
    _copy(log_dir, tmp_path / "on-disk", engine="local")
    assert compaction.compact(bucket.address("in"), output_dir=bucket.address("out"), spark=session, **RULES).exit_code == 0
    found = bucket.tree("out")
    assert {name: found[name] for name in tree(tmp_path / "on-disk")} == tree(tmp_path / "on-disk")


def test_records_are_read_into_a_data_frame_of_the_server(session: Any, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    records = compaction.read(session, log_dir, topics="customers")
    latest = compaction.read(session, log_dir, topics="customers", view="latest")
    assert records.count() > latest.count() > 0
    assert records.where("offset < 20").count() <= 20 < records.count()


def test_a_session_is_left_as_it_was(session: Any, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    before = session.conf.getAll
    compaction.count(log_dir, spark=session)
    assert session.conf.getAll == before
    assert session.range(3).count() == 3


def test_a_directory_that_tasks_do_not_see_is_refused(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = unpack_sample(tmp_path)
    real = ConnectEngine.run
    blind = lambda self, job, *given: [None] if job.description.startswith("look") else real(self, job, *given)  # noqa: E731
    monkeypatch.setattr(ConnectEngine, "run", blind)
    with pytest.raises(UsageError, match="tasks do not see what this machine has there"):
        compaction.compact(log_dir, output_dir=tmp_path / "copy", spark=session, **RULES)
    assert not (tmp_path / "copy").exists()


def _divide(task: int) -> float:
    return 1 / task


def test_a_task_that_fails_is_one_line_with_its_cause(session: Any) -> None:
    engine = ConnectEngine(session)
    with pytest.raises(CompactionError, match=r"^Spark's job failed: ZeroDivisionError: division by zero; nothing was changed"):
        engine.run(Job("test"), [1, 0], _divide)
    engine.close()


@contextmanager
def _client(server: Server, source: Path, target: Path) -> Iterator[subprocess.Popen[str]]:
    call = [sys.executable, "-m", "compaction", "compact", "--engine", "connect"]
    call += ["--log-dir", str(source), "--output-dir", str(target)]
    call += ["--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0", "--as-of-ms", str(AS_OF_MS)]
    environment = {**os.environ, "SPARK_REMOTE": server.url}
    client = subprocess.Popen(call, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield client
    finally:
        client.kill()
        client.communicate()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_client_that_ends_in_a_run_leaves_no_result_and_the_server_goes_on(
    server: Server, session: Any, large: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    seen = len(server.log())
    with _client(server, large, tmp_path / "copy") as client:
        wait_until(lambda: server.log()[seen:].count("is created") > _QUERIES, _TIMEOUT_S)
        client.send_signal(sent)
        assert client.wait(_TIMEOUT_S) != 0
    assert not (tmp_path / "copy").exists()
    assert _copy(large, tmp_path / "copy", spark=session).exit_code == 0
    assert tree(tmp_path / "copy") == tree(_local(large))


def _local(large: Path) -> Path:
    """The copy by worker processes."""
    target = large.with_name(f"{large.name}-by-workers")
    if not target.exists():
        _copy(large, target, engine="local")
    return target


def test_a_server_that_stops_in_a_run_fails_it_and_nothing_is_lost(large: Path, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server", "local[2]")
    try:
        with _client(server, large, tmp_path / "copy") as client:
            wait_until(lambda: server.log().count("is created") > _QUERIES, _TIMEOUT_S)
            server.stop()
            _, errors = client.communicate(timeout=3 * _TIMEOUT_S)
            assert client.returncode == 1, errors
    finally:
        server.stop()
    assert "Traceback" not in errors
    assert not (tmp_path / "copy").exists()


def test_executors_that_are_killed_lose_nothing(large: Path, tmp_path: Path) -> None:
    """Kept shards are scanned again: the copy is the same, or the run fails."""
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server", "local-cluster[2,1,1024]")
    killed: list[int] = []
    real = ConnectEngine.run

    def run(self: ConnectEngine, job: Job, source: Any, work: Any) -> list[Any]:
        if job.name == "pass 2" and not killed:
            executor = server.executors()[0]
            killed.append(executor.pid)
            executor.kill()
        return real(self, job, source, work)

    try:
        opened = connect(server.url)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ConnectEngine, "run", run)
            report = _copy(large, tmp_path / "copy", spark=opened)
        opened.stop()
    finally:
        server.stop()
    assert killed
    assert report.exit_code == 0
    assert tree(tmp_path / "copy") == tree(_local(large))


def test_other_users_of_the_machine_can_read_no_file_of_the_server(server: Server, session: Any) -> None:
    """The directories of its local files are its user's alone, while shards are kept in them."""
    engine = ConnectEngine(session)
    shuffle = engine.shuffle(Job("test"), Source([3], known=7), emit, ByPlace(2), merges=True)
    assert shuffle.results == [3]
    files = [path for path in (server.place / "local").rglob("*") if path.is_file() and path.stat().st_size]
    assert files
    for path in files:
        assert any(parent.stat().st_mode & 0o077 == 0 for parent in path.parents if parent.is_relative_to(server.place))
    engine.close()
    assert "Closing session" in server.log()
