"""Selects keys: those of a list, compared byte by byte, and those that match a prefix or a regular expression.

| pattern | keys that match |
| --- | --- |
| ``prefix=TEXT`` | those that begin with the UTF-8 of the text |
| ``regex=EXPRESSION`` | those that are UTF-8, and match as text: ``.`` is a character. ``é`` is not ``e`` with an accent |
| ``bytes=EXPRESSION`` | any that match as bytes: ``.`` is one, ``\\xe9`` another. The expression and ``(?i)`` are ASCII |

An expression is one of RE2, and must match the complete key. It is applied to the distinct keys of an array.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
        hashes = [salted_hash(salt, b"key\0" + key) for key in self.keys.to_pylist()]
        hashes += [salted_hash(salt, f"{pattern.kind}\0{pattern.text}".encode()) for pattern in self.patterns]
        return hashlib.scrypt("".join(sorted(hashes)).encode(), salt=salt, n=SCRYPT_N, r=8, p=1, maxmem=80 << 20, dklen=32)


def fingerprint(secret: bytes) -> str:
    """SHA-256 of the secret of criteria, in hexadecimal. It may be shown."""
    return hashlib.sha256(secret).hexdigest()


def salted_hash(salt: bytes, key: bytes) -> str:
    """SHA-256 of the salt and the key, in hexadecimal."""
    return salted_digest(salt, key).hex()


def salted_digest(salt: bytes, key: bytes) -> bytes:
    """The 32 bytes of ``salted_hash``."""
    return hashlib.sha256(salt + key).digest()
