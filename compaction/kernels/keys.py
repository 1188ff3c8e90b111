"""Hashes keys; an approximate filter and an exact set of keys.

Keys are hashed with SipHash-1-3, 128-bit output (Aumasson and Bernstein, "SipHash: a fast short-input PRF"), under a secret
that is drawn for each run.

SipHash is a pseudorandom function: keys chosen before the secret was drawn collide and cluster no more than random ones. That
does not hold for an unkeyed hash, nor for XXH3 with a random seed or secret, under which fixed pairs of keys collide once in
2^27 draws: a record with a forged key would supersede the record of another key. Kafka hashes with MD5 (``SkimpyOffsetMap``).

A scalar SipHash takes as long as all other work on a small record. Keys with the same number of complete 8-byte words are
therefore hashed ``_LANES`` at a time, in loops that the compiler vectorises; long keys and remainders are hashed one by one.

The filter is a blocked Bloom filter over the keys of a log's dirty section, small enough to broadcast to every task. A key
sets two bits of one 64-bit word; a key whose bits are not both set is in no map. About two in a hundred unmapped keys pass.
Kafka has no such filter: if little of a log is dirty, most records of its clean section then need no lookup.

In the set, a key is hashed to its first slot, and is in it only if a slot holds a key of the same bytes: no key is matched
because its hash equals another's. The hash is under the run's secret, so that nobody can prepare keys that share slots.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling import INTERPRETED, inner, kernel, load8, load32, load64
from compaction.kernels.tables import LOOKUP, OFFSET_SHIFT, TOMBSTONE

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


#: in place of a state: keys are not hashed
UNHASHED = np.empty(0, np.uint64)


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


_BITS_PER_KEY = 16
_WORD_BITS = 64
_MAX_WORDS = (1 << 32) - 1


@inner
def _word(high, words):
    """Index of a key's word; ``words`` is below 2^32. Shards and slots derive from other halves of the hash."""
    return (high & np.uint64(0xFFFFFFFF)) * words >> np.uint64(32)


@inner
def _bits(low):
    """Mask of a key's two bits, which may coincide."""
    one = np.uint64(1)
    return one << (low & np.uint64(63)) | one << (low >> np.uint64(6) & np.uint64(63))


@kernel
def _add(words, entries):
    """Set the bits of uint64[n, 3] ``entries`` in uint64[w] ``words``, skipping empty slots and lookups."""
    size = np.uint64(len(words))
    for i in range(len(entries)):
        if entries[i, 2] != 0 and not entries[i, 2] & np.uint64(LOOKUP):
            words[_word(entries[i, 1], size)] |= _bits(entries[i, 0])


@kernel
def _prune(words, lookups, dirty):
    """Move the necessary ones of uint64[n, 3] ``lookups`` to the front and return their number.

    A lookup is necessary for a dirty record (offset word >= uint64 ``dirty``), a tombstone, a record without a key, and a key
    that may be mapped.
    """
    size = np.uint64(len(words))
    kept = 0
    for i in range(len(lookups)):
        low, high, offset_word = lookups[i, 0], lookups[i, 1], lookups[i, 2]
        bits = _bits(low)
        mapped = words[_word(high, size)] & bits == bits
        if mapped or offset_word >= dirty or offset_word & np.uint64(TOMBSTONE) or (low == 0 and high == 0):
            lookups[kept, 0], lookups[kept, 1], lookups[kept, 2] = low, high, offset_word
            kept += 1
    return kept


class KeyFilter:
    """Matches every added key and few others. Filters of the same size can be joined.

    :param words: uint64[w], all zero for an empty filter
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self.words = words

    @classmethod
    def sized(cls, keys: int, max_bytes: int) -> KeyFilter:
        """An empty filter for ``keys`` keys in at most ``max_bytes``."""
        words = -(-keys * _BITS_PER_KEY // _WORD_BITS)
        return cls(np.zeros(max(1, min(words, max_bytes // 8, _MAX_WORDS)), np.uint64))

    def add(self, entries: NDArray[np.uint64]) -> None:
        """Add the keys of uint64[n, 3] ``entries``, skipping empty slots and lookups."""
        _add(self.words, entries)

    def join(self, other: KeyFilter) -> None:
        """Add all keys of another filter of the same size."""
        self.words |= other.words

    def prune(self, lookups: NDArray[np.uint64], first_dirty_offset: int) -> NDArray[np.uint64]:
        """The necessary ones of uint64[n, 3] ``lookups``, which is overwritten."""
        dirty = np.uint64((first_dirty_offset + 1) << OFFSET_SHIFT)
        return lookups[: _prune(self.words, lookups, dirty)]


#: slots for each key: half of them are empty, so that a failed lookup takes two probes
_SLOTS_PER_KEY = 2
#: memory for each key besides its bytes: its position, and up to four slots
BYTES_PER_KEY = 24


@inner
def _same(address, other, size):
    """Whether the ``size`` bytes at two addresses are equal."""
    pos = 0
    while pos + 8 <= size:
        if load64(np.uintp(address + pos)) != load64(np.uintp(other + pos)):
            return False
        pos += 8
    while pos < size:
        if load8(np.uintp(address + pos)) != load8(np.uintp(other + pos)):
            return False
        pos += 1
    return True


@inner
def _find(slots, starts, blob, low, high, address, size):
    """The slot of the key of ``size`` bytes at ``address``: it holds the key's number + 1, or 0 if it is not in the set."""
    mask = np.uint64(len(slots) - 1)
    base = blob.ctypes.data
    slot = siphash(low, high, address, size)[0] & mask
    while slots[slot] != 0:
        number = slots[slot] - 1
        if starts[number + 1] - starts[number] == size and _same(base + starts[number], address, size):
            return slot
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel
def insert_keys(slots, starts, blob, low, high):
    """Insert all keys into ``slots`` (int32[2^k], all 0, more than there are keys); of equal keys the first.

    :param starts: int64[n + 1], the keys' positions in ``blob`` (uint8[])
    :param low, high: uint64, the secret
    """
    for number in range(len(starts) - 1):
        size = starts[number + 1] - starts[number]
        slot = _find(slots, starts, blob, low, high, np.int64(blob.ctypes.data + starts[number]), size)
        if slots[slot] == 0:
            slots[slot] = number + 1


@kernel
def match_keys(located, slots, starts, blob, low, high, matched):
    """Set ``matched`` (bool[n]) for each of ``located`` (uint64[n, 3], ``UNHASHED`` lookups) whose key is in the set."""
    for i in range(len(located)):
        slot = _find(slots, starts, blob, low, high, np.int64(located[i, 0]), np.int64(located[i, 1]))
        if slots[slot] != 0:
            matched[i] = True


@inner
def _has_headers(after):
    """Whether a well-formed tombstone has headers; its value's length, whose varint may be padded, is at ``after``."""
    while load8(np.uintp(after)) >= 0x80:
        after += 1
    after += 1
    while load8(np.uintp(after)) == 0x80:
        after += 1
    return load8(np.uintp(after)) != 0


@kernel
def unmatch_tombstones(located, matched):
    """Clear ``matched`` (bool[n]) for records that are tombstones without headers: they have only a key."""
    for i in range(len(located)):
        if matched[i] and located[i, 2] & np.uint64(TOMBSTONE):
            matched[i] = _has_headers(np.int64(located[i, 0] + located[i, 1]))


@kernel
def copy_keys(located, selected, offsets, blob):
    """Copy the keys of the ``selected`` (bool[n]) of ``located`` to ``blob`` (uint8[]) and fill ``offsets`` (int32[m + 1])."""
    m, w = 0, np.int64(0)
    for i in range(len(located)):
        if selected[i]:
            for k in range(np.int64(located[i, 1])):
                blob[w + k] = load8(np.uintp(np.int64(located[i, 0]) + k))
            w += np.int64(located[i, 1])
            m += 1
            offsets[m] = w


class KeySet(NamedTuple):
    """Keys at ``starts`` (int64[n + 1]) of ``blob`` (uint8[]), and the ``slots`` (int32[2^k]) that find them."""

    slots: NDArray[np.int32]
    starts: NDArray[np.int64]
    blob: NDArray[np.uint8]

    @classmethod
    def of(cls, starts: NDArray[np.int64], blob: NDArray[np.uint8], secret: HashSecret) -> KeySet:
        """The set of the keys; equal keys count once."""
        min_slots = max(2, _SLOTS_PER_KEY * len(starts))
        slots = np.zeros(1 << (min_slots - 1).bit_length(), np.int32)
        insert_keys(slots, starts, blob, np.uint64(secret.low), np.uint64(secret.high))
        return cls(slots, starts, blob)

    def match(self, located: NDArray[np.uint64], secret: HashSecret, matched: NDArray[np.bool_]) -> None:
        """Set ``matched`` for the located keys that are in the set; see ``match_keys``."""
        match_keys(located, *self, np.uint64(secret.low), np.uint64(secret.high), matched)
