"""The policies that a dry run compares: settings that override all other sources.

A policy is written ``k=v,k=v`` with topic-level and broker-level names. The values of a list are joined with ``+``, because a
comma ends the setting: ``cleanup.policy=compact+delete``. ``configured`` is the policy without settings.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        settings = tuple(_setting(part) for part in name.split(","))
        names = [setting.name for setting in settings]
        twice = next((each for each in names if names.count(each) > 1), None)
        if twice is not None:
            raise ConfigError(f"--policy {name!r} gives {twice} twice", hint="join the values of a list with +")
        return cls(name, settings)


def _setting(text: str) -> Setting:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        hint = f"e.g. --policy cleanup.policy=compact+delete,retention.ms=86400000, or --policy {CONFIGURED}"
        raise ConfigError(f"--policy: {text.strip()!r} is not KEY=VALUE", hint=hint)
    source = Source(Origin.POLICY, name)
    entry = entry_of(name, source)
    if entry.kind is Kind.LIST:
        value = value.replace("+", ",")
    return Setting(name, entry.read(value, path=None, where="--policy: "), source)
