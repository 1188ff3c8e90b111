"""The exact set of keys against a Python set, and what is copied of located keys."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.kernels.keys import HashSecret, KeySet, copy_keys, unmatch_tombstones
from compaction.kernels.tables import OFFSET_SHIFT, TOMBSTONE

SECRET = HashSecret(7, 11)


def located(keys: list[bytes], after: bytes = b"") -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Rows as of ``locate_keys``, and the bytes that they point to: each key is followed by ``after``."""
    data = np.frombuffer(b"".join(key + after for key in keys) or b"\0", np.uint8)
    rows, at = np.zeros((len(keys), 3), np.uint64), data.ctypes.data
    for number, key in enumerate(keys):
        rows[number] = at, len(key), (number + 1) << OFFSET_SHIFT | TOMBSTONE
        at += len(key) + len(after)
    return rows, data


def key_set(keys: list[bytes]) -> KeySet:
    starts = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    return KeySet.of(starts, np.frombuffer(b"".join(keys), np.uint8), SECRET)


@pytest.mark.parametrize("seed", range(3))
def test_it_matches_the_keys_of_the_set_and_no_other(seed: int) -> None:
    rng = random.Random(seed)
    every = [b"", b"\0", *(rng.randbytes(rng.randrange(1, 40)) for _ in range(150)), b"x" * 70_000]
    every += [key[:-1] + bytes([key[-1] ^ 1]) for key in every[1:]]
    held = rng.sample(every, len(every) // 2)
    rows, _data = located(every)
    matched = np.zeros(len(every), np.bool_)
    key_set([*held, *held[:3]]).match(rows, SECRET, matched)
    assert [key for key, found in zip(every, matched, strict=True) if found] == [key for key in every if key in set(held)]


def test_an_empty_set_matches_nothing() -> None:
    rows, _data = located([b"", b"a"])
    matched = np.zeros(2, np.bool_)
    key_set([]).match(rows, SECRET, matched)
    assert not matched.any()


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
