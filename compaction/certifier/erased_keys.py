r"""Checks an erasure: exactly the records with selected keys are missing, or have lost value and headers. A batch without such
a record has the bytes of its source.

Keys are selected independently of ``KeyPattern.matching``, of RE2 and of the kernels that erase: Arrow compares them byte by
byte. The erasure matches with RE2, and a fault of it, or of its call, would affect both. So expressions are matched by Python's
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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.certifier.certificate import ERASED, ERASED_IN, REMAINING, Findings
from compaction.certifier.key_tables import keys_of
from compaction.certifier.reader import BatchKinds, Bools, Chunk, Int64s, Rows
from compaction.formats.keys import BYTES, PREFIX, KeyCriteria, KeyPattern
from compaction.formats.primitives import FormatError
from compaction.names import parse_segment_file

#: the bytes of a header count of 0, whose varint may be padded
_NO_HEADERS = b"\x80\x00"


@dataclass(frozen=True, eq=False)
class ErasedKeys:
    """The erased keys; with ``tombstones`` their records are retained without value and headers."""

    criteria: KeyCriteria
    tombstones: bool = False

    def __post_init__(self) -> None:
        """:raises FormatError: the certifier does not support an expression"""
        for pattern in self.criteria.patterns:
            matcher(pattern)

    def to_erase(self, chunk: Chunk, end_offset: int, counts: Counter[str]) -> Bools:
        """Whether each record of a chunk has such a key and is below ``end_offset``, bool[n]; counts those at or past it
        that an erasure would remove or change."""
        control = BatchKinds.of(chunk.rows).control
        candidates = ~control[chunk.records["batch"]] & (chunk.records["key_size"] >= 0)
        selected = np.zeros(len(chunk.records), np.bool_)
        selected[candidates] = matching(self.criteria, keys_of(chunk, chunk.records[candidates]))
        below: Bools = selected & (chunk.records["offset"] < end_offset)
        later = selected & ~below
        # a record without value and headers is a tombstone already
        counts[REMAINING] += int(_have_content(chunk, chunk.records[later]).sum() if self.tombstones else later.sum())
        return below

    @staticmethod
    def copied(before: Chunk, after: Chunk) -> Int64s:
        """The rows of ``before`` with the bytes of one of the batches of ``after``, int64[m]."""
        source_rows = np.searchsorted(before.rows["last_offset"], after.rows["last_offset"])
        source_rows = np.minimum(source_rows, len(before.rows) - 1)
        equal = pc.equal(before.batches().take(pa.array(source_rows)), after.batches())
        same: Int64s = source_rows[equal.to_numpy(zero_copy_only=False)]
        return same

    @staticmethod
    def check_untouched(before: Chunk, copied: Bools, selected: Bools, findings: Findings) -> None:
        """Check that batches without a record that is ``selected`` (bool[n]) are ``copied`` (bool[b])."""
        touched = np.zeros(len(before.rows), np.bool_)
        touched[before.records["batch"][selected]] = True
        message = "batch without an erased key is missing, or differs from its source"
        findings.add_all(before.rows["base_offset"][~touched & ~copied], message)

    def check_missing(self, before: Chunk, retained: Bools, selected: Bools, findings: Findings, counts: Counter[str]) -> None:
        """Check the retained records of ``before`` (bool[n]), and count the erased ones."""
        offsets = before.records["offset"]
        counts["records_before"] += len(offsets)
        counts["missing"] += int((~retained).sum())
        if self.tombstones:
            findings.add_all(offsets[~retained], "record is missing, it should have become a tombstone")
            return
        findings.add_all(offsets[~retained & ~selected], "record is missing though its key was not erased")
        findings.add_all(offsets[retained & selected], "record of an erased key is retained")
        erased = int((~retained & selected).sum())
        counts[ERASED] += erased
        counts[segment_count(before)] += erased

    def check_tombstones(self, before: Chunk, sources: Rows, after: Chunk, records: Rows, counts: Counter[str]) -> Findings:
        """Check that ``records`` (of ``after``) with selected keys have lost value and headers of ``sources``."""
        findings = Findings()
        findings.add_all(records["offset"][_have_content(after, records)], "record of an erased key has a value or headers")
        counts[segment_count(before)] += int(_have_content(before, sources).sum())
        return findings


def segment_count(chunk: Chunk) -> str:
    """The name of the count of records that were erased in the chunk's segment."""
    file = parse_segment_file(chunk.path.rpartition("/")[2])
    return f"{ERASED_IN}{-1 if file is None else file.base_offset}"


def _have_content(chunk: Chunk, records: Rows) -> Bools:
    """Whether each record of a chunk has a value or headers, bool[n]."""
    headers = [bool(chunk.data[record["headers_at"] : record["end"]].tobytes().strip(_NO_HEADERS)) for record in records]
    content: Bools = (records["value_size"] >= 0) | np.array(headers, np.bool_)
    return content


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
