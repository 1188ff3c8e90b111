"""A real broker loads what an erasure leaves, without the snapshots of its producers, and the same producers continue on it."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from compaction.names import CLEAN_SHUTDOWN
from tests.erasure.test_erase_keys import call
from tests.kafka.broker import Broker, free_ports
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPICS = {"events": {"cleanup.policy": "delete"}, "state": {"cleanup.policy": "compact"}}
GONE = b"gone"


class Senders:
    """An idempotent producer, and two transactional ones: the second one's transaction remains open."""

    def __init__(self, clients: Clients, stack: ExitStack) -> None:
        start = [{"compression_type": "gzip"}, {"transactional_id": "one"}, {"transactional_id": "two"}]
        self.idempotent, self.one, self.two = (stack.enter_context(clients.producer(**config)) for config in start)
        self.one.java.initTransactions()
        self.two.java.initTransactions()
        self.two.java.beginTransaction()

    def send(self, topic: str) -> None:
        """Before the erasure. The last batch of each producer, and the first of the open transaction, have only the key."""
        for key in (b"kept-1", GONE, b"kept-2"):
            self.idempotent.send(topic, key, b"value")
        self.two.send(topic, GONE, b"open")
        self.two.flush()
        for commit in (True, False):
            with self.one.transaction(commit=commit):
                for key in (b"kept-%d" % commit, GONE):
                    self.one.send(topic, key, b"value")
                    self.one.flush()
        self.two.send(topic, b"kept-two", b"open")
        self.two.flush()
        self.idempotent.send(topic, GONE, b"last")
        self.idempotent.flush()

    def go_on(self, topic: str) -> None:
        """Afterwards; a lost sequence would be an error."""
        self.idempotent.send(topic, b"later", b"value").get()
        self.one.java.beginTransaction()
        self.one.send(topic, b"later-one", b"value").get()
        self.one.end()
        self.two.send(topic, b"later-two", b"value").get()


def stable_ends(clients: Clients) -> dict[str, dict[int, tuple[int, int]]]:
    """The log start and last stable offset of each topic."""
    ends = {}
    for topic in TOPICS:
        with clients.consumer(isolation_level="read_committed") as consumer:
            where = [clients._partition(topic, 0)]
            begin, end = (dict(found(where)) for found in (consumer.beginningOffsets, consumer.endOffsets))
            ends[topic] = {0: (int(begin[where[0]]), int(end[where[0]]))}
    return ends


def erase(log_dir: Path, *, tombstones: bool) -> int:
    report = log_dir.with_name("report.json")
    options = ["--where", "regex=gone", "--include-active", "--on-match", "tombstone" if tombstones else "drop"]
    assert call("--log-dir", log_dir, "--topic", "events|state", *options, "--report", report) == 0
    return int(json.loads(report.read_text())["totals"]["erased_records"])


@pytest.mark.parametrize("tombstones", [False, True])
def test_producers_and_consumers_go_on_after_an_erasure(gateway: Gateway, tmp_path: Path, tombstones: bool) -> None:
    log_dir = tmp_path / "kafka-logs"
    port, controller = free_ports(2)
    same_port = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }
    clients = Clients(gateway, f"127.0.0.1:{port}")
    with ExitStack() as stack:
        with Broker(log_dir, same_port):
            for topic, config in TOPICS.items():
                clients.create_topic(topic, 1, {**config, "segment.ms": "300"})
            senders = Senders(clients, stack)
            for _ in range(2):
                for topic in TOPICS:
                    senders.send(topic)
                time.sleep(0.35)
            before = {topic: clients.end_offsets(topic) for topic in TOPICS}
            stable, kept = stable_ends(clients), {topic: clients.read_all(topic) for topic in TOPICS}
        erased = erase(log_dir, tombstones=tombstones)
        assert erased == sum(record.key == GONE for records in kept.values() for record in records) == 20
        for path in (log_dir / CLEAN_SHUTDOWN, *log_dir.glob("*-0/*.snapshot")):
            if path.parent.name != "__cluster_metadata-0":
                path.unlink()
        with Broker(log_dir, same_port) as broker:
            assert {topic: clients.end_offsets(topic) for topic in TOPICS} == before
            assert stable_ends(clients) == stable
            for topic, records in kept.items():
                found = clients.read_all(topic)
                assert [each for each in found if each.key != GONE] == [each for each in records if each.key != GONE]
                assert [each.value for each in found if each.key == GONE] == ([None] * 10 if tombstones else [])
            for topic in TOPICS:
                senders.go_on(topic)
            senders.two.end()
            for topic in TOPICS:
                keys = {each.key for each in clients.read_all(topic, committed_only=True)}
                assert {b"kept-two", b"later", b"later-one", b"later-two", b"kept-1"} <= keys
                assert b"kept-0" not in keys
            assert not broker.errors()
