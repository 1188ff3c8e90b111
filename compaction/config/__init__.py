"""Configuration: names, types, defaults and checks of Kafka, read from its sources and resolved by precedence."""

from __future__ import annotations

from compaction.config.resolver import BrokerConfig, Resolver, TopicConfig
from compaction.config.sources import (
    DEFAULT,
    Origin,
    Policy,
    Setting,
    Source,
    TomlSettings,
    read_properties,
    read_sets,
    read_toml,
)

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
