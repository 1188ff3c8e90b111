"""Values as people and Kafka's tools write them, converted to the text that a broker's configuration has.

A list may be in brackets, as for ``kafka-configs.sh``: ``[compact,delete]``. If the name of an entry says its unit, a value may
have another one: times (``3d``, ``1h30m``) for names that end in ``.ms``, ``.minutes`` or ``.hours``, sizes (``1GiB``,
``500MB``) for names of bytes. The result must be a whole number of the entry's unit.

This applies to options and TOML. A broker's properties and the metadata log have Kafka's own syntax only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from compaction.config.kinds import Kind

_TIMES_MS: Mapping[str, int] = MappingProxyType(
    {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
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
_UNITS_MS = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}


def plain_text(text: str, name: str, kind: Kind) -> str:
    """The value ``text`` of the entry ``name`` as a broker's configuration has it; unchanged if it is none of the forms above.

    :raises ValueError: not a whole number of the entry's unit, or an ambiguous unit; the message is the rest of a sentence that
        starts with the text
    """
    given = text.strip()
    if kind is Kind.LIST and given.startswith("[") and given.endswith("]"):
        return given[1:-1]
    if kind not in _NUMBERS:
        return text
    times = _NAMES_OF_TIMES.search(name)
    if times is not None:
        return _time(given, times[1])
    return _size(given) if _NAMES_OF_SIZES.search(name) else text


def examples(name: str) -> str | None:
    """Examples of values with units, for the hint of an error; ``None`` if the entry has none."""
    if _NAMES_OF_TIMES.search(name):
        return "a time such as 3d, 12h or 1h30m is converted"
    return "a size such as 64KiB, 1GiB or 500MB is converted" if _NAMES_OF_SIZES.search(name) else None


def _time(text: str, unit: str) -> str:
    parts = [(Fraction(match[1]), match[2]) for match in _TIME.finditer(text)]
    if not parts or _TIME.sub("", text):
        return text
    total = sum(number * _TIMES_MS[of] for number, of in parts) / _UNITS_MS[unit]
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
