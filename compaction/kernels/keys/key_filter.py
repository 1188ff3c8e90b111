"""A blocked Bloom filter over the keys of a log's dirty section, small enough to broadcast to every task.

A key sets two bits of one 64-bit word; a key whose bits are not both set is in no map. About two in a hundred unmapped keys
pass. Kafka has no such filter: if little of a log is dirty, most records of its clean section then need no lookup.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.reading.tables import LOOKUP, OFFSET_SHIFT, TOMBSTONE

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
