"""What brokers and producers wrote, cleaned by the job on Spark, is equal to the result of Kafka's cleaner, and a broker serves
it: the sample, and round after round of what real producers write.

Transactional, idempotent and plain producers of every codec alternate, with overlapping transactions, one of which never ends.
The broker stops, both sides clean the directory, and the broker continues with the job's result, to which the next round adds.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from compaction import compact
from compaction.report import LogReport, LogStatus
from tests.conformance.compare import differences, rebuilt
from tests.conformance.kafkas import checkpoint, clean_as_broker, logs_of
from tests.golden import unpack_sample
from tests.golden.make_sample import CLEANED, COMPACT, TOPICS
from tests.kafka.broker import Broker
from tests.kafka.cleaner import CleanResult
from tests.kafka.clients import Clients, Consumed, Producer
from tests.kafka.gateway import Gateway
from tests.local_job import KAFKA
from tests.oracle.disk import read_partition
from tests.oracle.records import decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

HOUR_MS = 3_600_000
INTERNAL = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
#: of the sample's topics, as the broker has them
CONFIGS: Mapping[str, Mapping[str, str]] = {
    **{topic: config for topic, (_, config) in TOPICS.items()},
    CLEANED: COMPACT,
    "__consumer_offsets": INTERNAL,
    "__transaction_state": INTERNAL,
}


@dataclass(frozen=True)
class Both:
    """A log directory cleaned by both: the directories, the job's report by log and Kafka's outcomes."""

    ours: Path
    kafkas: Path
    report: Mapping[str, LogReport]
    outcomes: Mapping[str, CleanResult | None]

    def problems(self, gateway: Gateway) -> list[str]:
        """Differences of the logs, of their figures, and of the offsets up to which they are clean."""
        found = [text for log in logs_of(self.kafkas) for text in differences(gateway, self.ours / log, self.kafkas / log)]
        clean = checkpoint(self.ours / "cleaner-offset-checkpoint")
        for log, outcome in self.outcomes.items():
            ours = self.report[log]
            if outcome is None:
                found += [] if ours.status is LogStatus.SKIPPED else [f"{log}: {ours.reason}"]
                continue
            stats, end = outcome.stats, outcome.end_offset
            counted = (ours.end_offset, ours.records_before, ours.records_after, ours.bytes_before, clean.get(log))
            kafkas = (end, stats.messages_read, stats.messages_written, stats.bytes_read, end)
            found += [] if counted == kafkas else [f"{log}: {counted}, Kafka's {kafkas}"]
        return found


def cleaned_by_both(
    spark: SparkSession, gateway: Gateway, ours: Path, kafkas: Path, configs: Mapping[str, Mapping[str, str]], as_of_ms: int
) -> Both:
    """Cleans a log directory and its copy; ``configs`` are those of the topics, as the broker has them."""
    report = compact(ours, as_of=as_of_ms, kafka_version=KAFKA, allow_keyless=True, spark=spark)
    outcomes = {}
    for log in logs_of(kafkas):
        config = configs.get(log.rsplit("-", 1)[0], INTERNAL)
        outcomes[log] = clean_as_broker(gateway, kafkas, log, config, as_of_ms)
    return Both(ours, kafkas, {log.name: log for log in report.logs}, outcomes)


@pytest.fixture(scope="module")
def sample(spark: SparkSession, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """One round an hour after the sample was created, with its idempotent producers still active."""
    kafkas = unpack_sample(tmp_path_factory.mktemp("both"))
    ours = Path(shutil.copytree(kafkas, kafkas.with_name("ours")))
    as_of_ms = int((kafkas / "meta.properties").stat().st_mtime) * 1000 + HOUR_MS
    return cleaned_by_both(spark, gateway, ours, kafkas, CONFIGS, as_of_ms)


def test_the_sample_equals_kafkas(sample: Both, gateway: Gateway) -> None:
    assert sample.problems(gateway) == []
    kafkas = {log: outcome.end_offset for log, outcome in sample.outcomes.items() if outcome is not None}
    assert checkpoint(sample.ours / "cleaner-offset-checkpoint") == {f"{CLEANED}-0": 2000, **kafkas}


def test_the_sample_has_every_reason_to_skip(sample: Both) -> None:
    skipped = {log for log, outcome in sample.outcomes.items() if outcome is None}
    assert skipped == {
        "__transaction_state-0",
        "clickstream-0",
        "clickstream-1",
        "inventory-0",
        "ledger-0",
        "never-written-0",
    }
    assert len({sample.report[log].reason for log in skipped}) >= 4
    # an open transaction
    held = sample.outcomes["payments-open-0"]
    assert held is not None
    assert held.selected.first_uncleanable_offset < read_partition(sample.kafkas / "payments-open-0")[-1].base_offset


def test_indexes_follow_kafkas_rule(sample: Both) -> None:
    """The comparison of compressed segments depends on it."""
    for log in ("orders-0", "customers-0", "payments-0", "__consumer_offsets-0"):
        segment = read_partition(sample.kafkas / log)[0]
        assert rebuilt(segment, 4096) == (segment.index, segment.time_index)


class Served(NamedTuple):
    """The data that a broker serves, by topic: first and end offset of each partition, all records, the committed ones."""

    offsets: Mapping[str, Mapping[int, tuple[int, int]]]
    all: Mapping[str, list[Consumed]]
    committed: Mapping[str, list[Consumed]]


def read_everything(gateway: Gateway, log_dir: Path) -> Served:
    """Starts a broker on the directory and reads every topic.

    The broker soon ends the transaction that is open in the sample, so the end offset of its topic, and which of its records
    are committed, depend on timing.
    """
    topics = [*TOPICS, CLEANED, "__consumer_offsets"]
    settled = [topic for topic in topics if topic != "payments-open"]
    with Broker(log_dir) as broker:
        clients = Clients(gateway, broker.bootstrap)
        served = Served(
            {topic: clients.end_offsets(topic) for topic in settled},
            {topic: clients.read_all(topic) for topic in topics},
            {topic: clients.read_all(topic, committed_only=True) for topic in settled},
        )
        assert not broker.errors()
        assert "corrupt" not in broker.log_text().lower()
    return served


@pytest.mark.slow
def test_consumers_read_the_same_of_the_sample_from_both(sample: Both, gateway: Gateway) -> None:
    stored = [
        Consumed(partition, each.offset, each.timestamp, each.key, each.value, tuple((h.decode(), v) for h, v in each.headers))
        for partition in range(3)
        for segment in sorted((sample.ours / f"orders-{partition}").glob("*.log"))
        for batch in decode(segment.read_bytes())
        for each in batch.records()
    ]
    with ThreadPoolExecutor(2) as pool:
        ours, kafkas = pool.map(lambda log_dir: read_everything(gateway, log_dir), (sample.ours, sample.kafkas))
    assert ours == kafkas
    assert ours.all["orders"] == stored
    assert 450 <= len(stored) < 1500
    assert any(record.headers for record in stored)
    assert 0 < len(ours.committed["payments"]) < len(ours.all["payments"])


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
PRODUCED: Mapping[str, Mapping[str, str]] = {
    "as-sent": _SMALL,
    "squeezed": {**_SMALL, "compression.type": "zstd"},
    "stamped": {**_SMALL, "message.timestamp.type": "LogAppendTime"},
    "both": {**_SMALL, "cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "9000"},
}
CODECS = {"one": "gzip", "two": "zstd", "lz4": "lz4", "plain": "none", "snappy": "snappy"}


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
        topic = rng.choice(list(PRODUCED))
        key = b"" if rng.random() < 0.02 else b"key-%d" % int(rng.paretovariate(0.7) % 60)
        value = None if rng.random() < 0.12 else rng.randbytes(rng.randrange(80))
        headers = [("trace", rng.randbytes(3)), ("origin", None)] if rng.random() < 0.2 else []
        producer.send(topic, key, value, headers=headers)

    def end(self, name: str, *, commit: bool) -> None:
        """Ends its transaction."""
        self.producers[name].end(commit=commit)
        self.open.discard(name)


class Latest(NamedTuple):
    """By topic: the end offset that a broker has, and the last committed value of each key that has one."""

    ends: Mapping[str, int]
    values: Mapping[str, Mapping[bytes | None, bytes]]


@dataclass
class Round:
    """The result of a round: the differences, the job's report, and what the broker served before it and after its restart."""

    problems: list[str]
    report: Mapping[str, LogReport]
    before: Latest
    after: Latest


def write(clients: Clients, rng: random.Random) -> Latest:
    """Records of all producers, of which one leaves a transaction open, up to ones in new segments."""
    with ExitStack() as stack:
        traffic = Traffic(rng, clients, stack)
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
    return latest(clients)


def latest(clients: Clients) -> Latest:
    values = {}
    for topic in PRODUCED:
        last = {record.key: record.value for record in clients.read_all(topic, committed_only=True)}
        values[topic] = {key: value for key, value in last.items() if value is not None}
    return Latest({topic: clients.end_offsets(topic)[0][1] for topic in PRODUCED}, values)


@contextmanager
def clients_of(gateway: Gateway, log_dir: Path) -> Iterator[Clients]:
    """Clients of a broker on the directory, which must not log any error."""
    with Broker(log_dir) as broker:
        yield Clients(gateway, broker.bootstrap)
        assert not broker.errors()


@pytest.fixture(scope="module")
def rounds(spark: SparkSession, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> list[Round]:
    """Several rounds on one directory."""
    root, rng, done = tmp_path_factory.mktemp("producers"), random.Random(SEED), list[Round]()
    ours, kafkas = root / "ours", root / "kafkas"
    with clients_of(gateway, ours) as clients:
        for topic, config in PRODUCED.items():
            clients.create_topic(topic, 1, config)
        before = write(clients, rng)
    for later_ms in LATER_MS:
        as_of_ms = int(time.time() * 1000) + later_ms
        shutil.rmtree(kafkas, ignore_errors=True)
        shutil.copytree(ours, kafkas)
        both = cleaned_by_both(spark, gateway, ours, kafkas, PRODUCED, as_of_ms)
        problems = both.problems(gateway)
        skipped = {f"{topic}-0" for topic in PRODUCED if both.outcomes[f"{topic}-0"] is None}
        problems += [f"{log} was not cleaned" for log in sorted(skipped)]
        with clients_of(gateway, ours) as clients:
            done.append(Round(problems, both.report, before, latest(clients)))
            if len(done) < len(LATER_MS):
                before = write(clients, rng)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LATER_MS)))
def test_a_round_on_what_producers_wrote_equals_kafkas_and_the_broker_continues(rounds: list[Round], number: int) -> None:
    done = rounds[number]
    assert done.problems == []
    assert done.after.ends == done.before.ends
    for topic in set(PRODUCED) - {"both"}:
        assert done.after.values[topic] == done.before.values[topic]
    # expired segments have been deleted
    assert done.after.values["both"].items() <= done.before.values["both"].items()
    assert all(done.report[log].records_after < done.report[log].records_before for log in ("as-sent-0", "stamped-0"))
    assert sum(done.report[f"{topic}-0"].aborted_records for topic in PRODUCED) > 0


@pytest.mark.slow
def test_the_delete_policy_takes_part_in_some_round(rounds: list[Round]) -> None:
    assert any(done.report["both-0"].expired_segments for done in rounds)
