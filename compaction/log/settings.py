"""The effective configuration of each log of a run, read before any log is changed, and the Kafka version of its rules.

A metadata log applies to a log if it has a topic of that name with the id in the log's ``partition.metadata``; a log without
that file (before Kafka 2.8, an export) is matched by name. The configuration of another topic of the same name is ignored.

An invalid option ends the run; an invalid value in a metadata log fails the logs that it applies to.

The version whose rules apply to a log is, in this order:

1. the requested version (``--kafka-version``);
2. the level of the feature ``metadata.version`` in the metadata log that applies to the directory (KRaft, since Kafka 3.3);
3. ``inter.broker.protocol.version``, from the sources of broker settings (up to Kafka 3.9);
4. the newest version whose rules are known.

2 and 3 are lower bounds: an administrator raises them after the brokers were upgraded. Of a minor version, the newest patch is
taken. A level or version above the newest known is taken for the newest, one below the oldest for the oldest.

Mirrors ``MetadataVersion`` of Kafka 3.6.2 and 4.4.0.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from compaction.config.request import CompactionRequest
from compaction.config.resolver import BrokerConfig, Resolver, TopicConfig
from compaction.config.sources import DEFAULT, require_names
from compaction.errors import CompactionError, ConfigError, CorruptLogError, LogError, PolicyUnknownError
from compaction.files.filesystem import FileSystem, ReadableFileSystem, join
from compaction.files.text_files import read_small_text
from compaction.formats.checkpoints import parse_partition_metadata
from compaction.log.metadata_logs import MetadataSources, StoredConfig
from compaction.names import PARTITION_METADATA, LogLocation
from compaction.rules.kafka_rules import FIRST_LEVELS, LAST_LEVEL, NEWEST, OLDEST, RULES, KafkaRules, rules_of
from compaction.rules.log_to_clean import SkipCause

METADATA_VERSION = "metadata.version"
PROTOCOL_VERSION = "inter.broker.protocol.version"
VERSION_OPTION = "--kafka-version"
UNKNOWN = f"the newest, as neither {METADATA_VERSION} nor {PROTOCOL_VERSION} is known"

#: e.g. ``3.9``, ``3.9-IV0``, ``2.8.2``, ``0.10.2-IV0``
_PROTOCOL = re.compile(r"(?P<major>\d+)\.(?P<minor>\d+)(\.\d+)*(-IV\d+)?")


@dataclass(frozen=True)
class KafkaVersion:
    """A version, and how it was determined."""

    version: str = NEWEST
    source: str = UNKNOWN

    @property
    def is_known(self) -> bool:
        return self.source != UNKNOWN

    @property
    def rules(self) -> KafkaRules:
        return rules_of(self.version)

    def __str__(self) -> str:
        """One line."""
        return f"Kafka {self.version} ({self.source})"


def kafka_version(requested: str | None, features: Mapping[str, int], note: str, resolver: Resolver) -> KafkaVersion:
    """The version whose rules apply to a log.

    :param requested: the version that the call names
    :param features: the levels of the features of the log's cluster
    :param note: identifies the metadata log (``StoredConfig.note``)
    :param resolver: all sources of configuration, with the metadata log's
    :raises ConfigError: ``inter.broker.protocol.version`` is not a version
    """
    if requested is not None:
        return KafkaVersion(requested, VERSION_OPTION)
    level = features.get(METADATA_VERSION, 0)
    if level > 0:
        return _of_level(level, f"{METADATA_VERSION} {level} of the metadata log{note}")
    setting = resolver.broker_setting(PROTOCOL_VERSION)
    if setting.source == DEFAULT or not setting.value:
        return KafkaVersion()
    return _of_protocol(str(setting.value), str(setting.source))


def _of_level(level: int, source: str) -> KafkaVersion:
    if level > LAST_LEVEL:
        return KafkaVersion(NEWEST, f"{source}, which is newer")
    index = bisect_right(list(FIRST_LEVELS.values()), level) - 1
    return KafkaVersion(list(FIRST_LEVELS)[index], source)


def _of_protocol(text: str, source: str) -> KafkaVersion:
    shown = f"{text} of {source}"
    match = _PROTOCOL.fullmatch(text)
    if match is None:
        raise ConfigError(f"{shown} is not a version", hint="e.g. 3.9; or give the brokers' version by --kafka-version")
    version = f"{match['major']}.{match['minor']}"
    if version in RULES:
        return KafkaVersion(version, shown)
    older = (int(match["major"]), int(match["minor"])) < tuple(map(int, OLDEST.split(".")))
    return KafkaVersion(OLDEST, f"{shown}, which is older") if older else KafkaVersion(NEWEST, f"{shown}, which is newer")


_HINT = "restore it; without it a broker treats the log as another topic's"


@dataclass(frozen=True)
class Settings:
    """The configuration of one log: its topic's, that of the broker that owns its directory, and the version of both."""

    topic: TopicConfig = field(default_factory=TopicConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    kafka: KafkaVersion = KafkaVersion()


def read_settings(
    fs: FileSystem, locations: Sequence[LogLocation], request: CompactionRequest
) -> tuple[Settings | CompactionError, ...]:
    """The settings of each log, or its error.

    :raises ConfigError: the command's own settings are contradictory
    :raises UsageError: ``--metadata`` names a metadata log that applies to none of the directories
    """
    request.resolver.broker()
    directories = dict.fromkeys((*request.log_dirs, *(location.log_dir for location in locations)))
    stored = cache(MetadataSources(fs, directories, request.metadata_dirs).of)
    by_topic: dict[tuple[str, str, str], Settings] = {}
    results: list[Settings | CompactionError] = []
    for location in locations:
        try:
            config = _log_config(fs, location, stored(location.log_dir))
            topic = location.log_dir, location.topic_partition.topic, config.unknown
            if topic not in by_topic:
                by_topic[topic] = _settings(location, request, config)
            results.append(by_topic[topic])
        except LogError as error:
            results.append(error)
    return tuple(results)


def require_policy(settings: Settings | CompactionError) -> Settings | CompactionError:
    """``settings`` if the topic's ``cleanup.policy`` is known, else an error, as data is never deleted on a guess."""
    if isinstance(settings, CompactionError) or settings.topic.policy_guess is None:
        return settings
    return PolicyUnknownError(f"{SkipCause.REFUSED.value}: {settings.topic.policy_guess}")


def _log_config(fs: FileSystem, location: LogLocation, stored: StoredConfig) -> StoredConfig:
    """The stored configuration, without the log's topic if the metadata log has another topic of that name.

    :raises LogError: ``partition.metadata`` is damaged
    """
    name = location.topic_partition.topic
    topic_id = stored.topic_ids.get(name)
    if topic_id is None:
        return stored
    own_id = stored_topic_id(fs, location)
    if own_id is None or own_id == topic_id:
        return stored
    others = {other: config for other, config in stored.topics.items() if other != name}
    ids = f"topic id {topic_id}, partition.metadata has {own_id}"
    return replace(stored, topics=others, unknown=f"the metadata log {stored.path} knows another topic of this name ({ids})")


def stored_topic_id(fs: ReadableFileSystem, location: LogLocation) -> str | None:
    """The topic id in a log's ``partition.metadata``, if there is one.

    :raises LogError: the file is damaged
    """
    path = join(location.path, PARTITION_METADATA)
    if fs.stat(path) is None:
        return None
    return parse_partition_metadata(read_small_text(fs, path, _HINT, "latin-1"), path)


def _settings(location: LogLocation, request: CompactionRequest, stored: StoredConfig) -> Settings:
    """:raises CorruptLogError: a value in the metadata log is invalid"""
    topic, base = location.topic_partition.topic, request.resolver
    resolver = base.with_metadata(stored.topics, stored.broker, note=stored.note, unknown=stored.unknown)
    try:
        kafka = kafka_version(request.kafka_version, stored.features, stored.note, resolver)
        settings = Settings(resolver.topic(topic), _broker(resolver, kafka), kafka)
    except ConfigError as error:
        # raises the same error if an option causes it
        base.topic(topic)
        message = error.message if error.path is None else f"{error.path}: {error.message}"
        hint = "the broker stored this value: repair it there (kafka-configs), or use a copy without the metadata log"
        raise CorruptLogError(message, path=location.path, hint=hint) from error
    if kafka.is_known:
        require_names(base.sets, kafka.version)
    return settings


def _broker(resolver: Resolver, kafka: KafkaVersion) -> BrokerConfig:
    """The broker's configuration, with the producer expiration of its version (KIP-854)."""
    setting, default_ms = resolver.broker_setting(kafka.rules.producer_expiration), kafka.rules.producer_expiration_default_ms
    expiration_ms = setting.value if isinstance(setting.value, int) and setting.source != DEFAULT else default_ms
    return replace(resolver.broker(), producer_id_expiration_ms=expiration_ms)
