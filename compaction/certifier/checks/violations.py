"""Violations found in one log: all are counted, the first few are named."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from compaction.certifier.checks.log_pair import Int64s

#: violations of a log that are named
MOST_NAMED = 20
#: the reason of records that are missing because their keys were erased
ERASED = "erased"
#: records of erased keys in places that are not erased from
REMAINING = "remaining"
#: precedes the base offset of a segment in counts
ERASED_IN = "erased in "


@dataclass(frozen=True, order=True)
class Violation:
    """A broken rule and the offset at which it is broken."""

    offset: int
    what: str


@dataclass
class Findings:
    """``named`` are the ``MOST_NAMED`` violations with the lowest offsets of ``count``."""

    named: list[Violation] = field(default_factory=list)
    count: int = 0

    def add(self, offset: int, message: str) -> None:
        """Add one violation."""
        self.count += 1
        self._name([Violation(offset, message)])

    def add_all(self, offsets: Int64s, message: str) -> None:
        """Add the same violation at each of ``offsets``, int64[n]."""
        self.count += len(offsets)
        self._name([Violation(offset, message) for offset in np.sort(offsets)[:MOST_NAMED].tolist()])

    def join(self, other: Findings) -> None:
        """Add the violations found in another part of the log."""
        self.count += other.count
        self._name(other.named)

    def _name(self, more: list[Violation]) -> None:
        self.named = sorted([*self.named, *more])[:MOST_NAMED]
