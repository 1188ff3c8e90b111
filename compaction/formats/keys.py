"""Selects keys: those of lists, compared byte by byte, and those that match a prefix or a regular expression.

| pattern | keys that match |
| --- | --- |
| ``prefix=TEXT`` | those that begin with the UTF-8 of the text |
| ``regex=EXPRESSION`` | those that are UTF-8, and match as text: ``.`` is a character. ``é`` is not ``e`` with an accent |
| ``bytes=EXPRESSION`` | any that match as bytes: ``.`` is one, ``\\xe9`` another. The expression and ``(?i)`` are ASCII |

An expression is one of RE2, and must match the complete key. It is applied to the distinct keys of an array.

A list has a key on each line. Errors have numbers of lines, from 1, never keys.

| format | a line is |
| --- | --- |
| ``text`` | the key's bytes; it cannot contain a line feed, or end with a carriage return |
| ``hex`` | two digits a byte |
| ``base64`` | RFC 4648 with padding |
| ``json`` | a string, whose UTF-8 is the key, or a key as ``dump-log`` prints it: ``{"text": …}`` or ``{"base64": …}`` |

An empty line is no key. The empty key is ``""`` in JSON. A file that begins with a byte order mark is refused.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.formats.primitives import FormatError

PREFIX, REGEX, BYTES = KINDS = ("prefix", "regex", "bytes")
_ARROW_PREFIX = "Invalid regular expression: "
#: the cost of a guess, see ``KeyCriteria.secret``
SCRYPT_N = 1 << 16


@dataclass(frozen=True)
class KeyPattern:
    """``kind`` is one of ``KINDS``. The text may be a part of somebody's key: ``repr`` hides it."""

    kind: str
    text: str = field(repr=False)

    @classmethod
    def parse(cls, argument: str) -> KeyPattern:
        """From ``prefix=TEXT``, ``regex=EXPRESSION`` or ``bytes=EXPRESSION``.

        :raises FormatError: it is none of these, is empty, or is not an expression
        """
        kind, equals, text = argument.partition("=")
        if not equals or kind not in KINDS:
            raise FormatError(f"is neither {PREFIX}=TEXT nor {REGEX}=EXPRESSION nor {BYTES}=EXPRESSION")
        if not text:
            raise FormatError("is empty, which would match every key")
        if kind == BYTES:
            require_ascii(text)
        pattern, probe = cls(kind, text), pa.array([b""], pa.binary())
        with expression_errors():
            if kind != PREFIX:
                # compiled alone first: unbalanced brackets could close the added ones and match a part of a key
                pc.match_substring_regex(probe.cast(pa.string()) if kind == REGEX else probe, pattern=text)
            pattern.matching(probe)
        return pattern

    def matching(self, keys: pa.Array) -> NDArray[np.bool_]:
        """bool[n]: whether each key of a binary array matches."""
        if self.kind == PREFIX:
            return _bools(pc.starts_with(keys, pattern=self.text))
        anchored = rf"\A(?s:{self.text})\z"
        if self.kind == BYTES:
            return _bools(pc.match_substring_regex(keys, pattern=anchored))
        # RE2 takes a string as text, and a binary value as bytes
        return _bools(pc.fill_null(pc.match_substring_regex(text_keys(keys), pattern=anchored), False))


def text_keys(keys: pa.Array) -> pa.Array:
    """The keys of a binary array as strings; null for those that are not UTF-8."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        is_text = pa.array(map(_is_utf8, keys.to_pylist()), pa.bool_())
        return pc.if_else(is_text, keys, pa.scalar(None, keys.type)).cast(pa.string())


def _is_utf8(key: bytes | None) -> bool:
    try:
        (key or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def require_ascii(expression: str) -> None:
    """:raises FormatError: an expression of bytes has other characters"""
    if not expression.isascii():
        raise FormatError(rf"has a character that is not ASCII, whose bytes are not known: write \xNN, or give {REGEX}")


@contextmanager
def expression_errors() -> Iterator[None]:
    """:raises FormatError: RE2 refuses an expression within"""
    try:
        yield
    except pa.ArrowInvalid as error:
        # Arrow's prefix, RE2's reason, and a part of the pattern
        reason = str(error).removeprefix(_ARROW_PREFIX).partition(": ")[0]
        raise FormatError(f"is not a regular expression of RE2: {reason}") from None


def _bools(array: pa.Array) -> NDArray[np.bool_]:
    bools: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False).astype(np.bool_)
    return bools


@dataclass(frozen=True, eq=False)
class KeyCriteria:
    """``keys``: a binary array of distinct keys; ``patterns``: keys that match one of these are selected, too."""

    keys: pa.Array = field(repr=False)
    patterns: tuple[KeyPattern, ...] = ()

    @classmethod
    def of(cls, keys: pa.Array, patterns: tuple[KeyPattern, ...] = ()) -> KeyCriteria:
        """From keys in any order, possibly equal ones."""
        return cls(pc.unique(keys), patterns)

    def matching(self, keys: pa.Array) -> NDArray[np.bool_]:
        """bool[n]: whether each key of a binary array, without nulls, is selected."""
        coded = keys.dictionary_encode()
        distinct: pa.Array = coded.dictionary
        selected = pc.is_in(distinct, value_set=self.keys).to_numpy(zero_copy_only=False).astype(np.bool_)
        for pattern in self.patterns:
            selected |= pattern.matching(distinct)
        matching: NDArray[np.bool_] = selected[coded.indices.to_numpy()] if len(distinct) else np.zeros(0, np.bool_)
        return matching

    def secret(self, salt: bytes) -> bytes:
        """32 bytes that can be derived only from all keys and patterns, in any order.

        scrypt derives them from the salted hashes: from their ``fingerprint``, one can still guess a single telephone number,
        but each guess takes 64 MiB and about a fifth of a second.
        """
        # the hash includes the kind: a key may read like a pattern
        hashes = [salted_digest(salt, b"key\0" + key).hex() for key in self.keys.to_pylist()]
        hashes += [salted_digest(salt, f"{pattern.kind}\0{pattern.text}".encode()).hex() for pattern in self.patterns]
        return hashlib.scrypt("".join(sorted(hashes)).encode(), salt=salt, n=SCRYPT_N, r=8, p=1, maxmem=80 << 20, dklen=32)


def fingerprint(secret: bytes) -> str:
    """SHA-256 of the secret of criteria, in hexadecimal. It may be shown."""
    return hashlib.sha256(secret).hexdigest()


def salted_digest(salt: bytes, key: bytes) -> bytes:
    return hashlib.sha256(salt + key).digest()


TEXT, HEX, BASE64, JSON = FORMATS = ("text", "hex", "base64", "json")
_LINE_FEED, _RETURN = 10, 13
#: a file with one was written as text by an editor: no key begins with it
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "UTF-8", codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
#: positions in an array of keys have 32 bits
MAX_BYTES = 2**31 - 1


def read_lines(data: bytes, kind: str) -> tuple[pa.Array, NDArray[np.int64]]:
    """The keys of a file, as a binary array without nulls, in order, equal ones included; the number of the line of each,
    int64[n].

    :param kind: one of ``FORMATS``
    :raises FormatError: a line is malformed, with its number, or the file begins with a byte order mark
    """
    mark = next((name for mark, name in _BYTE_ORDER_MARKS.items() if data.startswith(mark)), None)
    if mark is not None:
        raise FormatError(f"begins with a byte order mark of {mark}, which would be a part of the first key: save it without")
    raw = np.frombuffer(data, np.uint8)
    starts, ends = _lines(raw)
    filled = ends > starts
    starts, ends, numbers = starts[filled], ends[filled], np.flatnonzero(filled) + 1
    if kind == TEXT:
        return _text_keys(raw, starts, ends), numbers
    rows = zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return decode(((number, data[start:end]) for number, start, end in rows), kind), numbers


class KeyPlaces(NamedTuple):
    """The first occurrences of distinct keys: their file, an index into ``paths``, and their line, from 1 (int64[n] each)."""

    paths: tuple[str, ...]
    files: NDArray[np.int64]
    lines: NDArray[np.int64]

    @classmethod
    def of(cls, keys: pa.Array, lines_by_file: Sequence[tuple[str, NDArray[np.int64]]]) -> KeyPlaces:
        """Of the distinct ``keys``, in the order of ``pc.unique``; ``lines_by_file`` has the lines of all keys."""
        # codes are numbered as keys appear
        _, first = np.unique(keys.dictionary_encode().indices.to_numpy(), return_index=True)
        files = np.repeat(np.arange(len(lines_by_file)), [len(lines) for _, lines in lines_by_file])
        lines = np.concatenate([np.empty(0, np.int64), *(lines for _, lines in lines_by_file)])
        return cls(tuple(path for path, _ in lines_by_file), files[first], lines[first])

    def only(self, selected: NDArray[np.bool_]) -> KeyPlaces:
        return self._replace(files=self.files[selected], lines=self.lines[selected])

    def by_file(self) -> list[tuple[str, list[int]]]:
        lines_by_file = ((path, self.lines[self.files == number].tolist()) for number, path in enumerate(self.paths))
        return [(path, lines) for path, lines in lines_by_file if lines]


def decode(lines: Iterable[tuple[int, bytes]], kind: str) -> pa.Array:
    """The keys of numbered lines, or cells of a column; ``FormatError`` if a line is malformed, with its number."""
    decode_one = _DECODERS[kind]
    keys = []
    for number, line in lines:
        if not line:
            continue
        try:
            keys.append(decode_one(line))
        except (ValueError, RecursionError):
            raise FormatError(f"line {number} is not a key in the format {kind}") from None
    return pa.array(keys, pa.binary())


def _lines(raw: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    feeds = np.flatnonzero(raw == _LINE_FEED)
    starts = np.concatenate([[0], feeds + 1]).astype(np.int64)
    ends = np.concatenate([feeds, [len(raw)]]).astype(np.int64)
    filled = np.flatnonzero(ends > starts)
    ends[filled[raw[ends[filled] - 1] == _RETURN]] -= 1
    return starts, ends


def _text_keys(raw: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.Array:
    edges = np.zeros(len(raw) + 1, np.int8)
    edges[starts] += 1
    edges[ends] -= 1
    kept = raw[np.cumsum(edges[:-1], dtype=np.int8) > 0]
    offsets = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(kept)])


def _from_json(line: bytes) -> bytes:
    value = json.loads(line)
    if isinstance(value, dict) and len(value) == 1:
        ((name, text),) = value.items()
        if name == BASE64 and isinstance(text, str):
            return base64.b64decode(text, validate=True)
        value = text if name == TEXT else None
    if not isinstance(value, str):
        raise ValueError("not a string")  # noqa: TRY004 - one error for all malformed lines
    return value.encode()


_DECODERS: dict[str, Callable[[bytes], bytes]] = {
    TEXT: bytes,
    HEX: binascii.unhexlify,
    BASE64: partial(base64.b64decode, validate=True),
    JSON: _from_json,
}


def shards(keys: pa.Array, max_bytes: int, bytes_per_key: int) -> list[pa.Array]:
    """The keys in runs that need at most ``max_bytes``, with ``bytes_per_key`` for each besides its own; at least one run."""
    offsets = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, keys.offset * 4) if len(keys) else np.zeros(1, np.int32)
    needed = offsets.astype(np.int64) - offsets[0] + bytes_per_key * np.arange(len(offsets))
    cuts = [0]
    while cuts[-1] < len(keys):
        fits = int(np.searchsorted(needed, needed[cuts[-1]] + max_bytes, "right")) - 1
        cuts.append(max(cuts[-1] + 1, fits))
    return [keys.slice(first, end - first) for first, end in pairwise(cuts)] or [keys]
