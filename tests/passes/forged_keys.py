"""Forges keys for XXH3-128 with seed 0, as anybody who can write to a log could for a hash without a secret.

XXH3-128 mixes the two words of a 9 to 16-byte message in invertible steps. Every hash is therefore that of exactly one 16-byte
message, and a second preimage takes a few multiplications.
"""

from __future__ import annotations

_WORD, _HALF = 2**64 - 1, 2**32 - 1
_PRIME64_1 = 0x9E3779B185EBCA87
_PRIME32_2 = 0x85EBCA77
#: bytes 32 to 63 of the default secret
_SECRET = bytes.fromhex("cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c")
_FLIP_LOW, _FLIP_HIGH = (
    int.from_bytes(_SECRET[at : at + 8], "little") ^ int.from_bytes(_SECRET[at + 8 : at + 16], "little") for at in (0, 16)
)


def forged_for(key: bytes) -> bytes:
    """A key of 16 bytes with the hash of ``key``, which has 9 to 15.

    :raises ValueError: ``key`` is of another size
    """
    if not 9 <= len(key) <= 15:
        raise ValueError(f"a key of {len(key)} bytes: only those of 9 to 15 can be forged here")
    return _unmixed(*_mixed(int.from_bytes(key[:8], "little"), int.from_bytes(key[-8:], "little"), len(key)))


def clustered(count: int) -> list[bytes]:
    """So many keys of 16 bytes, the low halves of whose hashes are all 0."""
    return [_unmixed(_swapped(high), high) for high in range(count)]


def _mixed(first: int, last: int, size: int) -> tuple[int, int]:
    """The 128 bits that the end of the hash is computed from, of the first and the last eight bytes."""
    product = (first ^ last ^ _FLIP_LOW) * _PRIME64_1
    low = (product + (size - 1 << 54)) & _WORD
    last ^= _FLIP_HIGH
    return low, (product >> 64) + last + (last & _HALF) * (_PRIME32_2 - 1) & _WORD


def _unmixed(low: int, high: int) -> bytes:
    """The key of 16 bytes of which ``_mixed`` makes these."""
    word = (low - (15 << 54)) * pow(_PRIME64_1, -1, 2**64) & _WORD
    rest = high - (word * _PRIME64_1 >> 64) & _WORD
    bottom = rest * pow(_PRIME32_2, -1, 2**32) & _HALF
    last = (rest - bottom * _PRIME32_2 & _WORD) + bottom ^ _FLIP_HIGH
    return (word ^ last ^ _FLIP_LOW).to_bytes(8, "little") + last.to_bytes(8, "little")


def _swapped(word: int) -> int:
    return int.from_bytes(word.to_bytes(8, "little"), "big")
