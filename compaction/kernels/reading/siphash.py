"""Hashes keys with SipHash-1-3, 128-bit output (Aumasson and Bernstein, "SipHash: a fast short-input PRF"), under a secret that
is drawn for each run.

SipHash is a pseudorandom function: keys chosen before the secret was drawn collide and cluster no more than random ones. That
does not hold for an unkeyed hash, nor for XXH3 with a random seed or secret, under which fixed pairs of keys collide once in
2^27 draws: a record with a forged key would supersede the record of another key. Kafka hashes with MD5 (``SkimpyOffsetMap``).

A scalar SipHash takes as long as all other work on a small record. Keys with the same number of complete 8-byte words are
therefore hashed ``_LANES`` at a time, in loops that the compiler vectorises; long keys and remainders are hashed one by one.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import INTERPRETED, inner
from compaction.kernels.compiling.native import load8, load32, load64

#: size of a null key
NO_KEY = np.uint64(2**64 - 1)

_LANES = 16
#: keys of 0 to 15 complete words are hashed in lanes, longer ones one by one
_CLASSES = 16
# Layout of the state in uint64 words: the secret; the number of lanes; per lane v0 to v3, the message word and the second half
# of the result; per number of complete words the rows that wait until all lanes are filled, and their count
_LANE_COUNT = 2
_V0 = 3
_V1, _V2, _V3, _WORD, _OTHER = (_V0 + part * _LANES for part in range(1, 6))
_WAITING = _V0 + 6 * _LANES
_COUNTS = _WAITING + _CLASSES * _LANES
_STATE_WORDS = _COUNTS + _CLASSES

_INIT0, _INIT1 = np.uint64(0x736F6D6570736575), np.uint64(0x646F72616E646F6D ^ 0xEE)
_INIT2, _INIT3 = np.uint64(0x6C7967656E657261), np.uint64(0x7465646279746573)
_FIRST_END, _SECOND_END = np.uint64(0xEE), np.uint64(0xDD)


@dataclass(frozen=True)
class HashSecret:
    """128 bits, unpredictable before the run. ``repr`` hides them from log lines and tracebacks."""

    low: int = field(repr=False)
    high: int = field(repr=False)

    @classmethod
    def random(cls) -> HashSecret:
        """A new secret. The driver draws one for each run."""
        return cls(secrets.randbits(64), secrets.randbits(64))

    def state(self) -> NDArray[np.uint64]:
        """uint64[n]: the working memory of ``hash_keys``, for one thread."""
        state = np.zeros(_STATE_WORDS, np.uint64)
        state[0], state[1], state[_LANE_COUNT] = self.low, self.high, _LANES
        return state


@inner
def _round(a, b, c, d):
    """SipRound over the state ``v0`` to ``v3``."""
    a += b
    b = (b << np.uint64(13) | b >> np.uint64(51)) ^ a
    a = a << np.uint64(32) | a >> np.uint64(32)
    c += d
    d = (d << np.uint64(16) | d >> np.uint64(48)) ^ c
    a += d
    d = (d << np.uint64(21) | d >> np.uint64(43)) ^ a
    c += b
    b = (b << np.uint64(17) | b >> np.uint64(47)) ^ c
    c = c << np.uint64(32) | c >> np.uint64(32)
    return a, b, c, d


@inner
def _absorb(a, b, c, d, word):
    """The state after one message word."""
    a, b, c, d = _round(a, b, c, d ^ word)
    return a ^ word, b, c, d


@inner
def _finish(a, b, c, d):
    """The state after the three rounds that precede each half of the output."""
    a, b, c, d = _round(a, b, c, d)
    a, b, c, d = _round(a, b, c, d)
    return _round(a, b, c, d)


@inner
def _last_word(address, size):
    """The last message word of the ``size`` bytes at ``address`` (int64): the bytes after the last complete word, and the size.

    Reads no byte outside the key.
    """
    word = np.uint64(size) << np.uint64(56)
    remainder = size & 7
    if size >= 8:
        # two shifts, because a shift by 64 is undefined
        return word | load64(np.uintp(address + size - 8)) >> np.uint64(1) >> np.uint64(63 - 8 * remainder)
    if size >= 4:
        return word | load32(np.uintp(address)) | load32(np.uintp(address + size - 4)) << np.uint64(8 * (size - 4))
    if size > 0:
        middle, last = size >> 1, size - 1
        word |= np.uint64(load8(np.uintp(address))) | np.uint64(load8(np.uintp(address + middle))) << np.uint64(8 * middle)
        word |= np.uint64(load8(np.uintp(address + last))) << np.uint64(8 * last)
    return word


@inner
def _with_key(low, high):
    """The hash, except that 0, 0 becomes 0, 1: the hash 0, 0 is reserved for records without a key, which are dropped."""
    return low, high | np.uint64(low == 0 and high == 0)


@inner
def siphash(low, high, address, size):
    """``(low64, high64)``: SipHash-1-3-128 of the ``size`` bytes at ``address`` (int64) under the secret ``low``, ``high``."""
    a, b, c, d = low ^ _INIT0, high ^ _INIT1, low ^ _INIT2, high ^ _INIT3
    for pos in range(0, size - 7, 8):
        a, b, c, d = _absorb(a, b, c, d, load64(np.uintp(address + pos)))
    a, b, c, d = _absorb(a, b, c, d, _last_word(address, size))
    a, b, c, d = _finish(a, b, c ^ _FIRST_END, d)
    first = a ^ b ^ c ^ d
    a, b, c, d = _finish(a, b ^ _SECOND_END, c, d)
    return first, a ^ b ^ c ^ d


@inner
def _absorb_lanes(state):
    """``_absorb`` in each lane. The number of lanes is loaded: a loop of constant length would be unrolled, not vectorised."""
    for k in range(np.int64(state[_LANE_COUNT])):
        a, b, c, d = _absorb(state[_V0 + k], state[_V1 + k], state[_V2 + k], state[_V3 + k], state[_WORD + k])
        state[_V0 + k], state[_V1 + k], state[_V2 + k], state[_V3 + k] = a, b, c, d


@inner
def _finish_lanes(state):
    """Compute each lane's hash: the first half replaces the message word, the second half is stored at ``_OTHER``."""
    for k in range(np.int64(state[_LANE_COUNT])):
        a, b, c, d = state[_V0 + k], state[_V1 + k], state[_V2 + k], state[_V3 + k]
        a, b, c, d = _finish(a, b, c ^ _FIRST_END, d)
        state[_WORD + k] = a ^ b ^ c ^ d
        a, b, c, d = _finish(a, b ^ _SECOND_END, c, d)
        state[_OTHER + k] = a ^ b ^ c ^ d


@inner
def _hash_lanes(table, state, words, waiting):
    """Hash the keys of the ``_LANES`` rows listed at ``state[waiting:]``, all of ``words`` complete words (both uint64)."""
    low, high = state[0], state[1]
    for k in range(_LANES):
        state[_V0 + k], state[_V1 + k] = low ^ _INIT0, high ^ _INIT1
        state[_V2 + k], state[_V3 + k] = low ^ _INIT2, high ^ _INIT3
    for word in range(words):
        for k in range(_LANES):
            state[_WORD + k] = load64(np.uintp(table[state[waiting + np.uint64(k)], 0] + np.uint64(8) * word))
        _absorb_lanes(state)
    for k in range(_LANES):
        row = state[waiting + np.uint64(k)]
        state[_WORD + k] = _last_word(np.int64(table[row, 0]), np.int64(table[row, 1]))
    _absorb_lanes(state)
    _finish_lanes(state)
    for k in range(_LANES):
        row = state[waiting + np.uint64(k)]
        table[row, 0], table[row, 1] = _with_key(state[_WORD + k], state[_OTHER + k])


@inner
def _hash_row(table, state, row):
    low, high = siphash(state[0], state[1], np.int64(table[row, 0]), np.int64(table[row, 1]))
    table[row, 0], table[row, 1] = _with_key(low, high)


@inner
def hash_keys(table, rows, state):
    """Replace the address and size of the key in each of the first ``rows`` rows of uint64[n, 3] ``table`` by the two halves of
    its hash, or by 0, 0 if the size is ``NO_KEY``.

    :param state: from ``HashSecret.state``; calls are independent of each other
    """
    for row in range(rows):
        size = table[row, 1]
        words = size >> np.uint64(3)
        if size == NO_KEY:
            table[row, 0], table[row, 1] = 0, 0
        elif words >= _CLASSES:
            _hash_row(table, state, row)
        else:
            waiting = np.uint64(_WAITING) + words * np.uint64(_LANES)
            count = state[np.uint64(_COUNTS) + words]
            state[waiting + count] = row
            count += np.uint64(1)
            if count == _LANES:
                _hash_lanes(table, state, words, waiting)
                count = np.uint64(0)
            state[np.uint64(_COUNTS) + words] = count
    for words in range(_CLASSES):
        for k in range(np.int64(state[_COUNTS + words])):
            _hash_row(table, state, state[_WAITING + words * _LANES + k])
        state[_COUNTS + words] = 0


if INTERPRETED:
    # numpy warns about overflow of uint64 sums, which is intended here
    hash_keys, siphash = np.errstate(over="ignore")(hash_keys), np.errstate(over="ignore")(siphash)
