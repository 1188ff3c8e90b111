"""Keys crafted before a run neither replace other keys nor slow down probing.

Anybody who can write to a log could forge keys for a hash without a secret. XXH3-128 mixes the two words of a 9 to 16-byte
message in invertible steps: every hash is that of exactly one 16-byte message, and a second preimage takes a few
multiplications.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from compaction.engine import Reading
from compaction.kernels.keys import HashSecret
from compaction.kernels.slot_table import COUNTS, OFFSETS, Arena, SlotTable
from compaction.passes.build_map import scan_slices
from compaction.passes.tasks import MapContext, MapSettings, Slice
from compaction.policies.compare_policies import compare_with
from tests.local_job import clean_locally, write_offsets
from tests.local_passes import LocalPasses
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.logs import LogBuilder, Sent
from tests.passes.random_cases import NOW_MS
from tests.policies.test_compare_policies import request

TOPIC = {"accounts": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
VICTIM = b"customer-42"
LOW_BITS = 2**64 - 1
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


@given(st.binary(min_size=9, max_size=15))
def test_forged_keys_collide_under_xxh3_without_a_secret(key: bytes) -> None:
    """Otherwise the tests below show nothing."""
    forged = forged_for(key)
    assert forged != key
    assert xxhash.xxh3_128_digest(forged) == xxhash.xxh3_128_digest(key)


def accounts(log_dir: Path, first_dirty: int = 0) -> None:
    """The victim's record, followed by one under a forged key."""
    log = LogBuilder()
    log.batch([Sent(VICTIM, b"balance=1000000"), Sent(b"customer-43", b"balance=1")])
    log.roll(NOW_MS)
    log.batch([Sent(b"customer-43", b"balance=2"), Sent(forged_for(VICTIM), b"anything")])
    log.roll(NOW_MS)
    log.batch([Sent(b"active", b"stays")])
    write_partition(log_dir / "accounts-0", log.build())
    write_offsets(log_dir, cleaner_offsets={"accounts": first_dirty})


@pytest.mark.parametrize("first_dirty", [0, 2], ids=["in-the-map", "against-the-map"])
def test_a_record_with_a_forged_key_supersedes_no_record_of_another_key(tmp_log_dir: Path, first_dirty: int) -> None:
    accounts(tmp_log_dir, first_dirty)
    report = clean_locally(tmp_log_dir, NOW_MS, TOPIC)["accounts"]
    left = {r.key: r.value for s in read_partition(tmp_log_dir / "accounts-0") for b in s.batches for r in b.records()}
    assert left[VICTIM] == b"balance=1000000"
    assert left[forged_for(VICTIM)] == b"anything"
    assert report.superseded_records == 1
    assert report.keys == (3 if first_dirty == 0 else 2)


def test_a_comparison_counts_a_forged_key_as_a_key_of_its_own(tmp_log_dir: Path) -> None:
    accounts(tmp_log_dir)
    wanted = request(tmp_log_dir, "cleanup.policy=compact,min.cleanable.dirty.ratio=0")
    (found,) = compare_with(LocalPasses, wanted).logs
    assert found.outcomes[0].run.superseded_records == 1
    # three, and that of the active segment
    assert found.keys.distinct == 4


def distances(table: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The distance of each key in a table (uint64[slots, 3]) from its first slot."""
    held = np.flatnonzero(table[:, 2]).astype(np.uint64)
    slots = np.uint64(len(table))
    first_slots = (table[held, 0] >> np.uint64(32)) * slots >> np.uint64(32)
    distance: NDArray[np.uint64] = (held + slots - first_slots) % slots
    return distance


def scanned(path: Path, keys: list[bytes]) -> NDArray[np.uint64]:
    """Map entries of a log with these keys, as pass 1 finds them."""
    log = LogBuilder()
    for at in range(0, len(keys), 2_000):
        log.batch([Sent(key, b"") for key in keys[at : at + 2_000]])
    write_partition(path, log.build())
    (file,) = path.glob("*.log")
    settings = MapSettings(1 << 24, 0.9, HashSecret.random())
    slice_ = Slice(0, 0, str(file), 0, len(keys), 0, file.stat().st_size, 0)
    emitted = list(scan_slices([slice_], {0: MapContext(0, 1)}, settings))
    assert [value.error for place, value in emitted if place is None] == [None]
    found = [value for place, value in emitted if place is not None]
    return np.concatenate([packed for packed in found if not isinstance(packed, Reading)])


def test_keys_crafted_to_cluster_take_no_longer_to_probe_than_random_keys(tmp_path: Path) -> None:
    """Under XXH3 all 40,000 have the same first slot, and the last of them is 40,000 slots away from it."""
    keys = clustered(40_000)
    assert {xxhash.xxh3_128_intdigest(key) & LOW_BITS for key in keys} == {0}
    entries = scanned(tmp_path, keys)
    assert len(entries) == len(set(keys)) == 40_000
    for layout in (OFFSETS, COUNTS):
        table = SlotTable(layout, 1 << 24, 0.9, len(keys), Arena())
        table.put(entries)
        found = distances(table.slots)
        assert len(found) == 40_000
        # random keys: a mean below 1, a maximum of about 30
        assert found.mean() < 3
        assert found.max() < 1_000
