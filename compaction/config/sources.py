"""Settings from the command line and from a broker's ``server.properties``, each with its source.

A name that no version of Kafka knows is an error on the command line and in TOML; on the command line, a name that the chosen
version does not have is one, too. In ``server.properties`` unknown names are ignored, as a broker ignores them: plug-ins use
that file too. A bad value is an error everywhere.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from compaction.config.config_names import versions_without
from compaction.config.entries import BROKER_ENTRIES, TOPIC_ENTRIES, Entry, broker_entry, topic_entry
from compaction.config.kinds import Value
from compaction.errors import ConfigError


class Origin(enum.Enum):
    """The kinds of sources, strongest first; the value is its name in messages."""

    POLICY = "--policy"
    SET = "--set"
    TOML_TOPIC = "TOML topic table"
    METADATA = "the topic's configuration in the metadata log"
    INTERNAL = "Kafka's own configuration of this internal topic"
    TOML_BROKER = "TOML [broker] table"
    METADATA_BROKER = "the broker's configuration in the metadata log"
    PROPERTIES = "broker properties"
    DEFAULT = "Kafka's default"


@dataclass(frozen=True)
class Source:
    """The source of a value: the name ``key`` in ``line`` (from 1) of the file ``path``, or an option.

    ``note`` is appended to the text: it names a metadata log, or marks a default as assumed.
    """

    origin: Origin
    key: str = ""
    path: str | None = None
    line: int | None = None
    note: str = ""

    def __str__(self) -> str:
        if self.origin in (Origin.POLICY, Origin.SET):
            return f"{self.origin.value} {self.key}"
        if self.path is None:
            return f"{self.origin.value}{self.note}"
        line = "" if self.line is None else f" line {self.line}"
        return f"{self.path}{line} ({self.key}){self.note}"


DEFAULT = Source(Origin.DEFAULT)


@dataclass(frozen=True)
class Setting:
    """One validated value under the name that was given."""

    name: str
    value: Value
    source: Source


class Property(Protocol):
    """A line of a parsed ``.properties`` file; ``line`` counts from 1."""

    @property
    def key(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def line(self) -> int: ...


def where(source: Source) -> str:
    if source.origin in (Origin.POLICY, Origin.SET):
        return f"{source.origin.value}: "
    return "" if source.line is None else f"line {source.line}: "


def read_sets(arguments: Iterable[str], kafka_version: str | None = None) -> tuple[Setting, ...]:
    """The settings of ``--set KEY=VALUE`` options, with topic-level and broker-level names.

    :param kafka_version: if given, names that this version does not have are unknown
    :raises ConfigError: no ``=``, an unknown name, a bad value
    """
    settings = []
    for argument in arguments:
        name, equals, text = argument.partition("=")
        name = name.strip()
        source = Source(Origin.SET, name)
        if not equals or not name:
            raise ConfigError(f"--set: {argument!r} is not KEY=VALUE", hint="e.g. --set min.cleanable.dirty.ratio=0.1")
        settings.append(Setting(name, entry_of(name, source).read(text, path=None, where="--set: ", with_units=True), source))
    if kafka_version is not None:
        require_names(settings, kafka_version)
    return tuple(settings)


def require_names(sets: Iterable[Setting], kafka_version: str) -> None:
    """:raises ConfigError: a ``--set`` of a name that this version of Kafka does not have"""
    for setting in sets:
        versions = versions_without(setting.name, kafka_version)
        if versions is not None:
            message = f"--set: Kafka {kafka_version} has no configuration {setting.name}, which is {versions}"
            raise ConfigError(message, hint="leave it out, or give the brokers' version by --kafka-version")


def read_properties(entries: Sequence[Property], path: str) -> tuple[Setting, ...]:
    """The settings of a broker's ``server.properties`` that some version of Kafka knows.

    The last entry of a name wins. A ``${provider:…}`` reference cannot be resolved: it is an error for an entry in
    ``BROKER_ENTRIES`` and ignored for any other.

    :raises ConfigError: a bad value
    """
    settings = []
    for name, property_ in {property_.key: property_ for property_ in entries}.items():
        entry, source = broker_entry(name), Source(Origin.PROPERTIES, name, path, property_.line)
        if "${" in property_.value and name in BROKER_ENTRIES:
            message = f"{where(source)}{name} refers to a configuration provider, which cannot be resolved here"
            raise ConfigError(message, path=path, hint=f"give the value itself, or override it with --set {name}=…")
        if entry is not None and "${" not in property_.value:
            settings.append(Setting(name, entry.read(property_.value, path=path, where=where(source)), source))
    return tuple(settings)


def entry_of(name: str, source: Source) -> Entry:
    """The entry of a topic-level or broker-level name; if a name is both, the topic's.

    :raises ConfigError: unknown name; the message suggests the nearest known one
    """
    entry = topic_entry(name) or broker_entry(name)
    if entry is None:
        raise unknown_name(name, source, (*TOPIC_ENTRIES, *BROKER_ENTRIES))
    return entry


def unknown_name(name: str, source: Source, names: Iterable[str], hint: str | None = None) -> ConfigError:
    """The error for a name that is not in ``names``."""
    near = difflib.get_close_matches(name, list(names), n=1)
    hint = hint or (f"did you mean {near[0]}?" if near else "see the topic and broker configurations of Kafka")
    return ConfigError(f"{where(source)}unknown configuration name {name!r}", path=source.path, hint=hint)
