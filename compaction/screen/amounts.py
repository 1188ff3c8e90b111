"""Amounts as text: bytes, shares, counts, durations."""

from __future__ import annotations

import re

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
#: units of time, ms
_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("ms", 1))
_LETTERS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))
#: with this many of the largest unit the next one is omitted
_MANY = 10


def size(count: float) -> str:
    """Bytes in decimal units: ``408 B``, ``1.2 kB``, ``590.7 kB``."""
    amount, unit = float(count), 0
    while abs(amount) >= 999.95 and unit < len(_BYTE_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.0f} B" if unit == 0 else f"{amount:.1f} {_BYTE_UNITS[unit]}"


def size_in_words(count: int) -> str:
    """Bytes in a sentence: ``1 byte``, ``408 bytes``, ``1.2 kB``."""
    return size(count) if abs(count) >= 1000 else counted(count, "byte")


def change(before: float, after: float) -> str:
    """Bytes before and after: ``590.7 kB -> 147.4 kB``."""
    return f"{size(before)} -> {size(after)}"


def share_freed(before: int, after: int) -> str:
    """The share freed, in per cent: ``0.0 %`` and ``100.0 %`` if exact, ``< 0.1 %`` and ``> 99.9 %`` if rounded."""
    if not before or before == after:
        return "0.0 %"
    text = f"{100 * (before - after) / before:.1f} %"
    if after and text == "100.0 %":
        return "> 99.9 %"
    return "< 0.1 %" if text == "0.0 %" else text


def counted(count: int, noun: str, nouns: str = "") -> str:
    """A number with its noun: ``1 segment``, ``1,350 records``, ``2 policies``."""
    plural = f"{noun[:-1]}ies" if noun[-1] == "y" and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else nouns or plural}"


def short_duration(milliseconds: int) -> str:
    """The same in short words, for tables: ``23 d``, ``3 d 4 h``, ``1 min 30 s``."""
    text = duration(milliseconds)
    for name, short in (("day", "d"), ("hour", "h"), ("minute", "min"), ("second", "s")):
        text = re.sub(rf"\b{name}s?\b", short, text)
    return text


def duration(milliseconds: int) -> str:
    """A duration in at most two units: ``23 days``, ``3 days 4 hours``, ``1 minute 30 seconds``, ``0 ms``."""
    remaining = abs(milliseconds)
    parts: list[str] = []
    for name, size_ms in _UNITS:
        number, remaining = divmod(remaining, size_ms)
        if parts:
            return " ".join([*parts, _of_unit(number, name)]) if number else parts[0]
        if number >= _MANY or (number and name == "ms"):
            return _of_unit(number, name)
        if number:
            parts = [_of_unit(number, name)]
    return "0 ms"


def at_most(milliseconds: int) -> str:
    """The value of a setting that is not longer, in the largest unit of which it has two: ``49m``, ``23h``, ``999`` ms."""
    fitting = ((size_ms, letter) for size_ms, letter in _LETTERS if milliseconds >= 2 * size_ms)
    size_ms, letter = next(fitting, (1, ""))
    return f"{milliseconds // size_ms}{letter}"


def _of_unit(number: int, name: str) -> str:
    return f"{number:,} ms" if name == "ms" else counted(number, name)


def with_duration(milliseconds: int) -> str:
    """A configured number of milliseconds, and in words: ``259200000 (3 days)``."""
    return str(milliseconds) if milliseconds < 1000 else f"{milliseconds} ({duration(milliseconds)})"


def elapsed(seconds: float) -> str:
    """An elapsed time: ``8.2 s``, ``1 min 10 s``, ``2 h 5 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, whole_seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {whole_seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"
