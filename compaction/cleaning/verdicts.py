"""The vocabulary of a plan's answer: the verdict, why, and the conditions that led to it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from compaction.config import Source


class Verdict(enum.Enum):
    """What happens to a log."""

    CLEAN = "clean"
    SKIP = "skip"


class SkipCause(enum.Enum):
    """Why a log is left alone; the first word of the reason."""

    REFUSED = "refused"
    POLICY = "policy"
    EMPTY = "empty"
    LAG = "lag"
    RATIO = "ratio"


@dataclass(frozen=True)
class Condition:
    """One question asked of a log: a value, what it is held against, and where that bound comes from.

    ``setting`` is the configuration name of the bound, ``None`` where the bound is none.
    """

    name: str
    value: int | float | str
    relation: str
    bound: int | float | str
    holds: bool
    setting: str | None = None
    source: Source | None = None

    @property
    def origin(self) -> str:
        """The name of the bound and where it was set, each once; empty where the bound is none."""
        if self.setting is None or self.setting in str(self.source):
            return str(self.source or "")
        return f"{self.setting}, {self.source}"

    def __str__(self) -> str:
        """E.g. ``cleanable ratio 0.25 > 0.5 (min.cleanable.dirty.ratio, Kafka's default): no``."""
        origin = f" ({self.origin})" if self.origin else ""
        return f"{self.name} {shown(self.value)} {self.relation} {shown(self.bound)}{origin}: {'yes' if self.holds else 'no'}"


def shown(value: int | float | str) -> str:
    """A number or word for people: ratios with up to four digits, the empty text as ``none``."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) or "none"
