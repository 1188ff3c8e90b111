"""Types and validators of configuration entries.

Mirrors ``ConfigDef.parseType`` of Kafka: text is trimmed, an INT is a signed 32-bit decimal, a LONG a signed 64-bit
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
import math
import re
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Union

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
    if kind is Kind.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"is not {kind.value}")
        return text.lower() == "true"
    return _parse_double(text) if kind is Kind.DOUBLE else _parse_integer(text, kind)


def _parse_integer(text: str, kind: Kind) -> int:
    limit = 1 << (_BITS[kind] - 1)
    if not _INTEGER.fullmatch(text) or not -limit <= int(text) < limit:
        raise ValueError(f"is not {kind.value}")
    return int(text)


def _parse_double(text: str) -> float:
    if not _DOUBLE.fullmatch(text):
        raise ValueError(f"is not {Kind.DOUBLE.value}")
    digits = text.rstrip("dDfF")
    return math.copysign(math.inf, -1 if digits.startswith("-") else 1) if digits.endswith("Infinity") else float(digits)


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
    stripped = text.strip()
    if kind is Kind.LIST and stripped.startswith("[") and stripped.endswith("]"):
        return stripped[1:-1]
    if kind not in _NUMBERS:
        return text
    times = _NAMES_OF_TIMES.search(name)
    if times is not None:
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
