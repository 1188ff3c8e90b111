"""What is in effect for a topic, and where that comes from, is what the broker itself says of it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from compaction.config.entries import TOPIC_ENTRIES, parse
from compaction.config.resolver import TOPIC_ATTRIBUTES, Resolver, TopicConfig
from compaction.config.sources import Origin, read_properties
from compaction.files.local import LocalFileSystem
from compaction.formats.java_text import parse_properties
from compaction.log.metadata_logs import MetadataSources
from tests.kafka.broker import Broker
from tests.kafka.clients import Clients
from tests.kafka.gateway import Gateway

pytestmark = pytest.mark.kafka

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


class Stored(NamedTuple):
    """A stopped broker's directory, and what it said before, by topic and name."""

    log_dir: Path
    told: Mapping[str, Mapping[str, Told]]


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
    return Stored(log_dir, told)


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


def effective(config: TopicConfig, name: str) -> object:
    if name == "cleanup.policy":
        return {word for word in config.cleanup_policy.split(",") if word}
    return getattr(config, name.replace(".", "_"))


@pytest.mark.parametrize("topic", TOPICS)
def test_values_and_sources_equal_the_brokers(stored: Stored, topic: str) -> None:
    config, told = ours(stored.log_dir, topic), stored.told[topic]
    assert set(told) >= set(TOPIC_ENTRIES) - {"internal.segment.bytes"}
    for name in ("cleanup.policy", *TOPIC_ATTRIBUTES):
        expected: object = parse(told[name].value or "", TOPIC_ENTRIES[name].kind)
        if name == "cleanup.policy":
            expected = {word for word in (told[name].value or "").split(",") if word}
        assert effective(config, name) == expected, name
        assert config.source(name).origin is SOURCES[told[name].source], name


def test_every_kind_of_source_occurs(stored: Stored) -> None:
    met = {told.source for entries in stored.told.values() for told in entries.values()}
    assert met == set(SOURCES)


def test_the_brokers_own_settings_are_read(stored: Stored) -> None:
    broker = with_stored(Resolver(), stored.log_dir).broker()
    assert (broker.cleaner_threads, broker.source("log.cleaner.threads").origin) == (2, Origin.METADATA_BROKER)


def test_a_snapshot_contains_the_settings_stored_before_it(stored: Stored, tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    shutil.copytree(stored.log_dir, log_dir)
    assert list((log_dir / "__cluster_metadata-0").glob("*.checkpoint"))
    for log in (log_dir / "__cluster_metadata-0").glob("*.log"):
        log.write_bytes(b"")
    compacted = ours(log_dir, "compacted")
    assert (compacted.cleanup_policy, compacted.min_cleanable_dirty_ratio) == ("compact", 0.1)
    assert compacted.segment_bytes == 3_000_000
    assert compacted.source("min.cleanable.dirty.ratio").origin is Origin.METADATA
