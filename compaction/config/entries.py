"""The configuration entries of Kafka that a log at rest depends on, of topics and of brokers, and the names of all others.

Mirrors ``LogConfig.CONFIG``, ``ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS``, ``LogConfig.SERVER_CONFIG_DEF`` and
``CleanerConfig``. Of all other entries in Kafka 2.8 to 4.4 the types are known: the configuration of a topic and a broker's
``server.properties`` are accepted unchanged, and a misspelled name or a value of the wrong type is still an error.

The names are in ``topic_names.txt`` and ``broker_names.txt``, which ``tests/config/make_names.py`` writes from the classes of
each version. A line is a name, a type and, unless all versions have the name, spans of minor versions: ``-3.9`` is up to 3.9,
``3.6-`` from 3.6 on, ``4.2-4.2`` only 4.2. A minor version has the names of its newest release.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from compaction.config.kinds import (
    INT_MAX,
    LONG_MAX,
    Kind,
    Validator,
    Value,
    above,
    choice,
    examples,
    in_range,
    non_zero,
    parse,
    plain_text,
    unit_ms,
)
from compaction.errors import ConfigError

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIB = 1 << 20
MAX_RECORD = "max.decompressed.message.bytes"


@dataclass(frozen=True)
class Entry:
    """One configuration entry.

    ``synonyms`` are the broker-level names that set its default, strongest first, each in the unit of its own name.
    """

    name: str
    kind: Kind
    default: Value
    validator: Validator | None
    doc: str
    synonyms: tuple[str, ...] = ()

    def read(self, text: str, *, path: str | None, where: str, with_units: bool = False) -> Value:
        """The validated value of ``text``; ``where`` starts the error message (``line 3: ``, ``--set: ``).

        :param with_units: accept the forms of ``compaction.config.kinds``, too
        :raises ConfigError: bad value; names the source, the line and the key
        """
        try:
            value = parse(plain_text(text, self.name, self.kind) if with_units else text, self.kind)
        except ValueError as error:
            violation: str | None = str(error)
        else:
            violation = None if self.validator is None else self.validator(value)
        if violation is not None:
            also = examples(self.name) if with_units else None
            hint = f"it is: {self.doc}" + (f"; {also}" if also else "")
            raise ConfigError(f"{where}{self.name} = {text.strip()!r} {violation}", path=path, hint=hint)
        return value


def _log(*names: str) -> tuple[str, ...]:
    return tuple(f"log.{name}" for name in names)


_I, _L, _D = Kind.INT, Kind.LONG, Kind.DOUBLE
_COUNT = in_range(0)
_SOME = in_range(1)
#: largest array of a Java machine, which Kafka takes for no limit
NO_RECORD_LIMIT = INT_MAX - 8
#: 1 MiB since Kafka 4.1; topics of older brokers may have less
_SEGMENT_BYTES = in_range(14)

TOPIC_ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "cleanup.policy", Kind.LIST, ("delete",), choice("compact", "delete"),
            "how space is freed: compact, delete, both or none", _log("cleanup.policy"),
        ),
        Entry("segment.bytes", _I, 1 << 30, _SEGMENT_BYTES, "largest size of one segment, bytes", _log("segment.bytes")),
        Entry(
            "segment.ms", _L, 7 * DAY_MS, _SOME, "age at which the active segment is rolled, ms", _log("roll.ms", "roll.hours")
        ),
        Entry(
            "segment.index.bytes", _I, 10 * MIB, in_range(4),
            "largest size of an offset or time index, bytes", _log("index.size.max.bytes"),
        ),
        Entry(
            "index.interval.bytes", _I, 4096, _COUNT,
            "bytes appended between two index entries", _log("index.interval.bytes"),
        ),
        Entry(
            "min.cleanable.dirty.ratio", _D, 0.5, in_range(0, 1),
            "ratio of dirty bytes above which a log is compacted, 0 to 1", _log("cleaner.min.cleanable.ratio"),
        ),
        Entry(
            "delete.retention.ms", _L, DAY_MS, _COUNT,
            "time that tombstones and transaction markers are kept, ms", _log("cleaner.delete.retention.ms"),
        ),
        Entry(
            "min.compaction.lag.ms", _L, 0, _COUNT,
            "time that a record remains uncompacted at least, ms", _log("cleaner.min.compaction.lag.ms"),
        ),
        Entry(
            "max.compaction.lag.ms", _L, LONG_MAX, _SOME,
            "time after which a dirty log is compacted, ms", _log("cleaner.max.compaction.lag.ms"),
        ),
        Entry(
            "file.delete.delay.ms", _L, 60_000, _COUNT,
            "time from a file's removal to its deletion, ms", _log("segment.delete.delay.ms"),
        ),
        Entry(
            "retention.ms", _L, 7 * DAY_MS, in_range(-1), "age at which segments are deleted, ms, -1 for never",
            _log("retention.ms", "retention.minutes", "retention.hours"),
        ),
        Entry(
            "retention.bytes", _L, -1, None,
            "log size above which segments are deleted, bytes, -1 for never", _log("retention.bytes"),
        ),
        Entry(
            MAX_RECORD, _I, NO_RECORD_LIMIT, in_range(1, NO_RECORD_LIMIT),
            "largest decompressed size of a record in a compressed batch, bytes", (MAX_RECORD,),
        ),
        Entry("remote.storage.enable", Kind.BOOLEAN, False, None, "whether the topic is tiered"),
        Entry(
            "internal.segment.bytes", _I, None, in_range(1, INT_MAX),
            "segment size without the lower bound of segment.bytes, for tests",
        ),
    )
}  # fmt: skip

#: type, default and bounds of the broker entries in which they are not those of the topic entry
_OF_BROKERS: dict[str, tuple[Kind, Value, Validator | None]] = {
    "log.retention.ms": (_L, None, non_zero),
    "log.retention.minutes": (_I, None, non_zero),
    "log.retention.hours": (_I, 168, non_zero),
    "log.roll.ms": (_L, None, None),
    "log.roll.hours": (_I, 168, _SOME),
}


def _defaults_of_topics() -> list[Entry]:
    entries = []
    for topic in TOPIC_ENTRIES.values():
        for synonym in topic.synonyms:
            kind, default, validator = _OF_BROKERS.get(synonym, (topic.kind, topic.default, topic.validator))
            unit = {MINUTE_MS: ", in minutes", HOUR_MS: ", in hours"}.get(unit_ms(synonym), "")
            entries.append(Entry(synonym, kind, default, validator, f"default of {topic.name}{unit}: {topic.doc}"))
    return entries


BROKER_ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("log.cleaner.dedupe.buffer.size", _L, 128 * MIB, None, "memory of one offset map, bytes"),
        Entry("log.cleaner.io.buffer.load.factor", _D, 0.9, above(0, 1), "how full an offset map may become, up to 1"),
        Entry("log.cleaner.io.max.bytes.per.second", _D, sys.float_info.max, above(0, sys.float_info.max), "I/O limit, B/s"),
        Entry("log.cleaner.threads", _I, 1, _COUNT, "cleaner threads of a broker"),
        Entry("producer.id.expiration.ms", _I, DAY_MS, _SOME, "time after which an idle producer is forgotten, ms"),
        Entry("offsets.topic.segment.bytes", _I, 100 * MIB, _SOME, "segment.bytes of __consumer_offsets"),
        Entry("transaction.state.log.segment.bytes", _I, 100 * MIB, _SOME, "segment.bytes of __transaction_state"),
        Entry("share.coordinator.state.topic.segment.bytes", _I, 100 * MIB, _SOME, "segment.bytes of __share_group_state"),
        *_defaults_of_topics(),
    )
}


def topic_entry(name: str) -> Entry | None:
    """The topic entry of this name, ``None`` if no version of Kafka has one."""
    return TOPIC_ENTRIES.get(name) or _without_effect("topic", name)


def broker_entry(name: str) -> Entry | None:
    """The broker entry of this name, ``None`` if no version of Kafka has one."""
    return BROKER_ENTRIES.get(name) or _without_effect("broker", name)


def _without_effect(level: str, name: str) -> Entry | None:
    """An entry without effect on a log at rest. Only its type is checked."""
    config_name = config_names(level).get(name)
    return None if config_name is None else Entry(name, config_name.kind, None, None, "a setting of a running broker")


_Minor = tuple[int, ...]


class Span(NamedTuple):
    """Minor versions from ``first`` to ``last``, both inclusive; empty text has no bound."""

    first: str
    last: str

    def has(self, version: str) -> bool:
        minor = _minor(version)
        return (not self.first or _minor(self.first) <= minor) and (not self.last or minor <= _minor(self.last))

    def __str__(self) -> str:
        if not self.first:
            return f"until {self.last}"
        if not self.last:
            return f"since {self.first}"
        return f"in {self.first}" if self.first == self.last else f"from {self.first} to {self.last}"


class ConfigName(NamedTuple):
    """The type of an entry, and the versions that have it: all of them without ``spans``."""

    kind: Kind
    spans: tuple[Span, ...] = ()

    def is_in(self, version: str) -> bool:
        """Whether that version, e.g. ``3.9.1``, has the entry."""
        return not self.spans or any(span.has(version) for span in self.spans)

    def __str__(self) -> str:
        return " and ".join(map(str, self.spans)) or "in all versions"


@cache
def config_names(level: str) -> Mapping[str, ConfigName]:
    # most runs need neither the list nor this import, which takes 8 ms
    from importlib.resources import files

    lines = (files("compaction.config") / f"{level}_names.txt").read_text("utf-8").splitlines()
    return dict(_name(line) for line in lines if not line.startswith("#"))


def versions_without(name: str, version: str) -> str | None:
    """The versions that have the name, if ``version`` has it neither for topics nor for brokers; ``None`` if it has."""
    entries = [names[name] for names in (config_names("topic"), config_names("broker")) if name in names]
    if not entries or any(entry.is_in(version) for entry in entries):
        return None
    return " and ".join(dict.fromkeys(map(str, entries)))


def _name(line: str) -> tuple[str, ConfigName]:
    name, kind, *spans = line.split()
    return name, ConfigName(Kind[kind], tuple(Span(*span.split("-")) for span in spans))


def _minor(version: str) -> _Minor:
    return tuple(int(part) for part in version.split(".")[:2])
