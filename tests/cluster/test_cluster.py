"""Commands on clusters: through a Spark Connect server, a process of its own, and on executors with nothing installed and the
settings of ``conf/spark-defaults.conf``. Bytes and reports are those of the other engines, and what is broken on the way
fails logs, or is repeated, but loses nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from operator import truediv
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

import compaction
from compaction.commands import compact
from compaction.engine import ByPlace, Emission, Items, Job, Source
from compaction.engines.connect import ConnectEngine, connect
from compaction.errors import CompactionError, UsageError
from compaction.files.manifest import MANIFEST
from tests.cluster.conftest import bare_environment
from tests.cluster.standalone import Daemon, Standalone, standalone
from tests.crash.faulty_spark import erase
from tests.golden import unpack_sample
from tests.jvm import executor_options
from tests.kafka.broker import free_ports, listens
from tests.kafka.jars import spark_home
from tests.local_passes import LocalPasses
from tests.object_store.fixtures import Bucket
from tests.object_store.server import ACCESS_KEY, SECRET_KEY
from tests.passes.test_repeated_tasks import AS_OF_MS, COMMANDS, running_on
from tests.processes import ROOT, started
from tests.test_engine import exchanged, values
from tests.waiting import wait_until
from tools.benchmark.generate import Profile, write_log

pytestmark = pytest.mark.cluster

RULES: dict[str, Any] = {"settings": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}, "as_of": AS_OF_MS}
_TIMEOUT_S = 90
#: queries of a run before its passes
_QUERIES = 2


class Server(Daemon):
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
        super().__init__(command, place / "server.log", environment)
        try:
            self.await_result(lambda: listens(port))
        except AssertionError:
            self.stop()
            raise

    def executors(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            for process in reversed(psutil.Process(self.process.pid).children(recursive=True)):
                process.kill()
        self.process.kill()
        self.process.wait(_TIMEOUT_S)


@contextmanager
def serving(place: Path, master: str) -> Iterator[Server]:
    place.mkdir()
    started = Server(place, master)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("connect") / "server", "local[2]") as started:
        yield started


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
    """What is the same in each call of the report."""
    if isinstance(document, dict):
        own = {"run_id", "log_dir", "log_dirs", "output_dir", "engine", "options", "salt", "keys"}
        own |= {"seconds", "task_seconds", "duration_s", "waves"}
        return {name: plain(value) for name, value in document.items() if name not in own}
    return [plain(value) for value in document] if isinstance(document, list) else document


def _copy(source: Path, target: Path, **on: Any) -> Any:
    return compaction.compact(source, output_dir=target, **RULES, **on)


@pytest.mark.parametrize("command", [*COMMANDS, erase])
def test_every_command_does_what_it_does_with_plain_calls(
    session: Any, tmp_path: Path, command: Callable[[Path], dict[str, Any]]
) -> None:
    log_dir = unpack_sample(tmp_path)
    with running_on(LocalPasses()):
        expected = plain(command(log_dir))
    with closing(ConnectEngine(session)) as engine, running_on(engine):
        assert plain(command(log_dir)) == expected


def test_the_sample_is_compacted_by_the_command_as_by_worker_processes(server: Server, tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    call = [sys.executable, "-m", "compaction", "compact", "--log-dir", str(log_dir)]
    call += ["--include-active", "--as-of-ms", str(AS_OF_MS)]
    for engine, variables in (("local", {}), ("auto", {"SPARK_REMOTE": server.url})):
        options = ["--engine", engine, "--output-dir", str(tmp_path / engine), "--report", str(tmp_path / f"{engine}.json")]
        done = started([*call, *options], cwd=ROOT, without=(), **variables)
        assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "auto") == tree(tmp_path / "local") != {}
    report = json.loads((tmp_path / "auto.json").read_text())
    assert report["engine"] == {"name": "connect", "reason": "SPARK_REMOTE is set"}


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


def test_a_task_that_fails_is_one_line_with_its_cause(session: Any) -> None:
    engine = ConnectEngine(session)
    with pytest.raises(CompactionError, match=r"^Spark's job failed: ZeroDivisionError: division by zero; nothing was changed"):
        engine.run(Job("test"), [1, 0], partial(truediv, 1))
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
    with serving(tmp_path / "server", "local[2]") as server, _client(server, large, tmp_path / "copy") as client:
        wait_until(lambda: server.log().count("is created") > _QUERIES, _TIMEOUT_S)
        server.stop()
        _, errors = client.communicate(timeout=3 * _TIMEOUT_S)
        assert client.returncode == 1, errors
    assert "Traceback" not in errors
    assert not (tmp_path / "copy").exists()


def test_executors_that_are_killed_lose_nothing(large: Path, tmp_path: Path) -> None:
    """Kept shards are scanned again: the copy is the same, or the run fails."""
    killed: list[int] = []
    real = ConnectEngine.run
    with serving(tmp_path / "server", "local-cluster[2,1,1024]") as own:

        def run(self: ConnectEngine, job: Job, source: Any, work: Any) -> list[Any]:
            if job.name == "pass 2" and not killed:
                executor = own.executors()[0]
                killed.append(executor.pid)
                executor.kill()
            return real(self, job, source, work)

        opened = connect(own.url)
        with patch.object(ConnectEngine, "run", run):
            report = _copy(large, tmp_path / "copy", spark=opened)
        opened.stop()
    assert killed
    assert report.exit_code == 0
    assert tree(tmp_path / "copy") == tree(_local(large))


def test_the_session_of_an_engine_ends_with_it(server: Server, session: Any) -> None:
    engine = ConnectEngine(session)
    shuffle = engine.shuffle(Job("test"), Source([3], known=7), emit, ByPlace(2), merges=True)
    assert shuffle.results == [3]
    before = server.log().count("Closing session")
    engine.close()
    assert server.log().count("Closing session") == before + 1


# executors that have nothing installed

#: prints where a worker imports this package and a library from
PROBE = """
import sys
from compaction.engine_choice import start_session
session = start_session("probe")
def where(_):
    import compaction, numba, os, sys
    from compaction.kernels import batches
    return [(compaction.__file__, numba.__file__, sys.executable, os.environ.get("PYTHONPATH", ""))]
sc = session.sparkContext
for each in sc.parallelize(range(4), 4).flatMap(where).collect():
    print("|".join(each))
"""


def settings_for_clusters(packed: Path) -> dict[str, str]:
    """The commented settings of the file, with the archives that were packed for this test."""
    text = (ROOT / "conf/spark-defaults.conf").read_text()
    settings = dict(re.findall(r"^# (spark\.[\w.]+)\s+(\S+)$", text, re.MULTILINE))
    assert {"spark.master", "spark.archives", "spark.pyspark.python", "spark.submit.pyFiles"} <= set(settings)
    own = {"spark.executor.memory": "1g", "spark.executor.cores": "1", "spark.pyspark.driver.python": sys.executable}
    return {name: value.replace("build/cluster", str(packed)) for name, value in settings.items()} | own | executor_options()


def submit(
    home: Path, script: Path, settings: dict[str, str], *options: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs an application by spark-submit with these settings and environment variables only, the project on the driver's
    path."""
    properties = home / "spark.conf"
    properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    environment = bare_environment(home) | {"PYTHONPATH": str(ROOT)} | variables
    command = [f"{environment['SPARK_HOME']}/bin/spark-submit", "--properties-file", str(properties), str(script), *options]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    place = tmp_path_factory.mktemp("two-workers") / "cluster"
    with standalone(place, bare_environment(place)) as cluster:
        yield cluster


#: clean everything that can be cleaned
ALL = ("--as-of-ms", str(AS_OF_MS), "--set", "min.cleanable.dirty.ratio=0", "--include-active")


def test_workers_run_only_shipped_code(packed: Path, two_workers: Standalone, tmp_path: Path) -> None:
    settings = settings_for_clusters(packed) | {"spark.master": two_workers.url, "spark.cores.max": "1"}
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    done = submit(tmp_path, probe, settings)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    assert len(found) == 4
    for package, library, python, path in found:
        assert re.search(r"^(\./|.*/cluster/work-\d+/.*/)kafka-log-compaction(-driver)?\.zip/compaction/__init__\.py$", package)
        assert re.search(r"/cluster/work-\d+/.*/environment/lib/.*/numba/__init__\.py$", library)
        assert python.endswith("/environment/bin/python")
        assert str(ROOT) not in path.split(os.pathsep)


#: a call on a session whose executors no worker of the cluster can start
TOO_LARGE = """
import sys, compaction
from pyspark.sql import SparkSession
settings = {"spark.executor.cores": "64", "spark.executor.memory": "700m", "spark.ui.enabled": "false"}
spark = SparkSession.builder.master(sys.argv[1]).config(map=settings).getOrCreate()
print("session", flush=True)
compaction.count(sys.argv[2], spark=spark)
"""


def test_executors_that_no_worker_can_start_are_said_after_half_a_minute(two_workers: Standalone, tmp_path: Path) -> None:
    """The call waits: a worker may join."""
    environment = bare_environment(tmp_path) | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    del environment["SPARK_HOME"]
    command = [sys.executable, "-c", TOO_LARGE, two_workers.url, unpack_sample(tmp_path)]
    call = Daemon(command, tmp_path / "output", environment)
    try:
        (line,) = call.await_result(lambda: re.findall("no task has started.*\n", call.log()), 240)
    finally:
        call.process.kill()
        call.process.wait()
    assert line == (
        f"no task has started for 30 s: no executor has registered with {two_workers.url}. Each was requested with "
        "spark.executor.cores=64, spark.executor.memory=700m: does a worker have that free?\n"
    )


def executors(cluster: Standalone) -> set[Path]:
    """The output files of all executors so far."""
    return set(cluster.place.glob("work-*/app-*/*/stderr"))


@contextmanager
def worker_replaced(cluster: Standalone) -> Iterator[None]:
    """Once a worker has begun another executor, a new worker joins, and that one dies."""
    before = executors(cluster)
    events: list[str] = []

    def replace() -> None:
        wait_until(lambda: executors(cluster) - before, 300)
        work = (executors(cluster) - before).pop().relative_to(cluster.place).parts[0]
        cluster.add_worker()
        events.append("another worker")
        cluster.processes[int(work.removeprefix("work-"))].kill()
        events.append("first worker gone")

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        yield
    finally:
        replacing.join()
    assert events == ["another worker", "first worker gone"]


def test_a_cluster_compacts_from_store_to_store_as_one_machine_does_from_disk_to_disk(
    packed: Path, two_workers: Standalone, tmp_path: Path, bucket: Bucket
) -> None:
    """Workers may join and leave meanwhile, and the archive has the package, too: there are no ``--py-files``."""
    log_dir, on_disk = unpack_sample(tmp_path), tmp_path / "on-disk"
    bucket.put_tree(log_dir, "in")
    assert compact.main(["--log-dir", str(log_dir), "--output-dir", str(on_disk), *ALL]) == 0
    settings = settings_for_clusters(packed) | {"spark.master": two_workers.url}
    del settings["spark.submit.pyFiles"]
    # the driver takes its credentials from the environment, the workers take theirs from a file
    variables = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    (two_workers.place / ".aws").mkdir()
    lines = ["[default]", *(f"{name.lower()} = {value}" for name, value in variables.items())]
    (two_workers.place / ".aws/credentials").write_text("\n".join(lines) + "\n")
    places = ("--log-dir", bucket.address("in"), "--output-dir", bucket.address("out"))
    with worker_replaced(two_workers):
        done = submit(tmp_path, ROOT / "jobs/compact.py", settings, *places, *ALL, **variables)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = bucket.tree("out")
    manifest = json.loads(found.pop(MANIFEST))
    assert found == {str(path.relative_to(on_disk)): path.read_bytes() for path in on_disk.rglob("*") if path.is_file()}
    assert {each["path"]: each["size"] for each in manifest["files"]} == {name: len(data) for name, data in found.items()}
    before, after = (sum(path.stat().st_size for path in place.glob("orders*/*.log")) for place in (log_dir, on_disk))
    assert after < before / 2
