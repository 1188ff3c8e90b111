"""Which keys are meant: those of a list, byte by byte, and those that match a prefix or a regular expression.

An expression must match the complete key. It is that of RE2, over the key's bytes: ``.`` is one byte, and a letter that is not
ASCII is matched as its UTF-8. It is applied to the distinct keys of an array.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.formats.primitives.malformed import FormatError

PREFIX, REGEX = "prefix", "regex"
_ARROW_PREFIX = "Invalid regular expression: "


@dataclass(frozen=True)
class KeyPattern:
    """``kind`` is ``PREFIX`` or ``REGEX``. The text may be a part of somebody's key: ``repr`` hides it."""

    kind: str
    text: str = field(repr=False)

    @classmethod
    def parse(cls, given: str) -> KeyPattern:
        """From ``prefix=TEXT`` or ``regex=EXPRESSION``.

        :raises FormatError: it is neither, is empty, or is not an expression
        """
        kind, equals, text = given.partition("=")
        if not equals or kind not in (PREFIX, REGEX):
            raise FormatError(f"is neither {PREFIX}=TEXT nor {REGEX}=EXPRESSION")
        if not text:
            raise FormatError("is empty, which would match every key")
        pattern, none = cls(kind, text), pa.array([b""], pa.binary())
        try:
            if kind == REGEX:
                # by itself: brackets that close the added ones would let it match a part of a key
                pc.match_substring_regex(none, pattern=text)
            pattern.matching(none)
        except pa.ArrowInvalid as error:
            # Arrow's prefix, RE2's reason, and a part of the pattern
            reason = str(error).removeprefix(_ARROW_PREFIX).partition(": ")[0]
            raise FormatError(f"is not a regular expression of RE2: {reason}") from None
        return pattern

    def matching(self, keys: pa.Array) -> NDArray[np.bool_]:
        """bool[n]: which keys of a binary array match."""
        if self.kind == PREFIX:
            found = pc.starts_with(keys, pattern=self.text)
        else:
            found = pc.match_substring_regex(keys, pattern=rf"\A(?s:{self.text})\z")
        matching: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False).astype(np.bool_)
        return matching


@dataclass(frozen=True, eq=False)
class KeyCriteria:
    """``keys``: a binary array of distinct keys; ``patterns``: keys that match one of these are meant, too."""

    keys: pa.Array = field(repr=False)
    patterns: tuple[KeyPattern, ...] = ()

    @classmethod
    def of(cls, keys: pa.Array, patterns: tuple[KeyPattern, ...] = ()) -> KeyCriteria:
        """From keys in any order, possibly equal ones."""
        return cls(pc.unique(keys), patterns)

    def matching(self, keys: pa.Array) -> NDArray[np.bool_]:
        """bool[n]: which keys of a binary array, without nulls, are meant."""
        coded = keys.dictionary_encode()
        distinct: pa.Array = coded.dictionary
        meant = pc.is_in(distinct, value_set=self.keys).to_numpy(zero_copy_only=False).astype(np.bool_)
        for pattern in self.patterns:
            meant |= pattern.matching(distinct)
        matching: NDArray[np.bool_] = meant[coded.indices.to_numpy()] if len(distinct) else np.zeros(0, np.bool_)
        return matching

    def fingerprint(self, salt: bytes) -> str:
        """SHA-256 of the ``secret``, in hexadecimal: equal for the same criteria and salt. It may be shown."""
        return hashlib.sha256(self.secret(salt)).hexdigest()

    def secret(self, salt: bytes) -> bytes:
        """32 bytes that only somebody can derive who has all keys and patterns, in any order.

        scrypt derives them from the salted hashes: who sees the fingerprint can still guess a single telephone number, but each
        guess takes 64 MiB and about a fifth of a second.
        """
        # the kind is part of what is hashed: a key may read like a pattern
        hashes = [salted_hash(salt, b"key\0" + key) for key in self.keys.to_pylist()]
        hashes += [salted_hash(salt, f"{each.kind}\0{each.text}".encode()) for each in self.patterns]
        return hashlib.scrypt("".join(sorted(hashes)).encode(), salt=salt, n=1 << 16, r=8, p=1, maxmem=80 << 20, dklen=32)


def salted_hash(salt: bytes, key: bytes) -> str:
    """SHA-256 of the salt and the key, in hexadecimal."""
    return salted_digest(salt, key).hex()


def salted_digest(salt: bytes, key: bytes) -> bytes:
    """The 32 bytes of ``salted_hash``."""
    return hashlib.sha256(salt + key).digest()
