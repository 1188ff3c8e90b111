"""The configuration entries of Kafka that a log at rest depends on, of topics and of brokers, and the names of all others.

Mirrors ``LogConfig.CONFIG``, ``ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS``, ``LogConfig.SERVER_CONFIG_DEF`` and
``CleanerConfig``. Of all other entries in Kafka 2.8 to 4.4 the types are known: the configuration of a topic and a broker's
``server.properties`` are accepted unchanged, and a misspelled name or a value of the wrong type is still an error.

The names are in ``topic_names.txt`` and ``broker_names.txt``, which ``tests/config/make_names.py`` writes from the classes of
each version. A line is a name, a type and, unless all versions have the name, spans of minor versions: ``-3.9`` is up to 3.9,
``3.6-`` from 3.6 on, ``4.2-4.2`` only 4.2. A minor version has the names of its newest release.

Values are parsed as by ``ConfigDef.parseType``: text is trimmed, an INT is a signed 32-bit decimal, a LONG a signed 64-bit
one, a BOOLEAN is ``true`` or ``false`` in any case, a LIST is split at commas, and empty text is the empty list. Duplicates are
removed from a list (``ConfigDef.parseValue``). Difference: NaN is refused, because no bound can hold for it.

``plain_text`` converts values in the forms of people and of Kafka's tools to the text of a broker's configuration.

A list may be in brackets, as for ``kafka-configs.sh``: ``[compact,delete]``. If the name of an entry says its unit, a value may
have another one: times (``3d``, ``1h30m``) for names that end in ``.ms``, ``.minutes`` or ``.hours``, sizes (``1GiB``,
``500MB``) for names of bytes. The result must be a whole number of the entry's unit.

This applies to options and TOML. A broker's properties and the metadata log have Kafka's own syntax only.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, Union

from compaction.errors import ConfigError

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MIB = 1 << 20
MAX_RECORD = "max.decompressed.message.bytes"
#: the value of an entry; ``None`` means that it is not set and another entry decides
Value = Union[bool, int, float, str, "tuple[str, ...]", None]

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


def to_long(value: int) -> int:
    """A sum or difference of times as Kafka compares it: a ``long`` of Java, which wraps at 64 bits."""
    return (value + LONG_MAX + 1) % (1 << 64) - LONG_MAX - 1


class Kind(enum.Enum):
    """The type of an entry; the value is its name in messages."""

    BOOLEAN = "true or false"
    SHORT = "a 16-bit integer"
    INT = "a 32-bit integer"
    LONG = "a 64-bit integer"
    DOUBLE = "a number"
    STRING = "text"
    LIST = "a comma separated list"


_BITS = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|Infinity)[dDfF]?")


def parse(text: str, kind: Kind) -> Value:
    """The value of ``text``.

    :raises ValueError: the text is not of that kind; the message is the rest of a sentence that starts with the text
    """
    text = text.strip()
    if kind is Kind.STRING:
        return text
    if kind is Kind.LIST:
        return tuple(dict.fromkeys(re.split(r"\s*,\s*", text))) if text else ()
    if kind is Kind.BOOLEAN and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is Kind.DOUBLE and _DOUBLE.fullmatch(text):
        return float(text.rstrip("dDfF"))
    if kind in _BITS and _INTEGER.fullmatch(text) and -1 << (_BITS[kind] - 1) <= int(text) < 1 << (_BITS[kind] - 1):
        return int(text)
    raise ValueError(f"is not {kind.value}")


#: checks a value: ``None`` if it is valid, else the rest of a sentence that starts with the value
Validator = Callable[[Value], str | None]


def in_range(low: float, high: float | None = None) -> Validator:
    """Numbers from ``low`` to ``high``, both inclusive."""

    def violation(value: Value) -> str | None:
        if not isinstance(value, (int, float)):
            return None
        if value < low:
            return f"is less than {low}"
        return f"is greater than {high}" if high is not None and value > high else None

    return violation


def non_zero(value: Value) -> str | None:
    """Any number but 0: a limit if positive, unlimited if negative."""
    return "is neither -1 nor greater than 0" if value == 0 else None


def above(low: float, high: float) -> Validator:
    """Numbers greater than ``low`` and at most ``high``."""
    bound = "" if high == sys.float_info.max else f" and at most {high}"

    def violation(value: Value) -> str | None:
        valid = not isinstance(value, (int, float)) or low < value <= high
        return None if valid else f"is not greater than {low}{bound}"

    return violation


def choice(*words: str) -> Validator:
    """One of ``words``, or a list of them; case-sensitive (Kafka: ``ConfigDef.ValidList``)."""

    def violation(value: Value) -> str | None:
        values = value if isinstance(value, tuple) else (value,)
        if all(word in words for word in values):
            return None
        return f"is not {'a list of' if isinstance(value, tuple) else 'one of'} {', '.join(words)}"

    return violation


_TIMES_MS: Mapping[str, int] = MappingProxyType(
    {"ms": 1, "s": 1000, "m": MINUTE_MS, "min": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
)
_SIZES: Mapping[str, int] = MappingProxyType(
    {"b": 1}
    | {f"{prefix}ib": 1 << (10 * power) for power, prefix in enumerate("kmgt", start=1)}
    | {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)}
)
_NUMBER = r"(\d+(?:\.\d+)?)\s*"
_TIME = re.compile(_NUMBER + f"({'|'.join(sorted(_TIMES_MS, key=len, reverse=True))})" + r"(?![a-z])\s*")
_SIZE = re.compile(_NUMBER + r"([kmgt]i?b|b|[kmgt])", re.IGNORECASE)
_NAMES_OF_TIMES = re.compile(r"(?:^|\.)(ms|minutes|hours)$")
_NAMES_OF_SIZES = re.compile(r"(?:^|\.)(?:bytes|bytes\.per\.second|buffer\.size)$")
_NUMBERS = (Kind.SHORT, Kind.INT, Kind.LONG, Kind.DOUBLE)
_UNITS_MS = {"ms": 1, "minutes": MINUTE_MS, "hours": HOUR_MS}


def plain_text(text: str, name: str, kind: Kind) -> str:
    """The value ``text`` of the entry ``name`` as a broker's configuration has it; unchanged if it is none of the forms above.

    :raises ValueError: not a whole number of the entry's unit, or an ambiguous unit; the message is the rest of a sentence that
        starts with the text
    """
    stripped = text.strip()
    if kind is Kind.LIST and stripped.startswith("[") and stripped.endswith("]"):
        return stripped[1:-1]
    if kind not in _NUMBERS:
        return text
    if times := _NAMES_OF_TIMES.search(name):
        return _time(stripped, times[1])
    return _size(stripped) if _NAMES_OF_SIZES.search(name) else text


def unit_ms(name: str) -> int:
    """The unit of an entry's value in ms, if its name says it; else 1."""
    times = _NAMES_OF_TIMES.search(name)
    return 1 if times is None else _UNITS_MS[times[1]]


def examples(name: str) -> str | None:
    """Examples of values with units, for the hint of an error; ``None`` if the entry has none."""
    if _NAMES_OF_TIMES.search(name):
        return "a time such as 3d, 12h or 1h30m is converted"
    return "a size such as 64KiB, 1GiB or 500MB is converted" if _NAMES_OF_SIZES.search(name) else None


def _time(text: str, unit: str) -> str:
    parts = [(Fraction(match[1]), match[2]) for match in _TIME.finditer(text)]
    if not parts or _TIME.sub("", text):
        return text
    total = sum(number * _TIMES_MS[suffix] for number, suffix in parts) / _UNITS_MS[unit]
    return _whole(Fraction(total), {"ms": "milliseconds"}.get(unit, unit))


def _size(text: str) -> str:
    match = _SIZE.fullmatch(text)
    if match is None:
        return text
    number, unit = match[1], match[2].lower()
    if unit not in _SIZES:
        upper = unit.upper()
        raise ValueError(f"is ambiguous: write {number}{upper}iB for powers of 1024, or {number}{upper}B for powers of 1000")
    return _whole(Fraction(number) * _SIZES[unit], "bytes")


def _whole(number: Fraction, unit: str) -> str:
    if number.denominator != 1:
        raise ValueError(f"is not a whole number of {unit}")
    return str(number.numerator)


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

        :param with_units: accept the forms of ``plain_text``, too
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

TOPIC_ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("cleanup.policy", Kind.LIST, ("delete",), choice("compact", "delete"),
              "how space is freed: compact, delete, both or none", _log("cleanup.policy")),
        # 1 MiB since Kafka 4.1; topics of older brokers may have less
        Entry("segment.bytes", _I, 1 << 30, in_range(14), "largest size of one segment, bytes", _log("segment.bytes")),
        Entry("segment.ms", _L, 7 * DAY_MS, _SOME,
              "age at which the active segment is rolled, ms", _log("roll.ms", "roll.hours")),
        Entry("segment.index.bytes", _I, 10 * MIB, in_range(4),
              "largest size of an offset or time index, bytes", _log("index.size.max.bytes")),
        Entry("index.interval.bytes", _I, 4096, _COUNT,
              "bytes appended between two index entries", _log("index.interval.bytes")),
        Entry("min.cleanable.dirty.ratio", _D, 0.5, in_range(0, 1),
              "ratio of dirty bytes above which a log is compacted, 0 to 1", _log("cleaner.min.cleanable.ratio")),
        Entry("delete.retention.ms", _L, DAY_MS, _COUNT,
              "time that tombstones and transaction markers are kept, ms", _log("cleaner.delete.retention.ms")),
        Entry("min.compaction.lag.ms", _L, 0, _COUNT,
              "time that a record remains uncompacted at least, ms", _log("cleaner.min.compaction.lag.ms")),
        Entry("max.compaction.lag.ms", _L, LONG_MAX, _SOME,
              "time after which a dirty log is compacted, ms", _log("cleaner.max.compaction.lag.ms")),
        Entry("file.delete.delay.ms", _L, 60_000, _COUNT,
              "time from a file's removal to its deletion, ms", _log("segment.delete.delay.ms")),
        Entry("retention.ms", _L, 7 * DAY_MS, in_range(-1), "age at which segments are deleted, ms, -1 for never",
              _log("retention.ms", "retention.minutes", "retention.hours")),
        Entry("retention.bytes", _L, -1, None,
              "log size above which segments are deleted, bytes, -1 for never", _log("retention.bytes")),
        Entry(MAX_RECORD, _I, NO_RECORD_LIMIT, in_range(1, NO_RECORD_LIMIT),
              "largest decompressed size of a record in a compressed batch, bytes", (MAX_RECORD,)),
        Entry("remote.storage.enable", Kind.BOOLEAN, False, None, "whether the topic is tiered"),
        Entry("internal.segment.bytes", _I, None, in_range(1, INT_MAX),
              "segment size without the lower bound of segment.bytes, for tests"),
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


def _default_of(topic: Entry, name: str) -> Entry:
    """The broker entry that sets the default of a topic entry."""
    unit = {MINUTE_MS: ", in minutes", HOUR_MS: ", in hours"}.get(unit_ms(name), "")
    of_topic = (topic.kind, topic.default, topic.validator)
    return Entry(name, *_OF_BROKERS.get(name, of_topic), f"default of {topic.name}{unit}: {topic.doc}")


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
        *(_default_of(topic, name) for topic in TOPIC_ENTRIES.values() for name in topic.synonyms),
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
    found = config_names(level).get(name)
    return found and Entry(name, found.kind, None, None, "a setting of a running broker")


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
    words = (line.split() for line in lines if not line.startswith("#"))
    return {name: ConfigName(Kind[kind], tuple(Span(*span.split("-")) for span in spans)) for name, kind, *spans in words}


def versions_without(name: str, version: str) -> str | None:
    """The versions that have the name, if ``version`` has it neither for topics nor for brokers; ``None`` if it has."""
    entries = [names[name] for names in (config_names("topic"), config_names("broker")) if name in names]
    if not entries or any(entry.is_in(version) for entry in entries):
        return None
    return " and ".join(dict.fromkeys(map(str, entries)))


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
