"""Kafka's real producer, consumer and admin client, driven in the gateway's JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError

from tests.kafka.gateway import Gateway
from tests.kafka.reader import decoded, headers_of
from tests.waiting import wait_until

_CLIENTS = "org.apache.kafka.clients."
_RESOURCE = "org.apache.kafka.common.config.ConfigResource"
_BYTES = "org.apache.kafka.common.serialization.ByteArray"
_POLL_MS = 200
_TIMEOUT_S = 60


class Consumed(NamedTuple):
    """A record as a consumer receives it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Clients:
    """Clients of one broker."""

    def __init__(self, gateway: Gateway, bootstrap: str) -> None:
        self.gateway = gateway
        self.bootstrap = bootstrap

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """An admin client (``java``), closed at the end."""
        admin = self.gateway.cls(_CLIENTS + "admin.Admin").create({"bootstrap.servers": self.bootstrap})
        try:
            yield admin
        finally:
            admin.close()

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None, *, brokers: Sequence[int] = ()
    ) -> None:
        """Creates a topic with these topic-level settings and waits for it; its replicas are on ``brokers``, the first of them
        its leader, by default on any one."""
        kind = self.gateway.cls(_CLIENTS + "admin.NewTopic")
        new = kind(topic, {at: list(brokers) for at in range(partitions)}) if brokers else kind(topic, partitions, 1)
        with self.admin() as admin:
            admin.createTopics([new.configs(dict(config or {}))]).all().get()

    def await_markers(self, transactional_id: str) -> None:
        """Returns once the markers of this producer's last transaction are in all its partitions: a coordinator answers the
        commit before it writes them. Brokers before 3.0 do not say (KIP-664)."""
        with self.admin() as admin:
            try:
                wait_until(lambda: _state_of(admin, transactional_id).startswith("COMPLETE_"))
            except Py4JJavaError as error:
                if "UnsupportedVersionException" not in str(error):
                    raise

    def brokers(self) -> list[int]:
        """The ids of the cluster's brokers, in order, without those that it has fenced."""
        with self.admin() as admin:
            nodes = admin.describeCluster().nodes().get()
            return sorted(int(node.id()) for node in self.gateway.cls("java.util.ArrayList")(nodes))

    def resource(self, name: str, kind: str = "TOPIC") -> Any:
        """What has settings: a topic, or a broker by its id; the broker without one is all of them."""
        java, kinds = self.gateway.cls(_RESOURCE), self.gateway.cls(_RESOURCE + "$Type")
        return java(getattr(kinds, kind), name)

    def set_config(self, name: str, config: Mapping[str, str], kind: str = "TOPIC") -> None:
        """Sets the settings of a ``resource``."""
        entry, change = (self.gateway.cls(_CLIENTS + "admin." + name) for name in ("ConfigEntry", "AlterConfigOp"))
        set_to = self.gateway.cls(_CLIENTS + "admin.AlterConfigOp$OpType").SET
        changes = [change(entry(name, value), set_to) for name, value in config.items()]
        with self.admin() as admin:
            admin.incrementalAlterConfigs({self.resource(name, kind): changes}).all().get()

    @contextmanager
    def producer(self, **config: str) -> Iterator[Producer]:
        """A producer; names with underscores for dots, e.g. ``compression_type="zstd"``. Flushed and closed at the end."""
        java = self._config(config, "Serializer", _CLIENTS + "producer.KafkaProducer")
        producer = Producer(self, java, config.get("transactional_id"))
        try:
            yield producer
        finally:
            producer.close()

    def read_all(self, topic: str, *, committed_only: bool = False) -> list[Consumed]:
        """Every record of a topic from its beginning to its end (or last stable offset), by partition and offset."""
        level = "read_committed" if committed_only else "read_uncommitted"
        with self.consumer(isolation_level=level, auto_offset_reset="earliest") as consumer:
            partitions = [self._partition(topic, info.partition()) for info in consumer.partitionsFor(topic)]
            consumer.assign(partitions)
            ends = {where.partition(): end for where, end in dict(consumer.endOffsets(partitions)).items()}
            found: list[Consumed] = []
            consumer.seekToBeginning(partitions)
            while any(consumer.position(where) < ends[where.partition()] for where in partitions):
                found += self.poll(consumer)
        return sorted(found)

    def end_offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Beginning and end offset of each partition."""
        with self.consumer() as consumer:
            partitions = [self._partition(topic, info.partition()) for info in consumer.partitionsFor(topic)]
            begins, ends = dict(consumer.beginningOffsets(partitions)), dict(consumer.endOffsets(partitions))
        first = {where.partition(): int(offset) for where, offset in begins.items()}
        return {where.partition(): (first[where.partition()], int(offset)) for where, offset in ends.items()}

    @contextmanager
    def consumer(self, **config: str) -> Iterator[Any]:
        """A consumer (``java``), closed at the end; names as for ``producer``."""
        base = {"enable_auto_commit": "false", "check_crcs": "true", "fetch_max_wait_ms": "20", **config}
        consumer = self._config(base, "Deserializer", _CLIENTS + "consumer.KafkaConsumer")
        try:
            yield consumer
        finally:
            consumer.close()

    def poll(self, consumer: Any) -> list[Consumed]:
        """One poll."""
        polled = consumer.poll(self.gateway.cls("java.time.Duration").ofMillis(_POLL_MS))
        if polled.isEmpty():
            return []
        records = self.gateway.cls("org.apache.kafka.common.utils.Utils").toList(polled.iterator())
        return [_consumed(fields) for fields in self.gateway.fields(records)]

    def commit_as_group(self, group: str, topic: str, rounds: int) -> None:
        """Joins as a consumer group, and ``rounds`` times reads one more record and commits: fills ``__consumer_offsets``."""
        with self.consumer(group_id=group, auto_offset_reset="earliest", max_poll_records="1") as consumer:
            consumer.subscribe([topic])
            done = 0
            for _ in range(rounds + _TIMEOUT_S * 1000 // _POLL_MS):
                if done == rounds:
                    return
                if self.poll(consumer):
                    consumer.commitSync()
                    done += 1
        raise TimeoutError(f"group {group} committed {done} of {rounds} rounds")

    def _config(self, config: Mapping[str, str], serde: str, kind: str) -> Any:
        named = {name.replace("_", "."): value for name, value in config.items()}
        both = {f"{part}.{serde.lower()}": _BYTES + serde for part in ("key", "value")}
        return self.gateway.cls(kind)({"bootstrap.servers": self.bootstrap, **both, **named})

    def _partition(self, topic: str, partition: int) -> Any:
        return self.gateway.cls("org.apache.kafka.common.TopicPartition")(topic, partition)


class Producer:
    """A ``KafkaProducer`` (``java``)."""

    def __init__(self, clients: Clients, java: Any, transactional_id: str | None) -> None:
        self.java = java
        self._clients, self._transactional_id = clients, transactional_id
        self._gateway = gateway = clients.gateway
        self._record = gateway.cls(_CLIENTS + "producer.ProducerRecord")
        self._header = gateway.cls("org.apache.kafka.common.header.internals.RecordHeader")

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int | None = 0,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> Any:
        """Sends a record; returns the future of its metadata."""
        made = [self._header(name, content) for name, content in headers]
        return self.java.send(self._record(topic, partition, timestamp, key, value, made))

    def flush(self) -> None:
        """Sends buffered records and waits for the responses."""
        self.java.flush()

    @contextmanager
    def transaction(self, *, commit: bool = True) -> Iterator[None]:
        """Begins a transaction and ends it; the producer needs a ``transactional_id``."""
        self.java.beginTransaction()
        yield
        self.end(commit=commit)

    def end(self, *, commit: bool = True) -> None:
        """Commits or aborts the transaction, and waits for its markers."""
        if commit:
            self.java.commitTransaction()
        else:
            self.java.flush()
            self.java.abortTransaction()
        self._clients.await_markers(self._transactional_id or "")

    def vanish(self) -> None:
        """Ends at once, as a crashed process does: buffered records are lost, an open transaction remains open."""
        self.java.close(self._gateway.cls("java.time.Duration").ZERO)

    def close(self) -> None:
        """Sends buffered records and closes."""
        self.java.close()


def _state_of(admin: Any, transactional_id: str) -> str:
    return str(admin.describeTransactions([transactional_id]).description(transactional_id).get().state().name())


def _consumed(fields: Mapping[str, Any]) -> Consumed:
    return Consumed(
        fields["partition"],
        fields["offset"],
        fields["timestamp"],
        decoded(fields["key"]),
        decoded(fields["value"]),
        headers_of(fields["headers"]["headers"]),
    )
