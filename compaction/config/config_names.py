"""The configuration names of topics and brokers in Kafka 2.8 to 4.4: their types, and which versions have them.

Read from ``topic_names.txt`` and ``broker_names.txt``, which ``tests/config/make_names.py`` writes from the classes of each
version. A line is a name, a type and, unless all versions have the name, spans of minor versions: ``-3.9`` is up to 3.9,
``3.6-`` from 3.6 on, ``4.2-4.2`` only 4.2. A minor version has the names of its newest release.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from compaction.config.kinds import Kind

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
