"""The configuration in effect for each log of a run, read before any log is touched.

What is wrong with the call itself ends the run; a bad value in a log directory's own metadata log fails the logs that it
concerns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compaction.config import BrokerConfig, Resolver, TopicConfig
from compaction.errors import CompactionError, ConfigError, CorruptLogError, LogError
from compaction.storage.discover import LogLocation
from compaction.storage.filesystem import FileSystem
from compaction.storage.metadata import read_metadata


@dataclass(frozen=True)
class Settings:
    """What is configured for one log: its topic's settings and those of the broker whose directory it lies in."""

    topic: TopicConfig = field(default_factory=TopicConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)


def read_settings(
    fs: FileSystem, locations: Sequence[LogLocation], resolver: Resolver
) -> tuple[Settings | CompactionError, ...]:
    """The settings of each log, or why there are none.

    :param resolver: knows every source but the metadata logs
    :raises ConfigError: the call's own settings contradict each other
    """
    resolver.broker()
    directories = {location.log_dir for location in locations}
    resolvers = {log_dir: with_metadata(fs, log_dir, resolver) for log_dir in directories}
    known: dict[tuple[str, str], Settings] = {}
    found: list[Settings | CompactionError] = []
    for location in locations:
        topic = location.log_dir, location.topic_partition.topic
        settings = known.get(topic) or _settings_of(location, resolver, resolvers[location.log_dir])
        if isinstance(settings, Settings):
            known[topic] = settings
        found.append(settings)
    return tuple(found)


def with_metadata(fs: FileSystem, log_dir: str, resolver: Resolver) -> Resolver | CompactionError:
    """``resolver`` with what the directory's metadata log says, or what is wrong with that log."""
    try:
        return resolver.with_metadata(*read_metadata(fs, log_dir))
    except LogError as error:
        return error


def _settings_of(location: LogLocation, given: Resolver, found: Resolver | CompactionError) -> Settings | CompactionError:
    if isinstance(found, CompactionError):
        return found
    topic = location.topic_partition.topic
    try:
        return Settings(found.topic(topic), found.broker())
    except ConfigError as error:
        # without the metadata log the same error means that the call is wrong
        given.topic(topic)
        what = error.what if error.path is None else f"{error.path}: {error.what}"
        hint = "the broker stored this value: mend it there (kafka-configs), or work on a copy without the metadata log"
        return CorruptLogError(what, path=location.path, hint=hint)
