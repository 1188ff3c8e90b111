"""Which keys a map may hold: a Bloom filter of one word a key, so small that every task can have all of a log's.

A key sets two bits of one word; a key whose bits are not both set is in no map. Of keys that are in none, some two in a hundred
pass nevertheless. Mirrors nothing of Kafka: where little of a log is dirty, its clean records need not ask the maps at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.reading.tables import CANDIDATE, OFFSET_SHIFT, TOMBSTONE

_BITS_PER_KEY = 16
_WORD_BITS = 64
_MOST_WORDS = (1 << 32) - 1


@inner
def _word(high, words):
    """The word of a key; ``words`` is below 2^32. Shards and slots go by the other halves of the hash."""
    return (high & np.uint64(0xFFFFFFFF)) * words >> np.uint64(32)


@inner
def _bits(low):
    """The two bits of a key, which may be one."""
    one = np.uint64(1)
    return one << (low & np.uint64(63)) | one << (low >> np.uint64(6) & np.uint64(63))


@kernel
def _add(words, entries):
    """Set the bits of uint64[n, 3] ``entries`` in uint64[w] ``words``; empty slots and asks are passed over."""
    size = np.uint64(len(words))
    for i in range(len(entries)):
        if entries[i, 2] != 0 and not entries[i, 2] & np.uint64(CANDIDATE):
            words[_word(entries[i, 1], size)] |= _bits(entries[i, 0])


@kernel
def _sift(words, asks, dirty):
    """Move to the front of uint64[n, 3] ``asks`` those that may get an answer that matters; how many they are.

    That are records of ``dirty`` (uint64: the least mark of the dirty section) and above, tombstones, records without a key,
    and those whose key may be mapped.
    """
    size = np.uint64(len(words))
    kept = 0
    for i in range(len(asks)):
        low, high, mark = asks[i, 0], asks[i, 1], asks[i, 2]
        bits = _bits(low)
        mapped = words[_word(high, size)] & bits == bits
        if mapped or mark >= dirty or mark & np.uint64(TOMBSTONE) or (low == 0 and high == 0):
            asks[kept, 0], asks[kept, 1], asks[kept, 2] = low, high, mark
            kept += 1
    return kept


class KeyFilter:
    """The keys of some maps, roughly: all of theirs, and few others. Filters of one size can be joined.

    :param words: uint64[w], all zero for a filter without a key
    """

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self.words = words

    @classmethod
    def sized(cls, keys: int, most_bytes: int) -> KeyFilter:
        """An empty filter for so many keys, of at most ``most_bytes``."""
        wanted = -(-keys * _BITS_PER_KEY // _WORD_BITS)
        return cls(np.zeros(max(1, min(wanted, most_bytes // 8, _MOST_WORDS)), np.uint64))

    def add(self, entries: NDArray[np.uint64]) -> None:
        """Take in the keys of uint64[n, 3] ``entries``; not those of empty slots and asks."""
        _add(self.words, entries)

    def join(self, other: KeyFilter) -> None:
        """Take in the keys of another filter of the same size."""
        self.words |= other.words

    def prune(self, asks: NDArray[np.uint64], first_dirty_offset: int) -> NDArray[np.uint64]:
        """Those of uint64[n, 3] ``asks`` (which is overwritten) that have to be asked."""
        dirty = np.uint64((first_dirty_offset + 1) << OFFSET_SHIFT)
        return asks[: _sift(self.words, asks, dirty)]
