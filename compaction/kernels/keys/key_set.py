"""An exact set of keys, and the located keys of records that are in it.

A key is hashed to its first slot, and is in the set only if a slot holds a key of the same bytes: no key is matched because its
hash equals another's. The hash is SipHash under the run's secret, so that nobody can prepare keys that share slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.compiling.native import load8, load64
from compaction.kernels.reading.records import OK, locate_batch
from compaction.kernels.reading.siphash import HashSecret, siphash
from compaction.kernels.reading.tables import TOMBSTONE

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
    """Set ``matched`` (bool[n]) for each of ``located`` (uint64[n, 3], from ``locate_keys``) whose key is in the set."""
    for i in range(len(located)):
        slot = _find(slots, starts, blob, low, high, np.int64(located[i, 0]), np.int64(located[i, 1]))
        if slots[slot] != 0:
            matched[i] = True


@kernel
def locate_keys(raw, scratch, rows, spans, selected, first_row, located, keyless, counters):
    """Fill ``located`` (uint64[c, 3]) with the address, the size and the offset word of the key of each record of
    ``rows[first_row:]`` that has one, as many batches as fit. Addresses are valid as long as ``raw`` and ``scratch``.

    :param raw, scratch, rows, spans, keyless, counters: as for ``scan_records``
    :param selected: bool[r], the batches to read
    :returns: ``(next row, number of keys, error)``, as ``scan_records``
    """
    n = 0
    for i in range(first_row, len(rows)):
        if not selected[i]:
            continue
        if n + rows[i].count > len(located):
            return i, n, OK
        data = scratch if spans[i, 2] else raw
        n, keyless[i], error = locate_batch(data, spans[i, 0], spans[i, 1], rows[i], located, n, counters)
        if error != OK:
            return i, n, error
    return len(rows), n, OK


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
