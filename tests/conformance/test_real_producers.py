"""Logs that a real broker's producers write, round after round, get the same result from the job as from Kafka's cleaner.

Transactional, idempotent and plain producers of every codec alternate, with overlapping transactions, one of which never ends.
The broker stops, both sides clean the directory, and the broker continues with the job's result, to which the next round adds.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.broker_dir import checkpoint, clean_as_broker, logs_of
from tests.conformance.compare import differences
from tests.conformance.ours import clean_ours
from tests.kafka.broker import Broker
from tests.kafka.cleaner import CleanResult
from tests.kafka.clients import Clients, Producer
from tests.kafka.gateway import Gateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

HOUR_MS = 3_600_000
#: relative to the broker's clock: no horizon has passed, some have, all have and producers are expired
LATER_MS = (60_000, HOUR_MS, 50 * HOUR_MS)
STEPS = 90
SEED = 7
_SMALL = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
    "segment.ms": "300",
}
TOPICS: Mapping[str, Mapping[str, str]] = {
    "as-sent": _SMALL,
    "squeezed": {**_SMALL, "compression.type": "zstd"},
    "stamped": {**_SMALL, "message.timestamp.type": "LogAppendTime"},
    "both": {**_SMALL, "cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "9000"},
}
INTERNAL = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
CODECS = {"one": "gzip", "two": "zstd", "lz4": "lz4", "plain": "none", "snappy": "snappy"}


@dataclass(frozen=True)
class Served:
    """By topic: the offsets of a broker, and the last committed value of each key."""

    offsets: Mapping[str, Mapping[int, tuple[int, int]]]
    latest: Mapping[str, Mapping[bytes, bytes]]


@dataclass(frozen=True)
class Round:
    """The result of a round: differences in the logs, Kafka's outcomes, the job's report and cleaner checkpoint, and what the
    broker served before it and after its restart."""

    found: list[str]
    outcomes: Mapping[str, CleanResult | None]
    report: Mapping[str, Mapping[str, Any]]
    checkpoint: Mapping[str, int]
    before: Served
    after: Served


class Traffic:
    """Producers that alternate; ``open`` are those in a transaction."""

    def __init__(self, rng: random.Random, clients: Clients, stack: ExitStack) -> None:
        self.rng = rng
        self.open: set[str] = set()
        self.producers: dict[str, Producer] = {}
        for name, codec in CODECS.items():
            config = {"compression_type": codec, "linger_ms": "20", "batch_size": "2000"}
            if name in ("one", "two"):
                config |= {"transactional_id": name, "transaction_timeout_ms": "900000"}
            elif name in ("plain", "snappy"):
                config |= {"enable_idempotence": "false", "acks": "1"}
            self.producers[name] = stack.enter_context(clients.producer(**config))
            if name in ("one", "two"):
                self.producers[name].java.initTransactions()

    def step(self) -> None:
        """One producer sends some records to a partition, and may end its transaction; sometimes segments become old."""
        name = self.rng.choice(list(self.producers))
        producer = self.producers[name]
        if name in ("one", "two") and name not in self.open:
            producer.java.beginTransaction()
            self.open.add(name)
        for _ in range(self.rng.choice((1, 2, 5, 12))):
            self._send(producer)
        producer.flush()
        if name in self.open and self.rng.random() < 0.4:
            self.end(name, commit=self.rng.random() < 0.6)
        if self.rng.random() < 0.06:
            time.sleep(0.35)

    def _send(self, producer: Producer) -> None:
        rng = self.rng
        topic = rng.choice(list(TOPICS))
        key = b"" if rng.random() < 0.02 else b"key-%d" % int(rng.paretovariate(0.7) % 60)
        value = None if rng.random() < 0.12 else rng.randbytes(rng.randrange(80))
        headers = [("trace", rng.randbytes(3)), ("origin", None)] if rng.random() < 0.2 else []
        producer.send(topic, key, value, headers=headers)

    def end(self, name: str, *, commit: bool) -> None:
        """Ends its transaction."""
        self.producers[name].end(commit=commit)
        self.open.discard(name)


@dataclass
class Rounds:
    """Several rounds on one directory."""

    spark: SparkSession
    gateway: Gateway
    root: Path
    rng: random.Random
    done: list[Round] = field(default_factory=list)

    def run(self) -> list[Round]:
        ours, kafkas = self.root / "ours", self.root / "kafkas"
        with self._broker(ours) as clients:
            for topic, config in TOPICS.items():
                clients.create_topic(topic, 1, config)
            self._write(clients)
            before = self._served(clients)
        for later_ms in LATER_MS:
            as_of_ms = int(time.time() * 1000) + later_ms
            shutil.rmtree(kafkas, ignore_errors=True)
            shutil.copytree(ours, kafkas)
            report = clean_ours(self.spark, ours, as_of_ms)
            outcomes = {log: self._kafka(kafkas, log, as_of_ms) for log in logs_of(kafkas)}
            found = [text for log in logs_of(kafkas) for text in differences(self.gateway, ours / log, kafkas / log)]
            moved = checkpoint(ours / "cleaner-offset-checkpoint")
            with self._broker(ours) as clients:
                after = self._served(clients)
                self.done.append(Round(found, outcomes, report, moved, before, after))
                if len(self.done) < len(LATER_MS):
                    self._write(clients)
                    before = self._served(clients)
        return self.done

    def _kafka(self, kafkas: Path, log: str, as_of_ms: int) -> CleanResult | None:
        topic = log.rsplit("-", 1)[0]
        return clean_as_broker(self.gateway, kafkas, log, TOPICS.get(topic, INTERNAL), as_of_ms)

    @contextmanager
    def _broker(self, log_dir: Path) -> Iterator[Clients]:
        """Clients of a broker on the directory, which must not log any error."""
        with Broker(log_dir) as broker:
            yield Clients(self.gateway, broker.bootstrap)
            assert not broker.errors()

    def _write(self, clients: Clients) -> None:
        with ExitStack() as stack:
            traffic = Traffic(self.rng, clients, stack)
            for _ in range(STEPS):
                traffic.step()
            for name in sorted(traffic.open)[:1]:
                traffic.end(name, commit=True)
            # so that everything before is in inactive segments
            time.sleep(0.35)
            for _ in range(2):
                traffic.step()
            for name in traffic.open:
                traffic.producers[name].vanish()

    def _served(self, clients: Clients) -> Served:
        latest = {topic: dict(self._latest(clients, topic)) for topic in TOPICS}
        return Served({topic: clients.end_offsets(topic) for topic in TOPICS}, latest)

    def _latest(self, clients: Clients, topic: str) -> Iterator[tuple[bytes, bytes]]:
        """The last committed value of each key that has one."""
        last = {record.key: record.value for record in clients.read_all(topic, committed_only=True)}
        return ((key, value) for key, value in last.items() if key is not None and value is not None)


@pytest.fixture(scope="module")
def rounds(spark: SparkSession, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> list[Round]:
    return Rounds(spark, gateway, tmp_path_factory.mktemp("producers"), random.Random(SEED)).run()


@pytest.mark.parametrize("number", range(len(LATER_MS)))
def test_every_log_equals_kafkas(rounds: list[Round], number: int) -> None:
    assert rounds[number].found == []


@pytest.mark.parametrize("number", range(len(LATER_MS)))
def test_the_figures_and_checkpoints_equal_kafkas(rounds: list[Round], number: int) -> None:
    done = rounds[number]
    for log, outcome in done.outcomes.items():
        ours = done.report[log]
        if outcome is None:
            assert ours["status"] == "skipped", ours["reason"]
            continue
        counted = (ours["end_offset"], ours["records_before"], ours["records_after"], ours["bytes_before"])
        stats = outcome.stats
        assert counted == (outcome.end_offset, stats.messages_read, stats.messages_written, stats.bytes_read), log
        assert done.checkpoint[log] == outcome.end_offset, log


@pytest.mark.parametrize("number", range(len(LATER_MS)))
def test_the_broker_continues_at_the_log_ends(rounds: list[Round], number: int) -> None:
    done = rounds[number]
    assert {topic: ends[0][1] for topic, ends in done.after.offsets.items()} == {
        topic: ends[0][1] for topic, ends in done.before.offsets.items()
    }


@pytest.mark.parametrize("number", range(len(LATER_MS)))
def test_the_latest_committed_values_are_unchanged(rounds: list[Round], number: int) -> None:
    done = rounds[number]
    for topic in set(TOPICS) - {"both"}:
        assert done.after.latest[topic] == done.before.latest[topic]
    # expired segments have been deleted
    assert done.after.latest["both"].items() <= done.before.latest["both"].items()


def test_every_round_cleans_some_log(rounds: list[Round]) -> None:
    for done in rounds:
        cleaned = {log for log, outcome in done.outcomes.items() if outcome is not None}
        assert cleaned >= {f"{topic}-0" for topic in TOPICS}
        assert all(done.report[log]["records_after"] < done.report[log]["records_before"] for log in ("as-sent-0", "stamped-0"))
        assert sum(done.report[f"{topic}-0"]["aborted_records"] for topic in TOPICS) > 0
    assert any(done.report["both-0"]["expired_segments"] for done in rounds)
