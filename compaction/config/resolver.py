"""Which value is in effect, where several sources give one.

The rule, strongest first: a policy that is compared (``--policy``); ``--set``; TOML ``[topics."name"]``; the topic's
configuration in the metadata log of the directory's cluster; for internal topics that it does not know, the configuration
that a broker creates them with; TOML ``[broker]``; the broker's dynamic configuration in the metadata log; broker properties;
Kafka's default.

1. Within one of these, a topic-level name goes before its broker-level synonyms, and those go in Kafka's order
   (``log.retention.ms`` before ``.minutes`` before ``.hours``; Kafka: ``ServerTopicConfigSynonyms``).
2. A stronger source wins whatever name it uses: ``--set log.segment.bytes`` goes before a topic's own ``segment.bytes``,
   since it is the word of whoever starts this run.
3. Of two files of one kind, and of two ``--set`` of one name, the later one wins.

``compaction.config.policy_guess`` decides whether the resulting ``cleanup.policy`` is known or a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from compaction.config.broker_entries import BROKER_ENTRIES
from compaction.config.entries import MIB, TOPIC_ENTRIES, Entry
from compaction.config.kinds import Value
from compaction.config.policy_guess import ASSUMED, NO_METADATA_LOG, policy_guess
from compaction.config.sources import DEFAULT, Origin, Setting, Source
from compaction.config.toml_source import TomlSettings
from compaction.config.values import BrokerConfig, TopicConfig
from compaction.errors import ConfigError

_Layer = Mapping[str, Setting]

#: attributes of ``BrokerConfig`` and the entries that they show
_BROKER_ATTRIBUTES = {
    "dedupe_buffer_bytes": "log.cleaner.dedupe.buffer.size",
    "load_factor": "log.cleaner.io.buffer.load.factor",
    "io_buffer_bytes": "log.cleaner.io.buffer.size",
    "io_max_bytes_per_second": "log.cleaner.io.max.bytes.per.second",
    "cleaner_threads": "log.cleaner.threads",
    "producer_id_expiration_ms": "producer.id.expiration.ms",
    "transactional_id_expiration_ms": "transactional.id.expiration.ms",
    "transaction_max_timeout_ms": "transaction.max.timeout.ms",
    "message_max_bytes": "message.max.bytes",
}


@dataclass(frozen=True)
class Resolver:
    """Resolves configuration from what the sources say.

    ``metadata`` has every topic that the metadata log of a log directory knows, with the configuration that it stores for the
    topic; ``metadata_broker`` is that of the directory's broker: what the log sets for all brokers, overlaid with what it sets
    for this one. ``metadata_note`` completes the wording of these sources, ``unknown`` says why a topic is not in ``metadata``.
    ``properties`` is ``None`` if no broker's properties were given. ``assume_default_policy`` takes a guessed
    ``cleanup.policy`` for known.
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
        """The same sources, with what the metadata log of another log directory says."""
        return replace(self, metadata=topics, metadata_broker=dict(broker), metadata_note=note, unknown=unknown)

    def with_policy(self, settings: Iterable[Setting]) -> Resolver:
        """The same sources, with a policy's settings, which go before all others."""
        return replace(self, policy=tuple(settings))

    def topic(self, name: str) -> TopicConfig:
        """The configuration in effect for a topic.

        :raises ConfigError: a bad value in the metadata log, or bounds that contradict each other
        """
        layers = self._topic_layers(name)
        found = {entry.name: _topic_setting(entry, layers) for entry in TOPIC_ENTRIES.values()}
        guess = self._policy_guess(name, found["cleanup.policy"].source)
        if guess is not None and self.assume_default_policy:
            setting, guess = found["cleanup.policy"], None
            found["cleanup.policy"] = replace(setting, source=replace(setting.source, note=ASSUMED))
        values: dict[str, Any] = {key.replace(".", "_"): setting.value for key, setting in found.items()}
        policy = values.pop("cleanup_policy")
        config = TopicConfig(
            **{**values, "segment_bytes": values["internal_segment_bytes"] or values["segment_bytes"]},
            cleanup_compact="compact" in policy,
            cleanup_delete="delete" in policy,
            sources={key: setting.source for key, setting in found.items()},
            policy_guess=guess,
        )
        _check_lags(name, config)
        return config

    def broker(self) -> BrokerConfig:
        """The broker's configuration in effect.

        :raises ConfigError: an offset map smaller than 1 MiB a cleaner thread, which Kafka refuses as well
        """
        layers = self._broker_layers()
        found = {name: _broker_setting(name, layers) for name in BROKER_ENTRIES}
        values: dict[str, Any] = {attribute: found[name].value for attribute, name in _BROKER_ATTRIBUTES.items()}
        log_dirs: Any = found["log.dirs"].value or found["log.dir"].value
        config = BrokerConfig(**values, log_dirs=log_dirs, sources={name: setting.source for name, setting in found.items()})
        if config.dedupe_buffer_bytes // max(config.cleaner_threads, 1) <= MIB:
            what = f"log.cleaner.dedupe.buffer.size is {config.dedupe_buffer_bytes} for {config.cleaner_threads} threads"
            origin = config.source("log.cleaner.dedupe.buffer.size")
            raise ConfigError(f"{what} ({origin})", hint=f"it must be more than {MIB} bytes a thread (log.cleaner.threads)")
        return config

    def _broker_layers(self) -> list[_Layer]:
        from_toml = [setting for toml in self.tomls for setting in toml.broker]
        source = Source(Origin.METADATA_BROKER, note=self.metadata_note)
        dynamic = _from_metadata(self.metadata_broker, BROKER_ENTRIES, source)
        given = [self.policy, self.sets, from_toml, dynamic, self.properties or ()]
        return [_by_name(settings) for settings in given]

    def _topic_layers(self, name: str) -> list[_Layer]:
        policy, sets, *below = self._broker_layers()
        from_toml = [setting for toml in self.tomls for setting in toml.topics.get(name, ())]
        known = self.metadata.get(name)
        source = Source(Origin.METADATA, name, note=self.metadata_note)
        own = _from_metadata(known, TOPIC_ENTRIES, source) if known else self._of_internal(name)
        return [policy, sets, _by_name(from_toml), _by_name(own), *below]

    def _policy_guess(self, topic: str, source: Source) -> str | None:
        unknown = None if topic in self.metadata else self.unknown
        return policy_guess(source, unknown=unknown, has_properties=self.properties is not None)

    def _of_internal(self, topic: str) -> list[Setting]:
        """What a broker creates an internal topic with (``groupMetadataTopicConfigs`` and its like)."""
        layers = self._broker_layers()
        source = Source(Origin.INTERNAL)
        given: list[Setting] = []
        for key, value in _INTERNAL_TOPICS.get(topic, {}).items():
            inherited = BROKER_ENTRIES.get(value) if isinstance(value, str) else None
            settled = _broker_setting(inherited.name, layers) if inherited is not None else Setting(key, value, source)
            given.append(Setting(key, settled.value, source if settled.source == DEFAULT else settled.source))
        return given


#: by topic, what a Kafka 4.3.0 broker sets when it creates it: a value, or the broker entry that holds it
_INTERNAL_TOPICS: dict[str, dict[str, Value]] = {
    "__consumer_offsets": {
        "cleanup.policy": ("compact",),
        "segment.bytes": "offsets.topic.segment.bytes",
        "compression.type": "producer",
    },
    "__transaction_state": {
        "cleanup.policy": ("compact",),
        "segment.bytes": "transaction.state.log.segment.bytes",
        "min.insync.replicas": "transaction.state.log.min.isr",
        "compression.type": "uncompressed",
        "unclean.leader.election.enable": False,
    },
    "__share_group_state": {
        "cleanup.policy": ("delete",),
        "retention.ms": -1,
        "segment.bytes": "share.coordinator.state.topic.segment.bytes",
        "min.insync.replicas": "share.coordinator.state.topic.min.isr",
        "compression.type": "producer",
    },
    "__remote_log_metadata": {"cleanup.policy": ("delete",), "retention.ms": -1, "remote.storage.enable": False},
}


def _by_name(settings: Iterable[Setting]) -> _Layer:
    return {setting.name: setting for setting in settings}


def _from_metadata(configs: Mapping[str, str], entries: Mapping[str, Entry], source: Source) -> list[Setting]:
    """What a metadata log sets; names that Kafka 4.3.0 does not know are left over from other versions and ignored."""
    where = f"topic {source.key}, metadata log: " if source.origin is Origin.METADATA else "broker, metadata log: "
    known = ((name, text) for name, text in configs.items() if name in entries)
    return [Setting(name, entries[name].read(text, path=None, where=where), source) for name, text in known]


def _topic_setting(entry: Entry, layers: list[_Layer]) -> Setting:
    for layer in layers:
        if entry.name in layer:
            return layer[entry.name]
        for synonym in entry.synonyms:
            setting = layer.get(synonym.name)
            if setting is not None:
                return replace(setting, value=_converted(setting.value, synonym.factor, entry.name))
    return Setting(entry.name, entry.default, DEFAULT)


def _converted(value: Value, factor: int, name: str) -> Value:
    """A broker's value in the unit of the topic's entry; any negative retention time is no limit."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    return -1 if name == "retention.ms" and value < 0 else value * factor


def _broker_setting(name: str, layers: list[_Layer]) -> Setting:
    found = next((layer[name] for layer in layers if name in layer), None)
    return found if found is not None else Setting(name, BROKER_ENTRIES[name].default, DEFAULT)


def _check_lags(topic: str, config: TopicConfig) -> None:
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        low = f"min.compaction.lag.ms is {config.min_compaction_lag_ms} ({config.source('min.compaction.lag.ms')})"
        high = f"max.compaction.lag.ms {config.max_compaction_lag_ms} ({config.source('max.compaction.lag.ms')})"
        raise ConfigError(f"topic {topic}: {low}, which is more than {high}", hint="lower the one or raise the other")
