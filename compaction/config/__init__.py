"""Configuration: names, types, defaults and checks of Kafka, read from its sources and resolved by precedence."""

from __future__ import annotations

from compaction.config.policy import Policy
from compaction.config.resolver import Resolver, TomlSettings, read_toml
from compaction.config.sources import DEFAULT, Origin, Setting, Source, read_properties, read_sets
from compaction.config.values import BrokerConfig, TopicConfig

__all__ = [
    "DEFAULT",
    "BrokerConfig",
    "Origin",
    "Policy",
    "Resolver",
    "Setting",
    "Source",
    "TomlSettings",
    "TopicConfig",
    "read_properties",
    "read_sets",
    "read_toml",
]
