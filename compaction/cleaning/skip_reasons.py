"""The vocabulary of a plan's answer: the verdict, why, and the conditions that led to it."""

from __future__ import annotations

import enum
import math
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


#: units of time, ms
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))


def duration(milliseconds: int) -> str:
    """Two units at most: ``3 d 4 h``, ``90 s`` as ``1 min 30 s``, ``0 ms``."""
    left = abs(milliseconds)
    parts: list[str] = []
    for name, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {name}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "0 ms"


def amount(count: int) -> str:
    """Bytes as people say them, exact below a kB: ``412.0 MB``."""
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def bytes_missing(clean_bytes: int, dirty_bytes: int, ratio: float) -> int | None:
    """The fewest further dirty bytes with which dirty / (clean + dirty) is over ``ratio``; ``None`` where none suffice."""
    if ratio >= 1:
        return None

    def suffices(more: int) -> bool:
        return (dirty_bytes + more) / max(clean_bytes + dirty_bytes + more, 1) > ratio

    if suffices(0):
        return 0
    # the quotient never falls as more is added: bisect between what is too few and what suffices
    too_few, enough = 0, 1
    while not suffices(enough):
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffices(middle) else (middle, enough)
    return enough


def ratio_below(ratio: float) -> float:
    """A round bound that ``ratio`` is over: the largest with as few digits as can be; 0 where it is tiny."""
    for digits in range(1, 6):
        scale = 10.0**digits
        bound = (math.ceil(ratio * scale) - 1) / scale
        while bound >= ratio:
            bound -= 1 / scale
        if bound > 0:
            return round(bound, digits)
    return 0.0


def ratio_remedy(clean_bytes: int, dirty_bytes: int, bound: float) -> str:
    """What would lift a log over ``min.cleanable.dirty.ratio``."""
    if dirty_bytes == 0:
        return "becomes cleanable once a closed segment is dirty"
    more = bytes_missing(clean_bytes, dirty_bytes, bound)
    lower = f"with min.cleanable.dirty.ratio={ratio_below(dirty_bytes / (clean_bytes + dirty_bytes)):g}"
    return f"becomes cleanable {lower}" if more is None else f"becomes cleanable after {amount(more)} more, or {lower}"
