"""Determines the value in effect if several sources set one.

Sources, strongest first: the compared policy (``--policy``); ``--set``; TOML ``[topics."name"]``; the topic's configuration in
the metadata log of the directory's cluster, or for an internal topic that is not in it, the configuration that a broker creates
it with; TOML ``[broker]``; the broker's dynamic configuration in the metadata log; broker properties; Kafka's default.

1. Within a source, a topic-level name overrides its broker-level synonyms, which rank in Kafka's order: ``log.retention.ms``,
   ``.minutes``, ``.hours`` (Kafka: ``ServerTopicConfigSynonyms``).
2. A stronger source wins under any name: ``--set log.segment.bytes`` overrides a topic's own ``segment.bytes``, because it is
   a request for this run.
3. Of two files of one kind, and of two ``--set`` of one name, the later one wins.

``policy_guess`` decides whether the ``cleanup.policy`` in effect for a topic is known, or a guess on which nothing may be
deleted. It is known if

1. a source for this topic sets it: ``--policy``, ``--set``, TOML ``[topics."name"]``, the topic's configuration in the metadata
   log, or the configuration with which a broker creates an internal topic; or
2. the metadata log has the topic without a policy, so that the broker's default is in effect, and that default is known: TOML
   ``[broker]`` or the broker's configuration in the metadata log sets ``log.cleanup.policy``, or the broker's
   ``server.properties`` is given, whether it sets the policy or not.

Anything else is a guess. A broker's default does not decide for a topic that is in no metadata log: the topic may have its own
policy in a metadata log that was not given, or in ZooKeeper. Nor is the default known from a metadata log without
``server.properties``: that file may set ``log.cleanup.policy=compact``.

Kafka has no counterpart: a broker always knows its topics.

``TopicConfig`` and ``BrokerConfig`` are the entries of Kafka's ``LogConfig``, ``KafkaConfig`` and ``CleanerConfig`` that a log
at rest depends on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from compaction.config.entries import (
    BROKER_ENTRIES,
    DAY_MS,
    LONG_MAX,
    MIB,
    NO_RECORD_LIMIT,
    TOPIC_ENTRIES,
    Entry,
    Value,
    broker_entry,
    unit_ms,
)
from compaction.config.sources import DEFAULT, Origin, Setting, Source, TomlSettings
from compaction.errors import ConfigError


@dataclass(frozen=True)
class TopicConfig:
    """The configuration in effect for one topic. Attributes have the names of the entries, in snake case, and Kafka's defaults.

    ``segment_bytes`` is ``internal.segment.bytes`` if that is set (Kafka: ``LogConfig.segmentSize``). A retention of -1 is
    unlimited. ``policy_guess`` is the reason that ``cleanup.policy`` is a guess, with the remedy
    (``compaction.config.resolver``); ``None`` if the policy is known.
    """

    cleanup_compact: bool = False
    cleanup_delete: bool = True
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_index_bytes: int = 10 * MIB
    index_interval_bytes: int = 4096
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    file_delete_delay_ms: int = 60_000
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    max_decompressed_message_bytes: int = NO_RECORD_LIMIT
    remote_storage_enable: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)
    policy_guess: str | None = field(default=None, compare=False)

    def source(self, name: str) -> Source:
        """The source of the value of a topic-level entry, e.g. of ``min.cleanable.dirty.ratio``."""
        return self.sources.get(name, DEFAULT)

    @property
    def configured(self) -> dict[str, dict[str, object]]:
        """The entries that some source sets: each with its ``value`` and its ``source``."""
        sources = {name: source for name, source in self.sources.items() if source.origin is not Origin.DEFAULT}
        return {
            name: {"value": getattr(self, name.replace(".", "_")), "source": str(source)} for name, source in sources.items()
        }

    @property
    def cleanup_policy(self) -> str:
        """The policy as Kafka spells it: ``compact``, ``delete``, ``compact,delete`` or empty."""
        return ",".join(name for name, on in (("compact", self.cleanup_compact), ("delete", self.cleanup_delete)) if on)


@dataclass(frozen=True)
class BrokerConfig:
    """The configuration in effect for one broker."""

    dedupe_buffer_bytes: int = 128 * MIB
    load_factor: float = 0.9
    io_max_bytes_per_second: float = sys.float_info.max
    cleaner_threads: int = 1
    producer_id_expiration_ms: int = DAY_MS
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)

    def source(self, name: str) -> Source:
        """The source of the value of a broker-level entry, e.g. of ``log.cleaner.dedupe.buffer.size``."""
        return self.sources.get(name, DEFAULT)


#: the note of a default that ``--assume-default-policy`` takes for known
ASSUMED = ", assumed by --assume-default-policy"
NO_METADATA_LOG = "no metadata log is in the directories of this call"

_TOPIC_ORIGINS = frozenset((Origin.POLICY, Origin.SET, Origin.TOML_TOPIC, Origin.METADATA, Origin.INTERNAL))
_REMEDY = "--set cleanup.policy=... or --assume-default-policy"

_Layer = Mapping[str, Setting]

#: attributes of ``TopicConfig`` by the entries that they hold; those of ``cleanup.policy`` and ``segment.bytes`` are derived
TOPIC_ATTRIBUTES = {
    name: name.replace(".", "_")
    for name in TOPIC_ENTRIES
    if name.replace(".", "_") in {attribute.name for attribute in fields(TopicConfig)}
}
#: attributes of ``BrokerConfig`` by the entries that they hold
BROKER_ATTRIBUTES = {
    "log.cleaner.dedupe.buffer.size": "dedupe_buffer_bytes",
    "log.cleaner.io.buffer.load.factor": "load_factor",
    "log.cleaner.io.max.bytes.per.second": "io_max_bytes_per_second",
    "log.cleaner.threads": "cleaner_threads",
    "producer.id.expiration.ms": "producer_id_expiration_ms",
}


@dataclass(frozen=True)
class Resolver:
    """Resolves the configuration in effect from its sources.

    ``metadata`` has the stored configuration of every topic in the metadata log; ``metadata_broker`` that of the directory's
    broker: its own on top of the cluster-wide default. ``metadata_note`` is the note of these sources (``Source.note``),
    ``unknown`` the reason why a topic is not in ``metadata``. ``properties`` is ``None`` if no broker properties were given.
    ``assume_default_policy`` takes a guessed ``cleanup.policy`` for known.
    """

    sets: tuple[Setting, ...] = ()
    tomls: tuple[TomlSettings, ...] = ()
    properties: tuple[Setting, ...] | None = None
    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    metadata_broker: Mapping[str, str] = field(default_factory=dict)
    policy: tuple[Setting, ...] = ()
    metadata_note: str = ""
    unknown: str = NO_METADATA_LOG
    assume_default_policy: bool = False

    def with_metadata(
        self,
        topics: Mapping[str, Mapping[str, str]],
        broker: Mapping[str, str] = MappingProxyType({}),
        *,
        note: str = "",
        unknown: str = NO_METADATA_LOG,
    ) -> Resolver:
        return replace(self, metadata=topics, metadata_broker=dict(broker), metadata_note=note, unknown=unknown)

    def with_policy(self, settings: Iterable[Setting]) -> Resolver:
        return replace(self, policy=tuple(settings))

    def topic(self, name: str) -> TopicConfig:
        """The configuration in effect for a topic.

        :raises ConfigError: a bad value in the metadata log, or bounds that contradict each other
        """
        layers = self._topic_layers(name)
        settings = {name: _topic_setting(name, layers) for name in ("cleanup.policy", *TOPIC_ATTRIBUTES)}
        guess = self._policy_guess(name, settings["cleanup.policy"].source)
        if guess is not None and self.assume_default_policy:
            setting, guess = settings["cleanup.policy"], None
            settings["cleanup.policy"] = replace(setting, source=replace(setting.source, note=ASSUMED))
        values: dict[str, Any] = {attribute: settings[name].value for name, attribute in TOPIC_ATTRIBUTES.items()}
        policy: Any = settings["cleanup.policy"].value
        config = TopicConfig(
            **{**values, "segment_bytes": _topic_setting("internal.segment.bytes", layers).value or values["segment_bytes"]},
            cleanup_compact="compact" in policy,
            cleanup_delete="delete" in policy,
            sources={name: setting.source for name, setting in settings.items()},
            policy_guess=guess,
        )
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            low = f"min.compaction.lag.ms is {config.min_compaction_lag_ms} ({config.source('min.compaction.lag.ms')})"
            high = f"max.compaction.lag.ms {config.max_compaction_lag_ms} ({config.source('max.compaction.lag.ms')})"
            raise ConfigError(f"topic {name}: {low}, which is more than {high}", hint="lower the first or raise the second")
        return config

    def broker(self) -> BrokerConfig:
        """The broker's configuration in effect.

        :raises ConfigError: at most 1 MiB of offset map per cleaner thread, which Kafka refuses too
        """
        layers = self._broker_layers()
        settings = {name: _broker_setting(name, layers) for name in BROKER_ATTRIBUTES}
        values: dict[str, Any] = {attribute: settings[name].value for name, attribute in BROKER_ATTRIBUTES.items()}
        config = BrokerConfig(**values, sources={name: setting.source for name, setting in settings.items()})
        if config.dedupe_buffer_bytes // max(config.cleaner_threads, 1) <= MIB:
            message = f"log.cleaner.dedupe.buffer.size is {config.dedupe_buffer_bytes} for {config.cleaner_threads} threads"
            origin = config.source("log.cleaner.dedupe.buffer.size")
            hint = f"it must be more than {MIB} bytes per thread (log.cleaner.threads)"
            raise ConfigError(f"{message} ({origin})", hint=hint)
        return config

    def broker_setting(self, name: str) -> Setting:
        return _broker_setting(name, self._broker_layers())

    def _broker_layers(self) -> list[_Layer]:
        from_toml = [setting for toml in self.tomls for setting in toml.broker]
        source = Source(Origin.METADATA_BROKER, note=self.metadata_note)
        dynamic = _from_metadata(self.metadata_broker, BROKER_ENTRIES, source)
        sources = [self.policy, self.sets, from_toml, dynamic, self.properties or ()]
        return [_by_name(settings) for settings in sources]

    def _topic_layers(self, name: str) -> list[_Layer]:
        layers = self._broker_layers()
        from_toml = [setting for toml in self.tomls for setting in toml.topics.get(name, ())]
        stored = self.metadata.get(name)
        source = Source(Origin.METADATA, name, note=self.metadata_note)
        own = _from_metadata(stored, TOPIC_ENTRIES, source) if stored else _internal_settings(name, layers)
        return [*layers[:2], _by_name(from_toml), _by_name(own), *layers[2:]]

    def _policy_guess(self, topic: str, source: Source) -> str | None:
        """The reason that a policy with this source is a guess, with the remedy; ``None`` if it is known."""
        if source.origin in _TOPIC_ORIGINS:
            return None
        if topic not in self.metadata:
            ways = "give the cluster's metadata log by --metadata DIR, or the policy by --config (TOML, topic table)"
            return f"cleanup.policy is unknown: {self.unknown}; {ways}, {_REMEDY}"
        if source.origin is not Origin.DEFAULT or self.properties is not None:
            return None
        why = "the topic has none of its own, and the broker's default may be set in its server.properties"
        return f"cleanup.policy is unknown: {why}; give that file by --config, or the policy by {_REMEDY}"


#: the settings with which a broker creates these topics: a value, or the name of the broker entry that has it
_INTERNAL_TOPICS: dict[str, dict[str, Value]] = {
    "__consumer_offsets": {"cleanup.policy": ("compact",), "segment.bytes": "offsets.topic.segment.bytes"},
    "__transaction_state": {"cleanup.policy": ("compact",), "segment.bytes": "transaction.state.log.segment.bytes"},
    "__share_group_state": {
        "cleanup.policy": ("delete",),
        "retention.ms": -1,
        "segment.bytes": "share.coordinator.state.topic.segment.bytes",
    },
    "__remote_log_metadata": {"cleanup.policy": ("delete",), "retention.ms": -1, "remote.storage.enable": False},
}


def _by_name(settings: Iterable[Setting]) -> _Layer:
    return {setting.name: setting for setting in settings}


def _from_metadata(configs: Mapping[str, str], entries: Mapping[str, Entry], source: Source) -> list[Setting]:
    """The settings in a metadata log; names that Kafka does not know are of other versions and ignored."""
    where = f"topic {source.key}, metadata log: " if source.origin is Origin.METADATA else "broker, metadata log: "
    applicable = ((name, text) for name, text in configs.items() if name in entries)
    return [Setting(name, entries[name].read(text, path=None, where=where), source) for name, text in applicable]


def _internal_settings(topic: str, layers: list[_Layer]) -> list[Setting]:
    """The settings with which a broker creates an internal topic (Kafka: ``groupMetadataTopicConfigs`` and others)."""
    source = Source(Origin.INTERNAL)
    settings: list[Setting] = []
    for key, value in _INTERNAL_TOPICS.get(topic, {}).items():
        setting = _broker_setting(value, layers) if isinstance(value, str) else Setting(key, value, source)
        settings.append(Setting(key, setting.value, source if setting.source == DEFAULT else setting.source))
    return settings


def _topic_setting(name: str, layers: list[_Layer]) -> Setting:
    """The setting of a topic's entry; a broker's value is converted to its unit."""
    entry = TOPIC_ENTRIES[name]
    for layer in layers:
        if name in layer:
            return layer[name]
        for synonym in entry.synonyms:
            setting = layer.get(synonym)
            if setting is not None:
                value = setting.value
                if isinstance(value, int) and not isinstance(value, bool):
                    # any negative retention time is unlimited
                    value = -1 if name == "retention.ms" and value < 0 else value * unit_ms(setting.name)
                return replace(setting, value=value)
    return Setting(name, entry.default, DEFAULT)


def _broker_setting(name: str, layers: list[_Layer]) -> Setting:
    entry = broker_entry(name)
    default = Setting(name, None if entry is None else entry.default, DEFAULT)
    return next((layer[name] for layer in layers if name in layer), default)
