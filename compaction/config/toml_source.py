"""Settings from TOML: ``[broker]`` has broker-level names, ``[topics."name"]`` the topic-level names of one topic.
``[private-keys]`` has files of private keys by key id.

Nested tables are flattened, so ``segment.bytes = 1048576`` and ``"segment.bytes" = 1048576`` are equivalent. A topic name with
a dot must be quoted. A value may be of TOML's own type or a string, which may have a unit (``compaction.config.kinds``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from compaction.config.entries import BROKER_ENTRIES, TOPIC_ENTRIES, Entry, broker_entry, topic_entry
from compaction.config.sources import Origin, Setting, Source, unknown_name, where
from compaction.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_Path = tuple[str, ...]


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
    broker: tuple[Setting, ...] = ()
    topics: dict[str, tuple[Setting, ...]] = {}
    keys: dict[str, str] = {}
    for key, table in document.items():
        line = lines.get((key,))
        if key not in ("broker", "topics", "private-keys") or not isinstance(table, dict):
            source = Source(Origin.TOML_BROKER, key, path, line)
            raise unknown_name(key, source, (), hint='settings belong in [broker] and [topics."name"]')
        if key == "private-keys":
            keys = {".".join(name): _text_of(value) for name, value in _leaves(table)}
            continue
        if key == "broker":
            broker = tuple(_settings(table, ("broker",), path, lines))
            continue
        for topic, settings in table.items():
            if not isinstance(settings, dict):
                source = Source(Origin.TOML_TOPIC, topic, path, lines.get(("topics", topic)))
                raise unknown_name(topic, source, (), hint='[topics] has one table per topic: [topics."name"]')
            topics[topic] = tuple(_settings(settings, ("topics", topic), path, lines))
    return TomlSettings(broker, topics, keys)


def _settings(table: Mapping[str, Any], prefix: _Path, path: str, lines: Mapping[_Path, int]) -> Iterator[Setting]:
    origin = Origin.TOML_BROKER if prefix == ("broker",) else Origin.TOML_TOPIC
    for keys, value in _leaves(table):
        name = ".".join(keys)
        source = Source(origin, name, path, _line_of((*prefix, *keys), lines))
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
        hint += f"; the broker's default for all topics is {topic_level.synonyms[0].name}" if topic_level.synonyms else ""
    raise unknown_name(name, source, BROKER_ENTRIES, hint)


def _leaves(table: Mapping[str, Any], prefix: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _text_of(value: Any) -> str:
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


def _line_of(keys: _Path, lines: Mapping[_Path, int]) -> int | None:
    return next((lines[keys[:cut]] for cut in range(len(keys), 0, -1) if keys[:cut] in lines), None)
