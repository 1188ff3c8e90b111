"""Names, types, defaults and bounds of every configuration entry, compared with Kafka's own definitions."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from compaction.config.entries import BROKER_ENTRIES, TOPIC_ENTRIES, Entry, broker_entry, config_names, topic_entry
from compaction.errors import ConfigError
from tests.kafka.gateway import Gateway, unconverted_errors

pytestmark = pytest.mark.kafka

#: bounds that Kafka checks in code that reads the entry, or without which a log at rest could not be cleaned
STRICTER = {
    "log.cleaner.io.buffer.load.factor", "log.cleaner.io.max.bytes.per.second", "log.retention.ms", "log.retention.minutes",
    "log.retention.hours", "internal.segment.bytes",
}  # fmt: skip
#: bounds of older versions, whose values a metadata log may have
LOOSER = {"segment.bytes", "log.segment.bytes"}
SAMPLES = {
    "INT": ["-2147483648", "-3", "-2", "-1", "0", "1", "3", "4", "9", "10", "22", "23", "1048575", "1048576", "2147483648"],
    "SHORT": ["-1", "0", "1", "32768"],
    "LONG": ["-3", "-2", "-1", "0", "1", "9223372036854775807", "9223372036854775808", "1.5", "1_0", ""],
    "DOUBLE": ["-0.1", "0", "0.5", "1", "1.1", "1e-3", ".5", "5.", "1d", "x", "Infinity"],
    "BOOLEAN": ["true", "FALSE", "1", "yes", ""],
    "LIST": ["", "compact", "delete , compact", "compact,compact", "Compact", "delete,", "other"],
    "STRING": ["", "CreateTime", "LogAppendTime", "createtime", "gzip", "none", "producer", "zstd", "uncompressed"],
}  # fmt: skip


def definitions(gateway: Gateway) -> tuple[Any, Any]:
    """The definitions of topics and of brokers."""
    topics = gateway.cls("org.apache.kafka.storage.internals.log.LogConfig").configDefCopy()
    return topics, gateway.cls("org.apache.kafka.server.config.AbstractKafkaConfig").CONFIG_DEF


def test_the_names_and_types_are_those_of_kafka(gateway: Gateway) -> None:
    as_text = {"CLASS": "STRING", "PASSWORD": "STRING"}
    for definition, entry_of in zip(definitions(gateway), (topic_entry, broker_entry), strict=True):
        kinds = {name: definition.configKeys().get(name).type.toString() for name in definition.names()}
        ours = {name: entry.kind.name for name in kinds if (entry := entry_of(name)) is not None}
        assert ours == {name: as_text.get(kind, kind) for name, kind in kinds.items()}


def test_a_topic_has_no_other_names(gateway: Gateway) -> None:
    known = {name for name, found in config_names("topic").items() if found.is_in(gateway.version)}
    assert known == set(definitions(gateway)[0].names())
    assert set(TOPIC_ENTRIES) <= set(definitions(gateway)[0].names())


@pytest.mark.parametrize("name", sorted({**TOPIC_ENTRIES, **BROKER_ENTRIES}))
def test_an_entry_has_kafkas_type_default_and_bounds(gateway: Gateway, name: str) -> None:
    topics, brokers = definitions(gateway)
    for entry, definition in ((TOPIC_ENTRIES.get(name), topics), (BROKER_ENTRIES.get(name), brokers)):
        if entry is None:
            continue
        key = definition.configKeys().get(name)
        assert entry.kind.name == key.type.toString()
        assert entry.default == default_of(key)
        for text in SAMPLES[entry.kind.name]:
            if accepts(entry, text):
                assert name in LOOSER or kafka_accepts(gateway, key, text), text
            elif name not in STRICTER:
                assert not kafka_accepts(gateway, key, text), text


def test_topics_take_their_defaults_from_the_brokers_names_in_kafkas_order(gateway: Gateway) -> None:
    synonyms = gateway.cls("org.apache.kafka.server.config.ServerTopicConfigSynonyms").ALL_TOPIC_CONFIG_SYNONYMS
    found = {name: [each.name() for each in synonyms.get(name)] for name in synonyms.keySet()}
    ours = {name: list(entry.synonyms) for name, entry in TOPIC_ENTRIES.items() if entry.synonyms}
    assert ours == {name: found[name] for name in ours}


def default_of(key: Any) -> object:
    """A default as this package has it."""
    value = key.defaultValue
    return value if value is None or isinstance(value, (bool, int, float, str)) else tuple(value)


def accepts(entry: Entry, text: str) -> bool:
    try:
        entry.read(text, path=None, where="")
    except ConfigError:
        return False
    return True


def kafka_accepts(gateway: Gateway, key: Any, text: str) -> bool:
    define = gateway.cls("org.apache.kafka.common.config.ConfigDef")()
    define.define(key)
    try:
        with unconverted_errors():
            define.parse({key.name: text})
    except Py4JJavaError:
        return False
    return True
