"""A real broker of any version on loopback, in its own process, on a log directory of a test: alone, or beside another one.

Up to 3.2 it is a broker with a ZooKeeper, which is a second process with a directory beside the log directory; later one
process is broker and controller. A second broker of a cluster is a broker only.

A KRaft broker treats the directory of a partition that is not in its metadata as stray and moves it away. To have a broker
serve other partitions, copy a complete log directory, including ``__cluster_metadata-0`` and ``meta.properties``, and replace
the partitions in it (``host_partition``).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.jvm import BROKER_CLASSES, SHORT_LIVED, with_classes
from tests.kafka.gateway import java_executable
from tests.kafka.jars import LOGGING_CONFIG, REFERENCE, require_kafka_classpath

CLUSTER_ID = "b2ZmbGluZS1jbGVhbmVyLQ"
_STARTED = b"Kafka Server started", b"KafkaServer [KafkaServer id=1] started"
#: the first version that runs without ZooKeeper in production
_WITHOUT_ZOOKEEPER = (3, 3)
_ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
_TIMEOUT_S = 90
_JAVA_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:-UsePerfData")

#: one node, no delays, and no cleaner: the directory has exactly what was produced. Versions ignore names that they lack.
_DEFAULTS = {
    "inter.broker.listener.name": "PLAINTEXT",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # after a kill the controller, which is the broker itself, waits this long before it registers the broker again
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "auto.create.topics.enable": "false",
    "log.cleaner.enable": "false",
    "log.initial.task.delay.ms": "3600000",
    # open transactions do not time out, however long a test takes
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
}

#: what passing errors have in them, or the causes in the lines after them
_PASSING = (
    "apiKey=CONTROLLER_REGISTRATION",
    "Remote log metadata cache is not initialized",
    "Expected sequence 0 for transactions v2 idempotent producer with no existing state",
    "processExpiredBrokerHeartbeat",
    "sent a heartbeat request but received error REQUEST_TIMED_OUT",
)

#: several threads may start brokers
_giving = threading.Lock()
#: the files of a formatted directory, by version and broker
_formatted: dict[tuple[str, int], dict[str, bytes]] = {}


class BrokerError(RuntimeError):
    """The broker did not start or stop; the message has the end of its log."""


class Broker:
    """A running broker. As a context manager it stops cleanly.

    A directory without ``meta.properties`` is formatted first; any other is used as it is.

    :param log_dir: the broker's only log directory
    :param overrides: broker properties on top of the ones of this module
    :param version: of Kafka
    :param beside: the first broker of the cluster that this one joins, from 3.3 on
    :param jars: plugins
    :param java_options: of its JVM
    :raises BrokerError: it ended, or did not start in time
    """

    def __init__(
        self,
        log_dir: Path,
        overrides: Mapping[str, str] | None = None,
        *,
        version: str = REFERENCE,
        beside: Broker | None = None,
        jars: Sequence[Path] = (),
        java_options: Sequence[str] = (),
    ) -> None:
        self.log_dir = log_dir.resolve()
        self._java_options = java_options or (with_classes(BROKER_CLASSES) if version == REFERENCE else SHORT_LIVED)
        self._classpath = os.pathsep.join((require_kafka_classpath(version=version), *map(str, jars)))
        self._has_zookeeper = tuple(int(part) for part in version.split(".")) < _WITHOUT_ZOOKEEPER
        self._scratch = tempfile.TemporaryDirectory(prefix="kafka-broker-")
        self._log_path = Path(self._scratch.name) / "broker.log"
        port, controller_port = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        self.node = 1 if beside is None else 2
        self._controller: str = f"127.0.0.1:{controller_port}" if beside is None else beside._controller
        self._config = self._write_config(overrides or {})
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._zookeeper = self._start_zookeeper(controller_port) if self._has_zookeeper else None
        if not self._has_zookeeper and not (self.log_dir / "meta.properties").exists():
            self._format(version)
        self._process = self._start()

    def _write_config(self, overrides: Mapping[str, str]) -> Path:
        listener = f"PLAINTEXT://{self.bootstrap}"
        own = {"advertised.listeners": listener, "listeners": listener, "log.dirs": str(self.log_dir)}
        if self._has_zookeeper:
            own.update({"broker.id": "1", "zookeeper.connect": self._controller})
        else:
            own.update({"node.id": str(self.node), "process.roles": "broker", "controller.listener.names": "CONTROLLER"})
            own["controller.quorum.voters"] = f"1@{self._controller}"
            own["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
            if self.node == 1:
                own["process.roles"] += ",controller"
                own["listeners"] += f",CONTROLLER://{self._controller}"
        lines = [f"{name}={value}" for name, value in {**_DEFAULTS, **own, **overrides}.items()]
        path = Path(self._scratch.name) / "server.properties"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def _command(self, main: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={LOGGING_CONFIG}"
        return [java_executable(), *_JAVA_OPTIONS, *self._java_options, logging, "-cp", self._classpath, main, *arguments]

    def _format(self, version: str) -> None:
        """As Kafka's tool does, whose files are kept for later brokers of the version. They name the directory by an identity,
        which must be unique within a broker only."""
        single = f"\nlog.dirs={self.log_dir}\n" in self._config.read_text(encoding="utf-8")
        if single and (version, self.node) in _formatted:
            for name, content in _formatted[version, self.node].items():
                (self.log_dir / name).parent.mkdir(exist_ok=True)
                (self.log_dir / name).write_bytes(content)
            return
        before = set(self.log_dir.rglob("*"))
        command = self._command("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._config))
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            raise BrokerError(f"format ended with {done.returncode}: {done.stdout}{done.stderr}")
        if single:
            made = (file for file in self.log_dir.rglob("*") if file.is_file() and file not in before)
            _formatted[version, self.node] = {str(file.relative_to(self.log_dir)): file.read_bytes() for file in made}

    def _start_zookeeper(self, port: int) -> subprocess.Popen[bytes]:
        """Its data, which include the topics, are in a directory beside the log directory."""
        data = self.log_dir.with_name(f"{self.log_dir.name}-zookeeper")
        data.mkdir(exist_ok=True)
        command = self._command(_ZOOKEEPER, str(port), str(data))
        # without its administration server, which takes a fixed port
        command.insert(1, "-Dzookeeper.admin.enableServer=false")
        with (Path(self._scratch.name) / "zookeeper.log").open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log_path.open("wb") as log:
            process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._config)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _TIMEOUT_S
        while not any(text in self._log_path.read_bytes() for text in _STARTED):
            if process.poll() is not None:
                self._end_zookeeper()
                raise BrokerError(f"the broker ended with {process.returncode}:\n{self.log_text()[-3000:]}")
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                self._end_zookeeper()
                raise BrokerError(f"the broker was not up in {_TIMEOUT_S} s:\n{self.log_text()[-3000:]}")
            time.sleep(0.05)
        return process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self._process.poll() is None

    def log_text(self) -> str:
        """Its log: warnings and errors."""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def errors(self) -> list[str]:
        """The errors that the broker logged, except for those that pass: its own registration, which a new controller refuses;
        a fetch of uploaded segments before it knows them; batches that overtake the first of a transaction, which waits for the
        coordinator to add the partition: the producer sends these again; heartbeats that a busy machine delays, which the
        broker sends again."""
        lines = self.log_text().splitlines()
        with_causes = [f"{line} {cause}" for line, cause in zip(lines, [*lines[1:], ""], strict=True) if " ERROR " in line]
        return [each for each in with_causes if not any(passing in each for passing in _PASSING)]

    def stop(self) -> None:
        """A clean shutdown: logs flushed and closed, checkpoints and ``.kafka_cleanshutdown`` written."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise BrokerError(f"no clean stop in {_TIMEOUT_S} s:\n{self.log_text()[-3000:]}") from None

    def kill(self) -> None:
        """kill -9."""
        if self.running:
            self._process.kill()
        self._process.wait()
        self._end_zookeeper()

    def _end_zookeeper(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper.wait()

    def close(self) -> None:
        """Stops and removes its temporary files, but not the log directory."""
        try:
            self.stop()
        finally:
            self._end_zookeeper()
            self._scratch.cleanup()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def host_partition(log_dir: Path, source: Path) -> None:
    """Replaces the same partition's files by those of the partition directory ``source`` in a stopped broker's
    ``log_dir``; the broker's own ``partition.metadata`` stays, since it names the topic that the broker knows.

    Checkpoint entries are left as they are: offsets past the log's end are brought down by the broker when it starts.
    """
    target = log_dir / source.name
    for file in target.iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for file in source.iterdir():
        if file.name != "partition.metadata":
            shutil.copy2(file, target / file.name)


_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Free ports, all bound at once so that they differ, and from those of other calls, whose brokers may still start."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            with _giving:
                if port not in _given:
                    _given.add(port)
                    found.append(port)
    return found


def listens(port: int) -> bool:
    """Whether a server of this machine accepts connections at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
