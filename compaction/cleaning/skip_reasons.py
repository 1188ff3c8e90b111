"""A plan's verdict on a log, its reason, and the conditions that were checked."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from compaction.cleaning.log_to_clean import dirty_ratio
from compaction.config import Source
from compaction.screen.amounts import size_in_words


class Verdict(enum.Enum):
    """Whether a log is cleaned."""

    CLEAN = "clean"
    SKIP = "skip"


class SkipCause(enum.Enum):
    """Why a log is skipped; the first word of the reason."""

    #: a guard refuses it: the metadata log, a policy that is not known
    REFUSED = "refused"
    #: its ``cleanup.policy`` does not include what the run does
    POLICY = "policy"
    #: there is nothing to clean or delete
    EMPTY = "empty"
    #: nothing was appended since it was cleaned
    CLEAN = "clean"
    #: all of its dirty records are in the active segment, which is cleaned only with ``--include-active``
    ACTIVE = "active"
    #: its dirty records are in an open transaction, or above the high watermark
    HELD = "held"
    #: its dirty records are younger than ``min.compaction.lag.ms``
    LAG = "lag"
    #: its dirty ratio is not above ``min.cleanable.dirty.ratio``
    RATIO = "ratio"
    #: the budget of the run leaves it to the next one: ``--max-duration``, ``--max-rewrite`` or ``--min-freed``
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on a log: a value, and the bound that it is compared with.

    If the bound is configured, ``setting`` is its name and ``source`` where it was set.
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
        """The setting and its source, without repeating the name; empty if the bound is not configured."""
        if self.setting is None or self.setting in str(self.source):
            return str(self.source or "")
        return f"{self.setting}, {self.source}"

    def __str__(self) -> str:
        """E.g. ``cleanable ratio 0.25 > 0.5 (min.cleanable.dirty.ratio, Kafka's default): no``."""
        origin = f" ({self.origin})" if self.origin else ""
        return f"{self.name} {shown(self.value)} {self.relation} {shown(self.bound)}{origin}: {'yes' if self.holds else 'no'}"


def shown(value: int | float | str) -> str:
    """A value as shown to users: ratios with up to four digits, empty text as ``none``."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value) or "none"


def bytes_missing(clean_bytes: int, dirty_bytes: int, ratio: float) -> int | None:
    """The fewest additional dirty bytes that bring dirty / (clean + dirty) above ``ratio``; ``None`` if impossible."""
    if ratio >= 1:
        return None

    def suffices(more: int) -> bool:
        return dirty_ratio(clean_bytes, dirty_bytes + more) > ratio

    if suffices(0):
        return 0
    # the ratio grows with the dirty bytes, so bisect
    too_few, enough = 0, 1
    while not suffices(enough):
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffices(middle) else (middle, enough)
    return enough


def ratio_below(ratio: float) -> float:
    """A bound below ``ratio`` with as few digits as possible, the largest such; 0 if the ratio is below 1e-5."""
    for digits in range(1, 6):
        scale = 10.0**digits
        bound = (math.ceil(ratio * scale) - 1) / scale
        while bound >= ratio:
            bound -= 1 / scale
        if bound > 0:
            return round(bound, digits)
    return 0.0


def ratio_remedy(clean_bytes: int, dirty_bytes: int, bound: float) -> str:
    """The change that brings a log above ``min.cleanable.dirty.ratio``."""
    if dirty_bytes == 0:
        return "becomes cleanable once an inactive segment is dirty"
    more = bytes_missing(clean_bytes, dirty_bytes, bound)
    lower = f"with min.cleanable.dirty.ratio={ratio_below(dirty_ratio(clean_bytes, dirty_bytes)):g}"
    return f"becomes cleanable {lower}" if more is None else f"becomes cleanable after {size_in_words(more)} more, or {lower}"
