"""Keys: their hash against published vectors and a plain implementation, the filter of dirty keys, exact sets, and copies."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from compaction.kernels import keys as module
from compaction.kernels.keys import NO_KEY, HashSecret, KeyFilter, KeySet, copy_keys, hash_keys, siphash, unmatch_tombstones
from compaction.kernels.tables import LOOKUP, OFFSET_SHIFT, TOMBSTONE
from tests.oracle.siphash import naive_siphash

ROOT = Path(__file__).resolve().parents[2]
WORD = st.integers(0, 2**64 - 1)
SECRETS = st.builds(HashSecret, WORD, WORD)
#: of the published vectors: the secret is 00 01 .. 0f, a message of n bytes 00 01 .. n - 1
VECTOR_SECRET = HashSecret(0x0706050403020100, 0x0F0E0D0C0B0A0908)
#: SipHash-2-4-128, from the reference implementation
REFERENCE = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    63: "5150d1772f50834a503e069a973fbd7c",
}
#: SipHash-1-3-128, from Rust's
RUST = {0: "e77ebcb22788a5befd62db6add303001", 1: "fc6f370460d3eda85e0573cc2b2ff063"}


@njit
def hashed(data, at, size, state):  # type: ignore[no-untyped-def]
    """The hash of ``data[at : at + size]``."""
    return siphash(state[0], state[1], np.int64(data.ctypes.data + at), size)


@njit
def hashed_rows(table, rows, state):  # type: ignore[no-untyped-def]
    """``hash_keys``, which only kernels can call."""
    hash_keys(table, rows, state)


@njit
def with_key(low, high):  # type: ignore[no-untyped-def]
    """The hash of a key whose SipHash this is."""
    return module._with_key(low, high)


def text(halves: Sequence[int]) -> str:
    return b"".join(int(half).to_bytes(8, "little") for half in halves).hex()


def located(keys: Sequence[bytes | None], after: bytes = b"") -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Rows of these keys, not hashed, all of tombstones; the bytes that they point to, each key at any alignment, followed by
    ``after`` and the next one."""
    data = np.frombuffer(bytearray(b"".join((key or b"") + after for key in keys) or b"."), np.uint8)
    table, at = np.empty((len(keys), 3), np.uint64), data.ctypes.data
    for row, key in enumerate(keys):
        table[row] = *((0, NO_KEY) if key is None else (at, len(key))), offset_word(row)
        at += len(key or b"") + len(after)
    return table, data


def offset_word(row: int) -> int:
    return (row + 1) << OFFSET_SHIFT | TOMBSTONE


def test_the_plain_implementation_and_the_kernel_have_published_vectors() -> None:
    low, high = VECTOR_SECRET.low, VECTOR_SECRET.high
    assert {size: text(naive_siphash(low, high, bytes(range(size)), 2, 4)) for size in REFERENCE} == REFERENCE
    data = np.arange(64, dtype=np.uint8)
    assert {size: text(hashed(data, 0, size, VECTOR_SECRET.state())) for size in RUST} == RUST


@pytest.mark.parametrize("size", [*range(101), 127, 128, 129, 255, 256, 257, 1_000, 70_001])
def test_a_key_of_any_size_at_any_address_is_hashed_as_the_plain_implementation_does(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 8).astype(np.uint8)
    secret = HashSecret.random()
    for at in range(8) if size < 1_000 else (3,):
        expected = naive_siphash(secret.low, secret.high, data[at : at + size].tobytes())
        assert tuple(map(int, hashed(data, at, size, secret.state()))) == expected


@given(st.lists(st.none() | st.binary(max_size=160), max_size=80), SECRETS)
def test_many_keys_are_hashed_like_single_keys(keys: list[bytes | None], secret: HashSecret) -> None:
    table, data = located(keys)
    hashed_rows(table, len(keys), secret.state())
    expected = [(0, 0) if key is None else naive_siphash(secret.low, secret.high, key) for key in keys]
    assert table.tolist() == [[*halves, offset_word(row)] for row, halves in enumerate(expected)]
    assert data.tobytes() == b"".join(key or b"" for key in keys) or not any(keys)


@pytest.mark.parametrize("size", [0, 7, 8, 36, 127, 128, 500])
def test_full_lanes_and_remainders_are_hashed_alike_within_one_call(size: int) -> None:
    secret = HashSecret.random()
    for count in (1, 15, 16, 17, 40):
        keys = [bytes([n]) * size for n in range(count + 3)]
        table, _data = located(keys)
        after = table[count:].tolist()
        hashed_rows(table, count, secret.state())
        assert table[:count, :2].tolist() == [list(naive_siphash(secret.low, secret.high, key)) for key in keys[:count]]
        assert table[count:].tolist() == after


def test_no_key_hashes_to_the_reserved_value_of_null_keys() -> None:
    zero, most = np.uint64(0), np.uint64(2**64 - 1)
    assert tuple(map(int, with_key(zero, zero))) == (0, 1)
    for low, high in ((0, 1), (1, 0), (most, zero), (zero, most), (zero, np.uint64(2))):
        assert tuple(map(int, with_key(np.uint64(low), np.uint64(high)))) == (low, high)


_AT_THE_EDGES = """
import ctypes, mmap, sys
import numpy as np
from tests.kernels.test_keys import hashed_rows, HashSecret
page = mmap.PAGESIZE
pages = mmap.mmap(-1, 3 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
libc = ctypes.CDLL(None)
for edge in (0, 2):
    assert libc.mprotect(ctypes.c_void_p(start + edge * page), ctypes.c_size_t(page), 0) == 0
state = HashSecret.random().state()
for size in range(150):
    for address in (start + page, start + 2 * page - size):
        table = np.array([[address, size, 0]] * 16 + [[address, size, 0]], np.uint64)
        hashed_rows(table, 17, state)
print("read nothing else")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_no_byte_outside_of_a_key_is_read() -> None:
    """Keys lie at both ends of a page, between two that may not be read."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", _AT_THE_EDGES], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "read nothing else\n", f"{done.returncode} {done.stderr[-2_000:]}"


@given(SECRETS)
def test_a_secret_cannot_be_logged_by_mistake(secret: HashSecret) -> None:
    for shown in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert "HashSecret()" in shown
    assert pickle.loads(pickle.dumps(secret)) == secret  # noqa: S301 - made here


def test_secrets_differ() -> None:
    drawn = [HashSecret.random() for _ in range(100)]
    assert len({half for secret in drawn for half in (secret.low, secret.high)}) == 200


Rows = list[tuple[int, int, int]]
#: few different halves besides any, so that keys share words and bits
HALF = st.sampled_from([0, 1, 63, 64, 2**32 - 1, 2**32, 2**64 - 1]) | WORD
ENTRY = st.tuples(HALF, HALF, st.integers(1, 2**40).map(lambda offset: offset << 2))


def entries_of(rows: Rows) -> NDArray[np.uint64]:
    return np.array(rows, np.uint64).reshape(-1, 3)


def naive_words(size: int, entries: Rows) -> list[int]:
    """What ``add`` makes of ``size`` empty words."""
    words = [0] * size
    for low, high, word in entries:
        if word and not word & LOOKUP:
            words[(high & 0xFFFFFFFF) * size >> 32] |= 1 << (low & 63) | 1 << (low >> 6 & 63)
    return words


@given(st.lists(ENTRY, max_size=40), st.integers(0, 200), st.integers(0, 4000))
def test_the_bits_are_those_of_plain_arithmetic(entries: Rows, keys: int, most_bytes: int) -> None:
    found = KeyFilter.sized(keys, most_bytes)
    found.add(entries_of([*entries, (5, 5, 0), (6, 6, 4 << 2 | LOOKUP)]))
    assert found.words.tolist() == naive_words(len(found.words), entries)
    assert found.words.nbytes <= max(8, most_bytes)


@given(st.lists(ENTRY, max_size=40), st.lists(ENTRY, max_size=40), st.integers(0, 100), st.integers(0, 2**38))
def test_pruned_lookups_are_of_clean_records_with_keys_that_are_not_mapped(
    entries: Rows, looked_up: Rows, keys: int, first_dirty: int
) -> None:
    filtered = KeyFilter.sized(keys, 1 << 20)
    filtered.add(entries_of(entries))
    lookups = [(a, b, word | LOOKUP | (TOMBSTONE if word % 3 == 0 else 0)) for a, b, word in [*looked_up, *entries]]
    kept = filtered.prune(entries_of(lookups), first_dirty).tolist()
    words = filtered.words.tolist()

    def matters(low: int, high: int, word: int) -> bool:
        bits = 1 << (low & 63) | 1 << (low >> 6 & 63)
        mapped = words[(high & 0xFFFFFFFF) * len(words) >> 32] & bits == bits
        return mapped or word >> 2 >= first_dirty + 1 or bool(word & TOMBSTONE) or (low, high) == (0, 0)

    assert kept == [list(each) for each in lookups if matters(*each)]
    mapped_keys = {(low, high) for low, high, _ in entries}
    lost = [each for each in lookups if list(each) not in kept]
    assert not mapped_keys & {(low, high) for low, high, _ in lost}


def test_joined_filters_equal_the_filter_of_all_entries() -> None:
    rng = np.random.default_rng(1)
    entries = rng.integers(4, 1 << 62, (1_000, 3), np.uint64) & ~np.uint64(LOOKUP)
    expected, left, right = (KeyFilter.sized(1_000, 1 << 20) for _ in range(3))
    expected.add(entries)
    left.add(entries[:300])
    right.add(entries[300:])
    left.join(right)
    assert (left.words == expected.words).all()


@pytest.mark.parametrize("keys", [1_000, 200_000])
def test_fewer_than_four_in_a_hundred_unmapped_keys_pass(keys: int) -> None:
    rng = np.random.default_rng(2)
    filtered = KeyFilter.sized(keys, 1 << 24)
    filtered.add(rng.integers(0, 1 << 63, (keys, 3), np.uint64) << np.uint64(1) & ~np.uint64(LOOKUP) | np.uint64(4))
    lookups = rng.integers(0, 1 << 63, (100_000, 3), np.uint64) << np.uint64(1)
    lookups[:, 2] = 8 | LOOKUP
    assert len(filtered.prune(lookups, 1 << 40)) < 0.04 * 100_000


SECRET = HashSecret(7, 11)


def key_set(keys: list[bytes]) -> KeySet:
    starts = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    return KeySet.of(starts, np.frombuffer(b"".join(keys), np.uint8), SECRET)


@pytest.mark.parametrize(("seed", "share"), [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0)])
def test_a_set_matches_its_keys_and_no_other(seed: int, share: float) -> None:
    rng = random.Random(seed)
    every = [b"", b"\0", *(rng.randbytes(rng.randrange(1, 40)) for _ in range(150)), b"x" * 70_000]
    every += [key[:-1] + bytes([key[-1] ^ 1]) for key in every[1:]]
    held = rng.sample(every, int(len(every) * share))
    rows, _data = located(every)
    matched = np.zeros(len(every), np.bool_)
    key_set([*held, *held[:3]]).match(rows, SECRET, matched)
    assert [key for key, found in zip(every, matched, strict=True) if found] == [key for key in every if key in set(held)]


def test_chosen_keys_are_copied_in_order() -> None:
    rows, _data = located([b"one", b"", b"three", b"four"])
    offsets, blob = np.zeros(4, np.int32), np.empty(8, np.uint8)
    copy_keys(rows, np.array([True, True, True, False]), offsets, blob)
    assert (offsets.tolist(), blob.tobytes()) == ([0, 3, 3, 8], b"onethree")


@pytest.mark.parametrize(
    ("after", "left"),
    [(b"\x01\x00", False), (b"\x81\x80\x00\x80\x00", False), (b"\x01\x02\x02a\x01", True), (b"\x81\x00\x82\x80\x00", True)],
)
def test_a_tombstone_without_headers_is_not_matched(after: bytes, left: bool) -> None:
    rows, _data = located([b"key"], after)
    matched = np.ones(1, np.bool_)
    unmatch_tombstones(rows, matched)
    assert matched[0] == left
