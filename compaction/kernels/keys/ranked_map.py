"""The offset map of a ``compaction.strategy`` other than ``offset``: key hash -> record of the highest rank, in 32-byte slots.

A *ranked entry* or lookup is a map entry with a fourth word, the record's rank (``compaction.kernels.reading.ranks``). Of two
records of a key the one with the higher rank supersedes the other; of equal ranks, the one with the higher third word: it has a
rank and the other one has none, or it has the higher offset.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.keys.offset_map import Arena, SkimpyOffsetMap, find_slot
from compaction.kernels.reading.ranks import RANKED_WORDS
from compaction.kernels.reading.tables import OFFSET_SHIFT, RANKED


@inner
def _supersedes(rank, word, other_rank, other_word):
    """Whether a record supersedes another one of its key."""
    higher = word >> np.uint64(OFFSET_SHIFT) > other_word >> np.uint64(OFFSET_SHIFT)
    return rank > other_rank or (rank == other_rank and higher)


@kernel
def _put(table, entries, insert):
    """Put uint64[n, 4] ``entries`` into uint64[slots, 4] ``table``; see ``offset_map``."""
    slots = np.uint64(len(table))
    new = 0
    for i in range(len(entries)):
        low, high, word, rank = entries[i, 0], entries[i, 1], entries[i, 2], entries[i, 3]
        slot, held = find_slot(table, low, high, slots)
        if held == 0:
            if insert:
                table[slot, 0], table[slot, 1], table[slot, 2], table[slot, 3] = low, high, word, rank
            else:
                entries[new, 0], entries[new, 1], entries[new, 2], entries[new, 3] = low, high, word, rank
            new += 1
        elif _supersedes(rank, word, table[slot, 3], held):
            table[slot, 2], table[slot, 3] = word, rank
    return new


@kernel
def _superseded(table, lookups, result):
    """Fill bool[n] ``result``: whether ``table`` holds a record that supersedes that of each of uint64[n, 4] ``lookups``."""
    slots = np.uint64(len(table))
    for i in range(len(lookups)):
        slot, held = find_slot(table, lookups[i, 0], lookups[i, 1], slots)
        result[i] = held != 0 and _supersedes(table[slot, 3], held, lookups[i, 3], lookups[i, 2])


class RankedMap(SkimpyOffsetMap):
    """Key hash -> the offset word and the rank of the record that supersedes all others. Entries are uint64[n, 4]."""

    words = RANKED_WORDS
    arena = Arena(RANKED_WORDS)
    put_entries = staticmethod(_put)
    look_up = staticmethod(_superseded)

    def offset_words(self) -> NDArray[np.uint64]:
        """The offset words of all keys, uint64[n] in no order."""
        return super().offset_words() & ~np.uint64(RANKED)
