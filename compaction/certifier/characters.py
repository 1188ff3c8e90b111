"""Sets of characters, as sorted ranges of code points with inclusive ends: RE2's named sets, case folding, complements.

Case is folded as RE2 does, by Unicode's simple folding: ``k`` is ``K`` and the Kelvin sign, but ``ß`` is not ``ss``.
"""

from __future__ import annotations

import string
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby

#: ``(first, last)``
Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
EVERY: Ranges = ((0, LAST),)
#: no character above this one has another case
_LAST_CASED = 0x1FFFF
#: folded together since Unicode 15.1; each folds to three characters otherwise
_ALSO_EQUAL = ((0x390, 0x1FD3), (0x3B0, 0x1FE3), (0xFB05, 0xFB06))


def of(characters: Iterable[str | int]) -> Ranges:
    """The set of some characters."""
    codes = sorted({character if isinstance(character, int) else ord(character) for character in characters})
    runs = ([code for _, code in run] for _, run in groupby(enumerate(codes), lambda pair: pair[1] - pair[0]))
    return tuple((run[0], run[-1]) for run in runs)


def joined(*sets: Ranges) -> Ranges:
    """The union."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(character_range for ranges in sets for character_range in ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def without(ranges: Ranges) -> Ranges:
    """The complement."""
    starts = [0, *(last + 1 for _, last in ranges)]
    ends = [*(first - 1 for first, _ in ranges), LAST]
    return tuple((first, last) for first, last in zip(starts, ends, strict=True) if first <= last)


def folded(ranges: Ranges, *, ascii_only: bool) -> Ranges:
    """The set with the other cases of its characters."""
    added = [
        other
        for orbit in _orbits()
        if any(first <= code <= last for code in orbit for first, last in ranges)
        for other in orbit
    ]
    if ascii_only:
        inside = [(max(first, 0), min(last, 127)) for first, last in ranges if first <= 127]
        added = [code ^ 32 for first, last in inside for code in range(first, last + 1) if chr(code).isalpha()]
    return joined(ranges, of(added))


@lru_cache(maxsize=1)
def _orbits() -> tuple[tuple[int, ...], ...]:
    """Characters that differ in case only."""
    by_fold: defaultdict[str, list[int]] = defaultdict(list)
    for code in range(_LAST_CASED + 1):
        by_fold[_simple_fold(chr(code))].append(code)
    return (*(tuple(codes) for codes in by_fold.values() if len(codes) > 1), *_ALSO_EQUAL)


def _simple_fold(character: str) -> str:
    for fold in (character.casefold(), character.lower()):
        if len(fold) == 1:
            return fold
    return character


_WORD = string.ascii_letters + string.digits + "_"
#: ``\d``, ``\s``, ``\w``
PERL = {"d": of(string.digits), "s": of("\t\n\f\r "), "w": of(_WORD)}
#: ``[[:alpha:]]`` and others
POSIX = {
    "alnum": of(string.ascii_letters + string.digits),
    "alpha": of(string.ascii_letters),
    "ascii": of(range(128)),
    "blank": of("\t "),
    "cntrl": of([*range(32), 127]),
    "digit": of(string.digits),
    "graph": of(range(33, 127)),
    "lower": of(string.ascii_lowercase),
    "print": of(range(32, 127)),
    "punct": of(string.punctuation),
    "space": of("\t\n\v\f\r "),
    "upper": of(string.ascii_uppercase),
    "word": of(_WORD),
    "xdigit": of(string.hexdigits),
}
_CATEGORIES = frozenset(
    "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs".split()
)


@lru_cache(maxsize=32)
def category(name: str) -> Ranges | None:
    """The characters of a general category of Unicode, or of ``Any``; ``None`` for any other name."""
    if name == "Any":
        return EVERY
    if name not in _CATEGORIES:
        return None
    # RE2 has no category of unassigned characters
    named = (code for code in range(LAST + 1) if (kind := unicodedata.category(chr(code))).startswith(name) and kind != "Cn")
    return of(named)
