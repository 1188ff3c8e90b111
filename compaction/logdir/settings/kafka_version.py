"""Determines the Kafka version whose rules apply to a log: the requested one, else that of its cluster, else the newest.

The rule, in this order:

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
from collections.abc import Mapping
from dataclasses import dataclass

from compaction.cleaning.kafka_rules import NEWEST, OLDEST, RULES, KafkaRules, rules_of
from compaction.config import Resolver
from compaction.config.sources import DEFAULT
from compaction.errors import ConfigError

METADATA_VERSION = "metadata.version"
PROTOCOL_VERSION = "inter.broker.protocol.version"
VERSION_OPTION = "--kafka-version"
UNKNOWN = f"the newest, as neither {METADATA_VERSION} nor {PROTOCOL_VERSION} is known"

#: the first level of ``metadata.version`` in each Kafka version, ascending
_FIRST_LEVELS = {
    "3.0": 1, "3.1": 2, "3.2": 3, "3.3": 4, "3.4": 8, "3.5": 9, "3.6": 12, "3.7": 15, "3.8": 20, "3.9": 21,
    "4.0": 22, "4.1": 26, "4.2": 28, "4.3": 30, "4.4": 31,
}  # fmt: skip
_LAST_LEVEL = 33
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
    if level > _LAST_LEVEL:
        return KafkaVersion(NEWEST, f"{source}, which is newer")
    index = bisect_right(list(_FIRST_LEVELS.values()), level) - 1
    return KafkaVersion(list(_FIRST_LEVELS)[index], source)


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
