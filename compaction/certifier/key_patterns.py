r"""Key selection of the certifier, independent of ``KeyPattern.matching``, of RE2 and of the kernels that erase.

The erasure matches with RE2, and a fault of it, or of its call, would affect both. So expressions are matched by Python's
``re``, if both read them alike. These are, in complete matches:

=================================  =====================================================================================
characters                         each one that is not special, ``\`` before punctuation, ``\xNN``, ``\t \n \r \f \v \a``
``.``, ``\d \D \w \W``             any character; digits and word characters of ASCII
``[…]``, ``[^…]``                  of characters, ranges, ``\d`` and ``\w``, without ``[``, ``&&``, ``||``, ``~~`` or ``--``
``(…)``, ``(?:…)``, ``|``          groups and alternatives
``* + ? {n} {n,} {n,m}``           each also with ``?``; not after another one
``^``, ``$``                       the start and the end of the key
``(?i)`` at the start              any case; in ``regex=``, all characters of the expression are ASCII
=================================  =====================================================================================

Others are refused: their meaning differs, as that of ``\s``, or depends on the version of Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.formats.keys import BYTES, PREFIX, KeyCriteria, KeyPattern
from compaction.formats.primitives import FormatError

_ANY_CASE = "(?i)"
_CHARACTER = r"\\(?:[!-/:-@\[-`{-~]|[tnrfva]|x[0-9A-Fa-f]{2}|[dDwW])"
_CLASS = re.compile(rf"\[(?:\^(?!\])|(?!\^))(?:[^\]\[\\&|~-]|&(?!&)|\|(?!\|)|~(?!~)|-(?!-)|{_CHARACTER})+\]")
_ATOM = re.compile(rf"[^\\.*+?()|\[{{^$]|\.|{_CHARACTER}")
_GROUP = re.compile(r"\(\?:|\((?!\?)|\)|\|")
_REPETITION = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??(?![*+?{])")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]|\\x[89A-Fa-f]")
_ANCHORS = {"^": r"\A", "$": r"\Z"}
#: RE2 folds these with ``k`` and ``s``; no other character has the case of one of ASCII
_FOLDED = str.maketrans("\u212a\u017f", "KS")


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

    :raises FormatError: RE2 and Python may read the expression differently
    """
    if pattern.kind == PREFIX:
        prefix = pattern.text.encode()
        return lambda key: key.startswith(prefix)
    any_case, encoding = pattern.text.startswith(_ANY_CASE), "latin-1" if pattern.kind == BYTES else "utf-8"
    if any_case and pattern.kind != BYTES and _NOT_ASCII.search(pattern.text):
        raise FormatError("has (?i) and a character that is not ASCII: list both cases, as in jos[éÉ]")
    expression = re.compile(common(pattern.text), re.ASCII | re.DOTALL | (re.IGNORECASE if any_case else 0))
    folds = any_case and pattern.kind != BYTES

    def matches(key: bytes) -> bool:
        try:
            text = key.decode(encoding)
        except UnicodeDecodeError:
            return False
        return expression.fullmatch(text.translate(_FOLDED) if folds else text) is not None

    return matches


def common(expression: str) -> str:
    """The expression without ``(?i)`` at its start, and with Python's anchors.

    :raises FormatError: it has a part that is not in the module's table
    """
    text = expression.removeprefix(_ANY_CASE)
    parts: list[str] = []
    position, repeatable = 0, False
    while position < len(text):
        part = _part(text, position, repeatable=repeatable)
        parts.append(_ANCHORS.get(part, part))
        position += len(part)
        repeatable = part == ")" or (_GROUP.fullmatch(part) is None and _REPETITION.fullmatch(part) is None)
    return "".join(parts)


def _part(text: str, position: int, *, repeatable: bool) -> str:
    """The part of an expression that begins at ``position``."""
    for form in (_CLASS, _ATOM, _GROUP, _REPETITION) if repeatable else (_CLASS, _ATOM, _GROUP):
        if match := form.match(text, position):
            return match[0]
    if text[position] in _ANCHORS and text[position + 1 : position + 2] not in ("*", "+", "?", "{"):
        return text[position]
    # the rest may be a part of somebody's key
    what = {"\\": text[position : position + 2], "(": "a group with (? other than (?:", "[": "a class with [, &&, ||, ~~ or --"}
    named = what.get(text[position], f"{text[position]} in another place or form")
    raise FormatError(f"has {named}, which the certifier does not read")
