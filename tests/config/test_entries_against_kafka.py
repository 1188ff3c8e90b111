"""Names, types, defaults and bounds of the configuration entries of all versions, compared with Kafka's own definitions."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from compaction.config.entries import (
    BROKER_ENTRIES,
    TOPIC_ENTRIES,
    ConfigName,
    Entry,
    Kind,
    Span,
    config_names,
    versions_without,
)
from compaction.errors import ConfigError
from tests.config.make_names import CONFIG, RELEASES, minor, names_of, text_of
from tests.kafka.gateway import Gateway, shared_gateway, unconverted_errors

LEVELS = ("topic", "broker")
#: of the JVM that other tests use, and of the versions that other suites use; ``tests.config.make_names`` asks all of them
SAMPLE, OTHERS = "4.4.0", ("2.8.2", "3.3.2", "3.9.2", "4.0.2")


@pytest.mark.kafka
@pytest.mark.parametrize("version", [SAMPLE, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)])
def test_a_version_has_these_names_and_no_others(version: str) -> None:
    kafkas = names_of(shared_gateway(version))
    for level in LEVELS:
        ours = {name: found for name, found in config_names(level).items() if found.is_in(version)}
        assert set(ours) == set(kafkas[level])
        if version == RELEASES[-1]:
            assert {name: found.kind.name for name, found in ours.items()} == kafkas[level]


def test_the_files_are_as_they_were_written() -> None:
    """Of the versions, only the names are known here."""
    for level in LEVELS:
        text = (CONFIG / f"{level}_names.txt").read_text("utf-8")
        found = config_names(level)
        versions = [
            (minor(version), {level: {name: one.kind.name for name, one in found.items() if one.is_in(version)}})
            for version in RELEASES
        ]
        assert text_of(level, versions) == text


@pytest.mark.parametrize(
    ("spans", "text", "having"),
    [
        ((), "in all versions", {"2.8", "3.9.2", "4.4"}),
        ((Span("", "3.9"),), "until 3.9", {"2.8", "3.9.2"}),
        ((Span("3.9", ""),), "since 3.9", {"3.9.2", "4.4"}),
        ((Span("3.1", "3.9"),), "from 3.1 to 3.9", {"3.9.2"}),
        ((Span("3.10", ""),), "since 3.10", {"4.4"}),
        ((Span("2.8", "2.8"), Span("4.4", "")), "in 2.8 and since 4.4", {"2.8", "4.4"}),
    ],
)
def test_the_span_of_a_name_is_inclusive(spans: tuple[Span, ...], text: str, having: set[str]) -> None:
    name = ConfigName(Kind.INT, spans)
    assert str(name) == text
    assert {version for version in ("2.8", "3.9.2", "4.4") if name.is_in(version)} == having


def test_a_name_of_another_level_counts_too() -> None:
    assert versions_without("log.segment.bytes", "2.8") is None
    assert versions_without("remote.copy.lag.ms", "4.3") == "since 4.4"
    assert versions_without("no.such.name", "4.3") is None


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


@pytest.mark.parametrize("name", sorted({**TOPIC_ENTRIES, **BROKER_ENTRIES}))
def test_an_entry_has_kafkas_type_default_and_bounds(gateway: Gateway, name: str) -> None:
    topics = gateway.cls("org.apache.kafka.storage.internals.log.LogConfig").configDefCopy()
    brokers = gateway.cls("org.apache.kafka.server.config.AbstractKafkaConfig").CONFIG_DEF
    for entry, definition in ((TOPIC_ENTRIES.get(name), topics), (BROKER_ENTRIES.get(name), brokers)):
        if entry is None:
            continue
        key = definition.configKeys().get(name)
        assert entry.kind.name == key.type.toString()
        default = key.defaultValue
        assert entry.default == (default if isinstance(default, (bool, int, float, str, type(None))) else tuple(default))
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
