"""Key selection of the certifier, independent of ``KeyPattern.matching``, of RE2 and of the kernels that erase.

An expression of RE2 is translated into one of Python that matches the same complete texts: the erasure matches with RE2, and a
fault of it, or of its call, would affect both. Literals, classes and escapes are translated into explicit sets of characters,
with all cases of ``(?i)``; groups, alternatives and repetitions are the same in both. Greediness has no effect, because only
complete texts are matched.

Expressions that RE2 accepts are read without further checks. ``\\p`` is supported for general categories, not for scripts, and
``\\C`` only if a character is a byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.certifier import characters
from compaction.certifier.characters import EVERY, PERL, POSIX, Ranges
from compaction.formats.key_criteria import BYTES, PREFIX, KeyCriteria, KeyPattern
from compaction.formats.primitives import FormatError

_GROUP_FLAGS = re.compile(r"\(\?([imsU]*)(?:-([imsU]*))?([:)])")
_NAMED_GROUP = re.compile(r"\(\?P?<\w+>")
_REPETITION = re.compile(r"([*+?]|\{\d+(?:,\d*)?\})\??")
_POSIX_CLASS = re.compile(r"\[:(\^?)(\w+):\]")
_CODE = re.compile(r"\\x\{([0-9A-Fa-f]+)\}|\\x([0-9A-Fa-f]{2})")
_OCTAL = re.compile(r"\\([0-7]{1,3})")
_PROPERTY = re.compile(r"\\([pP])(?:\{(\^?)(\w+)\}|(\w))")
_CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_IS_WORD = "[0-9A-Za-z_]"
_ASSERTIONS = {
    "A": r"\A",
    "z": r"\Z",
    "b": f"(?<={_IS_WORD})(?!{_IS_WORD})|(?<!{_IS_WORD})(?={_IS_WORD})",
    "B": f"(?<={_IS_WORD})(?={_IS_WORD})|(?<!{_IS_WORD})(?!{_IS_WORD})",
}


def matching(criteria: KeyCriteria, keys: pa.Array) -> NDArray[np.bool_]:
    """bool[n]: whether each key of a binary array without nulls is selected."""
    coded = keys.dictionary_encode()
    distinct = coded.dictionary
    selected = pc.is_in(distinct, value_set=criteria.keys).to_numpy(zero_copy_only=False).astype(np.bool_)
    texts = distinct.to_pylist() if criteria.patterns else []
    for pattern in criteria.patterns:
        selected |= np.fromiter(map(matcher(pattern), texts), np.bool_, len(texts))
    matches: NDArray[np.bool_] = selected[coded.indices.to_numpy()] if len(distinct) else np.zeros(0, np.bool_)
    return matches


@lru_cache(maxsize=256)
def matcher(pattern: KeyPattern) -> Callable[[bytes], bool]:
    """A function that tests whether a key matches.

    :raises FormatError: the expression is not supported without RE2
    """
    if pattern.kind == PREFIX:
        prefix = pattern.text.encode()
        return lambda key: key.startswith(prefix)
    is_bytes = pattern.kind == BYTES
    expression, encoding = re.compile(translated(pattern.text, is_bytes=is_bytes)), "latin-1" if is_bytes else "utf-8"

    def matches(key: bytes) -> bool:
        try:
            return expression.fullmatch(key.decode(encoding)) is not None
        except UnicodeDecodeError:
            return False

    return matches


class _Flags(NamedTuple):
    """``i``: any case; ``m``: ``^`` and ``$`` match at lines; ``s``: ``.`` matches line feeds, as in each pattern of keys."""

    i: bool = False
    m: bool = False
    s: bool = True


def translated(expression: str, *, is_bytes: bool = False) -> str:
    """The expression for Python.

    :param is_bytes: a character is a byte; cases are those of ASCII
    :raises FormatError: it names a script, or a byte within a character
    """
    reader = _Reader(expression, is_bytes)
    return "".join(reader.parts())


class _Reader:
    def __init__(self, text: str, is_bytes: bool) -> None:
        self._text, self._position, self._is_bytes = text, 0, is_bytes
        self._flags, self._outer = _Flags(), list[_Flags]()

    def parts(self) -> list[str]:
        parts = []
        while self._position < len(self._text):
            parts.append(self._part())
        return parts

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._position)
        if match is not None:
            self._position = match.end()
        return match

    def _next(self, count: int = 1) -> str:
        text = self._text[self._position : self._position + count]
        self._position += count
        return text

    def _part(self) -> str:
        if repetition := self._take(_REPETITION):
            return repetition[1]
        character = self._text[self._position]
        if character == "(":
            return self._group()
        if character == "\\":
            return self._escape()
        if character == "[":
            return _one_of(self._class())
        self._position += 1
        if character == ")":
            self._flags = self._outer.pop()
        if character in ")|":
            return character
        if character == ".":
            return _one_of(EVERY if self._flags.s else characters.without(characters.of("\n")))
        if character in "^$":
            lines = {"^": r"\A", "$": r"\Z"} if not self._flags.m else {"^": "(?m:^)", "$": "(?m:$)"}
            return f"(?:{lines[character]})"
        return self._literal(ord(character))

    def _group(self) -> str:
        flags = self._take(_GROUP_FLAGS)
        if flags is not None and flags[3] == ")":
            self._flags = self._changed(flags)
            return ""
        self._outer.append(self._flags)
        if flags is not None:
            self._flags = self._changed(flags)
        elif not self._take(_NAMED_GROUP):
            self._position += 1
        return "(?:"

    def _changed(self, flags: re.Match[str]) -> _Flags:
        on, off = flags[1], flags[2] or ""
        values = self._flags._asdict()
        values.update({name: True for name in on if name != "U"})
        values.update({name: False for name in off if name != "U"})
        return _Flags(**values)

    def _escape(self) -> str:
        letter = self._text[self._position + 1]
        if letter in _ASSERTIONS:
            self._position += 2
            return f"(?:{_ASSERTIONS[letter]})"
        if letter == "Q":
            self._position += 2
            literal, end, _ = self._text[self._position :].partition(r"\E")
            self._position += len(literal) + len(end)
            return "".join(self._literal(ord(character)) for character in literal)
        if letter == "C":
            if not self._is_bytes:
                raise FormatError(r"uses \C, which is a part of a character: give it as bytes=EXPRESSION")
            self._position += 2
            return _one_of(EVERY)
        named = self._named()
        return self._literal(self._code()) if named is None else _one_of(named)

    def _literal(self, code: int) -> str:
        return _one_of(self._any_case(((code, code),)))

    def _named(self) -> Ranges | None:
        r"""The set of ``\d`` or ``\p{…}`` and the like, with all cases; ``None`` if none is next."""
        if match := self._take(_PROPERTY):
            name = match[3] or match[4]
            ranges = characters.category(name)
            if ranges is None:
                raise FormatError(r"names a script by \p, which the certifier does not know: name its range, as [а-я]")
            return self._any_case(ranges, negated=(match[1] == "P") != bool(match[2]))
        letter = self._text[self._position + 1 : self._position + 2]
        if self._text[self._position] == "\\" and letter.lower() in PERL:
            self._position += 2
            return self._any_case(PERL[letter.lower()], negated=letter.isupper())
        return None

    def _code(self) -> int:
        """The next character, which may be escaped."""
        if match := self._take(_CODE):
            return int(match[1] or match[2], 16)
        if match := self._take(_OCTAL):
            return int(match[1], 8)
        if self._text[self._position] == "\\":
            letter = self._next(2)[1]
            return _CONTROLS.get(letter, ord(letter))
        return ord(self._next())

    def _class(self) -> Ranges:
        """The set in brackets, with all cases."""
        negated = self._next(2) == "[^"
        if not negated:
            self._position -= 1
        sets: list[Ranges] = []
        while not sets or self._text[self._position] != "]":
            sets.append(self._item())
        self._position += 1
        ranges = characters.joined(*sets)
        return characters.without(ranges) if negated else ranges

    def _item(self) -> Ranges:
        if match := self._take(_POSIX_CLASS):
            return self._any_case(POSIX[match[2]], negated=bool(match[1]))
        named = self._named()
        if named is not None:
            return named
        first = last = self._code()
        if self._text[self._position] == "-" and self._text[self._position + 1] != "]":
            self._position += 1
            last = self._code()
        return self._any_case(((first, last),))

    def _any_case(self, ranges: Ranges, *, negated: bool = False) -> Ranges:
        if self._flags.i:
            ranges = characters.folded(ranges, ascii_only=self._is_bytes)
        return characters.without(ranges) if negated else ranges


def _one_of(ranges: Ranges) -> str:
    if not ranges:
        return "(?!)"
    return "[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]"
