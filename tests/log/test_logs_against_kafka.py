"""Logs as ``UnifiedLog`` loads them: the same bounds, segments and producers, and the same indexes when these are rebuilt.
Settings and their sources as the broker itself says."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compaction.config.entries import TOPIC_ENTRIES, parse
from compaction.config.resolver import TOPIC_ATTRIBUTES, Resolver, TopicConfig
from compaction.config.sources import Origin, read_properties
from compaction.files.local import LocalFileSystem
from compaction.formats.checkpoints import EpochEntry, format_leader_epochs
from compaction.formats.java_text import parse_properties
from compaction.log.checkpoint_store import Checkpoints
from compaction.log.metadata_logs import MetadataSources
from compaction.log.read_log import ReadOptions, read_log
from compaction.names import INDEX, LEADER_EPOCHS, TIMEINDEX, TXNINDEX, LogLocation
from compaction.recovery.recover import recover_log
from compaction.rules.log_view import LogView
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening
from tests.log.logs import TOPIC
from tests.oracle.disk import write_partition
from tests.oracle.random_logs import Flavour, RandomLog, random_log

pytestmark = pytest.mark.kafka

FS = LocalFileSystem()
LOGS = 25
DAY_MS = 86_400_000


def view_of(path: Path, now_ms: int, log_start: int, high_watermark: int) -> LogView:
    location = LogLocation(TOPIC, str(path.parent), str(path))
    recover_log(FS, location)
    checkpoints = Checkpoints(str(path.parent), {TOPIC: log_start}, {TOPIC: high_watermark})
    return read_log(FS, location, checkpoints, ReadOptions(now_ms))


def facts_of(view: LogView) -> dict[str, object]:
    """What Kafka can be asked for too."""
    return {
        "log start": view.log_start_offset,
        "log end": view.log_end_offset,
        "high watermark": view.high_watermark,
        "last stable": view.last_stable_offset,
        "segments": [
            (s.base_offset, s.size_bytes, s.next_offset, s.largest_timestamp_ms, s.first_batch_timestamp_ms)
            for s in view.segments
        ],
        "aborted": [txn for segment in view.segments for txn in segment.aborted_txns],
        "producers": {
            p.producer_id: (p.producer_epoch, p.last_data_offset, p.last_timestamp_ms, p.current_txn_first_offset)
            + (p.coordinator_epoch,)
            for p in view.producers
        },
    }


def numbers(*values: Any) -> tuple[int, ...]:
    return tuple(map(int, values))


def kafka_facts(log: Any) -> dict[str, object]:
    java = log.java
    producers = {}
    for pair in java.producerStateManager().activeProducers().entrySet():
        entry = pair.getValue()
        first = entry.currentTxnFirstOffset().orElse(-1)
        state = entry.producerEpoch(), entry.lastDataOffset(), entry.lastTimestamp(), first, entry.coordinatorEpoch()
        producers[int(entry.producerId())] = numbers(*state)
    segments = list(java.logSegments())
    return {
        "log start": int(java.logStartOffset()),
        "log end": log.end_offset,
        "high watermark": int(java.highWatermark()),
        "last stable": int(java.lastStableOffset()),
        "segments": [
            numbers(s.baseOffset(), s.size(), s.readNextOffset(), s.largestTimestamp(), s.getFirstBatchTimestamp())
            for s in segments
        ],
        "aborted": [
            numbers(t.producerId(), t.firstOffset(), t.lastOffset(), t.lastStableOffset())
            for s in segments
            for t in s.txnIndex().allAbortedTxns()
        ],
        "producers": producers,
    }


def laid_out(tmp_path: Path, seed: int) -> tuple[Path, RandomLog]:
    log = random_log(seed, Flavour(batches=60))
    path = tmp_path / str(seed) / str(TOPIC)
    write_partition(path, log.segments)
    return path, log


@pytest.mark.parametrize("with_snapshots", [True, False], ids=["from the newest snapshot", "from the first batch"])
def test_random_logs_are_read_as_kafka_loads_them(gateway: Gateway, tmp_path: Path, with_snapshots: bool) -> None:
    transactions = 0
    for seed in range(LOGS):
        rng = random.Random(seed)
        path, log = laid_out(tmp_path, seed)
        now_ms = log.end_ms + rng.choice([0, 1_000, DAY_MS - 2_000, DAY_MS])
        start, end = log.segments[0].base_offset, log.segments[-1].next_offset
        log_start = rng.choice([start, start, rng.randrange(start, end)])
        high_watermark = rng.choice([end, rng.randrange(log_start, end + 1)])
        opening = Opening(now_ms, {}, log_start, high_watermark, clean_shutdown=False)
        if with_snapshots:
            # an unclean load from the start makes Kafka write its own snapshots; the next one begins from them
            with KafkaLog(gateway, path, Opening(now_ms, {}, 0, clean_shutdown=False, recovery_point=0)):
                pass
            for snapshot in sorted(path.glob("*.snapshot"))[rng.randrange(1, 4) :]:
                snapshot.unlink()
        copy = Path(shutil.copytree(path, tmp_path / "kafka" / str(seed) / str(TOPIC)))
        found = facts_of(view_of(path, now_ms, log_start, high_watermark))
        with KafkaLog(gateway, copy, opening) as kafka:
            kafka.java.producerStateManager().removeExpiredProducers(now_ms)
            expected = kafka_facts(kafka)
        assert found == expected, seed
        transactions += len(found["aborted"])  # type: ignore[arg-type]
    assert transactions > 0


def recover(gateway: Gateway, path: Path, log: RandomLog, kinds: tuple[str, ...], recovery_point: int | None = None) -> Path:
    """Recovers a log, and by Kafka a copy, which it returns; after a kill if there is a recovery point. From there on, inactive
    segments have equal indexes of these kinds."""
    copy = Path(shutil.copytree(path, path.parents[1] / "kafka" / path.parent.name / str(TOPIC)))
    checkpoints = None if recovery_point is None else Checkpoints("/logs", recovery_points={TOPIC: recovery_point})
    recover_log(FS, LogLocation(TOPIC, str(path.parent), str(path)), checkpoints=checkpoints)
    point = recovery_point or 0
    with KafkaLog(gateway, copy, Opening(log.end_ms, {}, clean_shutdown=False, recovery_point=point)):
        pass
    for base in [segment.base_offset for segment in log.segments[:-1] if segment.base_offset >= point]:
        for name in (f"{base:020d}{kind}" for kind in kinds):
            # a transaction index without entries may be there or not
            ours, theirs = ((at / name).read_bytes() if (at / name).exists() else b"" for at in (path, copy))
            assert ours == theirs, (path.parent.name, name)
    return copy


@pytest.mark.parametrize("lost", [(INDEX,), (INDEX, TIMEINDEX), (INDEX, TIMEINDEX, TXNINDEX)])
def test_rebuilt_indexes_are_those_that_kafka_builds(gateway: Gateway, tmp_path: Path, lost: tuple[str, ...]) -> None:
    for seed in range(10):
        path, log = laid_out(tmp_path, seed)
        for file in path.iterdir():
            if file.suffix in lost:
                file.unlink()
        recover(gateway, path, log, (INDEX, TIMEINDEX, TXNINDEX))


def shortened(path: Path, log: RandomLog) -> None:
    """Leaves the first leader epoch only, and removes an entry from the middle of each index that has several."""
    first = log.segments[0].batches[0]
    (path / LEADER_EPOCHS).write_text(format_leader_epochs([EpochEntry(first.leader_epoch, first.base_offset)]))
    for kind, size in ((INDEX, 8), (TIMEINDEX, 12)):
        for file in path.glob(f"*{kind}"):
            data = file.read_bytes()
            file.write_bytes(data[:size] + data[2 * size :] if len(data) > 2 * size else data)


@pytest.mark.parametrize("flushed", [0, 1, 3])
def test_after_a_kill_indexes_and_leader_epochs_are_those_that_kafka_recovers(
    gateway: Gateway, tmp_path: Path, flushed: int
) -> None:
    assigned = 0
    for seed in range(10):
        path, log = laid_out(tmp_path, seed)
        shortened(path, log)
        point = log.segments[min(flushed, len(log.segments) - 1)].base_offset
        copy = recover(gateway, path, log, (INDEX, TIMEINDEX), point)
        assert (path / LEADER_EPOCHS).read_text() == (copy / LEADER_EPOCHS).read_text(), seed
        assigned += (path / LEADER_EPOCHS).read_text().count("\n") > 3
    assert assigned > 5


#: the broker's own file
STATIC = {
    "log.retention.hours": "30",
    "log.retention.minutes": "500",
    "log.cleaner.min.cleanable.ratio": "0.4",
    "log.segment.bytes": "2000000",
    # metadata snapshots all the time
    "metadata.log.max.record.bytes.between.snapshots": "200",
}
#: what the cluster stores for all brokers, and for this one
FOR_ALL = {"log.segment.bytes": "3000000", "log.cleaner.delete.retention.ms": "777", "log.retention.ms": "123456"}
FOR_THIS = {"log.cleaner.delete.retention.ms": "888", "log.cleaner.threads": "2"}
TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "max.compaction.lag.ms": "99999"},
    "both": {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "5000", "segment.bytes": "1500000"},
    "neither": {"cleanup.policy": ""},
}
#: Kafka's name for a source, and ours
SOURCES = {
    "DYNAMIC_TOPIC_CONFIG": Origin.METADATA,
    "DYNAMIC_BROKER_CONFIG": Origin.METADATA_BROKER,
    "DYNAMIC_DEFAULT_BROKER_CONFIG": Origin.METADATA_BROKER,
    "STATIC_BROKER_CONFIG": Origin.PROPERTIES,
    "DEFAULT_CONFIG": Origin.DEFAULT,
}


class Told(NamedTuple):
    """What the broker says of a setting."""

    value: str | None
    source: str


#: a stopped broker's directory, and what it said before, by topic and name
Stored = tuple[Path, Mapping[str, Mapping[str, Told]]]


@pytest.fixture(scope="module")
def stored(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    log_dir = tmp_path_factory.mktemp("settings") / "kafka-logs"
    with Broker(log_dir, STATIC) as broker:
        clients = Clients(gateway, broker.bootstrap)
        clients.set_config("", FOR_ALL, "BROKER")
        clients.set_config("1", FOR_THIS, "BROKER")
        for topic, config in TOPICS.items():
            clients.create_topic(topic, 1, {**config, "segment.jitter.ms": "5"})
            clients.set_config(topic, {"segment.jitter.ms": "6", **config})
        told = {topic: describe(clients, topic) for topic in TOPICS}
    return log_dir, told


def describe(clients: Clients, topic: str) -> dict[str, Told]:
    where = clients.resource(topic)
    with clients.admin() as admin:
        found = admin.describeConfigs([where]).all().get()[where].entries()
        entries = clients.gateway.cls("java.util.ArrayList")(found)
        return {each.name(): Told(each.value(), each.source().name()) for each in entries}


def ours(log_dir: Path, topic: str) -> TopicConfig:
    text = "\n".join(f"{name}={value}" for name, value in STATIC.items())
    properties = read_properties(parse_properties(text, "server.properties"), "server.properties")
    return with_stored(Resolver(properties=properties), log_dir).topic(topic)


def with_stored(resolver: Resolver, log_dir: Path) -> Resolver:
    stored = MetadataSources(LocalFileSystem(), [str(log_dir)]).of(str(log_dir))
    return resolver.with_metadata(stored.topics, stored.broker)


@pytest.mark.parametrize("topic", TOPICS)
def test_values_and_sources_equal_the_brokers(stored: Stored, topic: str) -> None:
    log_dir, told_of = stored
    config, told = ours(log_dir, topic), told_of[topic]
    assert set(told) >= set(TOPIC_ENTRIES) - {"internal.segment.bytes"}
    policies = (config.cleanup_policy, told["cleanup.policy"].value or "")
    assert len({frozenset(policy.split(",")) for policy in policies}) == 1, policies
    for name, attribute in TOPIC_ATTRIBUTES.items():
        assert getattr(config, attribute) == parse(told[name].value or "", TOPIC_ENTRIES[name].kind), name
    assert [name for name in config.sources if config.source(name).origin is not SOURCES[told[name].source]] == []


def test_every_kind_of_source_occurs_and_the_brokers_own_settings_are_read(stored: Stored) -> None:
    log_dir, told_of = stored
    assert {told.source for entries in told_of.values() for told in entries.values()} == set(SOURCES)
    broker = with_stored(Resolver(), log_dir).broker()
    assert (broker.cleaner_threads, broker.source("log.cleaner.threads").origin) == (2, Origin.METADATA_BROKER)


def test_a_snapshot_contains_the_settings_stored_before_it(stored: Stored, tmp_path: Path) -> None:
    log_dir = Path(shutil.copytree(stored[0], tmp_path / "logs"))
    assert list((log_dir / "__cluster_metadata-0").glob("*.checkpoint"))
    for log in (log_dir / "__cluster_metadata-0").glob("*.log"):
        log.write_bytes(b"")
    compacted = ours(log_dir, "compacted")
    assert (compacted.cleanup_policy, compacted.min_cleanable_dirty_ratio) == ("compact", 0.1)
    assert compacted.segment_bytes == 3_000_000
    assert compacted.source("min.cleanable.dirty.ratio").origin is Origin.METADATA
