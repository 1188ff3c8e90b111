"""Settings, each with its source: from the command line, a broker's ``server.properties``, and TOML.

A name that no version of Kafka knows is an error on the command line and in TOML; on the command line, a name that the chosen
version does not have is one, too. In ``server.properties`` unknown names are ignored, as a broker ignores them: plug-ins use
that file too. A bad value is an error everywhere.

The settings of a policy that a dry run compares override all other sources. A policy is written ``k=v,k=v`` with topic-level
and broker-level names. The values of a list are joined with ``+``, or written as for Kafka's own tools, with or without
brackets: ``cleanup.policy=[compact,delete]``. Values may have units (``entries.plain_text``). ``configured`` is the policy
without settings.

In TOML ``[broker]`` has broker-level names, ``[topics."name"]`` the topic-level names of one topic, ``[private-keys]`` files of
private keys by key id. Nested tables are flattened, so ``segment.bytes = 1048576`` and ``"segment.bytes" = 1048576`` are
equivalent. A topic name with a dot must be quoted. A value may be of TOML's own type or a string, which may have a unit.
"""

from __future__ import annotations

import difflib
import enum
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compaction.config.entries import (
    BROKER_ENTRIES,
    TOPIC_ENTRIES,
    Entry,
    Kind,
    Value,
    broker_entry,
    topic_entry,
    versions_without,
)
from compaction.errors import ConfigError

if TYPE_CHECKING:
    from compaction.formats.java_text import Property

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_Path = tuple[str, ...]


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


def where(source: Source) -> str:
    if source.origin in (Origin.POLICY, Origin.SET):
        return f"{source.origin.value}: "
    return "" if source.line is None else f"line {source.line}: "


def read_sets(arguments: Iterable[str], kafka_version: str | None = None) -> tuple[Setting, ...]:
    """The settings of ``--set KEY=VALUE`` options, with topic-level and broker-level names.

    :param kafka_version: if given, names that this version does not have are unknown
    :raises ConfigError: no ``=``, an unknown name, a bad value
    """
    settings = tuple(_assigned(text, Origin.SET, "e.g. --set min.cleanable.dirty.ratio=0.1") for text in arguments)
    if kafka_version is not None:
        require_names(settings, kafka_version)
    return settings


def _assigned(text: str, origin: Origin, hint: str) -> Setting:
    """The setting in ``KEY=VALUE``; in a policy ``+`` separates the values of a list, too."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise ConfigError(f"{origin.value}: {text!r} is not KEY=VALUE", hint=hint)
    source = Source(origin, name)
    entry = entry_of(name, source)
    if origin is Origin.POLICY and entry.kind is Kind.LIST:
        value = value.replace("+", ",")
    return Setting(name, entry.read(value, path=None, where=where(source), with_units=True), source)


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


CONFIGURED = "configured"


@dataclass(frozen=True)
class Policy:
    """One policy; ``name`` is the text of its ``--policy`` option."""

    name: str
    settings: tuple[Setting, ...] = ()

    @classmethod
    def read(cls, text: str) -> Policy:
        """The policy in the text of a ``--policy`` option.

        :raises ConfigError: no ``k=v``, an unknown name, a bad value, a name given twice
        """
        name = text.strip()
        if name == CONFIGURED:
            return cls(name)
        hint = f"e.g. --policy cleanup.policy=[compact,delete],retention.ms=3d, or --policy {CONFIGURED}"
        settings = tuple(_assigned(part.strip(), Origin.POLICY, hint) for part in _parts(name))
        names = [setting.name for setting in settings]
        twice = next((key for key in names if names.count(key) > 1), None)
        if twice is not None:
            raise ConfigError(f"--policy {name!r} gives {twice} twice", hint="put the values of a list in brackets: [a,b]")
        return cls(name, settings)


def _parts(text: str) -> list[str]:
    """The text of each setting: a comma within brackets, or before a value without ``=`` of a list, does not end it."""
    parts: list[str] = []
    for part in text.split(","):
        if parts and (parts[-1].count("[") > parts[-1].count("]") or ("=" not in part and _is_list(parts[-1]))):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _is_list(setting: str) -> bool:
    name = setting.partition("=")[0].strip()
    entry = topic_entry(name) or broker_entry(name)
    return entry is not None and entry.kind is Kind.LIST


@dataclass(frozen=True)
class TomlSettings:
    """The settings of one TOML file: the broker's, each topic's by its name, and files of private keys by key id."""

    broker: tuple[Setting, ...] = ()
    topics: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)


def read_toml(text: str, path: str) -> TomlSettings:
    """The settings of a TOML document; ``path`` names it in errors.

    :raises ConfigError: not TOML, a table other than ``broker``, ``topics`` and ``private-keys``, an unknown name, a bad value
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = "quote names that are a prefix of other names"
        raise ConfigError(f"not valid TOML: {error}", path=path, hint=hint) from None
    lines = _lines_of(text)
    for key, table in document.items():
        if key not in ("broker", "topics", "private-keys") or not isinstance(table, dict):
            source = Source(Origin.TOML_BROKER, key, path, lines.get((key,)))
            raise unknown_name(key, source, (), hint='settings belong in [broker] and [topics."name"]')
    topics = document.get("topics", {})
    for topic, settings in topics.items():
        if not isinstance(settings, dict):
            source = Source(Origin.TOML_TOPIC, topic, path, lines.get(("topics", topic)))
            raise unknown_name(topic, source, (), hint='[topics] has one table per topic: [topics."name"]')
    return TomlSettings(
        tuple(_settings(document.get("broker", {}), ("broker",), path, lines)),
        {topic: tuple(_settings(settings, ("topics", topic), path, lines)) for topic, settings in topics.items()},
        {".".join(name): _text_of(value) for name, value in _leaves(document.get("private-keys", {}))},
    )


def _settings(table: Mapping[str, object], prefix: _Path, path: str, lines: Mapping[_Path, int]) -> Iterator[Setting]:
    origin = Origin.TOML_BROKER if prefix == ("broker",) else Origin.TOML_TOPIC
    for keys, value in _leaves(table):
        name = ".".join(keys)
        whole = (*prefix, *keys)
        line = next((lines[whole[:cut]] for cut in range(len(whole), 0, -1) if whole[:cut] in lines), None)
        source = Source(origin, name, path, line)
        entry = _entry(name, source, prefix)
        yield Setting(name, entry.read(_text_of(value), path=path, where=where(source), with_units=True), source)


def _entry(name: str, source: Source, prefix: _Path) -> Entry:
    topic_level, broker_level, hint = topic_entry(name), broker_entry(name), None
    if source.origin is Origin.TOML_TOPIC:
        if topic_level is not None:
            return topic_level
        if broker_level is not None:
            hint = "broker-level names belong in [broker]"
        elif any(name.endswith(f".{suffix}") for suffix in TOPIC_ENTRIES):
            hint = f'quote a topic name with dots: [topics."{prefix[1]}.…"]'
        raise unknown_name(name, source, TOPIC_ENTRIES, hint)
    if broker_level is not None:
        return broker_level
    if topic_level is not None:
        hint = 'topic-level names belong in [topics."name"]'
        hint += f"; the broker's default for all topics is {topic_level.synonyms[0]}" if topic_level.synonyms else ""
    raise unknown_name(name, source, BROKER_ENTRIES, hint)


def _leaves(table: Mapping[str, object], prefix: _Path = ()) -> Iterator[tuple[_Path, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _text_of(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_text_of(item) for item in value)
    return str(value)


def _lines_of(text: str) -> dict[_Path, int]:
    """The line of every table and key, from 1, in a valid document; exact enough for messages."""
    lines: dict[_Path, int] = {}
    table: _Path = ()
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            table = _keys_in(stripped) or table
            lines.setdefault(table[:1], number)
            lines.setdefault(table, number)
        elif "=" in stripped:
            parts = stripped.split("=")
            candidates = (_keys_in("=".join(parts[:cut]) + "=0") for cut in range(1, len(parts)))
            keys = next((keys for keys in candidates if keys), ())
            lines.setdefault((*table, *keys), number)
            lines.setdefault((*table, *keys)[:1], number)
    return lines


def _keys_in(fragment: str) -> _Path:
    """The dotted key of one line of TOML; empty if the line alone is not valid TOML."""
    try:
        node: Any = tomllib.loads(fragment)
    except tomllib.TOMLDecodeError:
        return ()
    keys: list[str] = []
    while isinstance(node, dict) and node:
        key, node = next(iter(node.items()))
        keys.append(key)
    return tuple(keys)
