"""The policies that a dry run compares: settings that override all other sources.

A policy is written ``k=v,k=v`` with topic-level and broker-level names. The values of a list are joined with ``+``, or written
as for Kafka's own tools, with or without brackets: ``cleanup.policy=[compact,delete]``. Values may have units
(``compaction.config.kinds``). ``configured`` is the policy without settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.config.entries import broker_entry, topic_entry
from compaction.config.kinds import Kind
from compaction.config.sources import Origin, Setting, Source, entry_of
from compaction.errors import ConfigError

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
        settings = tuple(_setting(part) for part in _parts(name))
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


def _setting(text: str) -> Setting:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        hint = f"e.g. --policy cleanup.policy=[compact,delete],retention.ms=3d, or --policy {CONFIGURED}"
        raise ConfigError(f"--policy: {text.strip()!r} is not KEY=VALUE", hint=hint)
    source = Source(Origin.POLICY, name)
    entry = entry_of(name, source)
    if entry.kind is Kind.LIST:
        value = value.replace("+", ",")
    return Setting(name, entry.read(value, path=None, where="--policy: ", with_units=True), source)
